"""libattn.jax against JAX's own attention and the float64 oracle, under JAX's transformations."""

import math
import shutil
import subprocess
from pathlib import Path

import numpy as np
import oracle
import pytest

jax = pytest.importorskip("jax")
jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402
import libattn  # noqa: E402
from jax.test_util import check_grads  # noqa: E402
from libattn.jax import attention, dot_product_attention  # noqa: E402

SHAPES = [  # batch, queries, keys, heads, KV heads, dim
    (1, 1, 1, 1, 1, 1),
    (2, 17, 17, 4, 2, 8),
    (1, 70, 33, 3, 1, 13),
    (3, 5, 90, 2, 2, 32),
]


def rows(seed, *shape, dtype=jnp.float64):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), dtype)


def problem(shape, dtype=jnp.float64):
    batch, queries, keys, heads, kv_heads, dim = shape
    return (
        rows(1, batch, queries, heads, dim, dtype=dtype),
        rows(2, batch, keys, kv_heads, dim, dtype=dtype),
        rows(3, batch, keys, kv_heads, dim, dtype=dtype),
    )


# ---- Against JAX ---------------------------------------------------------------------------------


def options_of(kind, shape):
    batch, queries, keys, heads, _, _ = shape
    mask = np.random.default_rng(4).random((batch, 1, queries, keys)) < 0.7
    mask[..., 0] = True  # JAX gives the mean of all values where a row sees no key
    return {
        "plain": {},
        "causal": {"is_causal": True},
        "scale": {"scale": 0.3},
        "window": {"local_window_size": (queries, 4)},
        "mask": {"mask": jnp.asarray(mask)},
        "bias": {"bias": rows(5, 1, heads, queries, keys)},
        "bias of keys": {"bias": rows(5, batch, 1, 1, keys), "is_causal": True},
        "lengths": {
            "query_seq_lengths": jnp.arange(batch, dtype=jnp.int32) % queries + 1,
            "key_value_seq_lengths": jnp.arange(batch, dtype=jnp.int32) % keys + 1,
        },
    }[kind]


KINDS = ("plain", "causal", "scale", "window", "mask", "bias", "bias of keys", "lengths")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_as_jax(shape, kind):
    """Results and gradients, of the bias too, in float64; JAX's softmax is in float32."""
    arrays, options = problem(shape), options_of(kind, shape)
    weights = rows(6, *arrays[0].shape)
    bias = options.pop("bias", None)

    def loss(function, arrays, bias):
        return jnp.sum(function(*arrays, bias=bias, **options) * weights)

    wrt = (0,) if bias is None else (0, 1)
    results = []
    for function in (jax.nn.dot_product_attention, dot_product_attention):
        gradients = jax.grad(lambda *x, f=function: loss(f, *x), argnums=wrt)
        out = jax.jit(lambda *x, f=function: f(*x[0], bias=x[1], **options))(arrays, bias)
        results.append((out, jax.jit(gradients)(arrays, bias)))
    assert results[1][0].dtype == results[0][0].dtype
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=2e-5), *results)


def test_residual_and_three_axes():
    query, key, value = (x[0] for x in problem(SHAPES[1], jnp.float32))
    expected = jax.nn.dot_product_attention(query, key, value, return_residual=True)
    found = dot_product_attention(query, key, value, return_residual=True)
    assert [x.shape for x in found] == [x.shape for x in expected]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), found, expected)


# ---- Against the oracle --------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32, jnp.bfloat16, jnp.float16])
def test_everything_else(dtype):
    q, k, v = problem(SHAPES[1], dtype)
    options = {
        "alibi_slopes": np.array([0.5, 0.25, 0.1, 0.0], np.float32),
        "sinks": np.array([0.1, -1, 2, 0], np.float32),
        "softcap": 2.0,
        "causal": True,
        "window_left": 6,
        "softmax_scale": 0.7,
    }
    out, lse = jax.jit(lambda *x: attention(*x, return_lse=True, **options))(q, k, v)
    expected, expected_lse = oracle.attention(q, k, v, **options)
    unit = {2: 2**-8 if dtype == jnp.bfloat16 else 2**-11, 4: 2**-22, 8: 2**-50}
    atol = 4 * unit[jnp.dtype(dtype).itemsize] * np.abs(v.astype(np.float64)).max()
    np.testing.assert_allclose(out.astype(np.float64), expected, rtol=0, atol=atol)
    assert lse.dtype == (jnp.float64 if dtype == jnp.float64 else jnp.float32)
    np.testing.assert_allclose(lse, expected_lse, rtol=0, atol=max(atol, 1e-5) / 2)


def test_gradients_by_differences():
    """Gradients of bias, slopes, sinks and the LSE too."""
    q, k, v = problem((2, 6, 7, 2, 1, 4))
    bias, slopes, sinks = rows(7, 1, 2, 6, 1), rows(8, 2), rows(9, 2, 2)

    def loss(q, k, v, bias, slopes, sinks):
        out, lse = attention(
            q,
            k,
            v,
            bias=bias,
            alibi_slopes=slopes,
            sinks=sinks,
            softcap=3.0,
            causal=True,
            return_lse=True,
        )
        return jnp.sum(jnp.sin(out)) + jnp.sum(lse**2)

    check_grads(loss, (q, k, v, bias, slopes, sinks), order=1, modes=["rev"], atol=1e-6, rtol=1e-6)


def test_masks_of_bits():
    """A byte holds eight keys; vmap joins mapped masks to the batch."""
    shape = SHAPES[1]
    q, k, v = problem(shape)
    mask = np.random.default_rng(4).random((3, 1, 1, *shape[1:3])) < 0.5
    bits = np.packbits(mask, axis=-1, bitorder="little")
    expected = [attention(q, k, v, mask=m) for m in mask]
    run = jax.jit(jax.vmap(lambda b: attention(q, k, v, mask_bits=b)))
    np.testing.assert_array_equal(run(bits), jnp.stack(expected))
    grads = [
        jax.grad(lambda q, m=m: jnp.sum(attention(q, k, v, **m) ** 2))(q)
        for m in ({"mask": mask[0]}, {"mask_bits": bits[0]})
    ]
    np.testing.assert_array_equal(*grads)


def test_dropout():
    q, k, v = problem(SHAPES[1])
    key = jax.random.key(3)
    run = jax.jit(lambda key: attention(q, k, v, dropout_p=0.5, dropout_key=key))
    assert jnp.array_equal(run(key), run(key))
    assert not jnp.array_equal(run(key), run(jax.random.key(4)))
    check_grads(
        lambda *x: attention(*x, dropout_p=0.3, dropout_key=key),
        (q, k, v),
        order=1,
        modes=["rev"],
        atol=1e-6,
        rtol=1e-6,
    )
    by_key = jax.vmap(lambda key: attention(q, k, v, dropout_p=0.5, dropout_key=key))
    keys = jax.random.split(key, 3)
    assert jnp.array_equal(by_key(keys), jnp.stack([run(one) for one in keys]))


def test_dropout_is_the_library_s():
    """A key's 64 bits are the seed, which keeps the positions that it keeps elsewhere."""
    q, k, v = problem(SHAPES[1])
    key = jax.random.key(5)
    low, high = (int(word) for word in jax.random.bits(key, (2,), jnp.uint32))
    expected = libattn.attention(
        *(np.asarray(x) for x in (q, k, v)), dropout_p=0.5, dropout_seed=low | high << 32
    )
    assert (np.asarray(attention(q, k, v, dropout_p=0.5, dropout_key=key)) == expected).all()


def test_rows_without_keys():
    """C1 and C4, forward and backward: no keys at all, more queries than keys, NaN where masked."""
    q, k, v = problem((2, 5, 7, 4, 2, 8))

    def run(q, k, v, **options):
        def loss(*arrays):
            out, lse = attention(*arrays, return_lse=True, **options)
            return jnp.sum(out) + jnp.sum(jnp.where(lse > -jnp.inf, lse, 0)), (out, lse)

        return jax.value_and_grad(loss, (0, 1, 2), has_aux=True)(q, k, v)

    (_, (out, lse)), gradients = run(q, k[:, :0], v[:, :0])
    assert not out.any() and jnp.isneginf(lse).all() and not gradients[0].any()
    (_, (out, lse)), gradients = run(q, k[:, :3], v[:, :3], causal=True)
    assert not out[:, :2].any() and jnp.isneginf(lse[..., :2]).all()
    assert not gradients[0][:, :2].any() and jnp.isfinite(gradients[0]).all()
    assert run(q[:, :0], k, v)[0][1][0].shape == (2, 0, 4, 8)
    mask = np.arange(7) != 3
    clean = run(q, k, v, mask=mask)
    sown = run(q, k.at[:, 3].set(jnp.nan), v.at[:, 3].set(jnp.nan), mask=mask)
    assert jax.tree.all(jax.tree.map(jnp.array_equal, clean, sown))


def test_packed_sequences():
    q, k, v = (x[0] for x in problem((1, 12, 12, 2, 2, 8)))
    ends = jnp.asarray([0, 5, 5, 12], jnp.int32)
    run = jax.jit(lambda ends: attention(q, k, v, cu_seqlens_q=ends, cu_seqlens_k=ends))
    for start, end in ((0, 5), (5, 12)):
        part = attention(*(x[None, start:end] for x in (q, k, v)))[0]
        np.testing.assert_allclose(run(ends)[start:end], part, rtol=0, atol=1e-12)


# ---- Transformations -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "axes", [(0, 0, 0, 0), (0, None, None, None), (None, 0, 0, 0), (1, 0, 2, 3)]
)
def test_vmap(axes):
    """Results and gradients are those of a loop, whichever arrays are mapped."""
    arrays = [*problem((2, 9, 11, 4, 2, 8)), rows(5, 1, 4, 9, 11)]
    mapped = [
        x if axis is None else jnp.stack([x, 2 * x, x - 1], axis)
        for x, axis in zip(arrays, axes, strict=True)
    ]

    def run(q, k, v, bias):
        def loss(*x):
            return jnp.sum(jnp.sin(attention(*x[:3], bias=x[3], causal=True)))

        gradients = jax.grad(loss, (0, 1, 2, 3))(q, k, v, bias)
        return attention(q, k, v, bias=bias, causal=True), gradients

    found = jax.jit(jax.vmap(run, axes))(*mapped)
    for i in range(3):
        one = run(
            *(x if a is None else jnp.take(x, i, a) for x, a in zip(mapped, axes, strict=True))
        )
        part = jax.tree.map(lambda x, i=i: x[i], found)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-11), part, one)


def test_vmap_twice_and_grad_of_it():
    q, k, v = (jnp.stack([jnp.stack([x, x + 1])] * 3) for x in problem((1, 5, 5, 2, 2, 4)))
    double = jax.vmap(jax.vmap(attention))
    flat = attention(*(x.reshape(6, *x.shape[3:]) for x in (q, k, v)))
    np.testing.assert_allclose(double(q, k, v).reshape(flat.shape), flat, rtol=0, atol=1e-13)
    check_grads(double, (q, k, v), order=1, modes=["rev"], atol=1e-6, rtol=1e-6)


def test_training_step_keeps_no_scores():
    """The compiled step of a long sequence holds less than its scores would take."""
    shape = jax.ShapeDtypeStruct((1, 4096, 8, 64), jnp.float32)
    step = jax.jit(jax.grad(lambda q, k, v: jnp.sum(attention(q, k, v, causal=True)), (0, 1, 2)))
    memory = step.lower(shape, shape, shape).compile().memory_analysis()
    scores = 8 * 4096 * 4096 * 4
    assert memory.temp_size_in_bytes < scores / 10


# ---- Refusals ------------------------------------------------------------------------------------


def test_refusals():
    q, k, v = problem(SHAPES[1])
    with pytest.raises(Exception, match="shape|heads"):
        jax.block_until_ready(attention(q, k[:, :, :1], v))
    with pytest.raises(Exception, match="not taken"):
        jax.block_until_ready(attention(*(x.astype(jnp.complex128) for x in (q, k, v))))
    with pytest.raises(TypeError, match="integer"):
        attention(q, k, v, window_left=2.5)
    with pytest.raises(Exception, match="must be finite"):
        jax.block_until_ready(attention(q, k, v, softmax_scale=float("nan")))
    with pytest.raises(ValueError, match="dropout_key"):
        attention(q, k, v, dropout_p=0.5)
    with pytest.raises(TypeError, match="q is a .*Tracer, which has no memory yet; libattn.jax"):
        jax.jit(lambda x: libattn.attention(x, x, x))(rows(1, 1, 2, 1, 4))
    with pytest.raises(Exception, match="mask"):
        jax.block_until_ready(attention(q, k, v, mask=jnp.ones((2, 1, 17, 3), bool)))
    with pytest.raises(ValueError, match=r"k has 2 axes; it must be \(batch, sequence, heads, dim"):
        attention(q, k[0, 0], v)
    assert math.isfinite(float(attention(q, k, v).sum()))  # a refusal leaves the library usable


@pytest.mark.parametrize("outer", (jax.grad, jax.jacrev, jax.jacfwd))
@pytest.mark.parametrize("wrap", (lambda f: f, jax.jit, jax.checkpoint))
def test_second_derivatives_are_refused(outer, wrap):
    """By a sentence of this package's; JAX's own would ask for rules of the custom call."""
    q, k, v = problem(SHAPES[1])

    def slope(x):
        return jnp.sum(jax.grad(wrap(lambda q: jnp.sum(jnp.sin(attention(q, k, v)))))(x))

    with pytest.raises(NotImplementedError, match="no second derivatives"):
        outer(slope)(q)


def test_forward_mode_is_refused():
    q, k, v = problem(SHAPES[1])
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(attention, (q, k, v), (q, k, v))


# ---- XLA's header --------------------------------------------------------------------------------

MEMBERS = {  # of python/src/xla.h, and where c_api.h has them
    "xla_api": (
        "Api",
        {"error_create": "XLA_FFI_Error_Create", "stream_get": "XLA_FFI_Stream_Get"},
    ),
    "xla_stream_args": ("Stream_Get_Args", {"context": "ctx", "stream": "stream"}),
    "xla_allocate_args": ("DeviceMemory_Allocate_Args", {"alignment": "alignment", "data": "data"}),
    "xla_free_args": ("DeviceMemory_Free_Args", {"size": "size", "data": "data"}),
    "xla_ordinal_args": ("DeviceOrdinal_Get_Args", {"ordinal": "device_ordinal"}),
    "xla_error_args": ("Error_Create_Args", {"message": "message", "code": "errc"}),
    "xla_buffer": ("Buffer", {"dtype": "dtype", "data": "data", "rank": "rank", "dims": "dims"}),
    "xla_buffers": ("Args", {"count": "size", "types": "types", "buffers": "args"}),
    "xla_attributes": ("Attrs", {"types": "types", "names": "names", "values": "attrs"}),
    "xla_frame": (
        "CallFrame",
        {"api": "api", "context": "ctx", "stage": "stage", "operands": "args", "results": "rets"}
        | {"attributes": "attrs"},
    ),
}
MEMBERS["xla_api"][1].update(
    memory_allocate="XLA_FFI_DeviceMemory_Allocate",
    memory_free="XLA_FFI_DeviceMemory_Free",
    ordinal_get="XLA_FFI_DeviceOrdinal_Get",
)
VALUES = {
    "XLA_EXECUTE": "ExecutionStage_EXECUTE",
    "XLA_ATTR_SCALAR": "AttrType_SCALAR",
    "XLA_ATTR_STRING": "AttrType_STRING",
    "XLA_INVALID_ARGUMENT": "Error_Code_INVALID_ARGUMENT",
    "XLA_RESOURCE_EXHAUSTED": "Error_Code_RESOURCE_EXHAUSTED",
    "XLA_UNIMPLEMENTED": "Error_Code_UNIMPLEMENTED",
    "XLA_INTERNAL": "Error_Code_INTERNAL",
    **{f"XLA_{x}": f"DataType_{x}" for x in "PRED S8 S32 S64 U8 U32 F16 F32 F64 BF16".split()},
}


def test_layouts_are_the_header_s(tmp_path):
    if not shutil.which("cc"):
        pytest.skip("no C compiler")
    lines = ['#include "xla/ffi/api/c_api.h"', '#include "xla.h"']
    for own, (other, members) in MEMBERS.items():
        for one, two in members.items():
            same = f"offsetof({own}, {one}) == offsetof(XLA_FFI_{other}, {two})"
            lines.append(f'_Static_assert({same}, "{own}.{one}");')
    for own, other in VALUES.items():
        lines.append(f'_Static_assert((int){own} == (int)XLA_FFI_{other}, "{own}");')
    source = tmp_path / "layouts.c"
    source.write_text("\n".join(lines) + "\n")
    ours = Path(__file__).parents[1] / "src"
    command = ["cc", "-std=c11", "-fsyntax-only", f"-I{jax.ffi.include_dir()}", f"-I{ours}"]
    done = subprocess.run([*command, source], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
