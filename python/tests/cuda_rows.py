"""What tests on a CUDA GPU share. A module that imports this is skipped where the package has no
GPU kernels, or the machine no such GPU."""

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no CUDA GPU, or a PyTorch without CUDA", allow_module_level=True)

import libattn  # noqa: E402
import torch.nn.functional as F  # noqa: E402

try:
    libattn.Context(device="cuda")
except NotImplementedError as reason:
    pytest.skip(f"libattn has no GPU here: {reason}", allow_module_level=True)

# Errors allowed, as parts of the largest value: of results, and of gradients.
ERROR = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
GRADIENT_ERROR = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def rows(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, dtype=dtype, device="cuda")


def exact(query, key, value, **options):
    wide = (x.double() for x in (query, key, value))
    return F.scaled_dot_product_attention(*wide, **options)


def close(found, expected, error):
    assert found.shape == expected.shape
    assert (found.double() - expected.double()).abs().max() <= error * expected.abs().max()


def leaves(*arrays):
    return [x.detach().requires_grad_() for x in arrays]
