"""Functions over the operators, and the short way around them where no gradient is wanted."""

import math

import torch

from .. import _core
from . import _ops

_Tensor, _Parameter = torch.Tensor, torch.nn.Parameter
_HALF = (torch.float16, torch.bfloat16)
_is_compiling = torch.compiler.is_compiling
_grad_enabled = torch.is_grad_enabled
_modes = torch._C._len_torch_dispatch_stack
_transforms = torch._C._functorch.peek_interpreter_stack
_tracing = torch._C._get_tracing_state
_autocast = torch.is_autocast_enabled


def _plain(*tensors):
    """True where a call needs no operator: nobody records, maps or traces it."""
    if _is_compiling() or _modes() or _transforms() is not None or _tracing() is not None:
        return False
    recorded = _grad_enabled()
    for x in tensors:
        if x is None:
            continue
        kind = type(x)
        if (kind is not _Tensor and kind is not _Parameter) or (recorded and x.requires_grad):
            return False
    return True


def _cast(tensors):
    """Autocast's type, as PyTorch's own attention has it."""
    device = tensors[0].device.type
    if not _autocast(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return [x if x is None or x.dtype == torch.float64 else x.to(dtype) for x in tensors]


def _seed(dropout_p, generator=None):
    """A seed by PyTorch's generator; torch.manual_seed makes it repeatable."""
    if not dropout_p:
        return None
    return torch.randint(-(2**63), 2**63 - 1, (1,), dtype=torch.int64, generator=generator)


# ---- PyTorch's own -------------------------------------------------------------------------------


def scaled_dot_product_attention(
    query,
    key,
    value,
    attn_mask=None,
    dropout_p=0.0,
    is_causal=False,
    scale=None,
    enable_gqa=False,
):
    """torch.nn.functional.scaled_dot_product_attention, computed by libattn.

    query (..., Hq, L, E), key (..., H, S, E), value (..., H, S, Ev) give (..., Hq, L, Ev).
    attn_mask broadcasts to (..., Hq, L, S): boolean, True = takes part, or added to the scores.
    is_causal is aligned top-left. dropout_p applies whenever it is not 0; torch's generator seeds
    it. With enable_gqa, Hq is a multiple of H.

    Beyond PyTorch's CPU kernel: Ev other than E, dropout, gradients of attn_mask in its own
    broadcast shape, all without scores in memory. Rows that see no key give 0.
    """
    if attn_mask is not None and is_causal:
        raise RuntimeError(
            "scaled_dot_product_attention: attn_mask and is_causal exclude each other"
        )
    if _autocast(query.device.type):
        query, key, value = _cast((query, key, value))
    shape, keys, values = query.shape, key.shape, value.shape
    if not (len(shape) == len(keys) == len(values) == 4 and shape[0] == keys[0] == values[0]):
        return _with_leading_axes(
            query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa
        )
    if not shape[1] == keys[1] == values[1]:
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
        else:
            bias = attn_mask
    if not dropout_p and _plain(query, key, value, bias, mask):
        out = torch.empty_permuted(
            (*shape[:3], values[3]), (0, 2, 1, 3), dtype=query.dtype, device=query.device
        )
        _core.forward(
            q=query,
            k=key,
            v=value,
            out=out,
            mask=mask,
            bias=bias,
            softmax_scale=scale,
            causal=is_causal,
            top_left=is_causal,
            layout="bhsd",
        )
        return out
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
            "dropout_seed": _seed(dropout_p),
            "heads_first": True,
        },
    )[0]


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
    out = scaled_dot_product_attention(*flat, attn_mask, *options)
    out = out.reshape(*leading, *out.shape[1:])
    return out.squeeze(0) if max(query.ndim, key.ndim, value.ndim) == 2 else out


# ---- Everything else -----------------------------------------------------------------------------


def attention(
    q,
    k,
    v,
    *,
    mask=None,
    bias=None,
    alibi_slopes=None,
    sinks=None,
    cu_seqlens_q=None,
    cu_seqlens_k=None,
    seqused_q=None,
    seqused_k=None,
    q_origin=None,
    k_origin=None,
    softmax_scale=None,
    causal=False,
    top_left=False,
    window_left=-1,
    window_right=-1,
    softcap=0.0,
    dropout_p=0.0,
    generator=None,
    precise=False,
    bf16x3=False,
    layout="bshd",
    return_lse=False,
):
    """libattn.attention for tensors with gradients: of q, k, v, bias, alibi_slopes and sinks,
    through the result and through the LSE.

    Shapes and options are those of libattn.attention; lengths and origins are tensors. Dropout is
    seeded by `generator`, or by torch's own. 16-bit inputs keep their result in float32 for the
    backward pass, whose gradients are more exact for it.
    """
    if layout not in ("bshd", "bhsd"):
        raise ValueError(f"layout is {layout!r}; it must be 'bshd' or 'bhsd'")
    if _autocast(q.device.type):
        q, k, v = _cast((q, k, v))
    options = {
        "mask": mask,
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
        "dropout_seed": _seed(dropout_p, generator),
        "precise": precise,
        "bf16x3": bf16x3,
        "heads_first": layout == "bhsd",
    }
    out, lse = _recorded(q, k, v, options)
    return (out, lse) if return_lse else out


_DEFAULTS = {name: None for name in _ops.OPTIONS} | {
    "causal": False,
    "top_left": False,
    "window_left": -1,
    "window_right": -1,
    "softcap": 0.0,
    "dropout_p": 0.0,
    "dropout_offset": 0,
    "precise": False,
    "bf16x3": False,
    "heads_first": False,
}


def _recorded(q, k, v, options):
    """(out, lse) by the operator, which autograd, compilers and transforms see, or around it."""
    values = _DEFAULTS | options
    trained = (q, k, v, values["bias"], values["alibi_slopes"], values["sinks"])
    records = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in trained)
    keep_f32 = records and q.dtype in _HALF and q.device.type == "cpu"
    tensors = [x for x in values.values() if isinstance(x, torch.Tensor)]
    run = _ops.compute if not records and _plain(q, k, v, *tensors) else _ops.forward
    out, lse, _ = run(q, k, v, *values.values(), keep_f32)
    return out, lse
