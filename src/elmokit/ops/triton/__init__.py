"""Kernels for NVIDIA GPUs, in Triton: how and where they are launched, without importing Triton."""

from __future__ import annotations

import math
from importlib.util import find_spec
from typing import NamedTuple

import torch

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MAX_WIDTH = 512
MIN_UNITS = 16  # the smallest depth of a product on tensor cores
OTHER_SHARED = 28 << 10  # bytes of shared memory for all but weights and h, rounded up


class Launch(NamedTuple):
    """The shape of a kernel's programs."""

    rows: int  # rows of the stream, per program
    # cells per block: their weights are loaded together, and halved until they fit in shared memory
    units: int
    warps: int
    stages: int  # stages of the pipeline that loads weights of the next blocks during a product


# To tune a kernel, set its entry: other numbers of rows, units, warps and stages give the same
# results up to rounding.
LAUNCHES = {"forward": Launch(16, 32, 8, 2), "backward": Launch(16, 32, 8, 2)}


def _shared_bytes(launch: Launch, width: int, dtype: torch.dtype) -> int:
    # rows of four gates and of the projection
    weights = 5 * launch.units * max(launch.stages - 1, 1)
    return (weights + launch.rows) * width * dtype.itemsize + OTHER_SHARED


def _shared_limit(device: torch.device | None = None) -> float:
    """The bytes of shared memory that a program may use on a device, or the current CUDA device."""
    if device is not None and device.type != "cuda":
        return math.inf
    return torch.cuda.get_device_properties(device).shared_memory_per_block_optin


def fitted_launch(
    kernel: str,
    hidden: int,
    width: int,
    dtype: torch.dtype,
    device: torch.device,
) -> Launch:
    """The launch of a kernel with as many units as divide H and fit in shared memory."""
    launch, limit = LAUNCHES[kernel], _shared_limit(device)
    while launch.units > MIN_UNITS and (
        hidden % launch.units or _shared_bytes(launch, width, dtype) > limit
    ):
        launch = launch._replace(units=launch.units // 2)
    return launch


def is_installed() -> bool:
    """Whether Triton is there, without importing it."""
    return find_spec("triton") is not None


def unavailable_reason(dtype: torch.dtype, width: int, hidden: int) -> str | None:
    """Why the current CUDA device cannot run an LSTM of these sizes D and H, or None if it can."""
    if not is_installed():
        return "Triton is not installed"
    if dtype not in DTYPES:
        return f"it is for float32, bfloat16 and float16, not {dtype}"
    if width == hidden:
        return "it is for LSTMs with a projection"
    if width not in (16, 32, 64, 128, 256, MAX_WIDTH) or hidden % 32:
        return (
            f"its outputs have a power of two from 16 to {MAX_WIDTH} values and its cells a "
            f"multiple of 32"
        )
    if torch.cuda.get_device_properties().major < 8 or torch.version.cuda is None:
        return "it needs an NVIDIA GPU of compute capability 8.0 or more"
    smallest = [launch._replace(units=MIN_UNITS) for launch in LAUNCHES.values()]
    if max(_shared_bytes(launch, width, dtype) for launch in smallest) > _shared_limit():
        return "its weights do not fit in this GPU's shared memory"
    return None
