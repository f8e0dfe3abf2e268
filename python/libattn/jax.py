"""Attention for JAX: custom calls with gradients, on CPUs and CUDA, under jit, grad and vmap.

    from libattn.jax import dot_product_attention  # jax.nn.dot_product_attention, same arguments

Scores are never in memory, forward or backward. Arrays are taken where they lie; on a GPU work goes
to XLA's stream and takes XLA's memory.
"""

import functools
import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jax.typing import ArrayLike

from . import _core

_FORWARD, _BACKWARD = "libattn_forward", "libattn_backward"
for _place, _handler in zip(
    ((name, platform) for platform in ("cpu", "CUDA") for name in (_FORWARD, _BACKWARD)),
    _core.jax_handlers(),
    strict=True,
):
    jax.ffi.register_ffi_target(_place[0], _handler, platform=_place[1])

# Inputs whose first axis may be 1 in a larger batch. Inputs with gradients, and the names of those.
_BROADCAST = ("mask", "mask_bits", "bias", "alibi_slopes", "sinks")
_DIFFERENTIABLE = {
    "q": "dq",
    "k": "dk",
    "v": "dv",
    "bias": "d_bias",
    "alibi_slopes": "d_alibi_slopes",
    "sinks": "d_sinks",
}


# ---- Calls ---------------------------------------------------------------------------------------


def _call(target, inputs, results, options):
    """A custom call: arrays by the names of their fields."""
    values = jax.ffi.ffi_call(target, tuple(results.values()))(
        *inputs.values(), operands=",".join(inputs), results=",".join(results), **dict(options)
    )
    return dict(zip(results, values, strict=True))


def _forward_results(inputs, wanted):
    q, v = inputs["q"], inputs["v"]
    stats = jnp.float64 if q.dtype == jnp.float64 else jnp.float32
    out = (*q.shape[:-1], v.shape[-1])
    shapes = {
        "out": jax.ShapeDtypeStruct(out, q.dtype),
        "out_f32": jax.ShapeDtypeStruct(out, jnp.float32),
        "lse": jax.ShapeDtypeStruct((*q.shape[:-3], q.shape[-2], q.shape[-3]), stats),
    }
    return {name: shapes[name] for name in wanted}


def _backward_results(inputs, wanted):
    return {
        _DIFFERENTIABLE[name]: jax.ShapeDtypeStruct(inputs[name].shape, inputs[name].dtype)
        for name in wanted
    }


@functools.cache
def _pass(target, wanted, options):
    """A pass as a function of its arrays by name, with a rule for vmap.

    wanted: names of results (forward), or of inputs whose gradients are asked for (backward).
    """
    results = _forward_results if target == _FORWARD else _backward_results

    @custom_vmap
    def run(inputs):
        return _call(target, inputs, results(inputs, wanted), options)

    @run.def_vmap
    def rule(size, in_batched, inputs):
        (batched,) = in_batched
        if "cu_seqlens_q" in inputs or batched.get("dropout_seed", False):
            values = _one_by_one(run, size, batched, inputs)
        else:
            values = _as_one_batch(run, size, batched, inputs, wanted)
        return values, {name: True for name in values}

    return run


def _one_by_one(run, size, batched, inputs):
    mapped = {name: x for name, x in inputs.items() if batched[name]}
    shared = {name: x for name, x in inputs.items() if not batched[name]}
    return jax.lax.map(lambda part: run(part | shared), mapped)


def _as_one_batch(run, size, batched, inputs, wanted):
    """Makes the new axis and the batch one axis; repeats shared arrays where necessary."""
    batch = inputs["q"].shape[1 if batched["q"] else 0]

    def fold(name, x):
        if name == "dropout_seed":
            return x
        own = x.shape[1 if batched[name] else 0]
        if not batched[name]:
            if own == 1 and name in _BROADCAST and name not in wanted:
                return x
            x = x[None]
        rest = x.shape[2:]
        return jnp.broadcast_to(x, (size, batch, *rest)).reshape(size * batch, *rest)

    values = run({name: fold(name, x) for name, x in inputs.items()})

    def unfold(name, x):
        x = x.reshape(size, batch, *x.shape[1:])
        source = sources.get(name)
        if source and batch > 1 and inputs[source].shape[1 if batched[source] else 0] == 1:
            x = x.sum(axis=1, keepdims=True)
        return x

    sources = {_DIFFERENTIABLE[name]: name for name in wanted if name in _DIFFERENTIABLE}
    return {name: unfold(name, x) for name, x in values.items()}


# ---- Gradients -----------------------------------------------------------------------------------


def _refuse_derivatives(primals, tangents):
    raise NotImplementedError(
        "libattn.jax has no second derivatives: gradients of attention's gradients are out of its"
        " scope"
    )


@functools.cache
def _last_pass(target, wanted, options):
    """A pass of a function under differentiation, whose results have no derivatives themselves:
    JAX's own error would advise the caller to mend the custom call."""
    run = jax.custom_jvp(_pass(target, wanted, options))
    run.defjvp(_refuse_derivatives)
    return run


@functools.cache
def _differentiable(options):
    """(out, lse) of arrays by name; the backward pass computes the gradients that are needed."""

    @jax.custom_vjp
    def run(inputs):
        values = _pass(_FORWARD, ("out", "lse"), options)(inputs)
        return values["out"], values["lse"]

    def forward(primals):
        inputs = {name: x.value for name, x in primals.items()}
        needed = {n: () for n in _DIFFERENTIABLE if n in primals and primals[n].perturbed}
        # On GPUs a result in float32 beside 16 bits costs a launch, and keeps short calls from
        # their own kernels. A traced call knows no device: JAX's default is where most calls run.
        half = inputs["q"].dtype in (jnp.float16, jnp.bfloat16) and jax.default_backend() == "cpu"
        names = ("out", "lse", "out_f32") if half else ("out", "lse")
        values = _last_pass(_FORWARD, names, options)(inputs)
        return (values["out"], values["lse"]), (inputs, values, needed)

    def backward(saved, cotangents):
        inputs, values, needed = saved
        d_out, d_lse = cotangents
        if isinstance(d_out, jax.custom_derivatives.SymbolicZero):
            d_out = jnp.zeros(d_out.shape, d_out.dtype)
        arrays = inputs | values | {"d_out": d_out}
        if not isinstance(d_lse, jax.custom_derivatives.SymbolicZero):
            arrays["d_lse"] = d_lse
        gradients = _last_pass(_BACKWARD, tuple(needed), options)(arrays) if needed else {}
        return ({name: gradients.get(_DIFFERENTIABLE.get(name)) for name in inputs},)

    run.defvjp(forward, backward, symbolic_zeros=True)
    return run


# ---- Public functions ----------------------------------------------------------------------------


def _leading(x, axes):
    return x if x is None else jnp.reshape(x, (1,) * (axes - jnp.ndim(x)) + jnp.shape(x))


def _check_axes(**arrays):
    for name, x in arrays.items():
        if jnp.ndim(x) not in (3, 4):
            raise ValueError(
                f"{name} has {jnp.ndim(x)} axes; it must be (batch, sequence, heads, dim), or"
                " (total, heads, dim) with cu_seqlens_q"
            )


def _lengths(x, batch):
    return x if x is None else jnp.broadcast_to(jnp.asarray(x, jnp.int32), (batch,))


def attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    mask: ArrayLike | None = None,
    mask_bits: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    alibi_slopes: ArrayLike | None = None,
    sinks: ArrayLike | None = None,
    cu_seqlens_q: ArrayLike | None = None,
    cu_seqlens_k: ArrayLike | None = None,
    seqused_q: ArrayLike | None = None,
    seqused_k: ArrayLike | None = None,
    q_origin: ArrayLike | None = None,
    k_origin: ArrayLike | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    top_left: bool = False,
    window_left: int | None = None,
    window_right: int | None = None,
    softcap: float | None = None,
    dropout_p: float | None = None,
    dropout_key: jax.Array | None = None,
    precise: bool = False,
    bf16x3: bool = False,
    return_lse: bool = False,
) -> Any:
    """libattn.attention for JAX: q (B, Nq, Hq, d), k (B, Nk, Hk, d), v (B, Nk, Hk, d_v).

    Keywords, shapes and semantics are those of libattn.attention; dropout_key is a key of
    jax.random. Gradients: of q, k, v, bias (in its own broadcast shape), alibi_slopes and sinks,
    through the LSE too. Arrays may be traced; softmax_scale, softcap, windows and dropout_p are
    numbers. Dropout is refused on a GPU. 16-bit inputs keep their result in float32 for the
    backward pass, whose gradients are more exact for it, where JAX's default backend is the CPU.
    """
    _check_axes(q=q, k=k, v=v)
    batch = jnp.shape(q)[0]
    if dropout_p and dropout_key is None:
        raise ValueError("dropout_p needs dropout_key, a key of jax.random")
    inputs = {
        "q": q,
        "k": k,
        "v": v,
        "mask": _leading(mask, 4),
        "mask_bits": _leading(mask_bits, 4),
        "bias": _leading(bias, 4),
        "alibi_slopes": _leading(alibi_slopes, 2),
        "sinks": _leading(sinks, 2),
        "cu_seqlens_q": cu_seqlens_q,
        "cu_seqlens_k": cu_seqlens_k,
        "seqused_q": _lengths(seqused_q, batch),
        "seqused_k": _lengths(seqused_k, batch),
        "q_origin": _lengths(q_origin, batch),
        "k_origin": _lengths(k_origin, batch),
        "dropout_seed": jax.random.bits(dropout_key, (2,), jnp.uint32) if dropout_p else None,
    }
    numbers = {"softmax_scale": softmax_scale, "softcap": softcap, "dropout_p": dropout_p}
    bounds = {"window_left": window_left, "window_right": window_right}
    flags = {"causal": causal, "top_left": top_left, "precise": precise, "bf16x3": bf16x3}
    options = tuple(
        [(name, np.float64(x)) for name, x in numbers.items() if x is not None]
        + [(name, np.int64(operator.index(x))) for name, x in bounds.items() if x is not None]
        + [(name, True) for name, x in flags.items() if x]
    )
    arrays = {name: jnp.asarray(x) for name, x in inputs.items() if x is not None}
    out, lse = _differentiable(options)(arrays)
    return (out, lse) if return_lse else out


def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: ArrayLike | None = None,
    key_value_seq_lengths: ArrayLike | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: str | None = None,
    return_residual: bool = False,
) -> Any:
    """jax.nn.dot_product_attention, computed by libattn.

    query (B, T, N, H) or (T, N, H), key and value (B, S, K, H) or (S, K, H); N is a multiple of K.
    bias and mask (True = takes part) broadcast to (B, N, T, S). The diagonal of is_causal and of
    local_window_size is aligned top-left. return_residual gives the LSE as well, (B, T, N) or
    (T, N), without a gradient. implementation is ignored: there is one.

    Other than JAX: value may have its own dim, the bias has a gradient in its own shape without
    scores in memory, and a row that sees no key gives 0 (JAX: the mean of all values).
    """
    del implementation
    single = jnp.ndim(query) == 3
    if single:
        query, key, value = (jnp.asarray(x)[None] for x in (query, key, value))
    left = right = None
    if local_window_size is not None:
        window = local_window_size
        left, right = window if isinstance(window, (tuple, list)) else (window, window)
    out, lse = attention(
        query,
        key,
        value,
        bias=bias,
        mask=mask,
        softmax_scale=scale,
        causal=is_causal,
        top_left=is_causal or local_window_size is not None,
        window_left=left,
        window_right=right,
        seqused_q=query_seq_lengths,
        seqused_k=key_value_seq_lengths,
        return_lse=True,
    )
    residual = jax.lax.stop_gradient(jnp.swapaxes(lse, 1, 2)).astype(key.dtype)
    if single:
        out, residual = out[0], residual[0]
    return (out, residual) if return_residual else out
