"""The fast backends, for tests of all of them; one that is not on this machine is skipped by the
marker `native`.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from elmokit.ops.dispatch import explain, get_backend, set_backend

FLOAT_DTYPES = (torch.float32, torch.bfloat16)
FAST_BACKENDS = [
    "portable",
    pytest.param("native", marks=pytest.mark.native),
]

NATIVE_DTYPES = [
    pytest.param(each, marks=pytest.mark.native(each), id=str(each)[6:])
    for each in (*FLOAT_DTYPES, torch.int8)
]
each_native_dtype = pytest.mark.parametrize("dtype", NATIVE_DTYPES[:2])
each_native_or_int8_dtype = pytest.mark.parametrize("dtype", NATIVE_DTYPES)


def has_native(dtype: torch.dtype, *depths: int) -> bool:
    """Whether the compiled kernels multiply weights of this type, in dot products of these
    lengths.
    """
    return explain("prepacked linear", "cpu", dtype, *depths).get("native", "") is None


@contextmanager
def on_specification() -> Iterator[None]:
    """Compute on the reference backend, which is the specification of every operation: an oracle
    for the others.
    """
    before = get_backend()
    set_backend("reference")
    try:
        yield
    finally:
        set_backend(before)
