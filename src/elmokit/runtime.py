"""PyTorch workarounds; devices, dtypes and limits of sentences."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
INFERENCE_DTYPES = {**DTYPES, "int8": torch.int8}
MAX_SENTENCE_WORDS = 100_000
INITIALISERS = {"normal_", "uniform_", "kaiming_uniform_"}  # of torch.nn.init, or of a tensor

Method = TypeVar("Method", bound=Callable[..., Any])


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
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError, ImportError) as error:
        reason = str(error).split("\n")[0]
        raise ValueError(
            f"device {name!r} cannot be used ({reason}): use cpu, cuda or cuda:N"
        ) from error


def multiplies_bfloat16(device: torch.device) -> bool:
    """Whether bfloat16 products are faster than float32 ones there."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capability = torch.backends.cpu.get_cpu_capability()
    return "AVX512" in capability and bool(torch.cpu._is_avx512_bf16_supported())


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


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which products in `dtype` are added up: float32, or float64."""
    return torch.promote_types(dtype, torch.float32)


def check_list(sentences: Any) -> None:
    """ValueError for a string, mapping or data frame where a list is expected."""
    if isinstance(sentences, str | Mapping) or hasattr(sentences, "columns"):
        raise ValueError(
            f"give a list of sentences or a column of texts, not a {type(sentences).__name__}; of "
            f"one text [text]"
        )


def check_length(words: int, name: str) -> None:
    """ValueError, which names the sentence, if it has more words than are computed at once."""
    if words > MAX_SENTENCE_WORDS:
        raise ValueError(f"{name} has {words:,} words, more than {MAX_SENTENCE_WORDS:,}: split it")


def fork_rng() -> AbstractContextManager[None]:
    """Within the `with` block, random states may change; they are restored after it."""
    return torch.random.fork_rng(devices=range(torch.cuda.device_count()))


@contextmanager
def pytorch_threads(number: int | None) -> Iterator[None]:
    """Set PyTorch's number of threads within the `with` block; None: unchanged."""
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def release_freed_memory() -> None:
    """Return the memory of freed tensors to the operating system; no-op without glibc.

    Weights that were read and then prepacked lie between blocks in use, so that glibc keeps their
    memory: 130 MB for a model of the original size.
    """
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)


# --- Autograd, torch.compile, the meta device -----------------------------------------------------


def needs_grad(*tensors: Tensor | None) -> bool:
    """Whether autograd records what is computed from these tensors."""
    return torch.is_grad_enabled() and any(
        tensor is not None and tensor.requires_grad for tensor in tensors
    )


def disable_compile(method: Method) -> Method:
    """Leave a method out of `torch.compile`: it packs streams in NumPy, and runs our kernels."""

    @wraps(method)
    def call(*args: Any, **options: Any) -> Any:
        # Not at the top: `torch.compiler.disable` imports the compiler, which takes a second.
        run = torch.compiler.disable(method) if torch.compiler.is_compiling() else method
        return run(*args, **options)

    return cast(Method, call)


class _WithoutInitialValues(TorchFunctionMode):
    """Skips initialization, as on the meta device it would import PyTorch's compiler."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", None) in INITIALISERS:
            return next(iter((*args, *(kwargs or {}).values())))  # the tensor itself
        return func(*args, **(kwargs or {}))


@contextmanager
def init_on_meta() -> Iterator[None]:
    """Create modules without weights within the `with` block; a file's are assigned later."""
    with torch.device("meta"), _WithoutInitialValues():
        yield
