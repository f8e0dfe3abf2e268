"""libattn.flash_attn: flash-attn's functions, against plain attention in float64."""

import inspect
import operator

import pytest

torch = pytest.importorskip("torch")

from libattn import flash_attn as fa  # noqa: E402
from libattn.flash_attn.bert_padding import pad_input, unpad_input  # noqa: E402


def rows(*shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


def reference(q, k, v, causal=False, window=(-1, -1), softcap=0.0, slopes=None, scale=None):
    """(out, lse) with every score in memory; bottom-right."""
    k, v = (x.repeat_interleave(q.shape[2] // k.shape[2], 2) for x in (k, v))
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * (scale or q.shape[-1] ** -0.5)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    rows, keys = scores.shape[-2:]
    i, j = torch.arange(rows)[:, None] + keys - rows, torch.arange(keys)
    if slopes is not None:
        scores = scores - slopes.view(-1, q.shape[2], 1, 1) * (i - j).abs()
    seen = torch.ones(rows, keys, dtype=torch.bool)
    left, right = window
    if causal:
        right = 0 if right < 0 else min(right, 0)
    if left >= 0:
        seen &= j >= i - left
    if right >= 0:
        seen &= j <= i + right
    scores = scores.masked_fill(~seen, -torch.inf)
    lse = scores.logsumexp(-1)
    p = torch.where(lse[..., None].isfinite(), (scores - lse[..., None]).exp(), 0.0)
    return torch.einsum("bhij,bjhd->bihd", p, v), lse


OPTIONS = [
    {},
    {"causal": True},
    {"window_size": (5, 2)},
    {"causal": True, "window_size": (7, -1), "softcap": 3.0},
    {"alibi_slopes": torch.tensor([0.5, 0.1, 0.3, 0.2], dtype=torch.float64), "causal": True},
    {"softmax_scale": 0.1},
]


def names(options):
    change = {
        "window_size": "window",
        "alibi_slopes": "slopes",
        "softmax_scale": "scale",
    }
    return {change.get(name, name): value for name, value in options.items()}


@pytest.mark.parametrize("options", OPTIONS)
def test_dense(options):
    q, k, v = rows(2, 11, 4, 8), rows(2, 17, 2, 8), rows(2, 17, 2, 8)
    out, lse, probs = fa.flash_attn_func(q, k, v, return_attn_probs=True, **options)
    expected, expected_lse = reference(q, k, v, **names(options))
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(lse, expected_lse)
    assert probs is None
    d_out = torch.randn_like(out)
    grads = [torch.autograd.grad(x, (q, k, v), d_out) for x in (out, expected)]
    torch.testing.assert_close(*grads)
    kv = torch.stack([k, v], 2)
    assert torch.equal(fa.flash_attn_kvpacked_func(q, kv, **options), out)


def test_packed():
    qkv = rows(2, 11, 3, 4, 8)
    out = fa.flash_attn_qkvpacked_func(qkv, causal=True)
    expected = reference(*qkv.unbind(2), causal=True)[0]
    torch.testing.assert_close(out, expected)
    d_out = torch.randn_like(out)
    torch.testing.assert_close(*(torch.autograd.grad(x, qkv, d_out)[0] for x in (out, expected)))


@pytest.mark.parametrize("options", OPTIONS)
def test_varlen(options):
    """Padded sequences, packed by unpad_input, and back."""
    q, k, v = rows(3, 9, 4, 8), rows(3, 9, 2, 8), rows(3, 9, 2, 8)
    mask = torch.arange(9) < torch.tensor([[4], [9], [1]])
    packed = [unpad_input(x, mask) for x in (q, k, v)]
    _, indices, ends, longest, used = packed[0]
    assert ends.tolist() == [0, 4, 13, 14] and longest == 9 and used.tolist() == [4, 9, 1]
    q_rows, k_rows, v_rows = (x[0] for x in packed)
    out, lse, _ = fa.flash_attn_varlen_func(
        q_rows, k_rows, v_rows, ends, ends, 9, 9, return_attn_probs=True, **options
    )
    assert lse.shape == (4, 14)
    padded = pad_input(out, indices, 3, 9)
    for b, length in enumerate((4, 9, 1)):
        own, own_lse = reference(
            q[b : b + 1, :length], k[b : b + 1, :length], v[b : b + 1, :length], **names(options)
        )
        torch.testing.assert_close(padded[b, :length], own[0])
        assert (padded[b, length:] == 0).all()
        torch.testing.assert_close(lse[:, ends[b] : ends[b + 1]], own_lse[0])
    same = fa.flash_attn_varlen_kvpacked_func(
        q_rows, torch.stack([k_rows, v_rows], 1), ends, ends, 9, 9, **options
    )
    assert torch.equal(same, out)
    assert torch.autograd.grad(padded.sum(), k)[0][0, 4:].abs().max() == 0


def test_varlen_packed_and_paged():
    ends = torch.tensor([0, 4, 13], dtype=torch.int32)
    qkv = rows(13, 3, 4, 8)
    out = fa.flash_attn_varlen_qkvpacked_func(qkv, ends, 9, causal=True)
    pages = torch.tensor([[3, 0], [1, 4]], dtype=torch.int32)
    k_pool, v_pool = torch.randn(2, 5, 8, 4, 8, dtype=torch.float64)
    for b in range(2):
        for pool, x in ((k_pool, qkv[:, 1]), (v_pool, qkv[:, 2])):
            for n, row in enumerate(x[ends[b] : ends[b + 1]].detach()):
                pool[pages[b, n // 8], n % 8] = row

    def paged(**options):
        pools = (qkv[:, 0], k_pool, v_pool)
        return fa.flash_attn_varlen_func(
            *pools, ends, ends, 9, 9, causal=True, block_table=pages, **options
        )

    assert torch.equal(paged(), out)
    torch.manual_seed(0)
    first = fa.flash_attn_varlen_qkvpacked_func(qkv, ends, 9, dropout_p=0.5, causal=True)
    assert not torch.equal(paged(dropout_p=0.5), first)
    torch.manual_seed(0)
    assert torch.equal(paged(dropout_p=0.5), first)


def test_dropout():
    q = rows(1, 64, 2, 8)
    torch.manual_seed(0)
    first = fa.flash_attn_func(q, q, q, 0.5)
    torch.manual_seed(0)
    assert torch.equal(first, fa.flash_attn_func(q, q, q, dropout_p=0.5))


def rotated(x, position, cos, sin, interleaved):
    """One row, pair by pair."""
    x, half = x.clone(), cos.shape[1]
    for c in range(half):
        a, b = (2 * c, 2 * c + 1) if interleaved else (c, half + c)
        turn = torch.complex(cos[position, c], sin[position, c])
        pair = torch.complex(x[..., a], x[..., b]) * turn
        x[..., a], x[..., b] = pair.real, pair.imag
    return x


@pytest.mark.parametrize("place", ["plain", "slots", "pages"])
@pytest.mark.parametrize("leftpad", [False, True])
@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("queries", [1, 3, 5])
def test_kvcache(place, leftpad, interleaved, causal, queries):
    """By the forward pass itself where there is a key for each query, else around it."""
    torch.manual_seed(0)
    batch, new, capacity, page = 2, 3 if queries > 1 else 1, 32, 8
    used = torch.tensor([7, 20], dtype=torch.int32)
    pad = torch.tensor([2, 5], dtype=torch.int32) if leftpad else None
    q = torch.randn(batch, queries, 4, 8)
    k, v = torch.randn(2, batch, new, 2, 8)
    angles = torch.randn(capacity, 3)
    cos, sin = angles.cos(), angles.sin()
    if place == "pages":
        k_cache, v_cache = torch.randn(2, 12, page, 2, 8)
        table = torch.tensor([[3, 0, 7, 11], [1, 4, 2, 9]], dtype=torch.int32)
        options = {"block_table": table}
        flat = [c[table.long()].flatten(1, 2) for c in (k_cache, v_cache)]
    else:
        k_cache, v_cache = torch.randn(2, 5, capacity, 2, 8)
        slots = torch.tensor([3, 1], dtype=torch.int32) if place == "slots" else torch.arange(2)
        options = {"cache_batch_idx": slots} if place == "slots" else {}
        k_cache, v_cache = (
            (k_cache, v_cache) if place == "slots" else (k_cache[:2].clone(), v_cache[:2].clone())
        )
        flat = [c[slots.long()] for c in (k_cache, v_cache)]
    out, lse = fa.flash_attn_with_kvcache(
        q,
        k_cache,
        v_cache,
        k,
        v,
        rotary_cos=cos,
        rotary_sin=sin,
        cache_seqlens=used,
        cache_leftpad=pad,
        causal=causal,
        rotary_interleaved=interleaved,
        return_softmax_lse=True,
        **options,
    )
    assert used.tolist() == [7, 20]
    for b in range(batch):
        first = int(pad[b]) if leftpad else 0
        start, end = int(used[b]) - first, int(used[b]) + new
        turned_q, turned_k = (
            torch.stack(
                [
                    rotated(x[b, n], start + (n if causal or x is k else 0), cos, sin, interleaved)
                    for n in range(x.shape[1])
                ]
            )
            for x in (q, k)
        )
        flat[0][b, end - new : end], flat[1][b, end - new : end] = turned_k, v[b]
        own, own_lse = reference(
            turned_q[None], flat[0][b : b + 1, first:end], flat[1][b : b + 1, first:end], causal
        )
        torch.testing.assert_close(out[b], own[0], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(lse[b], own_lse[0], rtol=1e-5, atol=1e-5)
    again = (
        [c[table.long()].flatten(1, 2) for c in (k_cache, v_cache)]
        if place == "pages"
        else [c[slots.long()] for c in (k_cache, v_cache)]
    )
    for cache, expected in zip(again, flat, strict=True):
        torch.testing.assert_close(cache, expected)


SHARED = (
    "dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, "
    "alibi_slopes=None, deterministic=False, return_attn_probs=False"
)
LENGTHS = "cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k"
SIGNATURES = {  # of flash-attn 2.8
    "flash_attn_func": f"q, k, v, {SHARED}",
    "flash_attn_kvpacked_func": f"q, kv, {SHARED}",
    "flash_attn_qkvpacked_func": f"qkv, {SHARED}",
    "flash_attn_varlen_func": f"q, k, v, {LENGTHS}, {SHARED}, block_table=None",
    "flash_attn_varlen_kvpacked_func": f"q, kv, {LENGTHS}, {SHARED}",
    "flash_attn_varlen_qkvpacked_func": f"qkv, cu_seqlens, max_seqlen, {SHARED}",
    "flash_attn_with_kvcache": (
        "q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, "
        "cache_seqlens=None, cache_batch_idx=None, cache_leftpad=None, block_table=None, "
        "softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, "
        "rotary_interleaved=True, alibi_slopes=None, num_splits=0, return_softmax_lse=False"
    ),
    "bert_padding.unpad_input": "hidden_states, attention_mask, unused_mask=None",
    "bert_padding.pad_input": "hidden_states, indices, batch, seqlen",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name):
    """Names, order and defaults are flash-attn's; each parameter is annotated."""
    shown = inspect.signature(operator.attrgetter(name)(fa))
    kinds = {p.kind for p in shown.parameters.values()}
    assert kinds == {inspect.Parameter.POSITIONAL_OR_KEYWORD}
    assert all(p.annotation is not p.empty for p in shown.parameters.values())
    bare = [p.replace(annotation=p.empty) for p in shown.parameters.values()]
    assert str(inspect.Signature(bare)) == f"({SIGNATURES[name]})"


def test_kvcache_refusals():
    q, cache = torch.randn(1, 1, 2, 8), torch.randn(1, 4, 2, 8)
    with pytest.raises(ValueError, match="cache_seqlens"):
        fa.flash_attn_with_kvcache(q, cache, cache.clone(), q, q)
    with pytest.raises(ValueError, match="room for 4"):
        fa.flash_attn_with_kvcache(q, cache, cache.clone(), q, q, cache_seqlens=4)
    for new in ({"k": q}, {"v": q}):
        with pytest.raises(ValueError, match="come together"):
            fa.flash_attn_with_kvcache(q, cache, cache.clone(), cache_seqlens=1, **new)
    one = torch.zeros(1, dtype=torch.int32)
    with pytest.raises(ValueError, match="exclude each other"):
        fa.flash_attn_with_kvcache(q, cache, cache, cache_batch_idx=one, block_table=one[:, None])
    whole = fa.flash_attn_with_kvcache(q, cache, cache)
    assert torch.equal(whole, fa.flash_attn_with_kvcache(q, cache, cache, cache_seqlens=4))
