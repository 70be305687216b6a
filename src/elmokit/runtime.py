"""Where and in what precision to compute: device, number type, threads, seeds."""

from __future__ import annotations

import ctypes
import random
import sys

import numpy as np
import torch

from elmokit.ops.dispatch import multiplies_bfloat16

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
DTYPES_OF_USE = {**DTYPES, "int8": torch.int8}  # of a model that is not trained


def pick_device(name: str | None = None) -> torch.device:
    """The named device, or the best there is. ValueError where it is not there."""
    if name is None:
        return pick_device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and device.index is None and torch.cuda.is_available():
        device = torch.device("cuda", torch.cuda.current_device())  # as tensors name it
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {name!r} was asked for, but this PyTorch sees no GPU: use device='cpu'")
    return device


def pick_dtype(name: str | None, device: torch.device, dtypes: dict[str, torch.dtype] = DTYPES) -> torch.dtype:
    """The named number type of the products; "auto" is bfloat16 where the hardware multiplies it, else float32."""
    if name in (None, "float32"):
        return torch.float32
    if name == "auto":
        return torch.bfloat16 if multiplies_bfloat16(device) else torch.float32
    if name not in dtypes:
        raise ValueError(f"dtype must be auto or one of {', '.join(dtypes)}, not {name!r}")
    return dtypes[name]


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and torch."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def give_back_freed_memory() -> None:
    """Give the memory of freed tensors to the system, under glibc; elsewhere nothing happens.

    What was read of a model and packed since lies between what stays, so that the process keeps it: 130 MB of a model
    of the original size.
    """
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if libc is not None and hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
