"""flash-attn's functions with gradients: dense and varlen, packed or not."""

from torch import Tensor

from .. import attention as _plain_attention
from ..torch import attention
from ..torch._functions import seed_of
from ..torch._ops import seed_number

# The output, or (output, LSE, None).
Result = Tensor | tuple[Tensor, Tensor, None]


def _options(dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes):
    left, right = window_size
    return {
        "dropout_p": dropout_p,
        "softmax_scale": softmax_scale,
        "causal": causal,
        "window_left": -1 if left is None else left,
        "window_right": -1 if right is None else right,
        "softcap": max(softcap, 0.0),
        "alibi_slopes": alibi_slopes,
    }


def _result(out, lse, return_attn_probs):
    return (out, lse, None) if return_attn_probs else out


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Result:
    """q (batch, seqlen_q, heads, dim), k and v (batch, seqlen_k, kv_heads, dim) give out like q.

    causal and window_size are aligned bottom-right; window_size is inclusive, -1 = unbounded.
    With return_attn_probs: (out, softmax_lse (batch, heads, seqlen_q), None).
    """
    options = _options(dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes)
    return _result(*attention(q, k, v, return_lse=True, **options), return_attn_probs)


def flash_attn_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Result:
    """flash_attn_func of q and kv (batch, seqlen_k, 2, kv_heads, dim)."""
    return flash_attn_func(
        q,
        *kv.unbind(-3),
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
    )


def flash_attn_qkvpacked_func(
    qkv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Result:
    """flash_attn_func of qkv (batch, seqlen, 3, heads, dim)."""
    return flash_attn_func(
        *qkv.unbind(-3),
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
    )


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
) -> Result:
    """q (total_q, heads, dim), k and v (total_k, kv_heads, dim), cu_seqlens (batch + 1) give out
    like q; the LSE is (heads, total_q). max_seqlen_q and max_seqlen_k are not needed.

    With block_table (batch, pages), k and v are pools (pages, page_size, kv_heads, dim), without
    gradients.
    """
    options = _options(dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes)
    if block_table is None:
        result = attention(
            q,
            k,
            v,
            cu_seqlens_q=cu_seqlens_q,
            cu_seqlens_k=cu_seqlens_k,
            return_lse=True,
            **options,
        )
    else:
        result = _plain_attention(
            q.detach(),
            k.detach(),
            v.detach(),
            cu_seqlens_q=cu_seqlens_q,
            seqused_k=cu_seqlens_k.diff(),
            block_table=block_table,
            dropout_seed=seed_number(seed_of(dropout_p)),
            return_lse=True,
            **options,
        )
    return _result(*result, return_attn_probs)


def flash_attn_varlen_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Result:
    """flash_attn_varlen_func of q and kv (total_k, 2, kv_heads, dim)."""
    return flash_attn_varlen_func(
        q,
        *kv.unbind(-3),
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
    )


def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Result:
    """flash_attn_varlen_func of qkv (total, 3, heads, dim)."""
    return flash_attn_varlen_func(
        *qkv.unbind(-3),
        cu_seqlens,
        cu_seqlens,
        max_seqlen,
        max_seqlen,
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
    )
