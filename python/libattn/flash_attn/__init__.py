"""The functions of flash-attn 2.8, computed by libattn: on CPU tensors and CUDA tensors.

    from libattn.flash_attn import flash_attn_func  # was: from flash_attn import flash_attn_func

Layouts, defaults, return values and what is changed in place are flash-attn's. Differences:

- any floating type and head dimension; value dimensions of their own;
- return_attn_probs gives None for S_dmask, which only its own tests read;
- `deterministic` and `num_splits` change nothing: results are deterministic, always;
- rows without a visible key have an LSE of -inf;
- dropout is seeded by torch's generator of the CPU.
"""

from ._dense import (
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
)
from ._kvcache import flash_attn_with_kvcache

__version__ = "2.8.3"

__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]
