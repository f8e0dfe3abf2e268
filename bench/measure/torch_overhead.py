"""torch_overhead.py [SECONDS [WORD ...]]: what PyTorch's autograd adds to the C calls, with commas.

Needs the package (pip install .) and PyTorch. Four ways take turns in one process, back and forth:

    c         attn_forward and attn_backward into given arrays, through the extension
    c_f32     with O in float32 as well, which the backward pass of 16-bit types reads
    function  the same in an autograd function of eight lines: the least that autograd takes
    torch     libattn.torch.scaled_dot_product_attention

A time is the first decile of the turns, with one thread of processor time, with more of those in
which no thread waited for a core (their number is `calm`; of all turns if it is below 5). A ratio
is that of a way over that of `c`. SECONDS (6) are those of a problem; with WORDs only problems that
have them all are measured: bfloat16 512 training.
"""

import os
import sys
import time

import torch

import libattn
import libattn.torch
from libattn import _core

HEADS, DIM = 16, 64
CALM = 0.01  # the largest share of a turn that a thread waits
PROBLEMS = [
    (dtype, length, threads, name)
    for dtype in ("bfloat16", "float32")
    for length in (512, 2048)
    for threads in (1, 2)
    for name in ("forward", "backward", "training")
]


class Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):
        out, lse, _, exact = _core.forward(
            q=q, k=k, v=v, out=True, lse=True, out_f32=q.dtype != torch.float32, layout="bhsd"
        )
        ctx.save_for_backward(q, k, v, out if exact is None else exact, lse)
        return out

    @staticmethod
    def backward(ctx, d_out):
        q, k, v, out, lse = ctx.saved_tensors
        return _core.backward(
            q=q, k=k, v=v, out=out, lse=lse, d_out=d_out, dq=True, dk=True, dv=True, layout="bhsd"
        )[:3]


def by_c(inputs, d_out, name, exact):
    """The C calls of a pass into arrays of their own; `exact`: with O in float32."""
    given = dict(zip("qkv", (x.detach() for x in inputs), strict=True), layout="bhsd")
    out, lse = torch.empty_like(d_out), torch.empty(d_out.shape[:-1])
    read = torch.empty(d_out.shape) if exact else out
    grads = {place: torch.empty_like(d_out) for place in ("dq", "dk", "dv")}
    also = {"out_f32": read} if exact else {}
    # A forward pass that is not recorded keeps no statistics.
    stats = {"lse": lse} | also if name != "forward" else {}

    def forward():
        _core.forward(out=out, **stats, **given)

    def backward():
        _core.backward(out=read, lse=lse, d_out=d_out, **grads, **given)

    def training():
        forward()
        backward()

    if name != "forward":
        forward()
    return {"forward": forward, "backward": backward, "training": training}[name]


def by_autograd(call, inputs, d_out, name):
    if name == "forward":
        plain = [x.detach() for x in inputs]
        return lambda: call(*plain)
    if name == "training":
        return lambda: torch.autograd.grad(call(*inputs), inputs, d_out)
    once = call(*inputs)
    return lambda: torch.autograd.grad(once, inputs, d_out, retain_graph=True)


def ways(dtype, length, name):
    torch.manual_seed(0)
    shape = 1, HEADS, length, DIM
    inputs = [torch.randn(shape).to(dtype).requires_grad_() for _ in range(3)]
    d_out = torch.randn(shape).to(dtype)
    own = libattn.torch.scaled_dot_product_attention
    found = {"c": by_c(inputs, d_out, name, False)}
    if name != "forward":
        if dtype != torch.float32:
            found["c_f32"] = by_c(inputs, d_out, name, True)
        found["function"] = by_autograd(Function.apply, inputs, d_out, name)
    return found | {"torch": by_autograd(own, inputs, d_out, name)}


def waited():
    """Seconds that this process's threads have waited for a core."""
    total = 0
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/schedstat") as file:
            total += int(file.read().split()[1])
    return total / 1e9


def decile(turns):
    """(seconds, turns) of the calm turns, or of all if there are not five of them."""
    calm = [taken for taken, share in turns if share < CALM]
    used = sorted(calm if len(calm) >= 5 else (taken for taken, _ in turns))
    return used[len(used) // 10], len(calm)


def deciles(calls, threads, seconds):
    clock = time.thread_time if threads == 1 else time.perf_counter
    turns = {way: [] for way in calls}
    order = list(calls)
    for call in calls.values():
        call()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(turns["c"]) < 5:
        for way in order:
            calls[way]()
            before, start = waited(), clock()
            calls[way]()
            calls[way]()
            taken = clock() - start
            share = 0 if threads == 1 else (waited() - before) / taken
            turns[way].append((taken / 2, share))
        order.reverse()
    return {way: decile(times) for way, times in turns.items()}


def main():
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 6
    words = set(sys.argv[2:])
    table = libattn.info().cpu_table
    print(f"# {table}, libattn {libattn.__version__}, PyTorch {torch.__version__}")
    print(f"# command: {' '.join(sys.argv)}")
    print("dtype,n,threads,pass,way,milliseconds,ratio,calm")
    for problem in PROBLEMS:
        if not words <= {str(x) for x in problem}:
            continue
        dtype, length, threads, name = problem
        torch.set_num_threads(threads)
        libattn.set_num_threads(threads)
        times = deciles(ways(getattr(torch, dtype), length, name), threads, seconds)
        for way, (taken, calm) in times.items():
            ratio = taken / times["c"][0]
            print(*problem, way, f"{taken * 1e3:.3f}", f"{ratio:.3f}", calm, sep=",", flush=True)


if __name__ == "__main__":
    main()
