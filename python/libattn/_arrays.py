"""Arrays that the extension cannot read or make by itself: called from C, rarely."""

import sys
from operator import index
from reprlib import repr as short
from typing import Any

import numpy as np

_BF16 = 4  # ATTN_BF16
_FLOAT8 = {"float8_e4m3fn": 10, "float8_e5m2": 11}  # ATTN_E4M3, ATTN_E5M2
_NAMES = {1: "float64", 2: "float32", 3: "float16", 4: "bfloat16", 8: "uint8"}


def export(array: Any, name: str) -> Any:
    """The capsule of an array's DLPack export, or (its bits as an array, dtype)."""
    if isinstance(array, np.ndarray):
        kind = array.dtype.name
        if kind == "bfloat16":
            return array.view(np.uint16), _BF16
        if kind in _FLOAT8:
            return array.view(np.uint8), _FLOAT8[kind]
        raise TypeError(f"{name} has type {kind}, which libattn does not know")
    if hasattr(array, "__dlpack__"):
        return _capsule(array, name)
    raise TypeError(
        f"{name} is a {type(array).__name__}; it must be an array with the buffer protocol or"
        " __dlpack__ (NumPy, PyTorch, JAX, CuPy ...)"
    )


def shape_of(array: Any, name: str) -> tuple[int, ...]:
    """The shape of an array, or a refusal of what is none, by its name."""
    if hasattr(array, "shape"):
        return tuple(array.shape)
    raise TypeError(f"{name} is a {type(array).__name__}; it must be an array (NumPy, PyTorch ...)")


def lengths(value: Any, name: str) -> Any:
    """A whole number, or a list of them, as an array of int64."""
    try:
        numbers = list(map(index, value)) if isinstance(value, (list, tuple)) else index(value)
        return np.array(numbers, np.int64)
    except TypeError:
        raise TypeError(f"{name} is {short(value)}; it must be of whole numbers") from None
    except OverflowError:
        raise ValueError(
            f"{name} is {short(value)}; it must be of whole numbers of 64 bits"
        ) from None


def _capsule(array: Any, name: str) -> Any:
    options: dict[str, Any] = {}
    if not hasattr(array, "__dlpack_device__"):  # of JAX under jit, grad or vmap
        raise TypeError(
            f"{name} is a {type(array).__name__}, which has no memory yet; libattn.jax.attention"
            " takes what JAX traces"
        )
    device, _ = array.__dlpack_device__()
    if device == 2:  # CUDA: work stays on the stream that the call names
        if _package(array) == "jaxlib":  # which tells nobody its streams
            raise NotImplementedError(
                f"{name} is an array of JAX on a GPU: libattn.jax.attention takes it, on XLA's"
                " stream"
            )
        options["stream"] = -1
    if hasattr(array, "is_neg") and array.is_neg():  # PyTorch's conj().imag: see view.c
        array = array.resolve_neg()
    try:
        return array.__dlpack__(max_version=(1, 1), **options)
    except TypeError:  # older exporters know no versions
        return array.__dlpack__(**options)


def _package(array: Any) -> str:
    return type(array).__module__.partition(".")[0]


def _space(like: Any) -> Any:
    """The module whose functions make arrays of like's kind, or None."""
    if hasattr(like, "__array_namespace__"):
        return like.__array_namespace__()
    package = sys.modules.get(_package(like))
    return package if hasattr(package, "empty") and hasattr(package, "from_dlpack") else None


def empty(like: Any, shape: tuple[int, ...], dtype: int) -> Any:
    """An array of the kind and on the device of `like`, which is on a GPU."""
    space = _space(like)
    if space is None:
        raise TypeError(f"libattn cannot make a {type(like).__name__} for its results; give out")
    return _beside(space, like, shape, getattr(space, _NAMES[dtype]))


def _beside(space: Any, like: Any, shape: tuple[int, ...], kind: Any) -> Any:
    """An array that a package makes on the device of `like`, which is on a GPU."""
    try:
        return space.empty(shape, dtype=kind, device=like.device)
    except TypeError:  # CuPy's devices are context managers
        with like.device:
            return space.empty(shape, dtype=kind)


def make(like: Any, shape: tuple[int, ...], name: str) -> Any:
    """An array of like's kind on its device, its type by name; on the CPU NumPy's own where like's
    package makes none."""
    space = None if isinstance(like, np.ndarray) else _space(like)
    if not is_on_cpu(like):
        if not hasattr(space, name):
            raise TypeError(f"libattn cannot make {name} beside a {type(like).__name__}")
        return _beside(space, like, shape, getattr(space, name))
    if space is not None and hasattr(space, name):
        return space.empty(shape, dtype=getattr(space, name))
    if name.startswith(("bfloat", "float8")):
        import ml_dtypes

        return np.empty(shape, getattr(ml_dtypes, name))
    return np.empty(shape, name)


def finish(like: Any, array: Any, dtype: int) -> Any:
    """The array of the caller's kind for a result that NumPy holds."""
    if dtype == _BF16:
        import ml_dtypes

        array = array.view(ml_dtypes.bfloat16)
    space = None if isinstance(like, np.ndarray) else _space(like)
    if space is None:
        return array
    if dtype == _BF16:
        return space.asarray(array)  # NumPy exports no bfloat16
    return space.from_dlpack(array)


def give(like: Any, array: Any) -> Any:
    """An array of NumPy as an array of like's kind, on its device."""
    space = None if isinstance(like, np.ndarray) else _space(like)
    if space is None:
        return array
    try:
        return space.asarray(array, device=like.device)
    except TypeError:  # CuPy's devices are context managers
        with like.device:
            return space.asarray(array)


def stream(array: Any) -> int:
    """The CUDA stream that an array's package works on, as a number; 0 where it tells none."""
    name = _package(array)
    package = sys.modules.get(name)
    if name == "torch":
        return package.cuda.current_stream(array.device).cuda_stream
    if name == "cupy":
        return package.cuda.get_current_stream(array.device.id).ptr
    return 0


def is_on_cpu(array: Any) -> bool:
    """Whether a call's memory is the process's own."""
    device = getattr(array, "__dlpack_device__", None)
    return device is None or device()[0] in (1, 3)  # the second is CUDA's memory of the host


def heads_first(layout: str) -> bool:
    """Whether a layout has the heads before the sequence."""
    if layout not in ("bshd", "bhsd"):
        raise ValueError(f"layout is {layout!r}; it must be 'bshd' or 'bhsd'")
    return layout == "bhsd"
