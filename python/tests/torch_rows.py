"""Arrays of the tests of libattn.torch on CPUs."""

import torch

# Bounds of sequences: one of them has no row.
LENGTHS = torch.tensor([0, 3, 3, 9], dtype=torch.int32)


def rows(*shape, dtype=torch.float64, grad=True, turned=False):
    """Normal values; turned: the axes of heads and rows are exchanged in memory."""
    if turned:
        return rows(*shape[:-3], shape[-2], shape[-3], shape[-1], dtype=dtype).transpose(-3, -2)
    return torch.randn(*shape, dtype=dtype, requires_grad=grad)
