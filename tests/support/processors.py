"""What only some processors can do: tests of it are skipped, and say so, on others."""

import pytest
import torch

from elmokit.ops.dispatch import has_prepacked_products

WIDE_AND_LOW = (torch.float32, torch.bfloat16)


def has_products(dtype: torch.dtype, *depths: int) -> bool:
    """Whether there are kernels for prepacked weights of this type, for dot products of these lengths."""
    return has_prepacked_products(torch.device("cpu"), dtype, *depths)


def needs_products(dtype: torch.dtype) -> pytest.MarkDecorator:
    """For a test of the kernels for prepacked weights of this type."""
    return pytest.mark.native(dtype)


FAST_BACKENDS = [
    "portable",
    pytest.param("native", marks=pytest.mark.native),
    pytest.param("avx512", marks=needs_products(torch.float32)),
]
"""Those that a test compares with the reference."""

each_product_type = pytest.mark.parametrize(
    "dtype", [pytest.param(dtype, marks=needs_products(dtype), id=str(dtype)[6:]) for dtype in WIDE_AND_LOW]
)
