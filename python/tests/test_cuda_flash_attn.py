"""libattn.flash_attn on a CUDA GPU."""

import pytest
from cuda_rows import ERROR, GRADIENT_ERROR, close, exact, leaves, rows

torch = pytest.importorskip("torch")

from libattn.flash_attn import (  # noqa: E402
    flash_attn_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_qkvpacked_func,
    flash_attn_with_kvcache,
)
from libattn.flash_attn.bert_padding import pad_input, unpad_input  # noqa: E402


def test_flash_attn():
    """flash-attn's usage: the functions of its README, in training."""
    qkv = rows(2, 128, 3, 8, 64).requires_grad_()
    out = flash_attn_qkvpacked_func(
        qkv, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1),
        alibi_slopes=None, deterministic=False,
    )  # fmt: skip
    wide = qkv.detach().double().requires_grad_()
    expected = exact(*(x.transpose(1, 2) for x in wide.unbind(2))).transpose(1, 2)
    close(out, expected, ERROR[torch.bfloat16])
    d_out = torch.randn_like(out)
    found = torch.autograd.grad(out, qkv, d_out)[0]
    close(found, torch.autograd.grad(expected, wide, d_out.double())[0], 3e-2)
    q, k, v = leaves(rows(2, 128, 8, 64), rows(2, 256, 2, 64), rows(2, 256, 2, 64))
    slopes = torch.rand(8, device="cuda")
    for options in (
        {"causal": True},
        {"causal": True, "window_size": (64, 0)},
        {"softcap": 15.0},
        {"causal": True, "alibi_slopes": slopes},
    ):
        out, lse, _ = flash_attn_func(q, k, v, return_attn_probs=True, **options)
        options = {n: x.cpu() if n == "alibi_slopes" else x for n, x in options.items()}
        wide = leaves(*(x.cpu().double() for x in (q, k, v)))
        expected, expected_lse, _ = flash_attn_func(*wide, return_attn_probs=True, **options)
        close(out.cpu(), expected, ERROR[torch.bfloat16])
        torch.testing.assert_close(lse.cpu().double(), expected_lse, rtol=1e-3, atol=1e-3)
        d_out = torch.randn_like(out)
        grads = torch.autograd.grad(out, (q, k, v), d_out)
        for found, like in zip(
            grads, torch.autograd.grad(expected, wide, d_out.cpu().double()), strict=True
        ):
            close(found.cpu(), like, GRADIENT_ERROR[torch.bfloat16])


def test_flash_attn_varlen():
    """Padded sequences, packed and back, in training; then over pages."""
    x = rows(3, 90, 3, 8, 64).requires_grad_()
    mask = torch.arange(90, device="cuda") < torch.tensor([[40], [90], [1]], device="cuda")
    packed, indices, ends, longest, _ = unpad_input(x, mask)
    out = flash_attn_varlen_qkvpacked_func(packed, ends, longest, causal=True)
    padded = pad_input(out, indices, 3, 90)
    found = torch.autograd.grad(padded.float().square().sum(), x)[0]
    for b, length in enumerate((40, 90, 1)):
        own = x.detach()[b, :length].double().requires_grad_()
        expected = exact(*(y.transpose(0, 1) for y in own.unbind(1)), is_causal=True)
        expected = expected.transpose(0, 1)
        close(padded[b, :length], expected, ERROR[torch.bfloat16])
        gradient = torch.autograd.grad(expected.square().sum(), own)[0]
        close(found[b, :length], gradient, GRADIENT_ERROR[torch.bfloat16])
        assert not found[b, length:].any()
    packed = packed.detach()
    pools = torch.zeros(2, 8, 32, 8, 64, dtype=torch.bfloat16, device="cuda")
    pages = torch.tensor([[3, 0, 7], [1, 4, 2], [5, 0, 0]], dtype=torch.int32, device="cuda")
    for pool, of_all in zip(pools, packed.unbind(1)[1:], strict=True):
        for b in range(3):
            for n, row in enumerate(of_all[ends[b] : ends[b + 1]]):
                pool[pages[b, n // 32], n % 32] = row
    paged = flash_attn_varlen_func(
        packed[:, 0], *pools, ends, ends, longest, longest, causal=True, block_table=pages
    )
    close(paged, out, ERROR[torch.bfloat16])


@pytest.mark.parametrize("dtype", ERROR)
@pytest.mark.parametrize("place", ["plain", "slots", "pages"])
@pytest.mark.parametrize("leftpad", [False, True])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("queries", [1, 3, 5])
def test_kvcache(dtype, place, leftpad, causal, queries):
    """As on the CPU: results, and the caches afterwards."""
    torch.manual_seed(0)
    new, heads = 3 if queries > 1 else 1, 2
    used = torch.tensor([17, 90], dtype=torch.int32, device="cuda")
    slots = torch.tensor([3, 1], dtype=torch.int32, device="cuda")
    table = torch.tensor([[3, 0, 7], [1, 4, 2]], dtype=torch.int32, device="cuda")
    pool = {"plain": (2, 96), "slots": (5, 96), "pages": (12, 32)}[place]
    caches = [rows(*pool, heads, 64, dtype=dtype) for _ in range(2)]
    angles = torch.randn(96, 16, device="cuda")
    arguments = {
        "q": rows(2, queries, 8, 64, dtype=dtype),
        "k_cache": caches[0],
        "v_cache": caches[1],
        "k": rows(2, new, heads, 64, dtype=dtype),
        "v": rows(2, new, heads, 64, dtype=dtype),
        "rotary_cos": angles.cos(),
        "rotary_sin": angles.sin(),
        "cache_seqlens": used,
        "cache_batch_idx": slots if place == "slots" else None,
        "cache_leftpad": torch.tensor([2, 5], dtype=torch.int32, device="cuda")
        if leftpad
        else None,
        "block_table": table if place == "pages" else None,
    }
    options = {"causal": causal, "rotary_interleaved": leftpad, "return_softmax_lse": True}
    on_cpu = {name: None if x is None else x.cpu() for name, x in arguments.items()}
    out, lse = flash_attn_with_kvcache(**arguments, **options)
    expected, expected_lse = flash_attn_with_kvcache(**on_cpu, **options)
    close(out.cpu(), expected, 2 * ERROR[dtype])
    torch.testing.assert_close(lse.cpu(), expected_lse, rtol=1e-3, atol=1e-3)
    for cache, name in zip(caches, ("k_cache", "v_cache"), strict=True):
        torch.testing.assert_close(cache.cpu(), on_cpu[name])


def test_kvcache_in_a_graph():
    """Decode by replays: a graph reads the lengths anew each time."""
    cache = rows(2, 2, 64, 2, 64)
    used = torch.tensor([0, 9], dtype=torch.int32, device="cuda")
    q, k, v = rows(2, 1, 8, 64), rows(2, 1, 2, 64), rows(2, 1, 2, 64)
    copies, lengths = cache.clone(), used.clone()
    flash_attn_with_kvcache(q, *copies.clone(), k, v, cache_seqlens=lengths, causal=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = flash_attn_with_kvcache(q, *copies, k, v, cache_seqlens=lengths, causal=True)
        lengths.add_(1)
    for _ in range(20):
        for x in (q, k, v):
            x.copy_(torch.randn_like(x))
        graph.replay()
        expected = flash_attn_with_kvcache(q, *cache, k, v, cache_seqlens=used, causal=True)
        used.add_(1)
        assert torch.equal(out, expected)
    assert torch.equal(copies, cache)
