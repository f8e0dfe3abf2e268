"""Tensors of two CUDA GPUs in one process, each with a context of its own; else it is skipped."""

import threading

import pytest

torch = pytest.importorskip("torch")
if torch.cuda.device_count() < 2:
    pytest.skip(f"{torch.cuda.device_count()} CUDA GPUs, not two", allow_module_level=True)

import libattn  # noqa: E402
from libattn.flash_attn import flash_attn_with_kvcache  # noqa: E402
from libattn.torch import scaled_dot_product_attention  # noqa: E402

try:
    libattn.Context(device="cuda")
except NotImplementedError as reason:
    pytest.skip(f"libattn has no GPU here: {reason}", allow_module_level=True)


def rows(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, dtype=dtype)


def step(inputs, device, **options):
    """O and the gradients of one call on a device; the current one stays as it is."""
    query, key, value, d_out = (x.to(device) for x in inputs)
    leaves = [x.detach().requires_grad_() for x in (query, key, value)]
    before = torch.cuda.current_device()
    out = scaled_dot_product_attention(*leaves, is_causal=True, **options)
    results = [out.detach(), *torch.autograd.grad(out, leaves, d_out)]
    assert torch.cuda.current_device() == before
    assert all(x.device == query.device for x in results)
    return [x.cpu() for x in results]


def equal(found, expected):
    return all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))


@pytest.mark.parametrize("current", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_bits(dtype, current):
    """Of both GPUs are the same, whichever is the current one."""
    inputs = [rows(2, 4, 300, 64, dtype=dtype) for _ in range(4)]
    with torch.cuda.device(current):
        assert equal(step(inputs, "cuda:1"), step(inputs, "cuda:0"))


def test_dropout():
    inputs, results = [rows(1, 4, 200, 128) for _ in range(4)], []
    for device in ("cuda:0", "cuda:1"):
        torch.manual_seed(3)
        results.append(step(inputs, device, dropout_p=0.2))
    assert equal(*results)


def test_threads():
    """A thread a GPU, both at once, on streams of their own."""
    inputs = [[rows(2, 8, n, 128) for _ in range(4)] for n in (700, 1100)]
    expected = [step(x, "cuda:0") for x in inputs]
    same = [[], []]

    def work(i):
        torch.cuda.set_device(i)
        with torch.cuda.stream(torch.cuda.Stream(i)):
            for _ in range(20):
                same[i].append(equal(step(inputs[i], f"cuda:{i}"), expected[i]))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert same == [[True] * 20] * 2


def test_cache():
    """A step of decoding in pages of the GPU that is not the current one."""
    caches = rows(2, 12, 32, 2, 64)
    q, k, v = rows(2, 1, 8, 64), rows(2, 1, 2, 64), rows(2, 1, 2, 64)
    used = torch.tensor([17, 90], dtype=torch.int32)
    table = torch.tensor([[3, 0, 7], [1, 4, 2]], dtype=torch.int32)
    results = []
    for device in ("cuda:0", "cuda:1"):
        own = caches.to(device)
        pools = {"k_cache": own[0], "v_cache": own[1]}
        options = {"cache_seqlens": used.to(device), "block_table": table.to(device)}
        new = [x.to(device) for x in (k, v)]
        out = flash_attn_with_kvcache(q.to(device), **pools, k=new[0], v=new[1], **options)
        results.append([out.cpu(), own.cpu()])
    assert equal(*results) and not torch.equal(results[0][1], caches)


def test_graph():
    """Captured on the GPU that is not the current one before."""
    inputs = [rows(1, 8, 512, 64).to("cuda:1") for _ in range(3)]
    expected = scaled_dot_product_attention(*inputs, is_causal=True)
    with torch.cuda.device(1):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = scaled_dot_product_attention(*inputs, is_causal=True)
        graph.replay()
    assert torch.equal(captured, expected)


def test_tensors_of_both_are_refused():
    query, key = rows(1, 40, 2, 64).to("cuda:0"), rows(1, 40, 2, 64).to("cuda:1")
    with pytest.raises((ValueError, TypeError), match="device|GPU"):
        libattn.attention(query, key, key)
    with pytest.raises((ValueError, TypeError), match="device|GPU"):
        libattn.attention(query, query, query, context=libattn.Context(device="cuda", ordinal=1))
