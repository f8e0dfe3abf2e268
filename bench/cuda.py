#!/usr/bin/env python3
"""Forward pass of libattn on a GPU beside PyTorch's backends: bench/cuda.py LIBATTN.SO.. [--csv FILE] [--f32]
(several builds of libattn take turns as well)

16k tokens, H d = 2048, bf16, N(0, 1) inputs: d in 64, 128, 256, N in 512 .. 16384, full and causal. Contenders take turns
within a cell, so that clocks are the same for all; the number is the median over rounds of one call between two events.
The first line is the rate of a matrix product measured in the same run. Not here: right or wrong (tests/cuda), except
for a guard: ours must agree with cuDNN's result.

--f32: instead, f32 against standard attention in PyTorch (no tf32), H = 16, d = 64, in microseconds: called one by one,
and replayed from a graph of ten calls, which leaves out what launching costs; errors against float64.
"""
import argparse
import csv
import ctypes
import functools
import math
import os
import statistics
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

DTYPES = {torch.float64: 1, torch.float32: 2, torch.float16: 3, torch.bfloat16: 4}


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("shape", ctypes.c_int64 * 4), ("stride", ctypes.c_int64 * 4),
                ("dtype", ctypes.c_int32), ("reserved", ctypes.c_int32)]

    @classmethod
    def of(cls, t):  # (B, H, S, D) views, as PyTorch has them
        b, h, s, d = t.shape
        sb, sh, ss, sd = t.stride()
        return cls(t.data_ptr(), (b, s, h, d), (sb, ss, sh, sd), DTYPES[t.dtype], 0)


class Args(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint64), ("q", Tensor), ("k", Tensor), ("v", Tensor), ("o", Tensor),
                ("lse", Tensor), ("row_max", Tensor), ("flags", ctypes.c_uint64), ("window_left", ctypes.c_int64),
                ("window_right", ctypes.c_int64), ("softmax_scale", ctypes.c_double), ("softcap", ctypes.c_double),
                ("mask", Tensor), ("bias", Tensor), ("alibi_slopes", Tensor), ("sinks", Tensor),
                ("cu_seqlens_q", Tensor), ("cu_seqlens_k", Tensor), ("seqused_q", Tensor), ("seqused_k", Tensor),
                ("workspace", ctypes.c_void_p), ("workspace_bytes", ctypes.c_uint64), ("stream", ctypes.c_void_p)]


class Config(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint64), ("device", ctypes.c_int32), ("device_ordinal", ctypes.c_int32),
                ("threads", ctypes.c_int32), ("reserved", ctypes.c_int32), ("cpu", ctypes.c_char_p),
                ("rest", ctypes.c_void_p * 6)]


class Attn:
    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        self.lib.attn_last_error.restype = ctypes.c_char_p
        self.context = ctypes.c_void_p()
        config = Config(struct_size=ctypes.sizeof(Config), device=1)
        self.check(self.lib.attn_context_create(ctypes.byref(config), ctypes.byref(self.context)))

    def check(self, status):
        if status != 0:
            raise RuntimeError(self.lib.attn_last_error().decode())

    def prepare(self, q, k, v, o, causal, scratch):
        return Args(struct_size=ctypes.sizeof(Args), q=Tensor.of(q), k=Tensor.of(k), v=Tensor.of(v), o=Tensor.of(o),
                    flags=1 if causal else 0, workspace=scratch.data_ptr(), workspace_bytes=scratch.numel(),
                    stream=torch.cuda.current_stream().cuda_stream)

    def forward(self, args):
        self.check(self.lib.attn_forward(self.context, ctypes.byref(args)))


def interleaved(calls, rounds):
    """Median milliseconds of each call; one call of each per round."""
    times = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(3):
            call()
    for _ in range(rounds):
        for name, call in calls.items():
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            call()
            end.record()
            times[name].append((start, end))
    torch.cuda.synchronize()
    return {name: statistics.median(s.elapsed_time(e) for s, e in pairs) for name, pairs in times.items()}


def matmul_rate():
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return 2 * 8192**3 / interleaved({"matmul": lambda: a @ b}, 15)["matmul"] / 1e9


def backend(which, q, k, v, causal):
    def call():
        with sdpa_kernel(which):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    return call


def cell(ours, d, n, causal, rounds, dtype):
    heads, batch = 2048 // d, 16384 // n
    q, k, v = (torch.randn(batch, n, heads, d, device="cuda", dtype=dtype).transpose(1, 2) for _ in range(3))
    calls = {"cudnn": backend(SDPBackend.CUDNN_ATTENTION, q, k, v, causal),
             "flash": backend(SDPBackend.FLASH_ATTENTION, q, k, v, causal)}
    right = calls["cudnn"]().float()
    for name, attn in ours.items():
        o = torch.full_like(q, float("nan"))
        scratch = torch.empty(1024, device="cuda", dtype=torch.uint8)
        calls[name] = functools.partial(attn.forward, attn.prepare(q, k, v, o, causal, scratch))
        calls[name]()
        error = (o.float() - right).abs().max().item()
        if not error < 0.05:
            print(f"{name} differs from cudnn by {error}", flush=True)
    flops = 4 * n * n * d * heads * batch / (2 if causal else 1)
    return {name: flops / ms / 1e9 for name, ms in interleaved(calls, rounds).items()}


def cells(ours, options, peak):
    names, rows, ratios = [*ours, "cudnn", "flash"], [], {name: [] for name in ours}
    for d in options.d:
        for causal in (False, True):
            for n in options.n:
                r = cell(ours, d, n, causal, options.rounds, torch.bfloat16)
                rows.append([d, n, int(causal), *(f"{r[x]:.1f}" for x in names), f"{peak:.1f}"])
                for name in ours:
                    ratios[name].append(r[name] / r["cudnn"])
                print(f"d {d:3} n {n:5} {'causal' if causal else 'full  '}", *(f" {x} {r[x]:5.0f}" for x in names),
                      *(f" {ratios[x][-1]:.3f}" for x in ours), flush=True)
    for name, list_ in ratios.items():
        mean = math.exp(sum(map(math.log, list_)) / len(list_))
        print(f"{name} / cudnn over {len(list_)} cells: geometric mean {mean:.3f}, least {min(list_):.3f}")
    return ["d", "n", "causal", *(x + "_tflops" for x in names), "matmul_tflops"], rows


def standard(q, k, v, hidden):
    s = (q @ k.mT) * (1 / math.sqrt(q.shape[-1]))
    if hidden is not None:
        s = s.masked_fill(hidden, -math.inf)
    return torch.softmax(s, -1) @ v


def graph_of_ten(call):
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(10):
            call()
    return graph.replay


def f32_cell(ours, batch, n, causal, rounds):
    q, k, v = (torch.randn(batch, n, 16, 64, device="cuda").transpose(1, 2) for _ in range(3))
    hidden = torch.ones(n, n, device="cuda", dtype=torch.bool).triu(1) if causal else None
    calls, results = {}, {}
    scratch = torch.empty(1024, device="cuda", dtype=torch.uint8)
    for name, attn in ours.items():
        results[name] = torch.full_like(q, math.nan)

        calls[name] = functools.partial(attn.forward, attn.prepare(q, k, v, results[name], causal, scratch))
    calls["standard"] = lambda: standard(q, k, v, hidden)
    times = interleaved(calls, rounds)
    replayed = interleaved({name: graph_of_ten(call) for name, call in calls.items()}, rounds)
    results["standard"] = calls["standard"]()
    right = standard(q.double(), k.double(), v.double(), hidden)
    return {name: (1000 * times[name], 100 * replayed[name], (results[name] - right).abs().max().item()) for name in calls}


def f32_table(ours, options):
    torch.backends.cuda.matmul.allow_tf32 = False
    names, rows = [*ours, "standard"], []
    for batch, n in ((4, 512), (8, 59), (1, 2048)):
        for causal in (False, True):
            r = f32_cell(ours, batch, n, causal, options.rounds)
            rows.append([batch, n, int(causal), *(f"{x:.3g}" for name in names for x in r[name])])
            print(f"B {batch} N {n:4} {'causal' if causal else 'full  '}",
                  *(f" {x} {r[x][0]:6.1f} us, in a graph {r[x][1]:6.1f} us, error {r[x][2]:.2g};" for x in names),
                  *(f" {r['standard'][0] / r[x][0]:.2f}x {r['standard'][1] / r[x][1]:.2f}x" for x in ours), flush=True)
    return ["batch", "n", "causal", *(f"{x}_{what}" for x in names for what in ("us", "graph_us", "max_error"))], rows


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("library", nargs="+")
    parser.add_argument("--csv")
    parser.add_argument("--f32", action="store_true")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--d", type=int, nargs="*", default=[64, 128, 256])
    parser.add_argument("--n", type=int, nargs="*", default=[512, 1024, 2048, 4096, 8192, 16384])
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.cuda.set_stream(torch.cuda.Stream())  # one that can be captured
    ours = {os.path.basename(path).removeprefix("lib").removesuffix(".so"): Attn(path) for path in options.library}
    peak = matmul_rate()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; bf16 matmul 8192: {peak:.0f} TFLOP/s")
    header, rows = f32_table(ours, options) if options.f32 else cells(ours, options, peak)
    if options.csv:
        with open(options.csv, "w", newline="") as f:
            f.write(f"# {torch.cuda.get_device_name()}, torch {torch.__version__}; {' '.join(sys.argv)}\n")
            out = csv.writer(f)
            out.writerow(header)
            out.writerows(rows)


if __name__ == "__main__":
    main()
