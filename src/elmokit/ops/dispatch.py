"""Chooses the implementation that runs an op.

Backends are levels, from plain to fast; an op runs on the highest one that is allowed, has it and
serves the device, the dtype and the sizes at hand.

    reference   a few lines of PyTorch: the specification
    portable    PyTorch with gradients of our own, in bounded memory; any device
    triton      kernels for NVIDIA GPUs, compiled when they are first run
    native      C, compiled for several instruction sets (native/library.py chooses one)

No device is served by both of the last two: on a CPU, "triton" means "portable", and on a GPU
"native" means "triton".
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import torch

from elmokit.ops import triton
from elmokit.ops.native import library
from elmokit.runtime import accumulation_dtype

BACKENDS = ("reference", "portable", "triton", "native")
VARIABLE = "ELMOKIT_BACKEND"
MAX_INT8_DEPTH = 1 << 16  # the sum of as many products, each at most 255 * 127, fits in 32 bits
# distinct characters: larger tables would take too much memory for the time they save
MAX_ALPHABET = 1024


class Request(NamedTuple):
    """The op, device, dtype and sizes that determine the choice.

    The sizes are the lengths of the op's dot products; of a prepacked char_conv, the number of
    characters.
    """

    op: str
    device: str
    dtype: torch.dtype
    sizes: tuple[int, ...] = ()


# --- Requirements of implementations: each gives the reason why a request cannot be served, or None


def _requires_floats(request: Request) -> str | None:
    return None if request.dtype.is_floating_point else "it is for floating-point numbers"


def _requires_library_on_cpu(request: Request) -> str | None:
    if request.device != "cpu":
        return f"it runs on a CPU, not on {request.device}"
    return library.unavailable_reason()


def _requires_float32_sums(request: Request) -> str | None:
    if accumulation_dtype(request.dtype) != torch.float32:
        return f"it adds up in float32, not {request.dtype}"
    return _requires_library_on_cpu(request)


def _requires_prepacked_products(request: Request) -> str | None:
    dtype, depths = request.dtype, request.sizes
    if dtype not in (torch.float32, torch.bfloat16, torch.int8):
        return f"it is for float32, bfloat16 and int8, not {dtype}"
    if dtype == torch.bfloat16 and any(depth % 2 for depth in depths):
        return "bfloat16 is multiplied in pairs: a size is odd"
    if dtype == torch.int8 and max(depths, default=0) > MAX_INT8_DEPTH:
        return "too many products for a sum of 32 bits"
    return _requires_library_on_cpu(request)


def _requires_prepacked_float_products(request: Request) -> str | None:
    return _requires_floats(request) or _requires_prepacked_products(request)


def _requires_lstm_on_cuda(request: Request) -> str | None:
    if request.device != "cuda":
        return f"it runs on a GPU, not on {request.device}"
    return triton.unavailable_reason(request.dtype, *request.sizes[1:])


def _requires_small_alphabet(request: Request) -> str | None:
    if any(size > MAX_ALPHABET for size in request.sizes):
        return f"tables of more than {MAX_ALPHABET} characters would be too large"
    return _requires_float32_sums(request)


# --- The table: for each backend its ops, and their implementations -------------------------------

Requirement = Callable[[Request], str | None]


class Implementation(NamedTuple):
    """A row of the table."""

    module: str  # in elmokit.ops
    requirement: Requirement
    batch_invariant: bool = (
        False  # whether prepacked, its rows are bitwise independent of the batch
    )


PORTABLE_OPS = "lstm", "linear", "prepacked linear", "highway", "prepacked highway", "logsumexp"
IMPLEMENTATIONS: dict[str, dict[str, Implementation]] = {
    "native": {
        "lstm": Implementation("native.lstm", _requires_prepacked_products, True),
        "prepacked linear": Implementation("native.gemm", _requires_prepacked_products, True),
        "prepacked highway": Implementation("native.gemm", _requires_prepacked_products, True),
        # For words of more than 256 characters, or more than MAX_ALPHABET distinct ones in a call,
        # the native module calls the reference: both are known only when the words are.
        "char_conv": Implementation("native.char_conv", _requires_float32_sums),
        "prepacked char_conv": Implementation("native.char_conv", _requires_small_alphabet, True),
        "logsumexp": Implementation("native.logsumexp", _requires_prepacked_float_products),
        "unpack": Implementation("native.unpack", _requires_library_on_cpu),
    },
    "triton": {"lstm": Implementation("triton.lstm", _requires_lstm_on_cuda)},
    "portable": dict.fromkeys(PORTABLE_OPS, Implementation("portable", _requires_floats)),
    "reference": dict.fromkeys(
        (*PORTABLE_OPS, "char_conv", "prepacked char_conv", "unpack"),
        Implementation("reference", _requires_floats),
    ),
}

# --- The choice -----------------------------------------------------------------------------------


def _checked(name: str, source: str) -> str:
    if name not in BACKENDS:
        raise ValueError(f"{source} must be one of {', '.join(BACKENDS)}, not {name!r}")
    return name


# the highest backend that may run; None until it is read from the environment
_allowed: str | None = None


def set_backend(name: str | None) -> None:
    """Set the highest backend that may run in this process.

    Weights that are already prepacked stay with the implementation that prepacked them.

    Args:
        name: "reference", "portable", "triton" or "native"; None: the value of ELMOKIT_BACKEND, or
            else the fastest.

    Raises:
        ValueError: If there is no such backend.
    """
    global _allowed
    _allowed = None if name is None else _checked(name, "the backend")


def get_backend() -> str:
    """The highest backend that may run, as set by `set_backend` or ELMOKIT_BACKEND; "native" by
    default.

    Raises:
        ValueError: If ELMOKIT_BACKEND names no backend.
    """
    return _allowed or _checked(os.environ.get(VARIABLE) or BACKENDS[-1], VARIABLE)


def available_backends() -> tuple[str, ...]:
    """Backends that this machine can run: "native" needs the compiled library, "triton" a GPU and
    Triton.
    """
    there = {
        "native": bool(library.targets()),
        "triton": torch.cuda.is_available() and triton.is_installed(),
    }
    return tuple(name for name in BACKENDS if there.get(name, True))


def describe_backends() -> dict[str, Any]:
    """The highest allowed backend, the available backends, and the instruction set."""
    return {
        "backend": get_backend(),
        "available backends": list(available_backends()),
        "instruction set": library.describe_target(),
    }


def explain(op: str, device: str, dtype: torch.dtype, *sizes: int) -> dict[str, str | None]:
    """Say which backend runs an op, and why not a better one; the arguments are those of `choose`.

    Returns:
        For each backend that has the op, best first, the reason why it is not chosen, up to the one
        that is, whose reason is None. Where none can run the op, every one has a reason.
    """
    reasons: dict[str, str | None] = {}
    for backend in reversed(BACKENDS):
        if implementation := IMPLEMENTATIONS[backend].get(op):
            if BACKENDS.index(backend) > BACKENDS.index(get_backend()):
                reasons[backend] = f"only {get_backend()} is allowed"
            else:
                reasons[backend] = implementation.requirement(Request(op, device, dtype, sizes))
            if reasons[backend] is None:
                break
    return reasons


@cache
def _chosen(request: Request, allowed: str) -> Any:
    """The module for a request; `allowed` is a key of the cache."""
    reasons = explain(*request[:3], *request.sizes)
    backend, reason = list(reasons.items())[-1]
    if reason is not None:
        details = "; ".join(f"{name}: {why}" for name, why in reasons.items())
        raise ValueError(f"no backend runs {request.op} in {str(request.dtype)[6:]} ({details})")
    return import_module(f"elmokit.ops.{IMPLEMENTATIONS[backend][request.op].module}")


def choose(op: str, device: torch.device, dtype: torch.dtype, *sizes: int) -> Any:
    """The module whose functions run an op.

    Args:
        op: A name of `IMPLEMENTATIONS`.
        device: Where its tensors are.
        dtype: The dtype of its products.
        sizes: See `Request`.

    Returns:
        The module, with the functions that `ops.functional` calls.

    Raises:
        ValueError: If no backend that is allowed can run it, as with int8 where there is no
            compiled library.
    """
    return _chosen(Request(op, device.type, dtype, sizes), get_backend())
