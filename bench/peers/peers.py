"""Attention by the libraries that users would take otherwise, called from Python: the other end of
bench/peers/peer.c.

`attn bench` starts one process per library and problem with peer_onednn.py, peer_ggml.py and this
text after them as `python3 -c`. Lines of JSON come in on stdin and go out on stdout. The first one
in is the job: which library, how many threads, which file holds Q, K, V and O and where in it they
lie; K and V of "codes" are there as their values. The answer is {"kernel": name} or {"refused":
why}. Then {"repeats": n} asks for n calls in a row and gets {"seconds": of all of them, "waited":
of its threads for a core}, with the last result left in O, outside of the time. Inputs are
converted before, not during the time, to the layout that a library wants. A call is the job's
"pass": forward, backward (of one forward pass before the time), or training, which is both. Dropout
draws positions of the library's own.
"""

import json
import mmap
import os
import resource
import sys
import time


class Refused(Exception):
    pass


def torch_peer(job, memory, attend=None):
    """PyTorch's scaled_dot_product_attention on the problem's own layout, through views."""
    try:
        import torch
    except ImportError:
        raise Refused("PyTorch is not installed (pip install torch)")
    from torch.nn.attention.bias import causal_lower_right

    types = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}

    def view(name):
        t = job[name]
        elements = 1 + sum((n - 1) * s for n, s in zip(t["shape"], t["stride"]))
        flat = torch.frombuffer(memory, dtype=types[t["dtype"]], count=elements, offset=t["offset"])
        return flat.as_strided(t["shape"], t["stride"])

    torch.set_num_threads(job["threads"])
    q, k, v, o = (view(name).transpose(1, 2) for name in "qkvo")  # to (batch, head, row, dim)
    nq, nk = q.shape[2], k.shape[2]
    options = {
        "scale": job["scale"],
        "enable_gqa": q.shape[1] != k.shape[1],
        "dropout_p": job["dropout"],
    }
    leaves = [q, k, v]
    if job["causal"] and (nq == nk or job["top_left"]):
        options["is_causal"] = True
    elif job["causal"] and nq > 1:
        options["attn_mask"] = causal_lower_right(nq, nk)
    if "bias" in job:
        if job["causal"]:
            raise Refused("PyTorch takes a bias or causal, not both")
        options["attn_mask"] = view("bias").to(q.dtype)
        leaves += [options["attn_mask"]] if job["d_bias"] else []
    attend = attend or torch.nn.functional.scaled_dot_product_attention

    def forward():
        return attend(q, k, v, **options)

    if job["pass"] == "forward":
        torch.inference_mode().__enter__()
        return "torch " + torch.__version__, forward, o.copy_
    for leaf in leaves:
        leaf.requires_grad_()
    once = forward()
    gradient = torch.randn_like(once)
    o.copy_(once.detach())

    def backward():
        torch.autograd.grad(once, leaves, gradient, retain_graph=True)

    def training():
        torch.autograd.grad(forward(), leaves, gradient)

    calls = {"backward": backward, "training": training}
    return "torch " + torch.__version__, calls[job["pass"]], lambda result: None


def libattn_torch_peer(job, memory):
    """The same calls through libattn's own binding, instead of PyTorch's kernel."""
    try:
        import libattn.torch
    except ImportError as missing:
        raise Refused("%s is not installed (pip install ., and torch)" % missing.name)
    libattn.set_num_threads(job["threads"])
    _, call, keep = torch_peer(job, memory, libattn.torch.scaled_dot_product_attention)
    return "libattn " + libattn.__version__, call, keep


def onnxruntime_peer(job, memory):
    """ONNX Runtime's CPU kernels on packed (batch, row, head * dim) tensors, bound before the call.
    Of the operators that can do the problem, the one that is fastest here."""
    try:
        import numpy
        import onnx
        import onnxruntime
    except ImportError as missing:
        raise Refused("%s is not installed (pip install onnxruntime onnx)" % missing.name)
    if job["pass"] != "forward":
        raise Refused("ONNX Runtime has no backward pass of attention on the CPU")
    if "bias" in job or job["dropout"] > 0:
        raise Refused("ONNX Runtime is asked for plain attention here")
    types = {"f32": numpy.float32, "f16": numpy.float16}
    if job["q"]["dtype"] not in types:
        raise Refused("ONNX Runtime has no attention in %s on the CPU" % job["q"]["dtype"])

    def view(name):
        t = job[name]
        kind = numpy.dtype(types[t["dtype"]])
        return numpy.ndarray(
            t["shape"], kind, memory, t["offset"], [s * kind.itemsize for s in t["stride"]]
        )

    q, k, v, o = view("q"), view("k"), view("v"), view("o")
    batch, nq, heads, d = q.shape
    nk, kv_heads, d_v = k.shape[1], k.shape[2], v.shape[3]
    packed = {
        n: numpy.ascontiguousarray(t).reshape(t.shape[0], t.shape[1], -1)
        for n, t in zip("qkv", (q, k, v))
    }
    result = numpy.empty((batch, nq, heads * d_v), q.dtype)
    if job["causal"] and nq != nk and not job["top_left"] and nq > 1:
        raise Refused("causal with fewer queries than keys is top-left in ONNX Runtime")
    causal = int(job["causal"] and nq > 1)
    scale = {} if job["scale"] is None else {"scale": job["scale"]}
    make = onnx.helper.make_node
    nodes = [
        make(
            "Attention",
            ["q", "k", "v"],
            ["o"],
            is_causal=causal,
            q_num_heads=heads,
            kv_num_heads=kv_heads,
            **scale,
        )
    ]
    if heads == kv_heads:
        nodes.append(
            make(
                "MultiHeadAttention",
                ["q", "k", "v"],
                ["o"],
                domain="com.microsoft",
                num_heads=heads,
                unidirectional=causal,
                **scale,
            )
        )
    if causal and nq == nk and d == d_v:
        nodes.append(
            make(
                "GroupQueryAttention",
                ["q", "k", "v", "", "", "last", "total"],
                ["o", "keys", "values"],
                domain="com.microsoft",
                num_heads=heads,
                kv_num_heads=kv_heads,
                **scale,
            )
        )
        packed["last"] = numpy.full(batch, nk - 1, numpy.int32)
        packed["total"] = numpy.array([nk], numpy.int32)
    shared = {}
    if nq == 1 and d == d_v:
        # the cache is past and present at once, so that no call copies it; its last row comes anew
        for name, kept, t in (("k", "keys", k), ("v", "values", v)):
            past = numpy.ascontiguousarray(t.transpose(0, 2, 1, 3))
            shared[kept] = onnxruntime.OrtValue.ortvalue_from_numpy(past)
            packed[name + "_new"] = numpy.ascontiguousarray(t[:, -1:]).reshape(batch, 1, -1)
        nodes.append(
            make(
                "GroupQueryAttention",
                ["q", "k_new", "v_new", "past_keys", "past_values", "last", "total"],
                ["o", "keys", "values"],
                domain="com.microsoft",
                num_heads=heads,
                kv_num_heads=kv_heads,
                **scale,
            )
        )
        packed["last"] = numpy.full(batch, nk - 1, numpy.int32)
        packed["total"] = numpy.array([nk], numpy.int32)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = job["threads"]
    options.log_severity_level = 4

    def prepare(node):
        value = onnx.helper.make_tensor_value_info
        kind = onnx.helper.np_dtype_to_tensor_dtype
        outputs = [value(name, kind(q.dtype), None) for name in node.output]
        past = {"past_" + name: x for name, x in shared.items() if "past_" + name in node.input}
        inputs = [
            value(name, kind(packed[name].dtype), packed[name].shape)
            for name in node.input
            if name in packed
        ]
        inputs += [value(name, kind(q.dtype), x.shape()) for name, x in past.items()]
        opsets = [onnx.helper.make_opsetid("", 23), onnx.helper.make_opsetid("com.microsoft", 1)]
        graph = onnx.helper.make_graph([node], "attention", inputs, outputs)
        model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        binding = session.io_binding()
        for name in node.input:
            if name in packed:
                binding.bind_cpu_input(name, packed[name])
        for name, x in past.items():
            binding.bind_ortvalue_input(name, x)
        binding.bind_output("o", "cpu", 0, q.dtype, result.shape, result.ctypes.data)
        for name in node.output[1:]:
            if past:
                binding.bind_ortvalue_output(name, shared[name])
            else:
                binding.bind_output(name)
        return lambda: session.run_with_iobinding(binding)

    best, why = None, "no operator fits"
    for node in nodes:
        try:
            call = prepare(node)
            call()
            seconds, _ = timed(call, 3)
        except Exception as error:
            why = str(error)
            continue
        if best is None or seconds < best[0]:
            best = (
                seconds,
                node.op_type.replace("MultiHead", "MH").replace("GroupQuery", "GQ"),
                call,
            )
    if best is None:
        raise Refused("ONNX Runtime: " + why)

    def keep(_):
        o[...] = result.reshape(o.shape)

    return "onnxruntime %s %s" % (onnxruntime.__version__, best[1]), best[2], keep


def timed(call, repeats):
    """Seconds of all calls in a row, and the last result."""
    clock = (
        time.process_time if job["threads"] == 1 else time.perf_counter
    )  # as bench/measure/worker.c does
    result, start = None, clock()
    for _ in range(repeats):
        result = call()
    return clock() - start, result


def waited():
    """Seconds that the threads of this process have waited for a core so far."""
    sum = 0
    for task in os.listdir("/proc/self/task"):
        with open("/proc/self/task/%s/schedstat" % task) as file:
            sum += int(file.read().split()[1]) * 1e-9
    return sum


def say(answer):
    answer["rss"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    os.write(out, (json.dumps(answer) + "\n").encode())


out = os.dup(1)
os.dup2(2, 1)  # output of libraries does not belong in the pipe
job = json.loads(sys.stdin.readline())
memory = mmap.mmap(job["file"], job["bytes"])
peers = {
    "torch": torch_peer,
    "onnxruntime": onnxruntime_peer,
    "onednn": onednn_peer,
    "ggml": ggml_peer,
    "libattn.torch": libattn_torch_peer,
}
try:
    if "codes" in job and job["peer"] != "ggml":
        raise Refused("the others here take no quantised keys and values")
    kernel, call, keep = peers[job["peer"]](job, memory)
    keep(call())
except Refused as refusal:
    say({"refused": str(refusal)})
    sys.exit()
except Exception as error:
    say({"refused": "%s: %s" % (job["peer"], " ".join(str(error).split())[:300])})
    sys.exit()
say({"kernel": kernel})
for line in sys.stdin:
    repeats = json.loads(line)["repeats"]
    timed(call, repeats // 2)  # as bench/measure/worker.c does
    before = waited()
    seconds, result = timed(call, repeats)
    delay = waited() - before
    keep(result)
    time.sleep(
        0.005
    )  # let threads that still spin go to sleep before another implementation has its turn
    say({"seconds": seconds, "waited": delay})
