"""The compiled library, built at installation (hatch_build.py)."""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import warnings
from collections.abc import Iterator
from functools import cache, partial
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
    "float16": (torch.float16,),
    "bfloat16": (torch.bfloat16,),
    "int8": (torch.uint8, torch.int8),
    "int64_t": (torch.int64,),
    "int32_t": (torch.int32,),
    "uint8_t": (torch.uint8, torch.bool),
}
TYPE_NAMES = {
    torch.float32: "float",
    torch.bfloat16: "bfloat16",
    torch.float16: "float16",
    torch.int8: "int8",
}


@cache
def source_digest() -> bytes:
    """The digest of all sources, as hatch_build.py computes it."""
    files = sorted([*SOURCES.glob("*.c"), *SOURCES.glob("*.h")])
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest().encode()


@cache
def _library() -> ctypes.CDLL | None:
    try:
        library, digest = ctypes.CDLL(str(LIBRARY)), source_digest()
        built_of = (ctypes.c_char * (len(digest) + 1)).in_dll(library, "elmokit_sources").value
    except (OSError, ValueError):  # no such file, or not this library
        return None
    if built_of != digest:  # its functions may take other arguments than these sources say
        warnings.warn(
            "elmokit's native library was built from other sources: install elmokit again",
            stacklevel=2,
        )
        return None
    return library


# --- Signatures, from the sources -----------------------------------------------------------------


class Parameter(NamedTuple):
    """A parameter of a function, or a field of a struct; its C type is without `const`."""

    name: str
    type: str
    is_pointer: bool
    fields: tuple[Parameter, ...] = ()  # fields of the struct that it points to

    def ctype(self) -> Any:
        return ctypes.c_void_p if self.is_pointer else NUMBERS[self.type]


STRUCT = re.compile(r"typedef struct \{([^{}]*)\} (\w+);")
DEFINITION = re.compile(r"\b(void|int) (?:TYPED|PLAIN)\((\w+)\)\(([^()]*)\) \{")


def require(condition: bool, *message: object) -> None:
    """An assertion that `python -O` leaves in place, since it guards memory; raises AssertionError.

    The parts of the message are not formatted here or by callers: there are hundreds of calls for a
    sentence.
    """
    if not condition:
        raise AssertionError(*message)


def _parameters(declarations: list[str], structs: dict[str, str]) -> Iterator[Parameter]:
    """Each declaration is a type and one or several names, of pointers with a star."""
    for declaration in declarations:
        # const float *h, *c   ->   float, pointers h and c
        type_name, names = declaration.strip().removeprefix("const ").split(" ", 1)
        fields = structs.get(type_name, "").split(";")[:-1]
        for name in names.split(","):
            inside = tuple(_parameters(fields, structs))
            yield Parameter(name.strip(" *"), type_name, "*" in name, inside)


@cache
def _definitions() -> dict[str, tuple[str, list[Parameter]]]:
    """The result and the parameters of each function of the library."""
    files = (*SOURCES.glob("*.c"), *SOURCES.glob("*.h"))
    text = "".join(file.read_text(encoding="utf-8") for file in files)
    text = " ".join(re.sub(r"/\*.*?\*/", " ", text, flags=re.DOTALL).split())
    structs = {name: fields for fields, name in STRUCT.findall(text)}
    return {
        name: (result, [*_parameters(parameters.split(","), structs)])
        for result, name, parameters in DEFINITION.findall(text)
    }


class Strided(NamedTuple):
    """A tensor whose rows need not be contiguous, for a function that takes their stride."""

    tensor: Tensor


def _address(value: Any, name: str, dtypes: tuple[torch.dtype, ...] | None) -> int | None:
    """The address of a tensor or array whose device, layout and dtype are right; NULL for None."""
    if value is None:
        return None
    tensor = value.tensor if type(value) is Strided else value
    if isinstance(tensor, np.ndarray):
        tensor = torch.from_numpy(tensor)
    is_readable = tensor.is_cpu and (type(value) is Strided or tensor.is_contiguous())
    require(is_readable, name, "is read row after row")
    require(dtypes is None or tensor.dtype in dtypes, name, tensor.dtype, dtypes)
    return tensor.data_ptr()


class NativeFunction:
    """A function of the library, called with keyword arguments: numbers, tensors, arrays or None.

    The fields of a struct are arguments, too. The call holds its tensors until the function has
    returned, even if the caller is interrupted.
    """

    def __init__(self, name: str, type_name: str, target: str) -> None:
        (result, parameters), library = _definitions()[name], _library()
        assert library is not None, "ask dispatch which implementation runs"
        self._function = library["_".join(filter(None, ("elmokit", name, type_name, target)))]
        self._function.restype = ctypes.c_int if result == "int" else None
        self._function.argtypes = [parameter.ctype() for parameter in parameters]
        # What csrc/dtype.h calls the type of the products, of their input and of their result.
        types = {"TYPE": type_name, "VALUE": type_name, "RESULT": type_name}
        if type_name == "int8":
            types |= {"VALUE": "float", "RESULT": "bfloat16"}
        # (x, const steps *s)  ->  groups x, and steps with the names of its fields
        self._groups: list[tuple[Any, list[str]]] = []
        self._reads: dict[str, tuple[bool, tuple[torch.dtype, ...] | None]] = {}
        for parameter in parameters:
            struct, fields = None, parameter.fields or (parameter,)
            if parameter.fields:
                c_fields = [(field.name, field.ctype()) for field in fields]
                struct = type(parameter.type, (ctypes.Structure,), {"_fields_": c_fields})
            self._groups.append((struct, [field.name for field in fields]))
            for field in fields:
                dtypes = DTYPES.get(types.get(field.type, field.type))
                self._reads[field.name] = field.is_pointer, dtypes

    def __call__(self, **arguments: Any) -> Any:
        expected = self._reads.keys()
        require(arguments.keys() == expected, self._function.__name__, arguments.keys(), expected)
        values = {
            name: _address(arguments[name], name, dtypes) if is_pointer else arguments[name]
            for name, (is_pointer, dtypes) in self._reads.items()
        }
        passed = []
        for struct, names in self._groups:
            group = [values[name] for name in names]
            passed.append(ctypes.byref(struct(*group)) if struct else group[0])
        return self._function(*passed)


_function = cache(NativeFunction)


# --- Targets --------------------------------------------------------------------------------------

# Instruction sets that the library may be compiled for (hatch_build.py), best first.
TARGETS = ("avx512_bf16", "avx512_vnni", "avx512", "avx2_vnni", "avx2", "neon_dotprod", "baseline")
VARIABLE = "ELMOKIT_ISA"


def multiplies_correctly(target: str) -> bool:
    """Whether a tiny product of integers, exact in every dtype, agrees with NumPy's."""
    rows, columns, depth, bytes_of_int8_row = 7, 70, 6, 12  # 6 values, filled up to 8, and a scale
    weight, a = np.arange(columns * depth) % 7 - 3.0, np.arange(rows * depth) % 5 - 2.0
    weight, a = weight.reshape(columns, depth), a.reshape(rows, depth)
    weight[:, 0] = a[:, 0] = 127  # the largest of a row, so its scale in int8 is 1
    expected = a @ weight.T

    def in_numbers(values: np.ndarray, dtype: torch.dtype) -> Tensor:
        floats = torch.from_numpy(values).float()
        if dtype != torch.int8:
            return floats.to(dtype)
        quantized = torch.empty(len(values), bytes_of_int8_row, dtype=torch.uint8, device="cpu")
        _function("quantize", "int8", target)(
            rows=len(values), depth=depth, values=floats, quantized=quantized
        )
        return quantized

    for dtype in (torch.float32, torch.bfloat16, torch.int8):
        numbers = in_numbers(a, dtype)
        unpacked = in_numbers(weight, torch.int8 if dtype == torch.int8 else torch.float32)
        # enough for every type
        panels = torch.empty(128 * (bytes_of_int8_row + 4), dtype=dtype, device="cpu")
        out = torch.empty(rows, columns, dtype=torch.float32, device="cpu")
        prepack, product = (
            partial(
                _function(name, TYPE_NAMES[dtype], target),
                columns=columns,
                depth=depth,
                first_panel=0,
                end_panel=2,
                panels=panels,
            )
            for name in ("prepack", "product")
        )
        prepack(gates=1, weight=unpacked, column_stride=unpacked.shape[1], depth_stride=1)
        strides = {"stride": numbers.shape[1], "out_stride": columns}
        product(rows=rows, a=numbers, bias=None, out=out, wide=True, **strides)
        if not np.array_equal(out.numpy(), expected):
            return False
    return True


@cache
def targets() -> tuple[str, ...]:
    """The targets that the library has and this processor runs and multiplies by, best first."""
    if (library := _library()) is None:
        return ()
    there = [name for name in TARGETS if hasattr(library, f"elmokit_product_float_{name}")]
    runnable = [name for name in there if library[f"elmokit_runs_{name}"]()]
    correct = [name for name in runnable if multiplies_correctly(name)]
    if correct != runnable:
        wrong = ", ".join(sorted({*runnable} - {*correct}))
        warnings.warn(
            f"elmokit's native library computes wrong products with {wrong} and will not use it",
            stacklevel=2,
        )
    return tuple(correct)


@cache
def target() -> str | None:
    """The target that runs: the one in $ELMOKIT_ISA, or else the best one; None if there is none.

    Raises:
        ValueError: If the library lacks the one in $ELMOKIT_ISA, or the processor cannot run it.
    """
    if not targets():
        return None
    asked = os.environ.get(VARIABLE) or targets()[0]
    if asked not in targets():
        raise ValueError(
            f"{VARIABLE} must be one of {', '.join(targets())} on this machine, not {asked!r}"
        )
    return asked


def unavailable_reason() -> str | None:
    """The reason why no target runs here, or None if one does."""
    if targets():
        return None
    if _library() is not None:
        return "its products are wrong"
    if not LIBRARY.exists():
        return "there was no C compiler when elmokit was installed"
    return "it cannot be loaded here, or was built from other sources: install elmokit again"


def describe_target() -> str:
    """Say in words which target runs, and why."""
    running = target()
    if running is None:
        return f"none: {unavailable_reason()}"
    why = f"as {VARIABLE} says" if os.environ.get(VARIABLE) else "the best that this processor runs"
    return f"{running} ({why}, of {', '.join(targets())})"


def native(name: str, dtype: torch.dtype | None = None) -> NativeFunction:
    """The function `elmokit_{name}` of the running target, for one dtype where each has its own."""
    running = target()
    assert running is not None, "ask dispatch which implementation runs"
    return _function(name, "" if dtype is None else TYPE_NAMES[dtype], running)
