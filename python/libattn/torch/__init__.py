"""libattn for PyTorch: fused attention with autograd, on CPUs and CUDA GPUs.

    from libattn.torch import scaled_dot_product_attention  # F.scaled_dot_product_attention's own
    libattn.torch.install()     # or: every F.scaled_dot_product_attention of this process

Both are registered operators (torch.ops.libattn): autograd, torch.compile without a graph break,
torch.export, vmap and fake tensors know them. Gradients of the mask, of the LSE, of sinks and
slopes included; double backward is refused.
"""

from ._functions import attention, scaled_dot_product_attention
from ._install import install

__all__ = ["attention", "install", "scaled_dot_product_attention"]
