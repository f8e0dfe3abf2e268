"""Attention by ggml, the library of llama.cpp, through its C API: a part of peers.py, in front of
it in what bench/peers/peer.c gives to Python. The kernel is FLASH_ATTN_EXT on the CPU: Q and O in
f32, K and V in the type of the cache. Beside i8 and i4x2 it has the blocks of 32 columns with a
scale of f16 that are nearest, q8_0 and q4_0, made from the values of the codes.
"""

import ctypes
import importlib.util
import math


class GgmlMemory(ctypes.Structure):
    """ggml_init_params"""

    _fields_ = [
        ("bytes", ctypes.c_size_t),
        ("memory", ctypes.c_void_p),
        ("no_alloc", ctypes.c_bool),
    ]


class Ggml:
    """The functions of ggml's two libraries, from the wheel of llama-cpp-python, which is not
    imported."""

    TYPES = {"f32": 0, "f16": 1, "bf16": 30, "q4_0": 2, "q8_0": 8}  # enum ggml_type
    CODES = {"i8": "q8_0", "i4x2": "q4_0"}
    BLOCK = 32

    def __init__(self):
        wheel = importlib.util.find_spec("llama_cpp")
        if wheel is None:
            raise OSError("ggml is not installed (pip install llama-cpp-python)")
        folder = wheel.submodule_search_locations[0] + "/lib/"
        self.base = ctypes.CDLL(folder + "libggml-base.so", ctypes.RTLD_GLOBAL)
        self.cpu = ctypes.CDLL(folder + "libggml-cpu.so", ctypes.RTLD_GLOBAL)
        pointer, number, real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
        for name, result, *arguments in (
            ("init", pointer, GgmlMemory),
            ("new_tensor_4d", pointer, pointer, ctypes.c_int, number, number, number, number),
            ("permute", pointer, pointer, pointer) + (ctypes.c_int,) * 4,
            ("flash_attn_ext", pointer) + (pointer,) * 5 + (real, real, real),
            ("new_graph", pointer, pointer),
            ("build_forward_expand", None, pointer, pointer),
            ("get_data", pointer, pointer),
            ("nbytes", ctypes.c_size_t, pointer),
            ("quantize_chunk", ctypes.c_size_t, ctypes.c_int, pointer, pointer)
            + (number, number, number, pointer),
            ("backend_graph_compute", ctypes.c_int, pointer, pointer),
            ("version", ctypes.c_char_p),
        ):
            function = getattr(self.base, "ggml_" + name)
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)
        self.cpu.ggml_backend_cpu_init.restype = pointer
        self.cpu.ggml_backend_cpu_set_n_threads.argtypes = (pointer, ctypes.c_int)

    def backend(self, threads):
        backend = self.cpu.ggml_backend_cpu_init()
        self.cpu.ggml_backend_cpu_set_n_threads(backend, threads)
        return backend

    def bytes_of(self, tensor):
        """The memory of a tensor, as a ctypes array."""
        return (ctypes.c_uint8 * self.nbytes(tensor)).from_address(self.get_data(tensor))


def ggml_peer(job, memory):
    """FLASH_ATTN_EXT over a cache in the order of the problem's."""
    try:
        import numpy
    except ImportError:
        raise Refused("NumPy is not installed (pip install numpy)")
    if job["pass"] != "forward":
        raise Refused("ggml has no backward pass of this kernel")
    if "bias" in job or job["dropout"] > 0 or job["top_left"]:
        raise Refused("ggml is asked for plain attention here")
    try:
        ggml = Ggml()
    except OSError as missing:
        raise Refused(str(missing))
    kind = job["k"]["dtype"]
    if "codes" in job:
        if job["codes"] not in Ggml.CODES:
            raise Refused("ggml has no cache of " + job["codes"])
        if job["k"]["shape"][3] % Ggml.BLOCK or job["v"]["shape"][3] % Ggml.BLOCK:
            raise Refused("ggml's blocks are of %d columns" % Ggml.BLOCK)
        kind = Ggml.CODES[job["codes"]]
    stored = {"f32": numpy.float32, "f16": numpy.float16, "bf16": numpy.uint16}

    def view(name):
        t = job[name]
        kind = numpy.dtype(stored[t["dtype"]])
        return numpy.ndarray(
            t["shape"], kind, memory, t["offset"], [s * kind.itemsize for s in t["stride"]]
        )

    def floats(x, dtype):
        wide = (x.astype(numpy.uint32) << 16).view(numpy.float32) if dtype == "bf16" else x
        return numpy.ascontiguousarray(wide, numpy.float32)

    q, k, v, o = (view(name) for name in "qkvo")  # (batch, row, head, dim)
    batch, nq, heads, d = q.shape
    nk = k.shape[1]
    room = 4 * sum(x.size for x in (q, k, v)) + 4 * o.size + 2 * nk * (nq + 64) + (16 << 20)
    context = ggml.init(GgmlMemory(room, None, False))

    def tensor(kind, shape, data):
        t = ggml.new_tensor_4d(context, Ggml.TYPES[kind], *shape)
        if data is not None:
            ctypes.memmove(ggml.get_data(t), data.ctypes.data, data.nbytes)
        return t

    def cache(x):
        """K or V: heads outside rows or rows outside heads, as the problem has them."""
        by_row = x.strides[1] > x.strides[2]
        outer = numpy.ascontiguousarray(x if by_row else x.transpose(0, 2, 1, 3))
        columns, *rest = outer.shape[::-1]
        t = tensor(kind, (columns, *rest), outer if kind in stored else None)
        if kind not in stored:
            data, to, rows = outer.ctypes.data, ggml.get_data(t), outer.size // columns
            ggml.quantize_chunk(Ggml.TYPES[kind], data, to, 0, rows, columns, None)
        return ggml.permute(context, t, 0, 2, 1, 3) if by_row else t

    rows = floats(q.transpose(0, 2, 1, 3), job["q"]["dtype"])
    mask = None
    if job["causal"] and nq > 1:
        padded = (nq + 63) // 64 * 64
        seen = numpy.arange(nk)[None] <= numpy.arange(padded)[:, None] + nk - nq
        shown = numpy.where(seen, 0, -numpy.inf).astype(numpy.float16)
        mask = tensor("f16", (nk, padded, 1, 1), shown)
    scale = job["scale"] if job["scale"] is not None else 1 / math.sqrt(d)
    result = ggml.flash_attn_ext(
        context,
        tensor("f32", (d, nq, heads, batch), rows),
        cache(k),
        cache(v),
        mask,
        scale,
        0,  # ALiBi
        0,  # softcap
    )
    graph = ggml.new_graph(context)
    ggml.build_forward_expand(graph, result)
    backend = ggml.backend(job["threads"])

    def call():
        if ggml.backend_graph_compute(backend, graph) != 0:
            raise RuntimeError("ggml's graph failed")

    def keep(_):
        found = numpy.frombuffer(ggml.bytes_of(result), numpy.float32).reshape(o.shape)
        if job["o"]["dtype"] == "bf16":
            bits = found.view(numpy.uint32)
            o[...] = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
        else:
            o[...] = found

    return "ggml %s, %s" % (ggml.version().decode(), kind), call, keep


