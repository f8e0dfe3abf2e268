"""Attention on the GPU by PyTorch's backends, called from Python: the other end of
bench/measure/bench_gpu.c.

`attn bench --device cuda` starts one process with this text as `python3 -c`, since importing
PyTorch takes longer than most problems. Lines of JSON come in on stdin, and to each one goes out on
stdout, or {"refused": why}:

  {"ask": "versions"}                   {"kernel": of PyTorch and cuDNN}
  {"ask": "problem", "file": .. }       {}: Q, K, V are on the GPU now. They and O lie in that file
                                        (bench/peers/peer.c)
  {"ask": "start", "peer": name}        {}: that peer has been called once
  {"ask": "sample", "peer": name, "calls": n}   {"seconds": of a call replayed from a graph,
                                         "one_by_one": of one enqueued by Python, which may take
                                         longer than the GPU}
  {"ask": "finish", "peer": name}       {}: O holds its result
  {"ask": "matmul", "dtype": name}      {"flops": per second, of the product of two 8192 x 8192
                                        matrices}

Peers write no LSE, also where the problem asks for one. Times are those of the GPU between two
events. Values are N(0, 1): zeros would draw less power and run at higher clocks.
"""

import contextlib
import functools
import itertools
import json
import math
import mmap
import os
import sys
import warnings


class Refused(Exception):
    pass


GRAPH_CALLS, TURNS, COLD_BYTES = 20, 128, 192 << 20  # as bench/measure/bench_gpu.c
memory, problem, peers, products = None, None, {}, {}


def view(name, device):
    """The tensor with the strides that it has in the file, as (batch, head, row, dim)."""
    t = problem[name]
    elements = 1 + sum((n - 1) * s for n, s in zip(t["shape"], t["stride"]))
    flat = torch.frombuffer(memory, dtype=types[t["dtype"]], count=elements, offset=t["offset"])
    return flat.to(device).as_strided(t["shape"], t["stride"]).transpose(1, 2)


def prepare(question):
    global memory, problem
    peers.clear()
    torch.cuda.empty_cache()
    memory, problem = mmap.mmap(question["file"], question["bytes"]), question
    for name in "qkv":
        problem["gpu_" + name] = view(name, "cuda").requires_grad_(question["pass"] != "forward")
    if "bias" in problem:
        # one tensor for all peers, since autograd gives its gradient by this name
        problem["gpu_bias"] = on_gpu("bias").detach().requires_grad_(question["d_bias"])
    keys = [problem["gpu_k"], problem["gpu_v"]]
    size = sum(t.numel() * t.element_size() for t in keys)
    turns = min(1 + COLD_BYTES // (size + 1), TURNS) if question["cold"] else 1
    problem["turns"] = [keys] + [[t.clone() for t in keys] for _ in range(turns - 1)]
    return {}


def on_gpu(name):
    """The mask, the bias or the slopes, as (batch, head, row, key), or None."""
    return view(name, "cuda").transpose(1, 2) if name in problem else None


def score_tensors():
    """The mask and the bias, where the problem has them. A mask as a bias of the problem's type,
    which PyTorch would else make of it in each call."""
    there = [t for t in (on_gpu("mask"), problem.get("gpu_bias")) if t is not None]
    zero = torch.zeros((), device="cuda", dtype=problem["gpu_q"].dtype)
    return [torch.where(t != 0, zero, -math.inf) if t.dtype == torch.uint8 else t for t in there]


def refuse_steps():
    """For peers that take neither softcap nor ALiBi nor windows."""
    there = {
        "softcap": problem["softcap"] > 0,
        "ALiBi": "alibi" in problem,
        "window": "window_left" in problem,
    }
    for name in there:
        if there[name]:
            raise Refused("this peer has no %s; flex has" % name)


def backend(which):
    """scaled_dot_product_attention by one backend: the call, and the context that it wants
    around."""
    from torch.nn.attention import sdpa_kernel
    from torch.nn.attention.bias import causal_lower_right

    refuse_steps()
    q, k = problem["gpu_q"], problem["gpu_k"]
    nq, nk = q.shape[2], k.shape[2]
    options = {
        "scale": problem["scale"],
        "enable_gqa": q.shape[1] != k.shape[1],
        "dropout_p": problem["dropout"],
    }
    if problem["causal"] and (nq == nk or problem["top_left"]):
        options["is_causal"] = True
    elif problem["causal"] and nq > 1:
        options["attn_mask"] = causal_lower_right(nq, nk)
    extra = score_tensors()
    if extra:
        if problem["causal"] or len(extra) > 1:
            raise Refused("PyTorch takes one of causal, mask and bias")
        options["attn_mask"] = extra[0].expand(q.shape[0], q.shape[1], nq, nk)
    attention = torch.nn.functional.scaled_dot_product_attention
    keys = itertools.cycle(problem["turns"])  # of one set, unless cold
    return lambda: attention(q, *next(keys), **options), lambda: sdpa_kernel(which)


def standard():
    """Two products, and between them the matrix of scores, its mask and its softmax, in the
    problem's type."""
    refuse_steps()
    if score_tensors() or problem["dropout"] > 0:
        raise Refused("standard attention here has no mask, bias and dropout")
    q, k, v = (problem["gpu_" + name] for name in "qkv")
    if q.shape[1] != k.shape[1]:
        k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    nq, nk = q.shape[2], k.shape[2]
    scale = problem["scale"] if problem["scale"] is not None else 1 / math.sqrt(q.shape[3])
    first = 1 if problem["top_left"] else nk - nq + 1
    hidden = (
        torch.ones(nq, nk, device="cuda", dtype=torch.bool).triu(first)
        if problem["causal"]
        else None
    )

    def call():
        s = (q @ k.mT) * scale
        return torch.softmax(s if hidden is None else s.masked_fill(hidden, -math.inf), -1) @ v

    return call, contextlib.nullcontext


def flex():
    """flex_attention, compiled for the problem's steps, which it takes as Python."""
    from torch._functorch import config
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    if problem["dropout"] > 0 or problem["d_alibi"]:
        raise Refused("flex has no dropout, and no gradient of slopes here")
    config.donated_buffer = False  # the graph is kept from call to call
    q, k, v = (problem["gpu_" + name] for name in "qkv")
    batch, heads, nq, nk = q.shape[0], q.shape[1], q.shape[2], k.shape[2]
    last = 0 if problem["top_left"] else nk - nq
    left, right = problem.get("window_left", -1), problem.get("window_right", -1)
    cap, bias = problem["softcap"], problem.get("gpu_bias")
    mask, slopes = on_gpu("mask"), on_gpu("alibi")
    bias = None if bias is None else bias.expand(batch, heads, nq, nk)
    slopes = None if slopes is None else slopes[:, :, 0, 0].expand(batch, heads)
    seen = None if mask is None else mask.expand(batch, heads, nq, nk) != 0

    def score(s, b, h, i, j):
        if cap > 0:
            s = cap * torch.tanh(s / cap)
        if bias is not None:
            s = s + bias[b, h, i, j]
        return s if slopes is None else s - slopes[b, h] * abs(i + last - j)

    def sees(b, h, i, j):
        yes = j >= 0
        if problem["causal"]:
            yes = yes & (j <= i + last)
        if left >= 0:
            yes = yes & (j >= i + last - left)
        if right >= 0:
            yes = yes & (j <= i + last + right)
        return yes if seen is None else yes & seen[b, h, i, j]

    blocks = None
    if problem["causal"] or left >= 0 or right >= 0 or mask is not None:
        each = [
            n if mask is not None and mask.shape[at] > 1 else None
            for at, n in enumerate(q.shape[:2])
        ]
        blocks = create_block_mask(sees, *each, nq, nk, device="cuda", _compile=True)
    torch.compiler.reset()  # it compiles a function for 8 problems, then no more
    call = torch.compile(flex_attention, dynamic=False)
    steps = score if cap > 0 or bias is not None or slopes is not None else None
    options = {
        "scale": problem["scale"],
        "score_mod": steps,
        "block_mask": blocks,
        "enable_gqa": heads != k.shape[1],
    }
    keys = itertools.cycle(problem["turns"])
    return lambda: call(q, *next(keys), **options), contextlib.nullcontext


def start(question):
    from torch.nn.attention import SDPBackend

    make = {
        "cudnn": functools.partial(backend, SDPBackend.CUDNN_ATTENTION),
        "flash": functools.partial(backend, SDPBackend.FLASH_ATTENTION),
        "efficient": functools.partial(backend, SDPBackend.EFFICIENT_ATTENTION),
        "standard": standard,
        "flex": flex,
    }
    grads = torch.set_grad_enabled(problem["pass"] != "forward")
    peer = Calls(*make[question["peer"]](), problem["pass"])
    with grads, warnings.catch_warnings(record=True) as why, peer.context():
        warnings.simplefilter("always")
        try:
            peer.begin()
            peer.call()
            torch.cuda.synchronize()
        except RuntimeError as error:
            said = [
                str(w.message).split(" (Triggered")[0] for w in why
            ]  # of every backend, the switched-off ones too
            raise Refused(
                " ".join(s for s in said if "runtime disabled" not in s and "because:" not in s)
                or str(error)
            )
    peers[question["peer"]] = peer
    return {}


class Calls:
    """A pass of a peer: self.call is one of it. The backward pass is autograd's, with all that it
    launches."""

    def __init__(self, forward, context, which):
        self.forward, self.context, self.which = forward, context, which
        self.graph, self.graph_calls = None, 0

    def begin(self):
        if self.which != "forward":
            self.out = self.forward()
            self.d_out = torch.randn_like(self.out)

    def call(self):
        if self.which == "forward":
            return self.forward()
        out = self.out if self.which == "backward" else self.forward()
        inputs = [problem["gpu_" + name] for name in "qkv"]
        inputs += [problem["gpu_bias"]] if problem["d_bias"] else []
        return torch.autograd.grad(out, inputs, self.d_out, retain_graph=True)

    def capture(self, calls):
        torch.cuda.synchronize()
        self.graph, self.graph_calls = torch.cuda.CUDAGraph(), calls
        with torch.cuda.graph(self.graph, stream=torch.cuda.current_stream()):
            for _ in range(calls):
                self.call()

    def sample(self, calls):
        with self.context(), torch.set_grad_enabled(self.which != "forward"):
            turns = len(problem["turns"])
            wanted = turns if turns > 1 else min(calls, GRAPH_CALLS)
            if self.graph_calls != wanted:
                self.capture(wanted)
            self.call()  # while the GPU works on it, Python enqueues the timed calls
            one_by_one = seconds(self.call, calls)
        self.graph.replay()
        replays = -(-calls // self.graph_calls)
        return {
            "seconds": seconds(self.graph.replay, replays) / self.graph_calls,
            "one_by_one": one_by_one,
        }


def sample(question):
    return peers[question["peer"]].sample(question["calls"])


def seconds(call, repeats):
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before.record()
    for _ in range(repeats):
        call()
    after.record()
    after.synchronize()
    return before.elapsed_time(after) * 1e-3 / repeats


def finish(question):
    peer = peers[question["peer"]]
    with peer.context():
        out = peer.call() if peer.which == "forward" else peer.out
        view("o", "cpu").copy_(out.detach())
    return {}


def matmul(question):
    n, dtype = 8192, question["dtype"]
    if dtype not in products:
        a, b = (torch.randn(n, n, device="cuda", dtype=types[dtype]) for _ in range(2))
        c = torch.empty_like(a)
        products[dtype] = lambda: torch.matmul(a, b, out=c)
        seconds(products[dtype], 3)
    return {"flops": 2 * n**3 / seconds(products[dtype], 1)}


def versions(question):
    return {"kernel": "torch %s, cuDNN %s" % (torch.__version__, torch.backends.cudnn.version())}


out = os.dup(1)
os.dup2(2, 1)  # output of libraries does not belong in the pipe
missing = None
try:
    import torch

    types = {
        "f64": torch.float64,
        "f32": torch.float32,
        "f16": torch.float16,
        "bf16": torch.bfloat16,
        "u8": torch.uint8,
    }
    if torch.cuda.is_available():
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.cuda.set_stream(torch.cuda.Stream())  # one that can be captured
        torch.set_grad_enabled(False)
    else:
        missing = "PyTorch %s finds no GPU" % torch.__version__
except ImportError:
    missing = "PyTorch is not installed (pip install torch)"
answers = {
    "versions": versions,
    "problem": prepare,
    "start": start,
    "sample": sample,
    "finish": finish,
    "matmul": matmul,
}
for line in sys.stdin:
    question = json.loads(line)
    try:
        if missing:
            raise Refused(missing)
        answer = answers[question["ask"]](question)
    except Refused as refusal:
        answer = {"refused": " ".join(str(refusal).split())[:400]}
    except Exception as error:
        answer = {
            "refused": ("%s: %s" % (type(error).__name__, " ".join(str(error).split())))[:400]
        }
    os.write(out, (json.dumps(answer) + "\n").encode())
