"""Kinds of arrays in and out, misuse, and the process around the calls."""

import ctypes
import gc
import inspect
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import libattn
import ml_dtypes
import numpy as np
import pytest
from libattn import _core

HEADER = Path(__file__).parents[2] / "include" / "attn" / "attn.h"
RNG = np.random.default_rng(18)
Q, K, V = (RNG.standard_normal((2, 19, 4, 16)).astype(np.float32) for _ in range(3))
BITS = np.full((19, 3), 255, np.uint8)
VARLEN = {"cu_seqlens_q": [0, 19], "cu_seqlens_k": [0, 19]}
OUT, LSE = libattn.attention(Q, K, V, causal=True, return_lse=True)


# ---- Kinds ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["float64", "float32", "float16", "bfloat16"])
def test_types(kind):
    dtype = np.dtype(getattr(ml_dtypes, kind, kind))
    q, k, v = (x.astype(dtype) for x in (Q, K, V))
    out, lse = libattn.attention(q, k, v, causal=True, return_lse=True)
    assert out.dtype == dtype and lse.dtype == (np.float64 if kind == "float64" else np.float32)
    exact = libattn.attention(*(x.astype(np.float64) for x in (q, k, v)), causal=True)
    ulp = {"float64": 1e-15, "float32": 1e-6, "float16": 2e-3, "bfloat16": 1.6e-2}[kind]
    assert abs(out.astype(np.float64) - exact).max() <= ulp * abs(exact).max()
    grads = libattn.backward(out, q, k, v, out, lse, causal=True)
    assert all(g.dtype == dtype and g.shape == q.shape for g in grads[:3])


def test_read_only_inputs_and_outputs():
    q = Q.copy()
    q.flags.writeable = False
    assert (libattn.attention(q, K, V, causal=True) == OUT).all()
    with pytest.raises(ValueError, match="out is read-only"):
        libattn.attention(Q, K, V, out=q)
    with pytest.raises(ValueError, match="k is read-only, and new rows"):
        libattn.attention(q, q, V.copy(), k_new=K, v_new=V)


def test_torch():
    torch = pytest.importorskip("torch")
    q, k, v = (torch.from_numpy(x) for x in (Q, K, V))
    out, lse = libattn.attention(q, k, v, causal=True, return_lse=True)
    assert isinstance(out, torch.Tensor) and (out.numpy() == OUT).all()
    assert isinstance(lse, torch.Tensor) and (lse.numpy() == LSE).all()
    turned = [x.transpose(1, 2) for x in (q, k, v)]
    heads_first = libattn.attention(*turned, causal=True, layout="bhsd")
    assert (heads_first.transpose(1, 2).numpy() == OUT).all()
    assert heads_first.transpose(1, 2).is_contiguous()
    half = [x.bfloat16() for x in (q, k, v)]
    assert libattn.attention(*half).dtype == torch.bfloat16
    into = torch.empty_like(q)
    assert libattn.attention(q, k, v, out=into, causal=True) is into and (into == out).all()
    merged, _ = libattn.merge([out, out], [lse, lse])
    assert isinstance(merged, torch.Tensor)
    del q, k, v, turned
    gc.collect()
    assert (out.numpy() == OUT).all()


def test_jax():
    jnp = pytest.importorskip("jax.numpy")
    q, k, v = (jnp.asarray(x) for x in (Q, K, V))
    out, lse = libattn.attention(q, k, v, causal=True, return_lse=True)
    assert isinstance(out, type(q)) and (np.asarray(out) == OUT).all()
    assert (np.asarray(lse) == LSE).all()
    half = [x.astype(jnp.bfloat16) for x in (q, k, v)]
    assert libattn.attention(*half).dtype == jnp.bfloat16


class Exporter:
    """An array that knows __dlpack__ alone, with or without versions."""

    def __init__(self, values, versioned):
        self.values, self.versioned = values, versioned

    def __dlpack_device__(self):
        return self.values.__dlpack_device__()

    def __dlpack__(self, **options):
        if "max_version" in options and not self.versioned:
            raise TypeError("max_version")
        return self.values.__dlpack__(**options)


@pytest.mark.parametrize("versioned", [True, False])
def test_dlpack(versioned):
    references = sys.getrefcount(Q)
    out = libattn.attention(*(Exporter(x, versioned) for x in (Q, K, V)), causal=True)
    assert isinstance(out, np.ndarray) and (out == OUT).all()
    assert sys.getrefcount(Q) == references


def test_memoryview():
    views = [memoryview(x) for x in (Q, K, V)]
    assert (libattn.attention(*views, causal=True) == OUT).all()


def test_nothing_leaks():
    def call(**options):
        try:
            libattn.attention(Q, K, V, return_lse=True, **options)
        except (TypeError, ValueError):
            pass

    wrong = {"out": 3}, {"mask": Q}, {"window_left": "x"}, {"bias": np.zeros((9, 9))}
    counts = []
    for _ in range(2):
        for _ in range(200):
            call(seqused_k=[3, 4])
            for options in wrong:
                call(**options)
        gc.collect()
        counts.append((sys.getrefcount(Q), sys.getrefcount(None)))
    assert counts[0][0] == counts[1][0] and abs(counts[0][1] - counts[1][1]) < 100


# ---- Misuse --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "words", "change"),
    [
        (ValueError, r"v.shape\[1\] = 3 but k.shape\[1\] = 19", {"v": V[:, :3]}),
        (ValueError, "does not divide q.shape", {"k": K[:, :, :3], "v": V[:, :, :3]}),
        (ValueError, "q has 2 axes; it must be", {"q": Q[0, 0], "k": K[0, 0], "v": V[0, 0]}),
        (ValueError, "without cu_seqlens_q it must have 4", {"q": Q[0], "k": K[0], "v": V[0]}),
        (ValueError, "k has 3 axes and q has 4", {"k": K[0]}),
        (ValueError, "mask has 5 axes", {"mask": np.ones((1,) * 5, bool)}),
        (ValueError, "exclude each other", {"mask": Q[..., 0] > 0, "mask_bits": BITS}),
        (
            ValueError,
            r"^mask.shape\[3\] = 2, must be 1 or 19 .axes counted as batch, head, query, key.$",
            {"mask": Q[0, :, 0, :2] > 0},
        ),
        (ValueError, r"must be 1 or 4$", {"layout": "bhsd", "mask": Q[:, :1, :, :2] > 0}),
        (ValueError, r"^mask_bits.shape\[3\] = 2, must be 3", {"mask_bits": BITS[..., :2]}),
        (TypeError, "eight keys in a byte", {"mask_bits": BITS.view(np.int8)}),
        (ValueError, "dropout_p = 2", {"dropout_p": 2}),
        (ValueError, "layout is 'sbhd'", {"layout": "sbhd"}),
        (ValueError, r"counted as batch, sequence", {"layout": "bhsd", "v": V[:, :, :3]}),
        (ValueError, "counted as batch, sequence", {**VARLEN, "q": Q[0], "k": K[0], "v": V[0, :3]}),
        (ValueError, r"must be 1 or 4 .axes counted as batch, head.$", {"sinks": Q[0, 0, 0, :3]}),
        (ValueError, "no whole number", {"q": Q.view(np.uint8)[..., 1:-3].view("V1")}),
        (TypeError, "does not know", {"q": Q.astype(complex)}),
        (TypeError, "does not know .* in this machine's byte order", {"q": Q.astype(">f4")}),
        (TypeError, "does not know .*int32 and int64", {"seqused_k": np.ones(1, np.int16)}),
        (TypeError, "v is a str; it must be an array", {"v": "abc"}),
        (TypeError, "q has a mask of its own", {"q": np.ma.array(Q, mask=Q > 0)}),
        (TypeError, "mask has a mask of its own", {"mask": np.ma.array(Q[..., 0] > 0)}),
        (TypeError, "out has a mask of its own", {"out": np.ma.array(OUT)}),
        (TypeError, "window_left is 2.5; it must be a whole number", {"window_left": 2.5}),
        (ValueError, "window_right is 1000", {"window_right": 10**30}),
        (TypeError, "softmax_scale is 'x'; it must be a number", {"softmax_scale": "x"}),
        (ValueError, "dropout_seed is -1; it must be .* from 0", {"dropout_seed": -1}),
        (TypeError, "stream is 'x'; it must be", {"stream": "x"}),
        (TypeError, "no keyword|unexpected keyword", {"casual": True}),
        (TypeError, "must be a libattn.Context", {"context": 3}),
        (ValueError, "q.dtype = 10 .e4m3.", {"q": Q.astype(ml_dtypes.float8_e4m3fn)}),
        (TypeError, "does not know", {"q": Q.astype(ml_dtypes.float8_e4m3b11fnuz)}),
        ((ValueError, TypeError), "q and k|type", {"k": K.astype(np.float64)}),
        (ValueError, "^out and q overlap: ", {"out": Q}),
        (ValueError, r"^out_f32.dtype = 1 .f64.", {"out_f32": Q.astype(np.float64)}),
        (ValueError, "has top_left and q_origin is", {"top_left": True, "q_origin": 3}),
        (TypeError, r"seqused_k is \[2.9, 3\]; .* whole", {"seqused_k": [2.9, 3]}),
        (TypeError, "seqused_k is .* whole", {"seqused_k": ("a", 3)}),
        (ValueError, "seqused_k is .* 64 bits", {"seqused_k": [2**70, 1]}),
        (ValueError, "q_origin is .* 64 bits", {"q_origin": 2**70}),
    ],
)
def test_refusals(kind, words, change):
    if words == "no whole number":
        shifted = np.lib.stride_tricks.as_strided(Q, (2, 19, 4, 15), (4864, 255, 64, 4))
        change = {"q": shifted}
    with pytest.raises(kind, match=words):
        libattn.attention(**{"q": Q, "k": K, "v": V, **change})


def test_refusals_of_other_functions():
    """Sentences have the caller's names, and numbers that are too large are ValueErrors."""
    with pytest.raises(ValueError, match=r"^d_out.shape\[1\] = 3 but out.shape\[1\] = 19"):
        libattn.backward(OUT[:, :3], Q, K, V, OUT, LSE)
    with pytest.raises(ValueError, match=r"^outs\[1\].shape\[0\] = 1 but outs\[0\].shape"):
        libattn.merge([OUT, OUT[:1]], [LSE, LSE])
    with pytest.raises(ValueError, match=r"^lses\[0\].shape\[0\] = 1 but d_out.shape"):
        libattn.merge_backward([OUT], [LSE[:1]], OUT)
    with pytest.raises(ValueError, match="^out.dtype = 2 .f32., must be bool"):
        libattn.dropout_mask((1, 1, 2, 2), 0.5, out=np.ones((1, 1, 2, 2), np.float32))
    for change, kind in (
        ({"seed": -1}, ValueError),
        ({"seed": 2**64}, ValueError),
        ({"offset": 1.5}, TypeError),
        ({"q_origin": 1.5}, TypeError),
        ({"k_origin": 2**70}, ValueError),
        ({"out": 3}, TypeError),
    ):
        with pytest.raises(kind, match=next(iter(change))):
            libattn.dropout_mask((1, 1, 2, 2), 0.5, **change)
    for values, kind in (([1], TypeError), (np.float32(1), ValueError)):
        with pytest.raises(kind, match="^x "):
            libattn.quantize(values)
        with pytest.raises(kind, match="^codes "):
            libattn.dequantize(values)
    with pytest.raises(ValueError, match="threads is .* 32 bits"):
        libattn.Context(threads=2**40)


def test_kinds_of_numbers():
    """Lists of NumPy's numbers, and seeds of theirs."""
    lists = libattn.attention(Q, K, V, seqused_k=[np.int32(3), np.int64(4)])
    assert (lists == libattn.attention(Q, K, V, seqused_k=np.array([3, 4]))).all()
    masks = [libattn.dropout_mask((1, 1, 9, 9), 0.5, seed=s) for s in (7, np.int64(7), 8)]
    assert (masks[0] == masks[1]).all() and (masks[0] != masks[2]).any()
    dropped = [libattn.attention(Q, K, V, dropout_p=0.5, dropout_seed=s) for s in (7, np.int64(7))]
    assert (dropped[0] == dropped[1]).all()
    codes, scale, _ = libattn.quantize(memoryview(K))
    values = libattn.dequantize(memoryview(codes), scale)
    assert (values == libattn.dequantize(codes, scale)).all()


def test_missing_results():
    with pytest.raises(TypeError, match="lse is missing"):
        libattn.backward(OUT, Q, K, V, OUT, None)
    with pytest.raises(ValueError, match="as many LSEs"):
        libattn.merge([OUT], [])
    with pytest.raises(ValueError, match="at least one"):
        libattn.merge([], [])
    with pytest.raises(NotImplementedError, match="cuda|GPU|nvcc|driver"):
        libattn.Context(device="cuda", ordinal=15)
    with pytest.raises((ValueError, NotImplementedError), match="sse9"):
        libattn.Context(cpu="sse9")


# ---- Header --------------------------------------------------------------------------------------

C_TYPES = {
    "int32_t": ctypes.c_int32,
    "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64,
    "double": ctypes.c_double,
    "char": ctypes.c_char,
}


def header_structs():
    """{struct: ctypes.Structure} of attn.h's text."""
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.S)
    structs = {}
    for name, body in re.findall(r"typedef struct (\w+) \{(.*?)\n\} \1;", text, re.S):
        members = []
        for declaration in (" ".join(d.split()) for d in body.split(";")):
            function = re.search(r"\(\*(\w+)\)", declaration)
            if function:
                members.append((function[1], ctypes.c_void_p))
            elif declaration:
                first, *rest = declaration.replace("const ", "").split(",")
                kind, first = first.split(" ", 1)
                for member in (first, *rest):
                    stars, word, extent = re.fullmatch(
                        r"\s*(\**)(\w+)(?:\[(\d+)\])?", member
                    ).groups()
                    c_type = ctypes.c_void_p if stars else structs.get(kind) or C_TYPES[kind]
                    members.append((word, c_type * int(extent) if extent else c_type))
        structs[name] = type(name, (ctypes.Structure,), {"_fields_": members})
    return structs


def header_values():
    """{name: value} of attn.h's enumerations."""
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.S)
    found = {}
    for body in re.findall(r"enum \w*\s*\{(.*?)\}", text, re.S):
        for name, value in re.findall(r"(ATTN_\w+) = ([^,}]+)", body):
            shift = [int(x) for x in value.split("<<")]
            found[name] = shift[0] << shift[1] if len(shift) == 2 else shift[0]
    return found


def test_offsets_and_values_are_the_headers():
    """A field or value that python/src/layout.c lacks is one that the binding does not know."""
    ours = _core.layout()
    structs = header_structs()
    expected = {("values", name): value for name, value in header_values().items()}
    for name in {kind for kind, _ in ours if kind != "values"}:
        expected[name, "sizeof"] = ctypes.sizeof(structs[name])
        for member, *_ in structs[name]._fields_:
            expected[name, member] = getattr(structs[name], member).offset
    assert ours == expected
    untouched = {"attn_allocator", "attn_executor", "attn_cache_config", "attn_quantize_args"}
    assert set(structs) - {kind for kind, _ in ours} == untouched


# ---- Threads and processes -----------------------------------------------------------------------


def test_threads_agree_and_the_lock_is_free():
    big = RNG.standard_normal((1, 1500, 8, 64)).astype(np.float32)
    expected = libattn.attention(big, big, big)
    steps, results, stop = [0], [], threading.Event()

    def count():
        while not stop.is_set():
            steps[0] += 1

    def call():
        for _ in range(3):
            results.append((libattn.attention(big, big, big) == expected).all())

    counter = threading.Thread(target=count)
    callers = [threading.Thread(target=call) for _ in range(4)]
    counter.start()
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join()
    stop.set()
    counter.join()
    assert len(results) == 12 and all(results) and steps[0] > 1000


def test_threads_are_set_during_calls():
    """A context that is replaced lives until the calls on it have ended."""
    stop, wrong = threading.Event(), []

    def call():
        while not stop.is_set():
            if not (libattn.attention(Q, K, V, causal=True) == OUT).all():
                wrong.append(1)

    callers = [threading.Thread(target=call, daemon=True) for _ in range(3)]
    for thread in callers:
        thread.start()
    try:
        for n in range(300):
            libattn.set_num_threads(1 + n % 3)
    finally:
        libattn.set_num_threads(0)
        stop.set()
    for thread in callers:
        thread.join(60)
    assert not wrong and not any(thread.is_alive() for thread in callers)


def test_bits_do_not_depend_on_threads_or_contexts():
    try:
        for threads in (1, 2, 5):
            libattn.set_num_threads(threads)
            assert libattn.info().threads == threads
            assert (libattn.attention(Q, K, V, causal=True) == OUT).all()
            own = libattn.Context(threads=threads)
            assert (libattn.attention(Q, K, V, causal=True, context=own) == OUT).all()
    finally:
        libattn.set_num_threads(0)
    scalar = libattn.Context(cpu="scalar", threads=1)
    assert libattn.info(scalar).cpu_table == "scalar"
    assert (
        libattn.attention(Q, K, V, context=scalar) == libattn.attention(Q, K, V, precise=True)
    ).all()


def test_kept_memory_grows():
    """Calls of any size one after the other, in the memory that the extension keeps."""
    many = libattn.Context(threads=24)
    big = RNG.standard_normal((1, 400, 16, 64)).astype(np.float32)
    out, lse = libattn.attention(big, big, big, return_lse=True, precise=True)
    grads = libattn.backward(out, big, big, big, out, lse, precise=True)
    for context in (many, None):
        small = libattn.attention(Q, K, V, causal=True, context=context)
        again = libattn.attention(big, big, big, precise=True, context=context)
        back = libattn.backward(out, big, big, big, out, lse, precise=True, context=context)
        assert (small == OUT).all() and (again == out).all()
        assert all((a == b).all() for a, b in zip(back[:3], grads[:3], strict=True))


FORK = """
import os, numpy as np, libattn
q = np.ones((1, 600, 8, 64), np.float32)
out = libattn.attention(q, q, q)
child = os.fork()
if child == 0:
    os._exit(0 if (libattn.attention(q, q, q) == out).all() else 1)
assert os.waitpid(child, 0)[1] == 0 and (libattn.attention(q, q, q) == out).all()
"""


def test_fork():
    subprocess.run([sys.executable, "-c", FORK], check=True, timeout=60)


def test_program():
    """`python -m libattn` prints what `attn info` prints."""
    words = subprocess.run(
        [sys.executable, "-m", "libattn"], capture_output=True, text=True, check=True
    ).stdout
    assert libattn.__version__ in words and libattn.info().cpu_table in words
    program = Path(sys.executable).with_name("attn")
    shown = subprocess.run([program, "info"], capture_output=True, text=True)
    assert shown.returncode == 0 and shown.stdout == words


@pytest.mark.parametrize("missing", ("_core", "numpy"))
def test_import_of_what_is_not_there(missing, tmp_path):
    """The sources of a checkout have no extension; an environment may have no NumPy."""
    package = tmp_path / "libattn"
    shutil.copytree(Path(libattn.__file__).parent, package)
    words = "numpy"
    if missing == "_core":
        words = "libattn's extension is not in .*: `pip install .`"
        for extension in package.glob("_core*.so"):
            extension.unlink()
    code = f"import sys; sys.modules[{missing!r}] = None; import libattn"
    shown = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True)
    assert shown.returncode and re.search(words, shown.stderr.decode().splitlines()[-1])


def test_signatures():
    """Every keyword of the binding is one of attention's or backward's, and documented."""
    shown = set(inspect.signature(libattn.attention).parameters)
    text = libattn.attention.__doc__
    undocumented = [name for name in shown if not re.search(rf"\b{name}\b", text)]
    assert "(B, Nq, Hq, d)" in text and undocumented == []


def test_annotations():
    """Type checkers see every public function."""
    functions = [libattn.Cache.__init__, libattn.Cache.view, libattn.Cache.fork]
    functions += [f for name in libattn.__all__ if inspect.isfunction(f := getattr(libattn, name))]
    assert len(functions) > 10
    for function in functions:
        shown = inspect.signature(function)
        bare = [p.name for p in shown.parameters.values() if p.annotation is p.empty]
        assert bare in ([], ["self"]) and shown.return_annotation is not shown.empty, function
