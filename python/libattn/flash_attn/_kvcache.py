"""flash_attn_with_kvcache: rotary embedding, append, attention over a cache."""

import torch
from torch import Tensor

from .. import attention


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: int | Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    block_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention of new queries over a cache of keys, which new ones are appended to, in place.

    q (batch, seqlen_q, heads, dim); k_cache, v_cache (slots, seqlen_cache, kv_heads, dim), or
    pools of pages (pages, page_size, kv_heads, dim) with block_table (batch, pages of a sequence).
    k, v (batch, seqlen_new, kv_heads, dim) are written behind cache_seqlens, number or (batch),
    which stays as it is. cache_batch_idx (batch): the slots of the sequences, without pages.
    cache_leftpad (batch): first index in use. rotary_cos, rotary_sin (positions, rotary_dim / 2)
    turn k, and q at its own positions if the call is causal or windowed, else at that of the first
    new key.

    Returns out like q; with return_softmax_lse also the LSE, (batch, heads, seqlen_q). No
    gradients.
    """
    if (k is None) != (v is None):
        raise ValueError(f"{'v' if v is None else 'k'} is missing: k and v come together")
    if cache_batch_idx is not None and block_table is not None:
        raise ValueError("cache_batch_idx and block_table exclude each other: slots or pages")
    used = _lengths(cache_seqlens, q)
    local = causal or tuple(window_size) != (-1, -1)
    options = {}
    if k is not None:
        if used is None:
            raise ValueError("cache_seqlens says where k and v go; it is missing")
        turn = None if rotary_cos is None else (rotary_cos, rotary_sin, rotary_interleaved)
        pages = 1 if block_table is None else block_table.shape[1]
        if q.device.type == "cpu":
            _check_room(used, k.shape[1], k_cache.shape[1] * pages)
        if _by_library(q, k, turn, local):
            options = {"k_new": k.to(k_cache.dtype), "v_new": v.to(v_cache.dtype)}
            if turn is not None:
                options["rope_cos"], options["rope_sin"] = rotary_cos.float(), rotary_sin.float()
                options["rope_dims"] = 2 * rotary_cos.shape[1]
                options["rope_interleaved"] = rotary_interleaved
        else:
            start = used if cache_leftpad is None else used - cache_leftpad.to(used)
            if turn is not None:
                steps = torch.arange(q.shape[1], device=q.device) * local
                q = _rotate(q, start[:, None] + steps, *turn)
                k = _rotate(k, start[:, None] + torch.arange(k.shape[1], device=q.device), *turn)
            _append(k_cache, v_cache, k, v, used, cache_batch_idx, block_table)
        used = used + k.shape[1]
    elif rotary_cos is not None:
        raise ValueError("rotary_cos turns new keys; k and v are missing")
    if cache_batch_idx is not None:
        block_table = cache_batch_idx[:, None]  # a page is a slot
    out, lse = attention(
        q.detach(),
        k_cache.detach(),
        v_cache.detach(),
        seqused_k=used,
        leftpad_k=cache_leftpad,
        block_table=block_table,
        softmax_scale=softmax_scale,
        causal=causal,
        window_left=window_size[0],
        window_right=window_size[1],
        softcap=max(softcap, 0.0),
        alibi_slopes=alibi_slopes,
        return_lse=True,
        **options,
    )
    return (out, lse) if return_softmax_lse else out


def _lengths(cache_seqlens, q):
    if cache_seqlens is None or isinstance(cache_seqlens, torch.Tensor):
        return cache_seqlens
    return torch.full((q.shape[0],), cache_seqlens, dtype=torch.int32, device=q.device)


def _by_library(q, k, turn, local):
    """Whether the forward pass appends and rotates: a new key for each query."""
    return q.shape[1] == k.shape[1] and (turn is None or local or q.shape[1] == 1)


def _check_room(used, new, capacity):
    last = int(used.max()) + new if used.numel() else 0
    if last > capacity:
        raise ValueError(f"the cache has room for {capacity} keys; {last} are too many")


def _append(k_cache, v_cache, k, v, used, slots, block_table):
    """New rows behind the used ones, in the slot or the pages of each sequence."""
    places = used.long()[:, None] + torch.arange(k.shape[1], device=k.device)
    if block_table is not None:
        size = k_cache.shape[1]
        rows, places = block_table.long().gather(1, places // size), places % size
    else:
        first = torch.arange(k.shape[0], device=k.device) if slots is None else slots.long()
        rows = first[:, None].expand_as(places)
    k_cache[rows, places] = k.to(k_cache.dtype)
    v_cache[rows, places] = v.to(v_cache.dtype)


def _rotate(x, positions, cos, sin, interleaved):
    """Rotary embedding of x (batch, rows, heads, dim) at positions (batch, rows)."""
    half = cos.shape[-1]
    cos, sin = (t[positions.long()][:, :, None].float() for t in (cos, sin))
    turned, rest = x[..., : 2 * half].float(), x[..., 2 * half :]
    if interleaved:
        first, second = turned[..., 0::2], turned[..., 1::2]
    else:
        first, second = turned[..., :half], turned[..., half:]
    pair = (first * cos - second * sin, first * sin + second * cos)
    turned = torch.stack(pair, dim=-1).flatten(-2) if interleaved else torch.cat(pair, dim=-1)
    return torch.cat([turned.to(x.dtype), rest], dim=-1)
