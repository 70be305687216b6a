"""The compiled kernels, built when elmokit is installed (hatch_build.py). Without a compiler all works, only slower."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from torch import Tensor

LIBRARY = Path(__file__).with_name("_kernels.so")

SIZE, POINTER, FLOAT, INT = ctypes.c_ssize_t, ctypes.c_void_p, ctypes.c_float, ctypes.c_int


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(str(LIBRARY))
    except OSError:
        return None


def is_compiled() -> bool:
    """Whether there are compiled kernels."""
    return _library() is not None


@cache
def compiled(name: str, *arguments: Any, result: Any = None) -> Callable[..., Any] | None:
    """The compiled function of that name; None where there is none, or only a library built from older sources."""
    function = getattr(_library(), name, None)
    if function is not None:
        function.argtypes, function.restype = arguments, result
    return function


def address(tensor: Tensor | None) -> int | None:
    """Where the values of a contiguous tensor in main memory begin; NULL for None."""
    if tensor is None:
        return None
    assert tensor.is_cpu and tensor.is_contiguous(), "the compiled kernels read rows that lie one after the other"
    return tensor.data_ptr()
