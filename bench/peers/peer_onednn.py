"""Attention by oneDNN's graph API, through the C API of libdnnl.so.3: a part of peers.py, in front
of it in what bench/peers/peer.c gives to Python. Graph is a graph of operations on tensors;
onednn_peer makes attention of it.
"""

import ctypes
import importlib.util
import math
import mmap
import os
import struct
import sys


class LogicalTensor(ctypes.Structure):
    """dnnl_graph_logical_tensor_t"""

    _fields_ = [
        ("id", ctypes.c_size_t),
        ("ndims", ctypes.c_int),
        ("dims", ctypes.c_int64 * 12),
        ("type_property_layout", ctypes.c_int * 3),
        ("strides", ctypes.c_int64 * 12),
    ]


def load_onednn():
    """A libdnnl.so.3 whose threads are OpenMP's, and its version: from where the loader looks, from
    the prefix of this
    Python (conda, pip's onednn-cpu-gomp), or from the wheel of PaddlePaddle, which is not imported.
    """
    paddle = importlib.util.find_spec("paddle")
    inside = [folder + "/libs/" for folder in paddle.submodule_search_locations] if paddle else []
    for folder in ["", sys.prefix + "/lib/"] + inside:
        try:
            library = ctypes.CDLL(folder + "libdnnl.so.3")
        except OSError:
            continue
        library.dnnl_version.restype = ctypes.POINTER(
            ctypes.c_int * 7
        )  # three numbers, a hash, the CPU's runtime
        version = library.dnnl_version().contents
        if version[6] == 2:  # DNNL_RUNTIME_OMP
            return library, "%d.%d.%d" % tuple(version[:3])
    raise Refused("oneDNN with OpenMP is not installed (pip install --no-deps paddlepaddle)")


class Graph:
    TYPES = {"f16": 1, "bf16": 2, "f32": 3}  # dnnl_data_type_t
    ADD, MATMUL, MULTIPLY, SOFTMAX = 2, 39, 46, 64  # dnnl_graph_op_kind_t
    TRANSPOSE_B, LAST_AXIS = ("bool", 0x66, ctypes.c_uint8(1)), (
        "s64",
        0x30,
        ctypes.c_int64(-1),
    )  # attributes

    def __init__(self, threads):
        os.environ["OMP_NUM_THREADS"] = str(threads)
        self.library, self.version = load_onednn()
        self.tensors, self.memory = [], {}  # what tensor a number is; where it has its elements
        self.engine = self.new("engine_create", 1, 0)  # dnnl_cpu, the first
        self.stream = self.new("stream_create", self.engine, 1)  # dnnl_stream_default_flags
        self.graph = self.new("graph_graph_create", 1)  # dnnl_cpu

    def ask(self, name, *arguments):
        """Calls dnnl_<name>. An integer goes in 64 bits, of which one that takes an enum reads the
        lower half."""
        wide = [ctypes.c_int64(a) if isinstance(a, int) else a for a in arguments]
        status = getattr(self.library, "dnnl_" + name)(*wide)
        if status != 0:
            raise Refused("oneDNN %s: dnnl_%s returns %d" % (self.version, name, status))

    def new(self, name, *arguments):
        handle = ctypes.c_void_p()
        self.ask(name, ctypes.byref(handle), *arguments)
        return handle

    def get(self, name, handle, kind=ctypes.c_size_t):
        value = kind()
        self.ask(name, handle, ctypes.byref(value))
        return value.value

    def tensor(self, dtype, dims, strides=None, buffer=None, offset=0):
        """Without a buffer: one between operations."""
        strides = strides or [math.prod(dims[n + 1 :]) for n in range(len(dims))]
        twelve = ctypes.c_int64 * 12
        kind = self.TYPES[dtype], 0, 2  # no property, dnnl_graph_layout_type_strided
        t = LogicalTensor(len(self.tensors), len(dims), twelve(*dims), kind, twelve(*strides))
        self.tensors.append(t)
        if buffer is not None:
            self.memory[t.id] = ctypes.c_char.from_buffer(buffer, offset)
        return t

    def op(self, kind, inputs, output, attribute=None):
        op = self.new("graph_op_create", output.id, kind, b"")
        for t in inputs:
            self.ask("graph_op_add_input", op, ctypes.byref(t))
        self.ask("graph_op_add_output", op, ctypes.byref(output))
        if attribute is not None:
            type_name, key, value = attribute
            self.ask("graph_op_set_attr_" + type_name, op, key, ctypes.byref(value), 1)
        self.ask("graph_add_op", self.graph, op)
        return output

    def ports(self, partition, side):
        """A partition's tensors on a side, "input" or "output": how many, pointers to them, handles
        with memory."""
        name = "graph_partition_get_%s_ports" % side
        count = self.get(name + "_num", partition)
        ports = (LogicalTensor * count)()
        self.ask(name, partition, count, ports)
        pointers, handles = (ctypes.POINTER(LogicalTensor) * count)(), (ctypes.c_void_p * count)()
        for n, port in enumerate(ports):
            t = self.tensors[port.id]
            if t.id not in self.memory:  # between two partitions; no type has more than 4 bytes
                self.memory[t.id] = ctypes.c_char.from_buffer(
                    mmap.mmap(-1, 4 * math.prod(t.dims[: t.ndims]))
                )
            place = ctypes.byref(self.memory[t.id])
            pointers[n] = ctypes.pointer(t)
            handles[n] = self.new("graph_tensor_create", pointers[n], self.engine, place).value
        return count, pointers, handles

    def compile(self):
        """Compiles the library's partitions: the arguments of
        dnnl_graph_compiled_partition_execute for each."""
        self.ask("graph_graph_finalize", self.graph)
        self.ask("graph_graph_filter", self.graph, 1)  # dnnl_graph_partition_policy_fusion
        count = self.get("graph_graph_get_partition_num", self.graph)
        partitions, calls = (ctypes.c_void_p * count)(), []
        self.ask("graph_graph_get_partitions", self.graph, count, partitions)
        for partition in map(ctypes.c_void_p, partitions):
            if not self.get("graph_partition_is_supported", partition, ctypes.c_uint8):
                raise Refused("oneDNN %s cannot do it in this type on this CPU" % self.version)
            (n, takes, inputs), (m, gives, outputs) = (
                self.ports(partition, side) for side in ("input", "output")
            )
            compiled = self.new("graph_compiled_partition_create", partition)
            self.ask(
                "graph_partition_compile", partition, compiled, n, takes, m, gives, self.engine
            )
            calls.append(
                (compiled, self.stream, ctypes.c_size_t(n), inputs, ctypes.c_size_t(m), outputs)
            )
        return calls


def number(x, dtype):
    """Its bytes, rounded to nearest."""
    if dtype == "bf16":
        return struct.pack("<I", struct.unpack("<I", struct.pack("<f", x))[0] + 0x8000)[2:]
    return struct.pack({"f16": "<e", "f32": "<f"}[dtype], x)


def causal_mask(nq, nk, ahead, dtype):
    """To be added to scores: row i sees the keys up to i + ahead."""
    seen, hidden = number(0, dtype), number(-math.inf, dtype)
    return bytearray().join(
        seen * min(i + ahead + 1, nk) + hidden * (nk - i - ahead - 1) for i in range(nq)
    )


def onednn_peer(job, memory):
    """MatMul, Multiply by the scale, Add of a mask if causal, SoftMax, MatMul on the problem's own
    layout. If oneDNN makes one partition of them, it has recognised attention. The heads of a group
    are a fifth dimension, along which K and V have one element."""
    if job["pass"] != "forward" or "bias" in job or job["dropout"] > 0:
        raise Refused("oneDNN is asked for the forward pass of plain attention here")
    (_, nq, heads, d), (_, nk, kv_heads, _) = job["q"]["shape"], job["k"]["shape"]
    dtype = job["q"]["dtype"]
    ahead = nk - nq if job["causal"] and not job["top_left"] else 0
    if ahead < 0:
        raise Refused("a row without keys is NaN in oneDNN")
    graph = Graph(job["threads"])

    def given(name):
        t = job[name]
        (b, n, h, x), (by_b, by_n, by_h, by_x) = t["shape"], t["stride"]
        group = h // kv_heads
        dims, strides = [b, kv_heads, group, n, x], [by_b, group * by_h, by_h, by_n, by_x]
        if heads == kv_heads:
            del dims[2], strides[2]
        return graph.tensor(t["dtype"], dims, strides, memory, t["offset"])

    q, k, v, o = map(given, "qkvo")
    shape = q.dims[: q.ndims - 1] + [nk]

    def step(kind, inputs, attribute=None):
        return graph.op(kind, inputs, graph.tensor(dtype, shape), attribute)

    scale = d**-0.5 if job["scale"] is None else job["scale"]
    scores = step(Graph.MATMUL, [q, k], Graph.TRANSPOSE_B)
    scores = step(
        Graph.MULTIPLY, [scores, graph.tensor(dtype, [1], buffer=bytearray(number(scale, dtype)))]
    )
    if job["causal"] and ahead < nk - 1:
        mask = [1] * (len(shape) - 2) + [nq, nk]
        scores = step(
            Graph.ADD, [scores, graph.tensor(dtype, mask, buffer=causal_mask(nq, nk, ahead, dtype))]
        )
    graph.op(Graph.MATMUL, [step(Graph.SOFTMAX, [scores], Graph.LAST_AXIS), v], o)
    calls = graph.compile()
    execute, wait = (
        graph.library.dnnl_graph_compiled_partition_execute,
        graph.library.dnnl_stream_wait,
    )

    def call():
        if any([execute(*arguments) for arguments in calls]) or wait(graph.stream) != 0:
            raise Refused("oneDNN %s fails" % graph.version)

    kernel = "onednn %s %d partition%s" % (graph.version, len(calls), "s" if len(calls) > 1 else "")
    return kernel, call, lambda result: None
