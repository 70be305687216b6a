"""The compiled library, built at installation (hatch_build.py)."""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import warnings
from collections.abc import Iterator
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
    "float16": (torch.float16,),
    "bfloat16": (torch.bfloat16,),
    "int8": (torch.uint8, torch.int8),
    "int64_t": (torch.int64,),
    "int32_t": (torch.int32,),
    "uint8_t": (torch.uint8, torch.bool),
}
# What csrc/dtype.h calls VALUE and RESULT, for each type of the products.
OTHER_TYPES = {
    "VALUE": {"float": "float", "bfloat16": "bfloat16", "int8": "float"},
    "RESULT": {"float": "float", "bfloat16": "bfloat16", "int8": "bfloat16"},
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


def is_built() -> bool:
    """Whether there is a library that was built from these sources."""
    return _library() is not None


# --- Signatures, from the sources -----------------------------------------------------------------


class Parameter(NamedTuple):
    """A parameter of a function, or a field of a struct; its C type is without `const`."""

    name: str
    type: str
    is_pointer: bool
    fields: tuple[Parameter, ...] = ()

    def ctype(self) -> Any:
        return ctypes.c_void_p if self.is_pointer else NUMBERS[self.type]


STRUCT = re.compile(r"typedef struct \{([^{}]*)\} (\w+);")
DEFINITION = re.compile(r"\b(void|int) (TYPED|PLAIN)\((\w+)\)\(([^()]*)\) \{")


def require(condition: bool, *message: object) -> None:
    """An assertion that `python -O` leaves in place, since it guards memory; raises AssertionError.

    The parts of the message are not formatted here or by callers: there are hundreds of calls for a
    sentence.
    """
    if not condition:
        raise AssertionError(*message)


class Definition(NamedTuple):
    """A function of the library."""

    result: str
    is_typed: bool
    parameters: list[Parameter]


def _parameters(declarations: list[str], structs: dict[str, str]) -> Iterator[Parameter]:
    """Each declaration is a type and one or several names, of pointers with a star."""
    for declaration in declarations:
        type_name, names = declaration.strip().removeprefix("const ").split(" ", 1)
        for name in names.split(","):
            fields = structs.get(type_name, "").split(";")[:-1]
            yield Parameter(
                name.strip(" *"), type_name, "*" in name, tuple(_parameters(fields, structs))
            )


@cache
def _definitions() -> dict[str, Definition]:
    text = "".join(
        file.read_text(encoding="utf-8") for file in (*SOURCES.glob("*.c"), *SOURCES.glob("*.h"))
    )
    text = " ".join(re.sub(r"/\*.*?\*/", " ", text, flags=re.DOTALL).split())
    structs = {name: fields for fields, name in STRUCT.findall(text)}
    return {
        name: Definition(result, kind == "TYPED", [*_parameters(parameters.split(","), structs)])
        for result, kind, name, parameters in DEFINITION.findall(text)
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
    require(
        tensor.is_cpu and (type(value) is Strided or tensor.is_contiguous()),
        name,
        "is read row after row",
    )
    require(dtypes is None or tensor.dtype in dtypes, name, tensor.dtype, dtypes)
    return tensor.data_ptr()


class NativeFunction:
    """A function of the library, called with keyword arguments: numbers, tensors, arrays or None.

    The fields of a struct are arguments, too. The call holds its tensors until the function has
    returned, even if the caller is interrupted.
    """

    def __init__(self, name: str, type_name: str, target: str) -> None:
        result, is_typed, parameters = _definitions()[name]
        library = _library()
        assert library is not None, "ask dispatch which implementation runs"
        self._function = library[
            "_".join(["elmokit", name, *([type_name] if is_typed else []), target])
        ]
        self._function.restype = ctypes.c_int if result == "int" else None
        self._function.argtypes = [parameter.ctype() for parameter in parameters]
        aliases = {
            "TYPE": type_name,
            **{alias: types.get(type_name) for alias, types in OTHER_TYPES.items()},
        }
        flat = [field for parameter in parameters for field in parameter.fields or [parameter]]
        self._reads = {
            each.name: (each.is_pointer, DTYPES.get(aliases.get(each.type) or each.type))
            for each in flat
        }
        self._groups = [
            (self._struct(parameter), [each.name for each in parameter.fields])
            for parameter in parameters
        ]
        self._names = [parameter.name for parameter in parameters]

    @staticmethod
    def _struct(parameter: Parameter) -> type[ctypes.Structure] | None:
        fields = [(field.name, field.ctype()) for field in parameter.fields]
        return type(parameter.type, (ctypes.Structure,), {"_fields_": fields}) if fields else None

    def __call__(self, **arguments: Any) -> Any:
        require(
            arguments.keys() == self._reads.keys(),
            self._function.__name__,
            arguments.keys(),
            self._reads.keys(),
        )
        values = {
            name: _address(arguments[name], name, dtypes) if is_pointer else arguments[name]
            for name, (is_pointer, dtypes) in self._reads.items()
        }
        passed = [
            values[name]
            if struct is None
            else ctypes.byref(struct(*(values[field] for field in fields)))
            for name, (struct, fields) in zip(self._names, self._groups, strict=True)
        ]
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
        panels = torch.empty(
            128 * (bytes_of_int8_row + 4), dtype=dtype, device="cpu"
        )  # enough for every type
        out = torch.empty(rows, columns, dtype=torch.float32, device="cpu")
        sizes = {
            "columns": columns,
            "depth": depth,
            "first_panel": 0,
            "end_panel": 2,
            "panels": panels,
        }
        _function("prepack", TYPE_NAMES[dtype], target)(
            gates=1, weight=unpacked, column_stride=unpacked.shape[1], depth_stride=1, **sizes
        )
        sizes |= {"rows": rows, "stride": numbers.shape[1], "out_stride": columns}
        _function("product", TYPE_NAMES[dtype], target)(
            a=numbers, bias=None, out=out, wide=True, **sizes
        )
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
    if is_built():
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
