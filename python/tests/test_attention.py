"""libattn.attention and backward on NumPy arrays against float64, one option after the other."""

import inspect

import libattn
import numpy as np
import oracle
import pytest

RNG = np.random.default_rng(18)


def problem(b=2, nq=37, nk=53, hq=4, hk=2, d=24, d_v=16, dtype=np.float64):
    shapes = (b, nq, hq, d), (b, nk, hk, d), (b, nk, hk, d_v)
    return [RNG.standard_normal(shape).astype(dtype) for shape in shapes]


BIAS = RNG.standard_normal((1, 4, 37, 53))
OPTIONS = {
    "plain": {},
    "causal": {"causal": True},
    "top_left": {"causal": True, "top_left": True},
    "window": {"window_left": 9, "window_right": 3},
    "left only": {"window_left": 7},
    "right only": {"window_right": 0},
    "unbounded": {"window_left": -1, "window_right": -1},
    "scale": {"softmax_scale": 0.3},
    "scale 0": {"softmax_scale": 0.0},
    "negative scale": {"softmax_scale": -0.2},
    "softcap": {"softcap": 1.5},
    "mask of keys": {"mask": RNG.random((2, 1, 1, 53)) < 0.6},
    "mask of integers": {"mask": (RNG.random((37, 53)) < 0.6).astype(np.int64) * 2},
    "bias": {"bias": BIAS},
    "bias of heads": {"bias": BIAS[0]},
    "bias of keys": {"bias": BIAS[0, 0, 0]},
    "one bias": {"bias": np.float64(3.0)[None]},
    "alibi": {"alibi_slopes": np.array([0.5, 0.25, 0.1, 0.02])},
    "alibi of a batch": {"alibi_slopes": RNG.random((2, 4)), "causal": True},
    "sinks": {"sinks": np.array([0.0, 1.0, -1.0, 3.0])},
    "origins": {"causal": True, "q_origin": 20, "k_origin": 4},
    "all at once": {
        "causal": True,
        "window_left": 30,
        "softcap": 2.0,
        "softmax_scale": 0.2,
        "bias": BIAS,
        "mask": RNG.random((2, 1, 37, 53)) < 0.8,
        "alibi_slopes": np.array([0.5, 0.25, 0.1, 0.02]),
        "sinks": np.array([0.0, 1.0, -1.0, 3.0]),
    },
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_forward(options):
    q, k, v = problem()
    out, lse = libattn.attention(q, k, v, return_lse=True, **options)
    expected, expected_lse = oracle.attention(q, k, v, **options)
    assert out.shape == (2, 37, 4, 16) and lse.shape == (2, 4, 37)
    np.testing.assert_allclose(out, expected, rtol=0, atol=2e-14)
    np.testing.assert_allclose(lse, expected_lse, rtol=2e-15, atol=2e-14)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_backward(options):
    """Central differences of the oracle along a direction."""
    q, k, v = problem(nq=37, nk=53, d=8, d_v=8)
    out, lse = libattn.attention(q, k, v, return_lse=True, **options)
    d_out = RNG.standard_normal(out.shape)
    d_lse = np.where(np.isfinite(lse), RNG.standard_normal(lse.shape), 0)
    grads = libattn.backward(d_out, q, k, v, out, lse, d_lse=d_lse, **options)

    names = [n for n in ("bias", "alibi_slopes", "sinks") if n in options]
    inputs = {"q": q, "k": k, "v": v, **{n: np.asarray(options[n]) for n in names}}
    fixed = {n: value for n, value in options.items() if n not in inputs}

    def loss(values):
        o, logs = oracle.attention(**values, **fixed)
        return (o * d_out).sum() + (np.where(np.isfinite(logs), logs, 0) * d_lse).sum()

    for name, gradient in zip(("q", "k", "v", "bias", "alibi_slopes", "sinks"), grads, strict=True):
        if name not in inputs:
            assert gradient is None
            continue
        assert gradient.shape == inputs[name].shape and gradient.dtype == inputs[name].dtype
        step = RNG.standard_normal(inputs[name].shape)
        step *= 1e-5 / max(1, abs(step).max())
        ends = [loss({**inputs, name: inputs[name] + sign * step}) for sign in (1, -1)]
        change = (gradient * step).sum() * 2
        size = abs(gradient * step).sum() + 1e-9 * abs(step).sum()
        assert abs(change - (ends[0] - ends[1])) <= 1e-6 * size + 1e-11, name


def packed(mask):
    """Eight keys in a byte, the first in the lowest bit."""
    return np.packbits(mask, axis=-1, bitorder="little")


@pytest.mark.parametrize("shape", [(37, 53), (2, 1, 37, 53), (4, 1, 53), (53,)])
def test_masks_of_bits(shape):
    """Equal bits with a byte for each key, in both passes; bits behind the keys do not matter."""
    mask = RNG.random(shape) < 0.6
    bits = packed(mask)
    bits[..., -1] |= 0xE0  # 53 keys take 5 bits of the last byte
    q, k, v = problem()
    out, lse = libattn.attention(q, k, v, mask=mask, return_lse=True)
    same = libattn.attention(q, k, v, mask_bits=bits, return_lse=True)
    assert (same[0] == out).all() and (same[1] == lse).all()
    d_out = RNG.standard_normal(out.shape)
    grads = libattn.backward(d_out, q, k, v, out, lse, mask=mask)
    again = libattn.backward(d_out, q, k, v, out, lse, mask_bits=bits)
    assert all((a == b).all() for a, b in zip(grads[:3], again[:3], strict=True))


def test_tree_of_drafts():
    """Draft tokens behind a cache in pages: each sees the cache and its own ancestors."""
    parents, drafts = [-1, 0, 0, 1, 1, 2], 6
    used = np.array([40, 27]) + drafts
    q, new_k, new_v = problem(nq=drafts, nk=drafts)
    pages = RNG.permutation(12).reshape(2, 6).astype(np.int32)
    pool_k, pool_v = (RNG.standard_normal((12, 8, *x.shape[2:])) for x in (new_k, new_v))
    mask = np.zeros((2, 1, drafts, used.max()), bool)
    for b, i in np.ndindex(2, drafts):
        first, at = used[b] - drafts, i
        mask[b, 0, i, :first] = True
        while at >= 0:
            mask[b, 0, i, first + at] = True
            at = parents[at]
    out = libattn.attention(
        q,
        pool_k,
        pool_v,
        block_table=pages,
        seqused_k=used,
        k_new=new_k,
        v_new=new_v,
        mask_bits=packed(mask),
    )
    for b in range(2):
        k, v = (pool[pages[b]].reshape(1, 48, 2, -1)[:, : used[b]] for pool in (pool_k, pool_v))
        assert (k[0, -drafts:] == new_k[b]).all()
        expected, _ = oracle.attention(q[b : b + 1], k, v, mask=mask[b : b + 1, :, :, : used[b]])
        np.testing.assert_allclose(out[b], expected[0], rtol=0, atol=2e-14)


def test_wrt():
    q, k, v = problem()
    out, lse = libattn.attention(q, k, v, bias=BIAS, return_lse=True)
    grads = libattn.backward(out, q, k, v, out, lse, bias=BIAS, wrt=["k", "bias"])
    assert [g is not None for g in grads] == [False, True, False, True, False, False]
    whole = libattn.backward(out, q, k, v, out, lse, bias=BIAS)
    assert (whole.dk == grads.dk).all() and (whole.d_bias == grads.d_bias).all()
    with pytest.raises(ValueError, match="wrt names mask"):
        libattn.backward(out, q, k, v, out, lse, wrt=["mask"])


def test_dropout():
    q, k, v = problem()
    keep = libattn.dropout_mask((2, 4, 37, 53), 0.3, seed=5, offset=80)
    assert 0.6 < keep.mean() < 0.8
    out, lse = libattn.attention(
        q, k, v, dropout_p=0.3, dropout_seed=5, dropout_offset=80, return_lse=True
    )
    expected, expected_lse = oracle.attention(q, k, v, keep=keep, dropout_p=0.3)
    np.testing.assert_allclose(out, expected, rtol=0, atol=2e-14)
    np.testing.assert_allclose(lse, expected_lse, rtol=2e-15, atol=2e-14)


@pytest.mark.parametrize("kind", [np.int32, np.int64, list])
def test_varlen(kind):
    lengths_q, lengths_k = [5, 0, 17, 1], [9, 4, 17, 30]
    ends_q, ends_k = ([0, *np.cumsum(x).tolist()] for x in (lengths_q, lengths_k))
    q, k, v = (x[0] for x in problem(b=1, nq=23, nk=60))
    cu_q, cu_k = (x if kind is list else np.array(x, kind) for x in (ends_q, ends_k))
    out, lse = libattn.attention(
        q, k, v, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, causal=True, return_lse=True
    )
    assert out.shape == (23, 4, 16) and lse.shape == (4, 23)
    for i in range(4):
        rows, keys = slice(ends_q[i], ends_q[i + 1]), slice(ends_k[i], ends_k[i + 1])
        own = libattn.attention(
            q[None, rows], k[None, keys], v[None, keys], causal=True, return_lse=True
        )
        assert (own[0][0] == out[rows]).all() and (own[1][0] == lse[:, rows]).all()


def test_padding():
    q, k, v = problem()
    used = np.array([50, 11], np.int32)
    k[0, 50:], v[1, 11:] = np.nan, np.inf
    out = libattn.attention(q, k, v, seqused_k=used)
    for b in range(2):
        own = libattn.attention(q[b : b + 1], k[b : b + 1, : used[b]], v[b : b + 1, : used[b]])
        assert (own[0] == out[b]).all()


def test_pages_and_left_padding():
    q, k, v = problem(nq=1, nk=64)
    pages = RNG.permutation(16).reshape(2, 8).astype(np.int32)
    pool_k, pool_v = (np.full((16, 8, *x.shape[2:]), np.nan) for x in (k, v))
    for pool, dense in ((pool_k, k), (pool_v, v)):
        pool[pages] = dense.reshape(2, 8, 8, *dense.shape[2:])
    used = np.array([64, 29])
    dense = libattn.attention(q, k, v, seqused_k=used, causal=True)
    paged = libattn.attention(q, pool_k, pool_v, block_table=pages, seqused_k=used, causal=True)
    assert (paged == dense).all()
    packed = libattn.attention(
        q[:, 0], pool_k, pool_v, block_table=pages, seqused_k=used, cu_seqlens_q=[0, 1, 2]
    )
    assert (packed == dense[:, 0]).all()
    padded = libattn.attention(q, k, v, leftpad_k=[5, 0], causal=True)
    assert (padded[0] == libattn.attention(q, k[:, 5:], v[:, 5:], causal=True)[0]).all()


def test_append_and_rotary_embedding():
    q, k, v = problem(nq=3, nk=20, d=8, d_v=8)
    new_k, new_v = k[:, :3] + 1, v[:, :3] - 1
    angles = RNG.standard_normal((40, 4))
    used = np.array([20, 11])

    def turned(x, first):
        at = angles[first : first + 3][:, None]
        pair = x[..., :4] + 1j * x[..., 4:]
        pair = pair * np.exp(1j * at)
        return np.concatenate([pair.real, pair.imag], -1)

    expected_k, expected_v = k.copy(), v.copy()
    turned_q = q.copy()
    for b in range(2):
        rows = slice(used[b] - 3, used[b])
        expected_k[b, rows] = turned(new_k[b], used[b] - 3)
        expected_v[b, rows] = new_v[b]
        turned_q[b] = turned(q[b], used[b] - 3)
    out = libattn.attention(
        q,
        k,
        v,
        k_new=new_k,
        v_new=new_v,
        rope_cos=np.cos(angles),
        rope_sin=np.sin(angles),
        seqused_k=used,
        causal=True,
    )
    np.testing.assert_allclose(k, expected_k, rtol=0, atol=1e-14)
    assert (v == expected_v).all()
    own = libattn.attention(turned_q, expected_k, v, seqused_k=used, causal=True)
    np.testing.assert_allclose(out, own, rtol=0, atol=1e-13)


def test_quantised_keys():
    """int8 with scales of each token and head, appended to as well."""
    q, k, v = (x.astype(np.float32) for x in problem())
    rows = q[:, -2:]
    scales = [np.abs(x).max(-1, keepdims=True) / np.float32(127) for x in (k, v)]
    codes = [np.rint(x / s).astype(np.int8) for x, s in zip((k, v), scales, strict=True)]
    values = [c * s for c, s in zip(codes, scales, strict=True)]
    out = libattn.attention(rows, *codes, k_scale=scales[0], v_scale=scales[1], causal=True)
    assert (out == libattn.attention(rows, *values, causal=True, precise=True)).all()
    new = [np.ascontiguousarray(x[:, -2:]) for x in (k, v)]
    kept = [c.copy() for c in codes]
    for c, s in zip(codes, scales, strict=True):
        c[:, -2:], s[:, -2:] = 77, 3
    again = libattn.attention(
        rows,
        *codes,
        k_scale=scales[0],
        v_scale=scales[1],
        k_new=new[0],
        v_new=new[1],
        causal=True,
    )
    assert all((c == x).all() for c, x in zip(codes, kept, strict=True))
    np.testing.assert_allclose(again, out, rtol=0, atol=1e-6)


@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("dtype", ["int8", "int4", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_quantize(kind, dtype, groups, shift):
    """Values within the bound of attn.h, and attention over codes as over their values."""
    q, k, v = (x.astype(np.float32) for x in problem())
    if kind == "torch":
        torch = pytest.importorskip("torch")
        q, k, v = (torch.from_numpy(x) for x in (q, k, v))
    if shift and dtype.startswith("float8"):
        with pytest.raises(ValueError, match="shift"):
            libattn.quantize(k, dtype, groups=groups, shift=True)
        return
    k8, v8 = (libattn.quantize(x, dtype, groups=groups, shift=shift) for x in (k, v))
    assert type(k8.codes) is type(k) and str(k8.scale.dtype).endswith("float32")
    found = np.asarray(libattn.dequantize(*k8))
    scale = np.repeat(np.asarray(k8.scale), k.shape[-1] // groups, -1)
    part = {"int8": 0, "int4": 0, "float8_e4m3fn": 2**-4, "float8_e5m2": 2**-3}[dtype]
    least = {"int8": 0.5, "int4": 0.5, "float8_e4m3fn": 2**-10, "float8_e5m2": 2**-17}[dtype]
    bound = np.maximum(part * np.abs(np.asarray(k)), least * scale) + 1e-6 * scale + 1e-6
    assert (np.abs(found - np.asarray(k)) <= bound).all()
    options = {"k_scale": k8.scale, "v_scale": v8.scale, "k_shift": k8.shift, "v_shift": v8.shift}
    out = libattn.attention(q, k8.codes, v8.codes, causal=True, **options)
    values = (libattn.dequantize(*x) for x in (k8, v8))
    same = libattn.attention(q, *values, causal=True, precise=True)
    np.testing.assert_allclose(np.asarray(out), np.asarray(same), rtol=0, atol=2e-6)


def test_quantize_refusals():
    k = problem()[1].astype(np.float32)
    with pytest.raises(ValueError, match="int5"):
        libattn.quantize(k, "int5")
    with pytest.raises(ValueError, match="odd"):
        libattn.quantize(k[..., :3], "int4")
    with pytest.raises(ValueError):
        libattn.quantize(k, groups=5)
    with pytest.raises(TypeError):
        libattn.quantize(k.astype(complex))
    rows = r"must be \(batch, sequence, heads, dim\), or \(total, heads, dim\)$"
    with pytest.raises(ValueError, match="x has 1 axis; it " + rows):
        libattn.quantize(k[0, 0, 0])


def test_empty_rows():
    """C1: a row without a visible key."""
    q, k, v = problem()
    out, lse = libattn.attention(q, k, v, mask=np.zeros((1, 1), bool), return_lse=True)
    assert (out == 0).all() and np.isneginf(lse).all()
    out, lse = libattn.attention(q, k[:, :0], v[:, :0], return_lse=True)
    assert out.shape == (2, 37, 4, 16) and (out == 0).all() and np.isneginf(lse).all()
    assert libattn.attention(q[:, :0], k, v).shape == (2, 0, 4, 16)


def test_layouts_have_equal_bits():
    q, k, v = problem(dtype=np.float32)
    out, lse = libattn.attention(q, k, v, causal=True, return_lse=True)
    heads_first = [x.transpose(0, 2, 1, 3) for x in (q, k, v)]
    for arrays in (heads_first, [np.ascontiguousarray(x) for x in heads_first]):
        turned, turned_lse = libattn.attention(*arrays, causal=True, layout="bhsd", return_lse=True)
        assert turned.shape == (2, 4, 37, 16)
        assert (turned.transpose(0, 2, 1, 3) == out).all() and (turned_lse == lse).all()
    d_out = RNG.standard_normal(out.shape).astype(np.float32)
    grads = libattn.backward(d_out, q, k, v, out, lse, causal=True)
    turned = libattn.backward(
        d_out.transpose(0, 2, 1, 3),
        *heads_first,
        out.transpose(0, 2, 1, 3),
        lse,
        causal=True,
        layout="bhsd",
    )
    for own, other in zip(grads[:3], turned[:3], strict=True):
        assert (own == other.transpose(0, 2, 1, 3)).all()


def test_views_have_the_bits_of_copies():
    packed = RNG.standard_normal((2, 37, 3, 4, 24)).astype(np.float32)
    q, k, v = (packed[:, :, i] for i in range(3))
    copies = [np.ascontiguousarray(x) for x in (q, k, v)]
    out = libattn.attention(*copies)
    assert (libattn.attention(q, k, v) == out).all()
    backwards = [np.ascontiguousarray(x[:, ::-1])[:, ::-1] for x in copies]
    assert (libattn.attention(*backwards) == out).all()
    one = np.broadcast_to(k[:1], k.shape)
    same = libattn.attention(q, np.ascontiguousarray(one), v)
    assert (libattn.attention(q, one, v) == same).all()


def test_out():
    q, k, v = problem(dtype=np.float16)
    expected = libattn.attention(q, k, v)
    wide = np.full((2, 37, 4, 40), 7, np.float16)
    out = libattn.attention(q, k, v, out=wide[..., 3:19])
    assert out.base is wide and (out == expected).all()
    assert (wide[..., :3] == 7).all() and (wide[..., 19:] == 7).all()
    exact = np.empty((2, 37, 4, 16), np.float32)
    assert libattn.attention(q, k, v, out=exact) is exact
    assert (exact.astype(np.float16) == expected).all()
    beside = np.empty((2, 37, 4, 16), np.float32)
    libattn.attention(q, k, v, out_f32=beside)
    assert (beside == exact).all()


def test_merge():
    q, k, v = problem()
    whole, whole_lse = libattn.attention(q, k, v, return_lse=True)
    cuts = [(0, 20), (20, 21), (21, 53)]
    parts = [libattn.attention(q, k[:, a:b], v[:, a:b], return_lse=True) for a, b in cuts]
    outs, lses = zip(*parts, strict=True)
    out, lse = libattn.merge(outs, lses)
    np.testing.assert_allclose(out, whole, rtol=0, atol=1e-14)
    np.testing.assert_allclose(lse, whole_lse, rtol=0, atol=1e-14)
    heads_first = [o.transpose(0, 2, 1, 3) for o in outs]
    assert (libattn.merge(heads_first, lses, layout="bhsd")[0].transpose(0, 2, 1, 3) == out).all()
    d_out, d_lse = RNG.standard_normal(out.shape), RNG.standard_normal(lse.shape)
    grads = libattn.merge_backward(outs, lses, d_out, d_lse)
    for (own, own_lse), (d_part, d_part_lse) in zip(parts, grads, strict=True):
        weight = np.exp(own_lse - lse)
        rows = weight.transpose(0, 2, 1)[..., None]
        np.testing.assert_allclose(d_part, rows * d_out, rtol=1e-12, atol=1e-14)
        change = (d_out * (own - out)).sum(-1).transpose(0, 2, 1) + d_lse
        np.testing.assert_allclose(d_part_lse, weight * change, rtol=1e-10, atol=1e-13)


def test_plan():
    q, k, v = problem(b=1, nq=256, nk=256, hq=2, hk=2, d=64, d_v=64, dtype=np.float32)
    plan = libattn.plan(q, k, v, causal=True)
    assert plan.flops == 2 * 128 * 2 * (256 * 257 / 2) and plan.tiles_skipped > 0
    assert plan.kernel.endswith("_f32") and plan.why and plan.threads >= 1
    back = libattn.plan(q, k, v, causal=True, backward=True)
    assert back.flops == 2.5 * plan.flops
    bits = [libattn.plan(q, k, v, precise=p, context=libattn.Context()).bits for p in (0, 1)]
    assert bits[1] == 0
    bias = np.zeros((1, 2, 1, 256), np.float32)
    wide = libattn.plan(q, k, v, bias=bias, backward=True)
    assert wide.workspace_bytes > libattn.plan(q, k, v, backward=True).workspace_bytes


def test_keywords_of_attention_elsewhere():
    """backward and plan take the keywords of a call of attention as they are."""
    q, k, v = problem(nk=37, d_v=24, dtype=np.float32)
    parameters = inspect.signature(libattn.attention).parameters.values()
    options = {p.name: p.default for p in parameters if p.default is not p.empty}
    options |= {"causal": True, "return_lse": True}
    out, lse = libattn.attention(q, k, v, **options)
    for backward in (False, True):
        own = libattn.plan(q, k, v, backward=backward, **options)
        assert own == libattn.plan(q, k, v, backward=backward, causal=True)
        same = libattn.plan(q, k, v, backward=backward, **options | {"out": np.empty_like(q)})
        assert same == own
        with pytest.raises(ValueError, match=r"out.shape\[1\] = 36"):
            libattn.plan(q, k, v, backward=backward, **options | {"out": np.empty_like(q[:, 1:])})
    del options["out"]  # a positional argument
    grads = libattn.backward(out, q, k, v, out, lse, **options)
    expected = libattn.backward(out, q, k, v, out, lse, causal=True)
    assert all((a == b).all() for a, b in zip(grads[:3], expected[:3], strict=True))
