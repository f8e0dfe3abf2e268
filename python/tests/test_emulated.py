"""The binding's way to GPUs, on the emulated one (tests/emulate/cuda), whose memory is the host's:
arrays on CUDA with their workspace and stream, and the handlers of libattn.jax for XLA on a GPU."""

import ctypes
import os

import libattn
import numpy as np
import pytest
from libattn import _core

if not os.environ.get("ATTN_EMULATED_GPU"):
    pytest.skip("not on the emulated GPU (ctest -R gpu.python)", allow_module_level=True)

RNG = np.random.default_rng(5)
Q = RNG.standard_normal((2, 9, 4, 16)).astype(np.float32)
K, V = (RNG.standard_normal((2, 11, 2, 16)).astype(np.float32) for _ in range(2))


def close(found, expected):
    assert found.shape == expected.shape and found.dtype == expected.dtype
    assert abs(found - expected).max() <= 1e-5 * abs(expected).max()


# ---- Arrays on CUDA ------------------------------------------------------------------------------


class Array:
    """An array of NumPy that says it lies on a GPU."""

    device = "GPU 0"

    def __init__(self, values):
        self.values = values

    @property
    def shape(self):
        return self.values.shape

    @property
    def dtype(self):
        return self.values.dtype

    def __dlpack_device__(self):
        return 2, 0

    def __dlpack__(self, stream=None):
        assert stream == -1  # no waiting
        capsule = self.values.__dlpack__()
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
        ctypes.c_int32.from_address(pointer(capsule, b"dltensor") + 8).value = 2
        return capsule

    def __array_namespace__(self):
        return Namespace


class Namespace:
    """Functions and types that make such arrays; it counts bytes of workspaces."""

    float32, float16, int8, uint8, workspaces = np.float32, np.float16, np.int8, np.uint8, []

    @staticmethod
    def empty(shape, dtype, device):
        assert device == Array.device
        if dtype is np.uint8:
            Namespace.workspaces.append(shape[0])
        return Array(np.full(shape, 9, dtype))

    @staticmethod
    def asarray(array, device):
        assert device == Array.device
        return Array(array)


@pytest.mark.parametrize("options", [{}, {"causal": True, "softcap": 3.0}])
def test_arrays(options):
    expected = libattn.attention(Q, K, V, return_lse=True, **options)
    arrays = [Array(x) for x in (Q, K, V)]
    found = libattn.attention(*arrays, return_lse=True, **options)
    assert all(isinstance(x, Array) for x in found)
    for own, other in zip(found, expected, strict=True):
        close(own.values, other)
    Namespace.workspaces.clear()
    grads = libattn.backward(Array(Q), *arrays, *found, **options)
    exact = libattn.backward(Q, Q, K, V, *expected, **options)
    for own, other in zip(grads[:3], exact[:3], strict=True):
        close(own.values, other)
    assert len(Namespace.workspaces) == 1  # the backward pass has one, of the arrays' package
    with pytest.raises(ValueError, match="different devices"):
        libattn.attention(arrays[0], K, arrays[2])


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_codes(kind):
    """Codes, scales and shifts of arrays on a GPU lie there, and have the CPU's bits."""
    expected = libattn.quantize(K, kind, groups=2, shift=True)
    found = libattn.quantize(Array(K), kind, groups=2, shift=True)
    assert all(isinstance(x, Array) for x in found)
    for own, other in zip(found, expected, strict=True):
        assert own.dtype == other.dtype and (own.values == other).all()
    values = libattn.dequantize(*found, dtype="float16")
    assert (values.values == libattn.dequantize(*expected, dtype="float16")).all()
    with pytest.raises(ValueError, match="not on one device"):
        libattn.dequantize(found.codes, expected.scale)
    with pytest.raises(TypeError, match="float8_e5m2 beside a Array"):
        libattn.quantize(Array(K), "float8_e5m2")


def test_dropout_mask():
    shape, options = (2, 3, 5, 7), {"seed": 5, "q_origin": 9, "k_origin": 3}
    keep = Array(np.zeros(shape, bool))
    assert libattn.dropout_mask(shape, 0.4, out=keep, **options) is keep
    assert (keep.values == libattn.dropout_mask(shape, 0.4, **options)).all()
    with pytest.raises(ValueError, match="wanted"):
        libattn.dropout_mask((2, 3, 5, 8), 0.4, out=keep)


def test_arrays_of_jax():
    """JAX tells nobody its streams: its arrays on a GPU have a way of their own."""
    kind = type("ArrayImpl", (Array,), {"__module__": "jaxlib._jax"})
    with pytest.raises(NotImplementedError, match=r"libattn\.jax\.attention takes it"):
        libattn.attention(*(kind(x) for x in (Q, K, V)))


# ---- XLA's calls ---------------------------------------------------------------------------------

SIZE, POINTER, INT, LONG = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64


def struct(**fields):
    """One of XLA's structs, which all begin alike."""
    head = [("struct_size", SIZE), ("extensions", POINTER)]
    return type("Struct", (ctypes.Structure,), {"_fields_": head + list(fields.items())})


Error = struct(message=ctypes.c_char_p, code=INT)
Stream = struct(context=POINTER, stream=POINTER)
Allocate = struct(context=POINTER, size=SIZE, alignment=SIZE, data=POINTER)
Free = struct(context=POINTER, size=SIZE, data=POINTER)
Ordinal = struct(context=POINTER, ordinal=ctypes.c_int32)
Version = struct(major=INT, minor=INT)
Api = struct(version=Version, internal=POINTER, functions=POINTER * 18)
Buffer = struct(dtype=INT, data=POINTER, rank=LONG, dims=ctypes.POINTER(LONG))
List = struct(count=LONG, types=ctypes.POINTER(INT), values=ctypes.POINTER(POINTER))
Attributes = struct(
    count=LONG,
    types=ctypes.POINTER(INT),
    names=ctypes.POINTER(POINTER),
    values=ctypes.POINTER(POINTER),
)
Frame = struct(
    api=POINTER, context=POINTER, stage=INT, operands=List, results=List, attributes=Attributes
)


class Text(ctypes.Structure):
    _fields_ = [("data", ctypes.c_char_p), ("length", SIZE)]


class Scalar(ctypes.Structure):
    _fields_ = [("dtype", INT), ("value", POINTER)]


class Xla:
    """What XLA does around a handler on GPU 0: stream, memory, errors."""

    STREAM = 0xABC0

    def __init__(self, short=False):
        self.messages, self.blocks, self.kept = [], {}, []
        self.api = Api(struct_size=ctypes.sizeof(Api) - 8 * short)
        places = {0: self.error, 4: self.stream, 9: self.allocate, 10: self.free, 17: self.ordinal}
        for place, function in places.items():
            call = ctypes.CFUNCTYPE(POINTER, POINTER)(function)
            self.kept.append(call)
            self.api.functions[place] = ctypes.cast(call, POINTER)

    def error(self, place):
        said = Error.from_address(place)
        self.messages.append((said.code, said.message.decode()))
        return 1

    def stream(self, place):
        Stream.from_address(place).stream = self.STREAM

    def allocate(self, place):
        asked = Allocate.from_address(place)
        block = np.full(asked.size, 9, np.uint8)
        asked.data = block.ctypes.data
        self.blocks[asked.data] = block

    def free(self, place):
        freed = Free.from_address(place)
        assert len(self.blocks.pop(freed.data)) == freed.size
        self.blocks[None] = freed.size

    def ordinal(self, place):
        Ordinal.from_address(place).ordinal = 0

    def list(self, arrays):
        buffers = []
        for x in arrays:
            dims = (LONG * x.ndim)(*x.shape)
            kind = {"float32": 11, "uint32": 8}[x.dtype.name]
            buffers.append(Buffer(dtype=kind, data=x.ctypes.data, rank=x.ndim, dims=dims))
        places = (POINTER * len(buffers))(*map(ctypes.addressof, buffers))
        self.kept += [buffers, places]
        return List(count=len(buffers), values=places)

    def run(self, handler, operands, results, **flags):
        """Messages of a call of arrays by their names."""
        attributes = {
            "operands": (4, Text(b",".join(name.encode() for name in operands), 0)),
            "results": (4, Text(b",".join(name.encode() for name in results), 0)),
        }
        for _, text in attributes.values():
            text.length = len(text.data)
        true = ctypes.c_uint8(1)
        for name in flags:
            attributes[name] = (3, Scalar(1, ctypes.addressof(true)))
        names = [Text(name.encode(), len(name)) for name in attributes]
        values = [value for _, value in attributes.values()]
        size = len(attributes)
        frame = Frame(
            api=ctypes.addressof(self.api),
            stage=3,
            operands=self.list(operands.values()),
            results=self.list(results.values()),
            attributes=Attributes(
                count=size,
                types=(INT * size)(*(kind for kind, _ in attributes.values())),
                names=(POINTER * size)(*map(ctypes.addressof, names)),
                values=(POINTER * size)(*map(ctypes.addressof, values)),
            ),
        )
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
        place = pointer(handler, b"xla._CUSTOM_CALL_TARGET")
        ctypes.CFUNCTYPE(POINTER, POINTER)(place)(ctypes.addressof(frame))
        return self.messages


_, _, FORWARD, BACKWARD = _core.jax_handlers()


def test_handlers():
    """Both passes as XLA calls them on a GPU, its memory returned."""
    expected = libattn.attention(Q, K, V, causal=True, return_lse=True)
    results = {"out": np.empty_like(Q), "lse": np.empty((2, 4, 9), np.float32)}
    xla = Xla()
    assert xla.run(FORWARD, {"q": Q, "k": K, "v": V}, results, causal=True) == []
    for own, other in zip(results.values(), expected, strict=True):
        close(own, other)
    exact = libattn.backward(Q, Q, K, V, *expected, causal=True)
    operands = {"q": Q, "k": K, "v": V, **results, "d_out": Q}
    grads = {"dq": np.empty_like(Q), "dk": np.empty_like(K), "dv": np.empty_like(V)}
    assert xla.run(BACKWARD, operands, grads, causal=True) == []
    for own, other in zip(grads.values(), exact[:3], strict=True):
        close(own, other)
    assert list(xla.blocks) == [None] and xla.blocks[None] > 0


def test_refusals_of_handlers():
    operands, results = {"q": Q, "k": K, "v": V}, {"out": np.empty_like(Q)}
    wrong = Xla().run(FORWARD, {**operands, "v": V[:, :3].copy()}, results)
    assert wrong[0][0] == 3 and "shape" in wrong[0][1]
    both = {**results, "out_f32": np.empty_like(Q)}
    assert Xla().run(FORWARD, operands, both) == []
    assert np.array_equal(both["out"], both["out_f32"])
    seed = np.array([1, 2], np.uint32)
    dropped = Xla().run(FORWARD, {**operands, "dropout_seed": seed}, results)
    assert "on CPUs only" in dropped[0][1]
    old = Xla(short=True).run(FORWARD, operands, results)
    assert old == [(12, "libattn.jax on a GPU needs a newer jaxlib")]
