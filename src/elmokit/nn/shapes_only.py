"""Modules on the meta device, for the shapes of their weights, or to be given weights that were read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

INITIALISERS = {"normal_", "uniform_", "kaiming_uniform_"}  # of torch.nn.init, or of a tensor


class _WithoutInitialValues(TorchFunctionMode):
    """Skips initialization: on the meta device PyTorch would import its compiler for it, which takes a second."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", None) in INITIALISERS:
            return next(iter((*args, *(kwargs or {}).values())))  # the tensor itself
        return func(*args, **(kwargs or {}))


@contextmanager
def shapes_only() -> Iterator[None]:
    """Within the `with` block, modules are created on PyTorch's meta device, and no initial weights are drawn."""
    with torch.device("meta"), _WithoutInitialValues():
        yield
