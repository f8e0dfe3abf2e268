"""libattn.jax on a CUDA GPU: needs a package with GPU kernels and JAX with CUDA, else skipped."""

import os

import numpy as np
import oracle
import pytest

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
jax = pytest.importorskip("jax")
if jax.default_backend() != "gpu":
    pytest.skip("no CUDA GPU, or a JAX without CUDA", allow_module_level=True)

import jax.numpy as jnp  # noqa: E402
import libattn  # noqa: E402
from libattn.jax import attention, dot_product_attention  # noqa: E402

try:
    libattn.Context(device="cuda")
except NotImplementedError as reason:
    pytest.skip(f"libattn has no GPU here: {reason}", allow_module_level=True)

# Errors allowed, as parts of the largest value: of results, and of gradients.
ERROR = {"float32": 2e-6, "float16": 2e-3, "bfloat16": 1.6e-2}
GRADIENT_ERROR = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}
CPU = jax.devices("cpu")[0]


def rows(seed, *shape, dtype="float32"):
    values = np.random.default_rng(seed).standard_normal(shape, np.float32)
    return jnp.asarray(values, dtype)


def problem(dtype="float32", heads=(4, 2), lengths=(130, 150), dim=64):
    return (
        rows(1, 2, lengths[0], heads[0], dim, dtype=dtype),
        rows(2, 2, lengths[1], heads[1], dim, dtype=dtype),
        rows(3, 2, lengths[1], heads[1], dim, dtype=dtype),
    )


def close(found, expected, error):
    found, expected = (np.asarray(x, np.float64) for x in (found, expected))
    assert found.shape == expected.shape
    assert abs(found - expected).max() <= error * abs(expected).max()


def on_cpu(function, *arrays):
    """The same on CPU tensors in float64, by the package's own CPU kernels."""
    with jax.enable_x64(True), jax.default_device(CPU):
        wide = [jax.device_put(np.asarray(x, np.float64), CPU) for x in arrays]
        return jax.tree.map(np.asarray, function(*wide))


@pytest.mark.parametrize("dtype", ERROR)
@pytest.mark.parametrize("causal", [True, False])
def test_results(dtype, causal):
    q, k, v = problem(dtype)
    out, lse = jax.jit(lambda *x: attention(*x, causal=causal, return_lse=True))(q, k, v)
    assert out.devices() == q.devices() and out.dtype == dtype and lse.dtype == jnp.float32
    expected, expected_lse = oracle.attention(q, k, v, causal=causal)
    close(out, expected, ERROR[dtype])
    np.testing.assert_allclose(lse, expected_lse, rtol=1e-3, atol=1e-3)
    assert jnp.array_equal(out, attention(q, k, v, causal=causal))


OPTIONS = {
    "plain": {},
    "causal": {"is_causal": True},
    "window": {"local_window_size": (40, 9)},
    "mask": {"mask": np.random.default_rng(4).random((2, 1, 130, 150)) < 0.7},
    "bias": {"bias": np.random.default_rng(5).standard_normal((1, 4, 130, 150))},
    "lengths": {
        "query_seq_lengths": np.array([130, 90], np.int32),
        "key_value_seq_lengths": np.array([11, 150], np.int32),
    },
}


@pytest.mark.parametrize("dtype", ERROR)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_gradients(dtype, options):
    """Of q, k, v and the bias."""
    options = dict(options)
    bias = options.pop("bias", None)
    arrays = [*problem(dtype), rows(6, 2, 130, 4, 64)]
    wrt = (0, 1, 2)
    if bias is not None:
        arrays.append(jnp.asarray(bias, dtype))
        wrt = (0, 1, 2, 4)

    def loss(q, k, v, weights, bias=None):
        out = dot_product_attention(q, k, v, bias=bias, **options)
        return jnp.sum(out.astype(weights.dtype) * weights), out

    def run(*arrays):
        return jax.grad(loss, wrt, has_aux=True)(*arrays)

    gradients, out = jax.jit(run)(*arrays)
    expected, expected_out = on_cpu(run, *arrays)
    close(out, expected_out, ERROR[dtype])
    for own, other in zip(gradients, expected, strict=True):
        assert own.dtype == dtype
        close(own, other, GRADIENT_ERROR[dtype])


def test_everything_else():
    """Softcap, slopes, sinks and the LSE with gradients; packed sequences; vmap."""
    q, k, v = problem()
    slopes, sinks = jnp.abs(rows(7, 4)), rows(8, 4)

    def loss(q, k, v, slopes, sinks):
        out, lse = attention(
            q,
            k,
            v,
            alibi_slopes=slopes,
            sinks=sinks,
            softcap=3.0,
            causal=True,
            window_left=60,
            return_lse=True,
        )
        return jnp.sum(jnp.sin(out)) + jnp.sum(lse**2)

    run = jax.grad(loss, (0, 1, 2, 3, 4))
    arrays = (q, k, v, slopes, sinks)
    for own, other in zip(jax.jit(run)(*arrays), on_cpu(run, *arrays), strict=True):
        close(own, other, 1e-5)
    ends = jnp.asarray([0, 50, 50, 130], jnp.int32)
    packed = jax.jit(
        lambda q, k, v, ends: attention(q, k, v, cu_seqlens_q=ends, cu_seqlens_k=ends)
    )(q[0], k[0, :130], v[0, :130], ends)
    for begin, end in ((0, 50), (50, 130)):
        part = attention(q[:1, begin:end], k[:1, begin:end], v[:1, begin:end])[0]
        close(packed[begin:end], part, 2e-6)
    double = jax.jit(jax.vmap(lambda q, k, v: jax.grad(lambda q: jnp.sum(attention(q, k, v)))(q)))
    mapped = double(*(jnp.stack([x, 2 * x]) for x in (q, k, v)))
    single = jax.grad(lambda q: jnp.sum(attention(q, 2 * k, 2 * v)))(2 * q)
    close(mapped[1], single, 1e-5)


def test_order_on_the_stream():
    """Inputs that XLA computes just before a call, and results that it uses just after."""
    x = rows(9, 1, 2048, 8, 64, dtype="bfloat16")

    @jax.jit
    def chain(x):
        for _ in range(20):
            x = x + attention(jnp.sin(x), x, x, causal=True)
        return x

    first = chain(x)
    assert all(jnp.array_equal(first, chain(x)) for _ in range(5))
    step = x
    for _ in range(20):
        step = step + attention(jnp.sin(step), step, step, causal=True)
        step.block_until_ready()
    close(step, first, 0.05)


def test_refusals():
    q, k, v = problem()
    with pytest.raises(Exception, match="on CPUs only"):
        key = jax.random.key(1)
        jax.block_until_ready(attention(q, k, v, dropout_p=0.5, dropout_key=key))
    with pytest.raises(Exception, match="shape|heads"):
        jax.block_until_ready(attention(q, k[:, :, :1], v))
    with pytest.raises(NotImplementedError, match="libattn.jax.attention"):
        libattn.attention(q, k, v)
