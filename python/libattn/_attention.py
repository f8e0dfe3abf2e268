"""Attention over arrays of any kind."""

import sys
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

import numpy as np

from . import _arrays, _core

_modules = sys.modules
_forward = _core.forward
_backward = _core.backward


_RECORDED = ("q", "k", "v", "bias", "alibi_slopes", "sinks")
_OTHERS = ("k_new", "v_new", "rope_cos", "rope_sin", "k_scale", "v_scale", "out", "out_f32")


def _refuse_gradients(names: tuple[str, ...], *inputs: Any) -> None:
    """Gradients that PyTorch expects would be lost without a word."""
    for i, x in enumerate(inputs):
        if x is not None and getattr(x, "requires_grad", False):
            raise ValueError(
                f"{names[i]} requires gradients, which libattn.attention does not record:"
                f" libattn.torch.attention does those of {', '.join(_RECORDED)}; detach() or"
                " torch.no_grad() says that none are wanted"
            )


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    mask: Any = None,
    mask_bits: Any = None,
    bias: Any = None,
    alibi_slopes: Any = None,
    sinks: Any = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    seqused_q: Any = None,
    seqused_k: Any = None,
    q_origin: Any = None,
    k_origin: Any = None,
    block_table: Any = None,
    leftpad_k: Any = None,
    k_new: Any = None,
    v_new: Any = None,
    rope_cos: Any = None,
    rope_sin: Any = None,
    k_scale: Any = None,
    k_shift: Any = None,
    v_scale: Any = None,
    v_shift: Any = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    top_left: bool = False,
    window_left: int | None = None,
    window_right: int | None = None,
    softcap: float | None = None,
    dropout_p: float | None = None,
    dropout_seed: int | None = None,
    dropout_offset: int | None = None,
    rope_base: float | None = None,
    rope_dims: int | None = None,
    rope_interleaved: bool = False,
    shares_pages: bool = False,
    precise: bool = False,
    bf16x3: bool = False,
    layout: str = "bshd",
    out: Any = None,
    out_f32: Any = None,
    return_lse: bool = False,
    context: _core.Context | None = None,
    stream: int | None = None,
) -> Any:
    """softmax(softmax_scale * q k^T + bias, where visible) v, computed tile by tile.

    Shapes, with B sequences of Nq queries and Nk keys, Hq heads that share Hk KV heads in groups:

        q                       (B, Nq, Hq, d)    (total_q, Hq, d) with cu_seqlens_q
        k                       (B, Nk, Hk, d)    (total_k, Hk, d)
        v                       (B, Nk, Hk, d_v)  (total_k, Hk, d_v)
        mask, bias              broadcast to (B, Hq, Nq, Nk), by NumPy's rules
        mask_bits               (..., (Nk + 7) / 8), uint8: eight keys in a byte, in place of mask
        alibi_slopes, sinks     (Hq) or (B, Hq), float32 or float64
        cu_seqlens_q            (B + 1), int32 or int64: sequence b is rows [b] .. [b + 1] - 1
        cu_seqlens_k            likewise; both or none
        seqused_q, seqused_k    (B): rows in use of each sequence (padding)
        q_origin, k_origin      number or (B): positions of the first query and key in a longer
                                sequence
        block_table             (B, n), int32 or int64: k and v are pools of pages, (pages, page
                                size, Hk, .), and key j of sequence b lies in page
                                block_table[b, j // page size]; its end is seqused_k[b]
        leftpad_k               (B): rows before the first key of each sequence
        k_new, v_new            (B, Nq, Hk, .): rows written to k and v, in place, as the last Nq
                                keys in use (seqused_k counts them)
        rope_cos, rope_sin      (positions, rope_dims / 2), float32 or float64
        k_scale, v_scale        of quantised k and v (quantize): k.shape[:-1] + (groups,), float32,
                                float16 or bfloat16, axes possibly 1; a value is
                                scale * code + shift
        k_shift, v_shift        as the scales (integers)
        returns out             (B, Nq, Hq, d_v)  (total_q, Hq, d_v)
        and with return_lse     (B, Hq, Nq)       (Hq, total_q)

    q, k, v: float64, float32, float16 or bfloat16, of one type; or k and v quantised: int8,
    float8_e4m3fn, float8_e5m2, or uint8, which holds two codes of 4 bits. mask: bool or integers,
    not 0 = visible. mask_bits: the bits of
    numpy.packbits(mask, axis=-1, bitorder="little"), 1 = visible; its axes broadcast but for the
    last one. layout="bhsd" puts heads before the sequence in q, k, v and out, as PyTorch
    does.

    causal: key j is visible to query i iff j <= i + Nk - Nq (bottom-right), or iff j <= i with
    top_left=True. window_left, window_right: inclusive bounds around that diagonal; None or
    negative = unbounded. softmax_scale=None means 1 / sqrt(d). softcap: scores become
    softcap * tanh(s / softcap). alibi_slopes: -slope * |i + off - j| is added. sinks: the logit of
    one more key whose value is 0. dropout_p: the probability by which a weight is dropped, a
    function of dropout_seed, dropout_offset and positions alone (dropout_mask shows it).

    Rotary embedding of q and k_new: rope_cos and rope_sin, or rope_base alone, for the first
    rope_dims columns (None: all); pairs are halves of those columns, or neighbours with
    rope_interleaved=True. Row i is at position q_origin + i, by default behind the keys before it.

    shares_pages=True tells a GPU that sequences have pages in common, which it then reads once.

    A row without a visible key gives 0, and -inf as LSE, which is the natural logarithm of the sum
    of exp(scores). precise=True keeps a call off tiles of 16 bits; bf16x3=True lets float32 be
    computed by three products of bfloat16.

    out, out_f32: arrays for the result, and for the result in float32 beside 16-bit ones.
    context: a Context (threads, instruction set). stream: a CUDA stream as a number, for arrays
    whose type does not tell the current one.

    No gradients are recorded: PyTorch's tensors that require some are refused where its autograd is
    on; libattn.torch.attention is for them.

    Raises ValueError, TypeError, NotImplementedError (this device or build cannot), MemoryError or
    RuntimeError (a GPU failed), with the library's own sentence.
    """
    torch = _modules.get("torch")
    if torch is not None and torch.is_grad_enabled():
        if not type(q) is type(k) is type(v) is np.ndarray:
            _refuse_gradients(_RECORDED, q, k, v, bias, alibi_slopes, sinks)
        no_cache = k_new is v_new is rope_cos is rope_sin is None
        if not (no_cache and k_scale is v_scale is out is out_f32 is None):
            rest = (k_new, v_new, rope_cos, rope_sin, k_scale, v_scale, out, out_f32)
            _refuse_gradients(_OTHERS, *rest)
    result, lse, _, _ = _forward(
        q=q,
        k=k,
        v=v,
        out=True if out is None else out,
        out_f32=out_f32,
        lse=return_lse,
        mask=mask,
        mask_bits=mask_bits,
        bias=bias,
        alibi_slopes=alibi_slopes,
        sinks=sinks,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        seqused_q=seqused_q,
        seqused_k=seqused_k,
        q_origin=q_origin,
        k_origin=k_origin,
        block_table=block_table,
        leftpad_k=leftpad_k,
        k_new=k_new,
        v_new=v_new,
        rope_cos=rope_cos,
        rope_sin=rope_sin,
        k_scale=k_scale,
        k_shift=k_shift,
        v_scale=v_scale,
        v_shift=v_shift,
        softmax_scale=softmax_scale,
        causal=causal,
        top_left=top_left,
        window_left=window_left,
        window_right=window_right,
        softcap=softcap,
        dropout_p=dropout_p,
        dropout_seed=dropout_seed,
        dropout_offset=dropout_offset,
        rope_base=rope_base,
        rope_dims=rope_dims,
        rope_interleaved=rope_interleaved,
        shares_pages=shares_pages,
        precise=precise,
        bf16x3=bf16x3,
        layout=layout,
        context=context,
        stream=stream,
    )
    return (result, lse) if return_lse else result


class Gradients(NamedTuple):
    """Gradients by input; None for those that were not asked for."""

    dq: Any
    dk: Any
    dv: Any
    d_bias: Any
    d_alibi_slopes: Any
    d_sinks: Any


def backward(
    d_out: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    *,
    d_lse: Any = None,
    out_f32: Any = None,
    wrt: Collection[str] | None = None,
    **options: Any,
) -> Gradients:
    """Gradients of a loss, given d_out = dL/dout and, if the LSE is used too, d_lse = dL/dlse.

    out and lse are those of attention(..., return_lse=True) with the same arguments; options are
    its other keywords, unchanged, of which return_lse means nothing here. out_f32 is read in place
    of out where it is given: gradients of 16-bit inputs with outliers are several times more exact
    with it.

    wrt: the inputs whose gradients are wanted, e.g. ("q", "bias"); all that were given if None.
    Each gradient has the shape and type of its input, summed over whatever it is broadcast along;
    the bias's own broadcast shape included.
    """
    options.pop("return_lse", None)
    optional = ("bias", "alibi_slopes", "sinks")
    if wrt is None:
        wrt = ("q", "k", "v", *(name for name in optional if options.get(name) is not None))
    unknown = set(wrt) - {"q", "k", "v", *optional}
    if unknown:
        names = ", ".join(sorted(map(str, unknown)))
        raise ValueError(f"wrt names {names}, which have no gradient")
    return Gradients(
        *_backward(
            q=q,
            k=k,
            v=v,
            out=out,
            out_f32=out_f32,
            lse=lse,
            d_out=d_out,
            d_lse=d_lse,
            dq="q" in wrt,
            dk="k" in wrt,
            dv="v" in wrt,
            d_bias="bias" in wrt,
            d_alibi_slopes="alibi_slopes" in wrt,
            d_sinks="sinks" in wrt,
            **options,
        )
    )


class Plan(NamedTuple):
    """Choices and costs of a call; attn.h (attn_plan) describes each field."""

    kernel: str
    why: str
    threads: int
    strip: int
    key_block: int
    rows_per_item: int
    items: int
    tiles_full: int
    tiles_partial: int
    tiles_skipped: int
    flops: float
    bytes_tiled: float
    bytes_standard: float
    workspace_bytes: int
    bits: int
    sum_bits: int
    vector_bits: int
    tile_products: int
    pair_products: int
    input_loss: float
    weight_loss: float


def plan(
    q: Any,
    k: Any,
    v: Any,
    *,
    backward: bool = False,
    out: Any = None,
    return_lse: bool = False,
    **options: Any,
) -> Plan:
    """The kernel that attention(q, k, v, **options), or its backward pass, would run, and why.

    All keywords of attention are taken; out and return_lse say what the forward pass would write.
    Nothing is computed; the arrays' contents are not read, but for lengths.
    """
    if not backward:
        out = True if out is None else out
        return Plan(*_core.forward_plan(q=q, k=k, v=v, out=out, lse=return_lse, **options))
    wants = {"dq": True, "dk": True, "dv": True}
    for name in ("bias", "alibi_slopes", "sinks"):
        wants["d_" + name] = options.get(name) is not None
    return Plan(*_core.backward_plan(q=q, k=k, v=v, out=out, **wants, **options))


class Quantised(NamedTuple):
    """A tensor as codes: scale * codes + shift; shift is None without one."""

    codes: Any
    scale: Any
    shift: Any


_CODES = {"int8": "int8", "int4": "uint8", "float8_e4m3fn": None, "float8_e5m2": None}


def _columns(x: Any, name: str) -> tuple[int, ...]:
    """The shape of an array that has columns."""
    shape = _arrays.shape_of(x, name)
    if not shape:
        raise ValueError(f"{name} has 0 axes; it must be (..., heads, d)")
    return shape


def quantize(x: Any, dtype: str = "int8", *, groups: int = 1, shift: bool = False) -> Quantised:
    """x (..., heads, d), of three or four axes, as codes of 8 or 4 bits: for k and v of attention.

    dtype: "int8", "int4" (two codes a byte, in uint8 of d / 2), "float8_e4m3fn" or "float8_e5m2".
    groups: how many scales a row of x has, each for d / groups neighbours. shift=True, for
    integers: a group has a smallest value besides, which halves the error where signs are alike.
    Arrays of x's kind, on its device; the error is bounded in attn.h (attn_quantize).

        k8, v8 = libattn.quantize(k), libattn.quantize(v)
        libattn.attention(q, k8.codes, v8.codes, k_scale=k8.scale, v_scale=v8.scale)
    """
    if dtype not in _CODES:
        raise ValueError(f"dtype is {dtype!r}; it must be one of {', '.join(_CODES)}")
    *rows, width = _columns(x, "x")
    if dtype == "int4":
        if width % 2:
            raise ValueError(f"int4 has two codes a byte; x.shape[-1] = {width} is odd")
        width //= 2
    codes = _arrays.make(x, (*rows, width), _CODES[dtype] or dtype)
    scale = _arrays.make(x, (*rows, groups), "float32")
    low = _arrays.make(x, (*rows, groups), "float32") if shift else None
    _core.quantize(x, codes, scale, low)
    return Quantised(codes, scale, low)


def dequantize(codes: Any, scale: Any = None, shift: Any = None, *, dtype: str = "float32") -> Any:
    """The values of quantize's codes."""
    *rows, width = _columns(codes, "codes")
    if isinstance(codes, memoryview):
        codes = np.asarray(codes)
    width *= 2 if "uint8" in str(getattr(codes, "dtype", None)) else 1
    x = _arrays.make(codes, (*rows, width), dtype)
    _core.dequantize(x, codes, scale, shift)
    return x


def merge(outs: Iterable[Any], lses: Iterable[Any], *, layout: str = "bshd") -> tuple[Any, Any]:
    """Combines results over disjoint keys of equal queries: (out, lse).

    outs: arrays (B, Nq, H, d_v), or (total, H, d_v); lses: (B, H, Nq), or (H, total). A part whose
    LSE is -inf has no influence. A sink must have been given to one part only.
    """
    return _core.merge(list(outs), list(lses), _arrays.heads_first(layout))


def merge_backward(
    outs: Iterable[Any], lses: Iterable[Any], d_out: Any, d_lse: Any = None, *, layout: str = "bshd"
) -> list[tuple[Any, Any]]:
    """Gradients of a loss through merge: a list with (d_out, d_lse) of each part."""
    return _core.merge_backward(list(outs), list(lses), d_out, d_lse, _arrays.heads_first(layout))


def dropout_mask(
    shape: tuple[int, int, int, int],
    dropout_p: float,
    *,
    seed: int = 0,
    offset: int = 0,
    q_origin: int = 0,
    k_origin: int = 0,
    out: Any = None,
) -> Any:
    """The positions that dropout keeps: booleans (B, Hq, Nq, Nk), True = kept.

    A NumPy array, or `out`, an array of that shape, which may be on a GPU.
    """
    keep = np.empty(shape, bool) if out is None else out
    found = _arrays.shape_of(keep, "out")
    if found != tuple(shape):
        raise ValueError(f"out has shape {found}, wanted {tuple(shape)}")
    origins = [_arrays.lengths([x], f"{n}_origin") for n, x in (("q", q_origin), ("k", k_origin))]
    places = (_arrays.give(keep, x) if x.any() else None for x in origins)
    _core.dropout_mask(keep, dropout_p, seed, offset, *places)
    return keep
