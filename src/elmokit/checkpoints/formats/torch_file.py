"""Files that PyTorch saved: dictionaries of tensors are read, without executing anything (weights_only=True)."""

import pickle
import struct
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from elmokit.checkpoints.errors import CheckpointError

# torch.load raises any of these for a file that is damaged, malicious or of another kind.
DAMAGED = (
    RuntimeError, EOFError, OSError, ValueError, TypeError, LookupError, AttributeError, AssertionError,
    ArithmeticError, ImportError, struct.error,
)  # fmt: skip


def _check_archive(path: Path) -> None:
    """CheckpointError if an archive would unpack to more than its size: PyTorch compresses nothing."""
    with path.open("rb") as file:
        if file.read(2) != b"PK":
            return  # a file from before PyTorch 1.6, whose sizes `check_weights` compares
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError, OSError) as error:
        raise CheckpointError(f"{path} cannot be read as weights ({error}): fetch it again") from error
    is_compressed = any(member.compress_type != zipfile.ZIP_STORED for member in members)
    if is_compressed or sum(member.file_size for member in members) > path.stat().st_size:
        raise CheckpointError(f"{path} unpacks to more than its own size, which no PyTorch file does: fetch it again")


def read_tensors(path: Path) -> dict[str, Any]:
    """Load a dictionary without executing anything. CheckpointError if the file is damaged or holds something else."""
    if not path.is_file():
        raise CheckpointError(f"{path} is missing")
    _check_archive(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch's, about the old file format
            tensors = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(f"{path} is damaged or holds more than weights: fetch it again") from error
    except MemoryError as error:
        raise CheckpointError(f"{path} needs more memory than there is: it is damaged, fetch it again") from error
    except DAMAGED as error:
        reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
        raise CheckpointError(f"{path} cannot be read as weights ({reason[0]}): fetch it again") from error
    if not isinstance(tensors, dict):
        raise CheckpointError(f"{path} holds a {type(tensors).__name__} in place of named weights")
    return tensors


def check_weights(path: Path, tensors: Mapping[str, Any]) -> None:
    """CheckpointError if a value is not a dense floating-point tensor on the CPU, no larger than the file."""
    size = path.stat().st_size
    for name, tensor in tensors.items():
        is_plain = isinstance(tensor, Tensor) and tensor.layout == torch.strided and tensor.device.type == "cpu"
        if not is_plain or not tensor.is_floating_point():
            raise CheckpointError(f"{path} holds something that is not a weight: {name!r}")
        # By its strides a tensor may claim to be larger than its storage.
        if tensor.numel() * tensor.element_size() > size:
            raise CheckpointError(f"{path} claims an impossible size: {name} {tuple(tensor.shape)} in {size} bytes")
