"""Device, dtype, threads, and the memory of freed tensors."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from elmokit.ops import multiplies_bfloat16

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
INFERENCE_DTYPES = {**DTYPES, "int8": torch.int8}
MAX_SENTENCE_WORDS = 100_000


def pick_device(name: str | None = None) -> torch.device:
    """Choose a device.

    Args:
        name: "cpu", "cuda" or "cuda:N"; None: a GPU where PyTorch has one, else the CPU.

    Returns:
        The device; that of a GPU has an index, as `tensor.device` does.

    Raises:
        ValueError: There is no such device, or PyTorch has no GPU.
    """
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device, count = (
            torch.device(name),
            torch.cuda.device_count() if torch.cuda.is_available() else 0,
        )
        if device.type != "cuda":
            torch.empty(0, device=device)
            return device
        if (device.index or 0) >= count:
            raise RuntimeError(f"PyTorch sees {count} GPUs")
    except (RuntimeError, AssertionError, ImportError) as error:
        reason = str(error).split("\n")[0]
        raise ValueError(
            f"device {name!r} cannot be used ({reason}): use cpu, cuda or cuda:N"
        ) from error
    return torch.device(
        "cuda", torch.cuda.current_device() if device.index is None else device.index
    )


def pick_dtype(
    name: str | None, device: torch.device, dtypes: dict[str, torch.dtype] = DTYPES
) -> torch.dtype:
    """Choose the dtype to compute in.

    Args:
        name: A key of `dtypes`, or "auto": bfloat16 where the hardware multiplies it, else float32.
            None: float32.
        device: The device to compute on.
        dtypes: The choices by name.

    Returns:
        The dtype.

    Raises:
        ValueError: There is no such dtype.
    """
    if name == "auto":
        name = "bfloat16" if multiplies_bfloat16(device) else "float32"
    if (name or "float32") not in dtypes:
        raise ValueError(f"dtype must be auto or one of {', '.join(dtypes)}, not {name!r}")
    return dtypes[name or "float32"]


def check_list(sentences: Any) -> None:
    """ValueError for a string, whose characters, or a mapping or table, whose keys, would be read
    as sentences.
    """
    if isinstance(sentences, str | Mapping) or hasattr(sentences, "columns"):
        raise ValueError(
            f"give a list of sentences or a column of texts, not a {type(sentences).__name__}; of "
            f"one text [text]"
        )


def check_length(words: int, name: str) -> None:
    """ValueError, which names the sentence, if it has more words than are computed at once."""
    if words > MAX_SENTENCE_WORDS:
        raise ValueError(f"{name} has {words:,} words, more than {MAX_SENTENCE_WORDS:,}: split it")


def own_random_state() -> AbstractContextManager[None]:
    """Within the `with` block, draw from random states whose changes the caller does not see, on
    GPUs as well.
    """
    return torch.random.fork_rng(devices=range(torch.cuda.device_count()))


@contextmanager
def pytorch_threads(number: int | None) -> Iterator[None]:
    """Let PyTorch use `number` threads within the `with` block; None: as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def release_freed_memory() -> None:
    """Return the memory of freed tensors to the operating system; does nothing without glibc, where
    none is kept.

    Weights that were read and then prepacked lie between blocks in use, so that glibc keeps their
    memory: 130 MB for a model of the original size.
    """
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if libc is not None and hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
