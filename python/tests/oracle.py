"""Attention in float64 with every score at once, the measure of libattn's results.

Arrays are (batch, sequence, heads, dim); written from attn.h's semantics (C1 to C11).
"""

import numpy as np


def visible_keys(nq, nk, causal=False, top_left=False, left=None, right=None, q_at=None, k_at=None):
    """(nq, nk) bool, and the diagonal's offset."""
    offset = 0 if top_left else nk - nq
    if q_at is not None or k_at is not None:
        offset = (q_at or 0) - (k_at or 0)
    i, j = np.arange(nq)[:, None] + offset, np.arange(nk)[None, :]
    seen = np.ones((nq, nk), bool)
    if causal:
        seen &= j <= i
    if left is not None and left >= 0:
        seen &= j >= i - left
    if right is not None and right >= 0:
        seen &= j <= i + right
    return seen, abs(i - j)


def attention(
    q,
    k,
    v,
    *,
    mask=None,
    bias=None,
    alibi_slopes=None,
    sinks=None,
    softmax_scale=None,
    causal=False,
    top_left=False,
    window_left=None,
    window_right=None,
    softcap=None,
    q_origin=None,
    k_origin=None,
    keep=None,
    dropout_p=0.0,
):
    """(out, lse) of one batch; keep is dropout's mask."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    group = q.shape[2] // k.shape[2]
    k, v = (np.repeat(x, group, axis=2) for x in (k, v))
    scale = 1 / np.sqrt(q.shape[3]) if softmax_scale is None else softmax_scale
    scores = scale * np.einsum("bihd,bjhd->bhij", q, k)
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    if bias is not None:
        scores = scores + np.asarray(bias, np.float64)
    seen, distance = visible_keys(
        q.shape[1], k.shape[1], causal, top_left, window_left, window_right, q_origin, k_origin
    )
    if alibi_slopes is not None:
        slopes = np.atleast_2d(np.asarray(alibi_slopes, np.float64))
        scores = scores - slopes[:, :, None, None] * distance
    scores = np.where(seen, scores, -np.inf)
    if mask is not None:
        scores = np.where(np.asarray(mask) != 0, scores, -np.inf)
    total = scores
    if sinks is not None:
        sink = np.atleast_2d(np.asarray(sinks, np.float64))[:, :, None, None]
        total = np.concatenate([scores, np.broadcast_to(sink, (*scores.shape[:3], 1))], axis=-1)
    top = total.max(-1, initial=-np.inf)
    top = np.where(np.isfinite(top), top, 0)
    with np.errstate(divide="ignore"):
        lse = top + np.log(np.exp(total - top[..., None]).sum(-1))
    p = np.exp(scores - np.where(np.isfinite(lse), lse, 0)[..., None])
    if keep is not None:
        p = p * keep / (1 - dropout_p)
    return np.einsum("bhij,bjhd->bihd", p, v), lse
