"""libattn.torch against PyTorch's math backend in float64, and its gradients."""

import json
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import libattn  # noqa: E402
import libattn.torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from libattn.torch import attention, scaled_dot_product_attention  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.nn.attention.bias import causal_lower_right, causal_upper_left  # noqa: E402
from torch_rows import LENGTHS, rows  # noqa: E402

# ---- Against PyTorch -----------------------------------------------------------------------------


def random_mask(heads, queries, keys, batch):
    shape = [random.choice((1, n)) for n in (batch, heads, queries, keys)]
    shape = shape[random.randrange(4) :]
    if random.random() < 0.4:
        return torch.rand(shape) < 0.7
    bias = torch.randn(shape, dtype=torch.float64)
    bias[torch.rand(shape) < 0.1] = -torch.inf
    return bias.requires_grad_(random.random() < 0.7)


def random_problem():
    batch, heads, group = random.choice((1, 1, 2, 3)), random.choice((1, 2, 3)), 1
    gqa = random.random() < 0.3
    if gqa:
        group = random.choice((1, 2, 5))
    queries, keys = random.choice((1, 2, 7, 33, 70)), random.choice((1, 3, 17, 64, 90))
    dim = random.choice((1, 4, 13, 32))
    value_dim = random.choice((dim, dim, 6))
    axes = random.choice((4, 4, 4, 3, 2, 5))
    leading = {2: (), 3: (heads,), 4: (batch, heads), 5: (2, batch, heads)}[axes]
    if axes < 4 or gqa is False:
        group, gqa = 1, False
    turned = axes >= 4 and random.random() < 0.5
    query_heads = (*leading[:-1], leading[-1] * group) if leading else ()
    query = rows(*query_heads, queries, dim, turned=turned)
    key = rows(*leading, keys, dim, turned=turned)
    value = rows(*leading, keys, value_dim)
    options = {"scale": random.choice((None, None, 0.3, 0.0)), "enable_gqa": gqa}
    kind = random.random()
    if kind < 0.3:
        options["is_causal"] = True
    elif kind < 0.7:
        mask = random_mask(heads * group, queries, keys, batch)
        options["attn_mask"] = mask if axes >= 4 else mask[(0,) * max(0, mask.ndim - axes)]
    return query, key, value, options


@pytest.mark.parametrize("seed", range(20))
def test_random_problems(seed):
    """50 problems each: results and gradients, those of the mask included."""
    random.seed(seed)
    torch.manual_seed(seed)
    for _ in range(50):
        query, key, value, options = random_problem()
        with sdpa_kernel(SDPBackend.MATH):
            expected = F.scaled_dot_product_attention(query, key, value, **options)
        out = scaled_dot_product_attention(query, key, value, **options)
        assert out.shape == expected.shape
        torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)
        inputs = [query, key, value]
        mask = options.get("attn_mask")
        if mask is not None and mask.requires_grad:
            inputs.append(mask)
        d_out = torch.randn_like(expected)
        for own, other in zip(
            torch.autograd.grad(out, inputs, d_out),
            torch.autograd.grad(expected, inputs, d_out),
            strict=True,
        ):
            assert own.shape == other.shape and own.dtype == other.dtype
            torch.testing.assert_close(own, other, rtol=1e-10, atol=1e-11)
        with torch.no_grad():
            assert torch.equal(scaled_dot_product_attention(query, key, value, **options), out)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_types(dtype):
    query, key, value = (rows(2, 4, 70, 32, dtype=dtype) for _ in range(3))
    out = scaled_dot_product_attention(query, key, value, is_causal=True)
    wide = [x.detach().double().requires_grad_() for x in (query, key, value)]
    expected = F.scaled_dot_product_attention(*wide, is_causal=True)
    d_out = torch.randn_like(out)
    error = {torch.float32: 3e-6, torch.float16: 3e-3, torch.bfloat16: 2.5e-2}[dtype]
    pairs = [(out, expected)]
    pairs += zip(
        torch.autograd.grad(out, (query, key, value), d_out),
        torch.autograd.grad(expected, wide, d_out.double()),
        strict=True,
    )
    for own, other in pairs:
        assert own.dtype == dtype
        assert (own.double() - other).abs().max() <= error * other.abs().max()


def test_errors_of_sixteen_bits_are_those_of_rounding():
    """A4 through autograd: the result is kept in float32 for the backward pass."""
    torch.manual_seed(0)
    inputs = [rows(1, 4, 256, 64, dtype=torch.bfloat16) for _ in range(3)]
    with torch.no_grad():
        inputs[0][..., 0] *= 20
    d_out = torch.randn(1, 4, 256, 64).bfloat16()
    wide = [x.detach().double().requires_grad_() for x in inputs]
    exact = torch.autograd.grad(F.scaled_dot_product_attention(*wide), wide, d_out.double())
    grads = torch.autograd.grad(attention(*inputs, layout="bhsd", precise=True), inputs, d_out)
    for own, other in zip(grads, exact, strict=True):
        floor = (other.bfloat16().double() - other).square().mean()
        assert (own.double() - other).square().mean() <= 1.05**2 * floor


def test_late_negation():
    """Tensors that stand for the negative of what lies in their memory."""
    negative = [torch.randn(1, 2, 5, 8, dtype=torch.complex64).conj().imag for _ in range(3)]
    plain = [x.clone() for x in negative]
    assert all(x.is_neg() for x in negative) and not any(x.is_neg() for x in plain)
    own = scaled_dot_product_attention(*negative)
    assert torch.equal(own, scaled_dot_product_attention(*plain))
    assert torch.equal(own, libattn.attention(*negative, layout="bhsd"))
    codes, scale, _ = libattn.quantize(negative[0])
    assert all(map(torch.equal, (codes, scale), libattn.quantize(plain[0])))
    with pytest.raises(ValueError, match="out is read-only"):
        libattn.attention(*plain, out=torch._neg_view(plain[0].clone()), layout="bhsd")
    with libattn.torch.install():
        assert torch.equal(own, F.scaled_dot_product_attention(*negative))


@pytest.mark.parametrize("variant", [causal_upper_left, causal_lower_right])
@pytest.mark.parametrize("keys", [5, 9])
def test_causal_bias(variant, keys):
    query, key, value = rows(2, 3, 5, 8), rows(2, 3, keys, 8), rows(2, 3, keys, 8)
    bias = variant(5, keys)
    expected = F.scaled_dot_product_attention(query, key, value, attn_mask=bias)
    out = scaled_dot_product_attention(query, key, value, attn_mask=bias)
    torch.testing.assert_close(out, expected)


def test_refusals():
    query, key, value = (rows(2, 4, 7, 8) for _ in range(3))
    mask = torch.ones(7, 7, dtype=torch.bool)
    with pytest.raises(RuntimeError, match="exclude each other"):
        scaled_dot_product_attention(query, key, value, mask, is_causal=True)
    with pytest.raises(RuntimeError, match="enable_gqa"):
        scaled_dot_product_attention(query, key[:, :2], value[:, :2])
    with pytest.raises(ValueError, match=r"^key.shape\[3\] = 4 but query.shape\[3\] = 8 .axes"):
        scaled_dot_product_attention(query, key[..., :4], value)
    with pytest.raises(ValueError, match="^attn_mask has type torch.int32; it must be bool"):
        scaled_dot_product_attention(query, key, value, mask.int())
    with pytest.raises(ValueError, match=r"^attn_mask.shape\[2\] = 6, must be 1 or 7 .axes"):
        scaled_dot_product_attention(query, key, value, mask[:6])
    with pytest.raises(TypeError, match="^query has a type that libattn does not know"):
        scaled_dot_product_attention(query.to(torch.complex128), key, value)
    with pytest.raises(TypeError, match="tensors, not NoneType"):
        scaled_dot_product_attention(query, None, value)
    with pytest.raises(TypeError, match="not ndarray; libattn.attention takes"):
        scaled_dot_product_attention(query.detach().numpy(), key, value)
    out = scaled_dot_product_attention(query, key, value)
    first = torch.autograd.grad(out.square().sum(), query, create_graph=True)[0]
    with pytest.raises(NotImplementedError, match="double backward"):
        torch.autograd.grad(first.sum(), query)


def test_dropout_is_seeded_by_torch():
    query, key, value = (rows(2, 4, 64, 16) for _ in range(3))
    torch.manual_seed(3)
    first = scaled_dot_product_attention(query, key, value, dropout_p=0.4)
    other = scaled_dot_product_attention(query, key, value, dropout_p=0.4)
    torch.manual_seed(3)
    again = scaled_dot_product_attention(query, key, value, dropout_p=0.4)
    assert torch.equal(first, again) and not torch.equal(first, other)
    mean = (
        sum(scaled_dot_product_attention(query, key, value, dropout_p=0.4) for _ in range(400))
        / 400
    )
    exact = scaled_dot_product_attention(query, key, value)
    assert (mean - exact).abs().mean() < 0.05 * exact.abs().mean() + 0.01
    generator = torch.Generator().manual_seed(5)
    own = attention(query, key, value, dropout_p=0.4, generator=generator)
    generator.manual_seed(5)
    assert torch.equal(own, attention(query, key, value, dropout_p=0.4, generator=generator))


def test_autocast():
    query, key, value = (rows(2, 4, 16, 8, dtype=torch.float32) for _ in range(3))
    with torch.autocast("cpu", torch.bfloat16):
        assert F.scaled_dot_product_attention(query, key, value).dtype == torch.bfloat16
        assert scaled_dot_product_attention(query, key, value).dtype == torch.bfloat16
        out = attention(query, key, value)
    out.sum().backward()
    assert query.grad.dtype == torch.float32


def test_meta_tensors():
    q, k, v = (rows(2, 4, n, 8).detach().to("meta") for n in (7, 5, 5))
    for query in (q, q.requires_grad_()):
        out = scaled_dot_product_attention(query, k, v)
        assert out.is_meta and out.shape == q.shape
    out, lse = attention(q, k, v, layout="bhsd", return_lse=True)
    assert out.is_meta and lse.shape == (2, 4, 7)
    (out.sum() + lse.sum()).backward()
    assert q.grad.is_meta and q.grad.shape == q.shape


def test_memory_of_results():
    """Results that have died give their memory to later ones; those alive keep their values."""
    sizes = [2**n for n in range(4, 10)]
    inputs = {
        n: [rows(1, 8, n, 64, dtype=torch.float32, grad=False) for _ in range(3)] for n in sizes
    }
    expected = {n: scaled_dot_product_attention(*inputs[n]).clone() for n in sizes}
    wrong = []

    def work(seed):
        alive, choose = [], random.Random(seed)
        for _ in range(150):
            n = choose.choice(sizes)
            alive.append((n, scaled_dot_product_attention(*inputs[n])))
            while len(alive) > 25 or (alive and choose.random() < 0.4):
                n, out = alive.pop(choose.randrange(len(alive)))
                if not torch.equal(out, expected[n]):
                    wrong.append(n)
                out.zero_()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    out = scaled_dot_product_attention(*inputs[512])
    place, whole = out.data_ptr(), out
    del out
    assert scaled_dot_product_attention(*inputs[512]).data_ptr() != place  # a view lives
    del whole
    places = {scaled_dot_product_attention(*inputs[512]).data_ptr() for _ in range(9)}
    assert len(places) == 1 and place % 64 == 0


# ---- Gradients -----------------------------------------------------------------------------------

GRADCHECKS = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"window_left": 3, "window_right": 1},
    "softcap": {"softcap": 2.0},
    "mask": {"mask": torch.arange(81).view(9, 9) % 3 > 0},
    "bias": {"bias": rows(1, 4, 1, 9)},
    "bias of a head": {"bias": rows(4, 9, 9), "causal": True},
    "alibi": {"alibi_slopes": rows(4)},
    "sinks": {"sinks": rows(4)},
    "dropout": {"dropout_p": 0.3},
    "padding": {"seqused_k": torch.tensor([5, 9])},
    "everything": {
        "bias": rows(2, 1, 9, 9),
        "alibi_slopes": rows(2, 4),
        "sinks": rows(4),
        "softcap": 3.0,
        "causal": True,
        "dropout_p": 0.2,
    },
}


@pytest.mark.parametrize("options", GRADCHECKS.values(), ids=GRADCHECKS.keys())
@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_gradcheck(options, layout):
    """Of the result and of the LSE, with GQA and d_v other than d."""
    torch.manual_seed(1)
    heads = (lambda x: x) if layout == "bshd" else (lambda x: x.transpose(1, 2).contiguous())
    q, k, v = (
        heads(x).detach().requires_grad_()
        for x in (rows(2, 9, 4, 5), rows(2, 9, 2, 5), rows(2, 9, 2, 3))
    )
    names = [name for name in ("bias", "alibi_slopes", "sinks") if name in options]

    def call(q, k, v, *extra):
        generator = torch.Generator().manual_seed(7)
        given = {**options, **dict(zip(names, extra, strict=True))}
        return attention(q, k, v, layout=layout, return_lse=True, generator=generator, **given)

    assert torch.autograd.gradcheck(call, (q, k, v, *(options[name] for name in names)))


def test_gradcheck_varlen():
    q, k, v = rows(9, 4, 5), rows(9, 2, 5), rows(9, 2, 3)

    def call(q, k, v):
        return attention(
            q, k, v, cu_seqlens_q=LENGTHS, cu_seqlens_k=LENGTHS, causal=True, return_lse=True
        )

    assert torch.autograd.gradcheck(call, (q, k, v))
    bounds = [(0, 3), (3, 9)]
    out = call(q, k, v)[0]
    for begin, end in bounds:
        own = attention(q[None, begin:end], k[None, begin:end], v[None, begin:end], causal=True)
        assert torch.equal(own[0], out[begin:end])


def test_masks_of_bits():
    q, k, v = (rows(2, 9, 4, 5) for _ in range(3))
    bits = torch.full((1, 1, 9, 2), 0xB7, dtype=torch.uint8)
    mask = (bits[..., None] >> torch.arange(8) & 1).flatten(-2)[..., :9].bool()
    outs = [attention(q, k, v, mask=mask), attention(q, k, v, mask_bits=bits)]
    grads = [torch.autograd.grad(out.square().sum(), (q, k, v)) for out in outs]
    assert torch.equal(*outs) and all(map(torch.equal, *grads))


def test_lse_alone():
    q, k, v = (rows(1, 6, 2, 4) for _ in range(3))
    attention(q, k, v, return_lse=True)[1].sum().backward()
    assert q.grad.abs().sum() > 0 and (v.grad is None or v.grad.abs().sum() == 0)


def test_bench():
    """`attn bench` measures libattn.torch in turns with libattn and PyTorch."""
    command = [Path(sys.executable).with_name("attn"), "bench", "-y", sys.executable, "--json"]
    command += ["-i", "libattn,torch,libattn.torch", "-r", "1", "-t", "0.001"]
    command += [f"hq=2 nq=40 d=16 threads=1 {x}" for x in ("causal=1 dtype=bf16", "pass=training")]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    results = [x for x in map(json.loads, shown.splitlines()) if "impl" in x]
    assert len(results) == 6
    for problem in (results[:3], results[3:]):
        measured = {x["impl"]: x for x in problem}
        assert measured["libattn.torch"]["ratio"] > 0
        assert measured["libattn"]["ratio"] == measured["torch"]["ratio"]
        assert measured["libattn.torch"]["max_error"] == measured["libattn"]["max_error"]
