"""Which implementation of an op runs: the only place that asks what the machine has.

Backends are levels, each with less code that is plain and more that is fast. An op runs on the highest level that is
allowed and that has it for the device, the number type and the sizes at hand.

    reference   a few lines of PyTorch: the specification
    portable    PyTorch, in bounded memory, gradients by hand; any device
    native      C, for any processor
    avx512      C on prepacked weights, for processors with AVX-512
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import torch

from elmokit.ops.native import library

BACKENDS = ("reference", "portable", "native", "avx512")
VARIABLE = "ELMOKIT_BACKEND"
MAX_INT8_DEPTH = 1 << 16  # as many products, 255 * 127 at most, add up to 32 bits


class Request(NamedTuple):
    """What an implementation is chosen for. `depths` are the lengths of the dot products in it."""

    op: str
    device: str
    dtype: torch.dtype
    depths: tuple[int, ...] = ()


# --- What an implementation needs ------------------------------------------------------------------------------------
# Each returns why it cannot serve a request, or None.


def _anything(request: Request) -> str | None:
    return None


def _floats(request: Request) -> str | None:
    return None if request.dtype.is_floating_point else "it is for floating-point numbers"


def _cpu(request: Request) -> str | None:
    return None if request.device == "cpu" else f"it runs on a CPU, not on {request.device}"


def _library_on_cpu(request: Request) -> str | None:
    if (reason := _cpu(request)) is not None:
        return reason
    return None if library.is_built() else "there was no C compiler when elmokit was installed"


def _compiled_cell(request: Request) -> str | None:
    if request.dtype not in (torch.float32, torch.bfloat16):
        return f"it is for float32 and bfloat16, not {request.dtype}"
    return _library_on_cpu(request)


def _tables(request: Request) -> str | None:
    """Sums in float32."""
    if torch.promote_types(request.dtype, torch.float32) != torch.float32:
        return f"it adds up in float32, not {request.dtype}"
    return _library_on_cpu(request)


def _packed_products(request: Request) -> str | None:
    dtype, depths = request.dtype, request.depths
    if (reason := _library_on_cpu(request)) is not None:
        return reason
    if library.avx512_level() < 1:
        return "this processor has no AVX-512"
    if dtype == torch.bfloat16:
        if library.avx512_level() < 2:
            return "this processor does not multiply bfloat16"
        return "bfloat16 is multiplied in pairs: a size is odd" if any(depth % 2 for depth in depths) else None
    if dtype == torch.int8:
        if not library.multiplies_int8():
            return "this processor has no AVX-512 VNNI"
        return "too many products for a sum of 32 bits" if max(depths, default=0) > MAX_INT8_DEPTH else None
    return None if dtype == torch.float32 else f"it is for float32, bfloat16 and int8, not {dtype}"


def _packed_float_products(request: Request) -> str | None:
    return "it is for floating-point numbers" if request.dtype == torch.int8 else _packed_products(request)


# --- The table -------------------------------------------------------------------------------------------------------


class Implementation(NamedTuple):
    backend: str
    module: str  # within elmokit.ops
    lacks: Callable[[Request], str | None]


IMPLEMENTATIONS: dict[str, tuple[Implementation, ...]] = {
    "lstm": (
        Implementation("avx512", "native.lstm", _packed_products),
        Implementation("native", "native.stepwise_lstm", _compiled_cell),
        Implementation("portable", "portable.lstm", _floats),
        Implementation("reference", "reference", _floats),
    ),
    "prepacked linear": (
        Implementation("avx512", "native.linear", _packed_products),
        Implementation("reference", "reference", _floats),
    ),
    "prepacked highway": (
        Implementation("avx512", "native.linear", _packed_products),
        Implementation("reference", "reference", _floats),
    ),
    "highway": (
        Implementation("native", "native.highway", _compiled_cell),
        Implementation("reference", "reference", _floats),
    ),
    "char_conv": (
        Implementation("native", "native.char_conv", _tables),
        Implementation("portable", "portable.char_conv", _floats),
        Implementation("reference", "reference", _floats),
    ),
    "logsumexp": (
        Implementation("avx512", "native.logsumexp", _packed_float_products),
        Implementation("portable", "portable.logsumexp", _floats),
        Implementation("reference", "reference", _floats),
    ),
    "gather": (
        Implementation("portable", "portable.gather", _cpu),
        Implementation("reference", "reference", _anything),
    ),
    "unpack": (
        Implementation("native", "native.unpack", _library_on_cpu),
        Implementation("reference", "reference", _anything),
    ),
}


# --- The choice ------------------------------------------------------------------------------------------------------


def _checked(name: str | None, source: str) -> str:
    if name is not None and name not in BACKENDS:
        raise ValueError(f"{source} must be one of {', '.join(BACKENDS)}, not {name!r}")
    return name or BACKENDS[-1]


class _Allowed:
    """The highest backend that may run; read from the environment when it is first asked for."""

    backend: str | None = None


def set_backend(name: str | None) -> None:
    """Let nothing above a backend run, in this process; None: what ELMOKIT_BACKEND says, else whatever is fastest.

    Weights that were prepacked before stay with the implementation that prepacked them.

    Args:
        name: "reference", "portable", "native" or "avx512". ValueError for another.
    """
    _Allowed.backend = None if name is None else _checked(name, "the backend")


def get_backend() -> str:
    """The highest backend that may run: what `set_backend` or ELMOKIT_BACKEND says, else the last of `BACKENDS`."""
    if _Allowed.backend is None:
        _Allowed.backend = _checked(os.environ.get(VARIABLE) or None, VARIABLE)
    return _Allowed.backend


def available_backends() -> tuple[str, ...]:
    """The backends that have something to run on this machine's CPU."""
    request = Request("", "cpu", torch.float32)
    there = {"native": _library_on_cpu(request) is None, "avx512": _packed_products(request) is None}
    return tuple(name for name in BACKENDS if there.get(name, True))


def explain(op: str, device: str, dtype: torch.dtype, *depths: int) -> dict[str, str | None]:
    """Of each backend that has the op why it is not taken, best first; None for the one that is, which is the last."""
    found: dict[str, str | None] = {}
    for implementation in IMPLEMENTATIONS[op]:
        reason = implementation.lacks(Request(op, device, dtype, depths))
        if BACKENDS.index(implementation.backend) > BACKENDS.index(get_backend()):
            reason = f"only {get_backend()} is allowed"
        found[implementation.backend] = reason
        if reason is None:
            break
    return found


@cache
def _choose(request: Request, allowed: str) -> Any:
    for implementation in IMPLEMENTATIONS[request.op]:
        is_allowed = BACKENDS.index(implementation.backend) <= BACKENDS.index(allowed)
        if is_allowed and implementation.lacks(request) is None:
            return import_module(f"elmokit.ops.{implementation.module}")
    return None


def choose(op: str, device: torch.device, dtype: torch.dtype, *depths: int) -> Any:
    """The module whose functions run the op.

    Raises:
        ValueError: where no backend that is allowed has it, as int8 without AVX-512 VNNI.
    """
    if (found := _choose(Request(op, device.type, dtype, depths), get_backend())) is None:
        reasons = [f"{name}: {reason}" for name, reason in explain(op, device.type, dtype, *depths).items()]
        raise ValueError(f"nothing here runs {op} in {str(dtype).removeprefix('torch.')} ({'; '.join(reasons)})")
    return found


def has(op: str, backend: str, device: torch.device, dtype: torch.dtype, *depths: int) -> bool:
    """Whether this backend would run the op."""
    return explain(op, device.type, dtype, *depths).get(backend, "") is None


def prepacking_pays(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether weights that are prepacked once run faster than weights that are not."""
    return has("lstm", "avx512", device, dtype)


def multiplies_row_by_row(device: torch.device, dtype: torch.dtype, *depths: int) -> bool:
    """Whether prepacked products give a row the same result, to the last bit, whatever rows are beside it."""
    return has("prepacked linear", "avx512", device, dtype, *depths)


def multiplies_bfloat16(device: torch.device) -> bool:
    """Whether bfloat16 products are faster than float32 ones there."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = torch.backends.cpu.get_cpu_capability() if hasattr(torch.backends, "cpu") else ""
    return "AVX512" in capabilities and bool(torch.cpu._is_avx512_bf16_supported())
