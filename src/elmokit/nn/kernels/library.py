"""The compiled kernels, built when elmokit is installed (hatch_build.py). Without a compiler all works, only slower."""

from __future__ import annotations

import ctypes
import hashlib
import warnings
from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from torch import Tensor

LIBRARY = Path(__file__).with_name("_kernels.so")

SIZE, POINTER, FLOAT, INT = ctypes.c_ssize_t, ctypes.c_void_p, ctypes.c_float, ctypes.c_int


def _digest() -> bytes:
    """Of all sources of the kernels, as hatch_build.py makes it."""
    folder = Path(__file__).parent
    files = sorted([*folder.glob("*.c"), *folder.glob("*.h")])
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest().encode()


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL(str(LIBRARY))
        built_of = (ctypes.c_char * (len(_digest()) + 1)).in_dll(library, "elmokit_sources").value
    except (OSError, ValueError):  # there is none, or something else
        return None
    if built_of != _digest():  # its functions may take other arguments than they are given
        warnings.warn("elmokit's compiled kernels are of other sources: install elmokit again", stacklevel=2)
        return None
    return library


def is_compiled() -> bool:
    """Whether there are compiled kernels."""
    return _library() is not None


@cache
def compiled(name: str, *arguments: Any, result: Any = None) -> Callable[..., Any] | None:
    """The compiled function of that name; None where there is none."""
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
