"""ONNX's operator Attention, opsets 23 to 25, on NumPy arrays (bfloat16 by ml_dtypes)."""

from typing import NamedTuple

import numpy as np

from . import attention as _attention


class Results(NamedTuple):
    """The operator's outputs; qk_matmul_output is None unless it is asked for."""

    Y: np.ndarray
    present_key: np.ndarray
    present_value: np.ndarray
    qk_matmul_output: np.ndarray | None


def attention(
    Q: np.ndarray,
    K: np.ndarray,
    V: np.ndarray,
    attn_mask: np.ndarray | None = None,
    past_key: np.ndarray | None = None,
    past_value: np.ndarray | None = None,
    nonpad_kv_seqlen: np.ndarray | None = None,
    *,
    is_causal: int = 0,
    kv_num_heads: int | None = None,
    left_window_size: int = -1,
    q_num_heads: int | None = None,
    qk_matmul_output_mode: int = 0,
    right_window_size: int = -1,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int | None = None,
    qk_matmul_output: bool = False,
) -> Results:
    """Attention(Q, K, V, attn_mask, past_key, past_value, nonpad_kv_seqlen).

    Q (batch, q_num_heads, q_length, head_size), K and V (batch, kv_num_heads, kv_length, .), or
    all three (batch, length, heads * size) with q_num_heads and kv_num_heads. attn_mask broadcasts
    to (batch, q_num_heads, q_length, total_length), bool, True = takes part, or added to the
    scores; where its last axis is shorter, the rest is masked. Results have the layout of Q.

    Scores exist in memory only for qk_matmul_output=True, the operator's fourth output, by
    qk_matmul_output_mode: 0 scaled products, 1 after softcap, 2 with mask and bias, 3 weights.
    softmax_precision changes nothing: softmax is float32 at least.
    """
    if (past_key is None) != (past_value is None):
        raise ValueError("past_key and past_value go together; one of them is missing")
    if past_key is not None and nonpad_kv_seqlen is not None:
        raise ValueError("nonpad_kv_seqlen is of a cache outside: not with past_key")
    flat = Q.ndim == 3
    if flat and not (q_num_heads and kv_num_heads):
        raise ValueError("Q has 3 axes; q_num_heads and kv_num_heads are missing")
    q = _heads_first(Q, q_num_heads)
    key, value = _heads_first(K, kv_num_heads), _heads_first(V, kv_num_heads)
    past = 0
    if past_key is not None:
        past = past_key.shape[2]
        key, value = np.concatenate((past_key, key), 2), np.concatenate((past_value, value), 2)
    options = {
        "softmax_scale": scale,
        "softcap": softcap,
        "causal": bool(is_causal),
        "window_left": left_window_size,
        "window_right": right_window_size,
    }
    if nonpad_kv_seqlen is None:
        options["q_origin"] = past  # else the diagonal ends at the last key in use
    else:
        options["seqused_k"] = np.ascontiguousarray(nonpad_kv_seqlen, np.int64).reshape(-1)
    if attn_mask is not None:
        name = "mask" if attn_mask.dtype == np.bool_ else "bias"
        options[name] = _complete(attn_mask, key.shape[2])
    batch, heads, length, _ = q.shape
    width = value.shape[3]
    shape = (batch, length, heads * width) if flat else (batch, heads, length, width)
    result = np.empty(shape, q.dtype)
    out = _heads_first(result, heads)
    _, lse = _attention(q, key, value, layout="bhsd", out=out, return_lse=True, **options)
    scores = None
    if qk_matmul_output:
        scores = _scores(q, key, lse, qk_matmul_output_mode, options).astype(q.dtype)
    return Results(result, key, value, scores)


def _heads_first(x, heads):
    """(batch, heads, length, size) of either form; a view."""
    if x.ndim == 4:
        return x
    return x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)


def _complete(mask, keys):
    """A mask over all keys: those that it lacks are masked."""
    missing = keys - mask.shape[-1]
    if missing <= 0:
        return mask
    rest = False if mask.dtype == np.bool_ else -np.inf
    return np.pad(mask, [(0, 0)] * (mask.ndim - 1) + [(0, missing)], constant_values=rest)


def _scores(q, key, lse, mode, options):
    """The fourth output, (batch, heads, queries, keys), in the type of sums."""
    kind = lse.dtype
    key = np.repeat(key.astype(kind), q.shape[1] // key.shape[1], axis=1)
    scale = options["softmax_scale"]
    scale = 1 / np.sqrt(q.shape[3]) if scale is None else scale
    scores = np.matmul(q.astype(kind), key.swapaxes(2, 3)) * kind.type(scale)
    softcap = options["softcap"]
    if mode >= 1 and softcap > 0:
        scores = softcap * np.tanh(scores / softcap)
    if mode >= 2:
        if "bias" in options:
            scores = scores + options["bias"].astype(kind)
        visible = _visible(q.shape[2], key.shape[2], options)
        if "mask" in options:
            visible = visible & options["mask"]
        scores = np.where(visible, scores, -np.inf)
    if mode == 3:
        empty = np.isneginf(lse)
        scores = np.exp(scores - np.where(empty, 0, lse)[..., None])
    return scores


def _visible(queries, keys, options):
    """(batch or 1, 1, queries, keys): causality, window and lengths."""
    used = options.get("seqused_k")
    offset = options["q_origin"] if used is None else used[:, None, None, None] - queries
    row = np.arange(queries)[:, None] + offset
    column = np.arange(keys)[None, :]
    visible = np.ones((1, 1, queries, keys), bool)
    if used is not None:
        visible = visible & (column < used[:, None, None, None])
    if options["causal"]:
        visible = visible & (column <= row)
    if options["window_left"] >= 0:
        visible = visible & (column >= row - options["window_left"])
    if options["window_right"] >= 0:
        visible = visible & (column <= row + options["window_right"])
    return visible
