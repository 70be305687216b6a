"""The fast backends, for tests of all of them; one that is not on this machine is skipped by the marker `native`."""

import pytest
import torch

from elmokit.ops.dispatch import has_prepacked_products

FLOAT_DTYPES = (torch.float32, torch.bfloat16)
FAST_BACKENDS = [
    "portable",
    pytest.param("native", marks=pytest.mark.native),
]

each_native_dtype = pytest.mark.parametrize(
    "dtype", [pytest.param(dtype, marks=pytest.mark.native(dtype), id=str(dtype)[6:]) for dtype in FLOAT_DTYPES]
)


def has_native(dtype: torch.dtype, *depths: int) -> bool:
    """Whether the compiled kernels multiply weights of this type, in dot products of these lengths."""
    return has_prepacked_products(torch.device("cpu"), dtype, *depths)
