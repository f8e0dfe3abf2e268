"""Exact attention, forward and backward, on CPUs and NVIDIA GPUs.

    import numpy as np, libattn
    q = k = v = np.random.rand(1, 1024, 8, 64).astype(np.float32)  # batch, sequence, heads, dim
    out = libattn.attention(q, k, v, causal=True)

Arrays are NumPy's (bfloat16 by ml_dtypes), PyTorch's, JAX's, CuPy's, or any other with DLPack or
the buffer protocol. None is copied; views pass by their strides; results are of the caller's kind.

libattn.torch        scaled_dot_product_attention with PyTorch's semantics, autograd, install()
libattn.jax          dot_product_attention with JAX's semantics, under jit, grad and vmap
libattn.flash_attn   the functions of the package flash-attn
libattn.transformers register() for attn_implementation="libattn"
"""

try:
    from ._core import Context
except ModuleNotFoundError as reason:
    if reason.name != f"{__name__}._core":  # NumPy
        raise
    raise ImportError(
        f"libattn's extension is not in {__path__[0]}: `pip install .` in the checkout builds it,"
        " and Python is to start where the sources are not found first"
    ) from None

from ._attention import (
    Gradients,
    Plan,
    Quantised,
    attention,
    backward,
    dequantize,
    dropout_mask,
    merge,
    merge_backward,
    plan,
    quantize,
)
from ._cache import Cache
from ._machine import Info, info, set_num_threads

__version__ = info().version

__all__ = [
    "Cache",
    "Context",
    "Gradients",
    "Info",
    "Plan",
    "Quantised",
    "attention",
    "backward",
    "dequantize",
    "dropout_mask",
    "info",
    "merge",
    "merge_backward",
    "plan",
    "quantize",
    "set_num_threads",
]
