"""Modules without memory for their weights, for their shapes alone or to be given weights that were read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

INITIALISERS = {"normal_", "uniform_", "kaiming_uniform_"}  # of torch.nn.init, or of a tensor


class _WithoutInitialValues(TorchFunctionMode):
    """To draw initial values on the meta device PyTorch would import its compiler, which takes a second."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", None) in INITIALISERS:
            return next(iter((*args, *(kwargs or {}).values())))  # the tensor itself
        return func(*args, **(kwargs or {}))


@contextmanager
def shapes_only() -> Iterator[None]:
    """Within it modules are made on PyTorch's meta device, and no initial weights are drawn."""
    with torch.device("meta"), _WithoutInitialValues():
        yield
