"""Functions over the operators, and the short way around them where no gradient is wanted."""

import math
import re
from typing import Any

import torch
from torch.autograd import forward_ad

from .. import _core
from . import _ops

_grad_enabled = torch.is_grad_enabled
_any_autocast = torch._C._is_any_autocast_enabled
_plain = _ops.plain
_short = _ops.Short.apply


def _records(*tensors):
    """Whether autograd records a call with these tensors."""
    if _grad_enabled():
        for x in tensors:
            if x is not None and x.requires_grad:
                return True
    return False


def _refuse_tangents(tensors):
    """Dual tensors carry derivatives that would be lost without a word."""
    if forward_ad._current_level < 0:
        return
    if any(forward_ad.unpack_dual(x).tangent is not None for x in tensors if x is not None):
        _ops.refuse_forward_mode()


def _refuse_others(*tensors):
    """What is no plain tensor: other arrays would fail for a missing attribute, and nested tensors,
    PyTorch's own to compute, somewhere in their insides."""
    for x in tensors:
        if not isinstance(x, torch.Tensor):
            raise TypeError(
                f"libattn.torch takes PyTorch's tensors, not {type(x).__name__}; libattn.attention"
                " takes other arrays"
            )
        if x.is_nested:
            raise NotImplementedError(
                "libattn takes no nested tensors: packed sequences are attention's, with"
                " cu_seqlens_q and cu_seqlens_k; install() leaves nested tensors to PyTorch"
            )


def _cast(tensors):
    """Autocast's type, as PyTorch's own attention has it."""
    device = tensors[0].device.type
    if not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return [x if x is None or x.dtype == torch.float64 else x.to(dtype) for x in tensors]


def seed_of(dropout_p, generator=None):
    """A seed by PyTorch's generator; torch.manual_seed makes it repeatable."""
    if not dropout_p:
        return None
    return torch.randint(-(2**63), 2**63 - 1, (1,), dtype=torch.int64, generator=generator)


# ---- PyTorch's own -------------------------------------------------------------------------------


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """torch.nn.functional.scaled_dot_product_attention, computed by libattn.

    query (..., Hq, L, E), key (..., H, S, E), value (..., H, S, Ev) give (..., Hq, L, Ev).
    attn_mask broadcasts to (..., Hq, L, S): boolean, True = takes part, or added to the scores; or
    it is a causal_upper_left or causal_lower_right of torch.nn.attention.bias.
    is_causal is aligned top-left. dropout_p applies whenever it is not 0; torch's generator seeds
    it. With enable_gqa, Hq is a multiple of H.

    Beyond PyTorch's CPU kernel: Ev other than E, dropout, gradients of attn_mask in its own
    broadcast shape, all without scores in memory. Rows that see no key give 0. The result lies in
    memory as (..., L, Hq, Ev), which is how a model reads it next.
    """
    if attn_mask is not None:
        if is_causal:
            raise RuntimeError(
                "scaled_dot_product_attention: attn_mask and is_causal exclude each other"
            )
        if type(attn_mask).__name__ == "CausalBias":  # its module takes a second to import
            attn_mask, is_causal = _of_causal_bias(attn_mask, query.device)
    try:
        return dot_product(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    except (ValueError, TypeError) as error:
        raise in_pytorchs_names(error) from None


_NAMES = {"q": "query", "k": "key", "v": "value", "mask": "attn_mask", "bias": "attn_mask"}


def in_pytorchs_names(error):
    """The library's error about an array, by the parameters of PyTorch's own attention."""
    names = r"\b(q|k|v|mask|bias)(?=\.(?:shape|dtype|stride|data)\b| has a type)"
    kind = TypeError if isinstance(error, TypeError) else ValueError
    return kind(re.sub(names, lambda found: _NAMES[found[0]], str(error)))


def dot_product(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, memory=None):
    """scaled_dot_product_attention, with a mask beside is_causal too. memory: None, "contiguous" or
    "pytorch", which is contiguous but for the calls that PyTorch has a kernel for."""
    if _any_autocast():
        query, key, value = _cast((query, key, value))
    try:
        shape, keys, values = query.shape, key.shape, value.shape
    except (RuntimeError, AttributeError):
        _refuse_others(query, key, value)
        raise
    if not (len(shape) == len(keys) == len(values) == 4 and shape[0] == keys[0] == values[0]):
        call = (query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        if memory:
            memory = memory if has_kernel(*call) else "contiguous"
        return _with_leading_axes(*call, memory)
    if not shape[1] == keys[1] == values[1]:
        if memory and not enable_gqa:
            call = (query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
            memory = memory if has_kernel(*call) else "contiguous"
        if not enable_gqa and len({shape[1], keys[1], values[1]} - {1}) > 1:
            raise RuntimeError(
                f"scaled_dot_product_attention: query, key and value have {shape[1]}, {keys[1]} and"
                f" {values[1]} heads; enable_gqa=True lets query heads share those of key and value"
            )
        if shape[1] == 1 or keys[1] != values[1]:
            query, key, value = _equal_heads(query, key, value)
            shape = query.shape
    mask = bias = None
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            mask = attn_mask
        elif attn_mask.is_floating_point():
            bias = attn_mask
        else:
            raise ValueError(f"attn_mask has type {attn_mask.dtype}; it must be bool or of floats")
        if memory and (attn_mask.requires_grad or attn_mask.ndim not in (2, 4)):
            memory = "contiguous"
    if memory and dropout_p:
        memory = "contiguous"
    if not dropout_p and forward_ad._current_level < 0 and _plain((query, key, value, bias, mask)):
        if _records(query, key, value, bias):
            return _short(query, key, value, mask, bias, scale, is_causal, memory)
        return _core.forward(
            q=query,
            k=key,
            v=value,
            out=True,
            mask=mask,
            bias=bias,
            softmax_scale=scale,
            causal=is_causal,
            top_left=is_causal,
            layout="bhsd",
            memory=memory,
        )[0]
    return _recorded(
        query,
        key,
        value,
        {
            "mask": mask,
            "bias": bias,
            "softmax_scale": scale,
            "causal": is_causal,
            "top_left": is_causal,
            "dropout_p": dropout_p,
            "dropout_seed": seed_of(dropout_p),
            "heads_first": True,
        },
        memory=memory,
    )[0]


_choose = torch.ops.aten._fused_sdp_choice.default.redispatch
_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)


def has_kernel(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa):
    """Whether PyTorch has a kernel for CPU tensors, traced ones too, that stores no scores."""
    if attn_mask is not None and attn_mask.ndim < 2:  # an IndexError of PyTorch's
        return False
    call = (query, key, value, attn_mask, dropout_p, is_causal)
    return _choose(_CPU, *call, scale=scale, enable_gqa=enable_gqa) != 0


def _of_causal_bias(bias, device):
    """(attn_mask, is_causal) of a mask of torch.nn.attention.bias."""
    queries, keys = bias.seq_len_q, bias.seq_len_kv
    if queries == keys or bias.variant.name == "UPPER_LEFT":
        return None, True
    seen = torch.ones(queries, keys, dtype=torch.bool, device=device)
    return seen.tril(keys - queries), False


def _equal_heads(query, key, value):
    """Heads that PyTorch would broadcast: the query's, or those of one of key and value."""
    heads = max(key.shape[1], value.shape[1])
    key, value = (x.expand(-1, heads, -1, -1) if x.shape[1] == 1 else x for x in (key, value))
    if query.shape[1] == 1:
        query = query.expand(-1, heads, -1, -1)
    return query, key, value


def _with_leading_axes(query, key, value, attn_mask, *options):
    """Any number of leading axes, broadcast, as one; (N, L, E) counts as heads."""
    arrays = [x if x.ndim > 2 else x.unsqueeze(0) for x in (query, key, value)]
    leading = torch.broadcast_shapes(*(x.shape[:-3] for x in arrays))
    batch = math.prod(leading)
    flat = [x.expand(*leading, *x.shape[-3:]).reshape(batch, *x.shape[-3:]) for x in arrays]
    if attn_mask is not None and attn_mask.ndim > 3:
        tail = attn_mask.shape[-3:]
        if math.prod(attn_mask.shape[:-3]) == 1:
            attn_mask = attn_mask.reshape(1, *tail)
        else:
            attn_mask = attn_mask.expand(*leading, *tail).reshape(batch, *tail)
    out = dot_product(*flat, attn_mask, *options)
    out = out.reshape(*leading, *out.shape[1:])
    return out.squeeze(0) if max(query.ndim, key.ndim, value.ndim) == 2 else out


# ---- Everything else -----------------------------------------------------------------------------


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    mask: torch.Tensor | None = None,
    mask_bits: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    alibi_slopes: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    cu_seqlens_q: torch.Tensor | None = None,
    cu_seqlens_k: torch.Tensor | None = None,
    seqused_q: torch.Tensor | None = None,
    seqused_k: torch.Tensor | None = None,
    q_origin: torch.Tensor | None = None,
    k_origin: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    top_left: bool = False,
    window_left: int = -1,
    window_right: int = -1,
    softcap: float = 0.0,
    dropout_p: float = 0.0,
    generator: torch.Generator | None = None,
    precise: bool = False,
    bf16x3: bool = False,
    layout: str = "bshd",
    return_lse: bool = False,
) -> Any:
    """libattn.attention for tensors with gradients: of q, k, v, bias, alibi_slopes and sinks,
    through the result and through the LSE.

    Shapes and options are those of libattn.attention; lengths and origins are tensors. Dropout is
    seeded by `generator`, or by torch's own. On CPUs 16-bit inputs keep their result in float32 for
    the backward pass, whose gradients are more exact for it.
    """
    if layout not in ("bshd", "bhsd"):
        raise ValueError(f"layout is {layout!r}; it must be 'bshd' or 'bhsd'")
    if _any_autocast():
        q, k, v = _cast((q, k, v))
    options = {
        "mask": mask,
        "mask_bits": mask_bits,
        "bias": bias,
        "alibi_slopes": alibi_slopes,
        "sinks": sinks,
        "cu_seqlens_q": cu_seqlens_q,
        "cu_seqlens_k": cu_seqlens_k,
        "seqused_q": seqused_q,
        "seqused_k": seqused_k,
        "q_origin": q_origin,
        "k_origin": k_origin,
        "softmax_scale": softmax_scale,
        "causal": causal,
        "top_left": top_left,
        "window_left": window_left,
        "window_right": window_right,
        "softcap": softcap,
        "dropout_p": dropout_p,
        "dropout_seed": seed_of(dropout_p, generator),
        "precise": precise,
        "bf16x3": bf16x3,
        "heads_first": layout == "bhsd",
    }
    out, lse = _recorded(q, k, v, options, return_lse)
    return (out, lse) if return_lse else out


def _recorded(q, k, v, options, lse=False, memory=None):
    """(out, lse) by the operator, which autograd, compilers and transforms see, or around it; lse
    may be None where it is not asked for."""
    get = options.get
    trained = (q, k, v, get("bias"), get("alibi_slopes"), get("sinks"))
    _refuse_tangents(trained)
    _refuse_others(q, k, v)
    records = _records(*trained)
    plain = _plain((q, k, v, *(x for x in options.values() if isinstance(x, torch.Tensor))))
    if plain and not records:
        fields = _ops.fields(options)
        return _core.forward(q=q, k=k, v=v, out=True, lse=lse, memory=memory, **fields)[:2]
    values = (_ops.DEFAULTS | options).values()
    keep_f32 = records and _ops.has_f32(q)
    if plain:
        return _ops.Direct.apply(q, k, v, *values, keep_f32, memory)[:2]
    out, lse, _ = _ops.forward(q, k, v, *values, keep_f32)
    return _ops.laid(out, q, k, v, memory), lse
