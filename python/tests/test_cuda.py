"""Tensors of a CUDA GPU; needs a package with GPU kernels and such a GPU, else it is skipped."""

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no CUDA GPU, or a PyTorch without CUDA", allow_module_level=True)

import libattn  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from libattn.flash_attn import flash_attn_func, flash_attn_with_kvcache  # noqa: E402
from libattn.torch import attention, scaled_dot_product_attention  # noqa: E402

try:
    libattn.Context(device="cuda")
except NotImplementedError as reason:
    pytest.skip(f"libattn has no GPU here: {reason}", allow_module_level=True)


def rows(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, dtype=dtype, device="cuda")


def exact(query, key, value, **options):
    wide = (x.double() for x in (query, key, value))
    return F.scaled_dot_product_attention(*wide, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("causal", [True, False])
def test_same_operator(dtype, causal):
    query, key, value = (rows(2, 4, 300, 64, dtype=dtype) for _ in range(3))
    out = scaled_dot_product_attention(query, key, value, is_causal=causal)
    assert out.device == query.device and out.dtype == dtype
    expected = exact(query, key, value, is_causal=causal)
    error = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[dtype]
    assert (out.double() - expected).abs().max() <= error * expected.abs().max()
    torch.library.opcheck(
        torch.ops.libattn.forward,
        (query, key, value, *libattn.torch._functions._DEFAULTS.values(), False),
        test_utils=("test_schema", "test_faketensor"),
    )


def test_graph_capture_and_streams():
    query, key, value = (rows(1, 8, 512, 64) for _ in range(3))
    expected = scaled_dot_product_attention(query, key, value, is_causal=True)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        other = scaled_dot_product_attention(query, key, value, is_causal=True)
    torch.cuda.current_stream().wait_stream(stream)
    assert torch.equal(other, expected)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = scaled_dot_product_attention(query, key, value, is_causal=True)
    query.copy_(rows(1, 8, 512, 64))
    graph.replay()
    fresh = scaled_dot_product_attention(query, key, value, is_causal=True)
    assert torch.equal(captured, fresh) and not torch.equal(captured, expected)


def test_compile():
    query, key, value = (rows(1, 8, 256, 64) for _ in range(3))
    compiled = torch.compile(
        lambda *x: scaled_dot_product_attention(*x) * 2, backend="aot_eager", fullgraph=True
    )
    assert torch.equal(
        compiled(query, key, value), scaled_dot_product_attention(query, key, value) * 2
    )


def test_flash_attn():
    q, k, v = rows(2, 128, 8, 64), rows(2, 256, 2, 64), rows(2, 256, 2, 64)
    out, lse, _ = flash_attn_func(q, k, v, causal=True, return_attn_probs=True)
    on_cpu = attention(q.cpu(), k.cpu(), v.cpu(), causal=True, return_lse=True)
    torch.testing.assert_close(out.cpu(), on_cpu[0], rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(lse.cpu(), on_cpu[1], rtol=1e-3, atol=1e-3)
    caches = rows(2, 300, 2, 64), rows(2, 300, 2, 64)
    new = rows(2, 1, 8, 64), rows(2, 1, 2, 64), rows(2, 1, 2, 64)
    used = torch.tensor([17, 290], dtype=torch.int32, device="cuda")
    angles = torch.randn(300, 32, device="cuda")
    arguments = (new[0], *caches, *new[1:], angles.cos(), angles.sin(), used)
    on_cpu = [x.cpu() for x in arguments]
    out = flash_attn_with_kvcache(*arguments, causal=True)
    expected = flash_attn_with_kvcache(*on_cpu, causal=True)
    torch.testing.assert_close(out.cpu(), expected, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(caches[0].cpu(), on_cpu[1], rtol=2e-2, atol=2e-2)


def test_cupy():
    cupy = pytest.importorskip("cupy")
    q = rows(2, 64, 4, 32, dtype=torch.float32)
    array = cupy.asarray(q)
    out, lse = libattn.attention(array, array, array, causal=True, return_lse=True)
    expected = libattn.attention(q, q, q, causal=True, return_lse=True)
    assert isinstance(out, cupy.ndarray) and isinstance(lse, cupy.ndarray)
    assert torch.equal(torch.as_tensor(out, device="cuda"), expected[0])
    assert torch.equal(torch.as_tensor(lse, device="cuda"), expected[1])


def test_what_gpus_lack_is_said():
    query = rows(1, 2, 16, 64).requires_grad_()
    with pytest.raises(NotImplementedError, match="not supported by the context's device"):
        scaled_dot_product_attention(query, query, query).sum().backward()
    with pytest.raises(ValueError, match="different devices"):
        libattn.attention(query.detach(), query.detach().cpu(), query.detach())


def test_merge_of_halves():
    query, key, value = (rows(2, 300, 4, 64, dtype=torch.float32) for _ in range(3))
    halves = [
        libattn.attention(query, key[:, half], value[:, half], return_lse=True)
        for half in (slice(0, 150), slice(150, 300))
    ]
    out, lse = libattn.merge(*zip(*halves, strict=True))
    whole, whole_lse = libattn.attention(query, key, value, return_lse=True)
    # A1 of both calls and the merge, c = 4 each
    assert (out - whole).abs().max() <= 12 * 2**-24 * value.abs().max()
    assert (lse - whole_lse).abs().max() <= 24 * 2**-24 * (1 + lse.abs().max())
    grads = libattn.merge_backward(*zip(*halves, strict=True), torch.ones_like(out))
    weights = [torch.exp(part.double() - lse.double()) for _, part in halves]
    for (d_out, _), weight in zip(grads, weights, strict=True):
        wide = weight.transpose(1, 2)[..., None].expand_as(d_out)
        assert (d_out - wide).abs().max() <= 64 * 2**-24
    with pytest.raises(ValueError, match="one device"):
        libattn.merge([out, out.cpu()], [lse, lse])
