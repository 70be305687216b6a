"""The compiled library, built when elmokit is installed (hatch_build.py). Without a compiler all works, only slower."""

from __future__ import annotations

import ctypes
import hashlib
import re
import warnings
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

LIBRARY = Path(__file__).with_name("_native.so")
SOURCES = Path(__file__).with_name("csrc")

NUMBERS = {"ptrdiff_t": ctypes.c_ssize_t, "float": ctypes.c_float, "int": ctypes.c_int}
DTYPES = {
    "float": (torch.float32,),
    "bfloat16": (torch.bfloat16,),
    "int8": (torch.uint8,),
    "int64_t": (torch.int64,),
    "int32_t": (torch.int32,),
    "uint8_t": (torch.uint8, torch.bool),
}
TYPE_NAMES = {torch.float32: "float", torch.bfloat16: "bfloat16", torch.float16: "float16", torch.int8: "int8"}


def _digest() -> bytes:
    """Of all sources, as hatch_build.py computes it."""
    files = sorted([*SOURCES.glob("*.c"), *SOURCES.glob("*.h")])
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest().encode()


@cache
def _library() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL(str(LIBRARY))
        built_of = (ctypes.c_char * (len(_digest()) + 1)).in_dll(library, "elmokit_sources").value
    except (OSError, ValueError):  # there is none, or something else
        return None
    if built_of != _digest():  # its functions may take other arguments than the header says
        warnings.warn("elmokit's native library was built of other sources: install elmokit again", stacklevel=2)
        return None
    return library


def is_built() -> bool:
    """Whether there is a library for these sources."""
    return _library() is not None


def avx512_level() -> int:
    """0: no AVX-512 here, or none that was built; 1: float32 products; 2: bfloat16 ones too."""
    return _library().elmokit_avx512() if is_built() else 0  # type: ignore[union-attr]


def multiplies_int8() -> bool:
    """Whether there are products of int8."""
    return avx512_level() > 0 and bool(_library().elmokit_avx512_int8())  # type: ignore[union-attr]


# --- Signatures, from the header -----------------------------------------------------------------------------------


class Parameter(NamedTuple):
    """A parameter of a function: its name, its C type without `const`, and whether it is a pointer to that."""

    name: str
    type: str
    is_pointer: bool


DECLARATION = re.compile(r"\b(void|int) elmokit_(\w+?)(##TYPE)?\(([^()]*)\);")
PARAMETER = re.compile(r"(?:const )?(\w+) (\*?)(\w+)")


def require(condition: bool, message: object) -> None:
    """An assertion that `python -O` leaves in place, since it guards memory: AssertionError where it does not hold."""
    if not condition:
        raise AssertionError(message)


@cache
def _declarations() -> dict[str, tuple[str, list[Parameter]]]:
    """Of each function its result and its parameters; those of a macro end in an underscore, for the type's name."""
    text = re.sub(r"\\\n|/\*.*?\*/", " ", (SOURCES / "elmokit.h").read_text(encoding="utf-8"), flags=re.DOTALL)
    declarations = {}
    for result, name, _, parameters in DECLARATION.findall(" ".join(text.split())):
        parts = [] if parameters == "void" else [part.strip() for part in parameters.split(",")]
        matches = list(map(PARAMETER.fullmatch, parts))
        require(None not in matches, f"a parameter of elmokit_{name} in elmokit.h cannot be read: {parameters}")
        declarations[name] = result, [Parameter(match[3], match[1], bool(match[2])) for match in matches if match]
    return declarations


class Strided(NamedTuple):
    """A tensor whose rows need not lie end to end, for a function that is given their stride."""

    tensor: Tensor


def _address(value: Any, name: str, dtypes: tuple[torch.dtype, ...] | None) -> int | None:
    """Where the values of a tensor or an array begin; NULL for None. Checks that they are what the function reads."""
    if value is None:
        return None
    tensor = value.tensor if type(value) is Strided else value
    if isinstance(tensor, np.ndarray):
        tensor = torch.from_numpy(tensor)
    require(tensor.is_cpu and (type(value) is Strided or tensor.is_contiguous()), f"{name} is read row after row")
    require(dtypes is None or tensor.dtype in dtypes, f"{name} is {tensor.dtype}, not of {dtypes}")
    return tensor.data_ptr()


class NativeFunction:
    """A function of the library, called by the names of its parameters, with numbers, tensors, arrays or None.

    The call holds its tensors until the function has returned, whatever becomes of whoever called it.
    """

    def __init__(self, name: str, type_name: str = "") -> None:
        result, self._parameters = _declarations()[f"{name}_" if type_name else name]
        library = _library()
        assert library is not None, "ask dispatch which implementation runs"
        self._function = library[f"elmokit_{name}_{type_name}" if type_name else f"elmokit_{name}"]
        self._function.restype = ctypes.c_int if result == "int" else None
        self._function.argtypes = [
            ctypes.c_void_p if parameter.is_pointer else NUMBERS[parameter.type] for parameter in self._parameters
        ]
        types = ((each, type_name if each.type == "TYPE" else each.type) for each in self._parameters)
        self._reads = [(each.name, each.is_pointer, DTYPES.get(name)) for each, name in types]
        self._names = {parameter.name for parameter in self._parameters}

    def __call__(self, **arguments: Any) -> Any:
        require(arguments.keys() == self._names, f"{self._function.__name__}: {self._names ^ arguments.keys()}")
        values = [
            _address(arguments[name], name, dtypes) if is_pointer else arguments[name]
            for name, is_pointer, dtypes in self._reads
        ]
        return self._function(*values)


@cache
def native(name: str, dtype: torch.dtype | None = None) -> NativeFunction:
    """The function elmokit_{name}, or elmokit_{name}_{dtype} where there is one for each number type."""
    return NativeFunction(name, "" if dtype is None else TYPE_NAMES[dtype])
