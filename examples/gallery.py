"""gallery.py [PICTURE]: time and memory of attention against the length, libattn beside PyTorch's
fused kernel and its stored scores, forward alone and with the backward pass, on this CPU.

Needs PyTorch and matplotlib. Each point is measured in a process of its own, so that the peak of
its memory is its own; implementations take turns.
"""

import json
import resource
import subprocess
import sys
import time

LENGTHS = (256, 512, 1024, 2048, 4096)
KINDS = ("libattn", "PyTorch fused", "PyTorch, stored scores")
PASSES = ("forward", "forward and backward")
HEADS, DIM = 8, 64


def measure(kind, name, length):
    """(seconds, bytes): the least time of some calls, and the memory that they add to the peak."""
    import libattn.torch
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    own = libattn.torch.scaled_dot_product_attention
    call = own if kind == "libattn" else torch.nn.functional.scaled_dot_product_attention
    backend = SDPBackend.MATH if kind == KINDS[2] else SDPBackend.FLASH_ATTENTION
    trained = name != "forward"
    inputs = [torch.randn(1, HEADS, length, DIM, requires_grad=trained) for _ in range(3)]
    warm = [torch.randn(1, 1, 16, DIM, requires_grad=trained) for _ in range(3)]

    def run(arrays):
        out = call(*arrays, is_causal=True)
        if trained:
            out.backward(torch.ones_like(out))

    with sdpa_kernel(backend):
        run(warm)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        times = []
        while len(times) < 3 or (sum(times) < 1 and len(times) < 20):
            start = time.perf_counter()
            run(inputs)
            times.append(time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return min(times), 1024 * (peak - before)


def collect():
    """{(pass, kind): [(length, seconds, bytes)]}"""
    points = {(name, kind): [] for name in PASSES for kind in KINDS}
    for length in LENGTHS:
        for name, kind in points:
            command = [sys.executable, __file__, "--point", kind, name, str(length)]
            shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            seconds, size = json.loads(shown)
            points[name, kind].append((length, seconds, size))
            print(f"{name:22} {kind:22} N = {length:5}  {1e3 * seconds:8.1f} ms", end="")
            print(f"  {size / 2**20:7.1f} MiB", flush=True)
    return points


def draw(points, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 2, figsize=(10, 7), sharex=True)
    for column, name in enumerate(PASSES):
        for kind in KINDS:
            lengths, seconds, sizes = zip(*points[name, kind], strict=True)
            axes[0, column].plot(lengths, [1e3 * s for s in seconds], "o-", label=kind)
            axes[1, column].plot(lengths, [max(s / 2**20, 0.1) for s in sizes], "o-", label=kind)
        axes[0, column].set_title(f"{name}, f32, causal, {HEADS} heads of {DIM}")
        axes[1, column].set_xlabel("length N")
    axes[0, 0].set_ylabel("time, ms")
    axes[1, 0].set_ylabel("memory beside the inputs, MiB")
    for panel in axes.flat:
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set_xticks(LENGTHS, [str(length) for length in LENGTHS])
        panel.yaxis.set_major_formatter("{x:g}")
        panel.grid(alpha=0.3)
    axes[0, 0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--point"]:
        print(json.dumps(measure(sys.argv[2], sys.argv[3], int(sys.argv[4]))))
    else:
        draw(collect(), sys.argv[1] if len(sys.argv) > 1 else "attention.png")
