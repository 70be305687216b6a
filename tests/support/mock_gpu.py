"""A GPU without values, for machines without one: tensors on it have shapes, but no numbers.

Within `with MockGPU() as gpu:`, what this thread runs on the device `DEVICE` is counted: kernels,
copies to it, and waits, as for the value of a tensor. An operation on tensors of two devices fails.
Operations on the CPU are real. PyTorch cannot forget a device: after the block,
`torch.accelerator.is_available()` says that it is gone.
"""

from __future__ import annotations

import traceback
from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

NAME = "mock"
# Operations that only look at memory in another way, or obtain it.
VIEWS = {
    "view",
    "_unsafe_view",
    "t",
    "transpose",
    "slice",
    "select",
    "split",
    "split_with_sizes",
    "expand",
    "unsqueeze",
    "squeeze",
    "detach",
    "alias",
    "as_strided",
    "permute",
    "unbind",
    "chunk",
    "_reshape_alias",
    "view_as",
    "lift_fresh",
    "empty",
    "empty_like",
    "new_empty",
    "empty_strided",
    "new_empty_strided",
    "unfold",
    "movedim",
    "reshape",
    "device",
}
WAITS = {"_local_scalar_dense", "nonzero", "equal", "is_nonzero"}


class _Module(backend_registration._DummyBackendModule):
    in_use = False

    def is_available(self) -> bool:
        return self.in_use

    def device_count(self) -> int:
        return int(self.in_use)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16, torch.float32]


backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
_fallthrough = torch.library.Library("_", "IMPL")
_fallthrough.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
DEVICE = torch.device(NAME, 0)


def _place() -> str:
    """The line of elmokit that is running."""
    lines = [frame for frame in traceback.extract_stack() if "/src/elmokit/" in frame.filename]
    return f"{lines[-1].filename.split('/src/')[1]}:{lines[-1].lineno}" if lines else "autograd"


class MockGPU(TorchDispatchMode):
    """Counts what would run on a GPU.

    Attributes:
        kernels: Number of kernels, by operation and line.
        copies: Number of copies from main memory, by line.
        waits: Number of times that the caller waits for the device, by operation and line.
    """

    def __init__(self) -> None:
        super().__init__()
        self._fake = FakeTensorMode(allow_non_fake_inputs=True)
        self.kernels = Counter[str]()
        self.copies = Counter[str]()
        self.waits = Counter[str]()

    def __enter__(self) -> MockGPU:
        _Module.in_use = True
        return super().__enter__()

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        _Module.in_use = False

    def reset(self) -> None:
        for counter in (self.kernels, self.copies, self.waits):
            counter.clear()

    def launch(self, name: str) -> None:
        """Count a kernel that PyTorch does not know."""
        self.kernels[f"{name} {_place()}"] += 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.split("::")[1]
        leaves = tree_leaves((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        devices = {leaf.type for leaf in leaves if isinstance(leaf, torch.device)}
        here = [tensor for tensor in tensors if tensor.device.type == NAME]
        elsewhere = [
            tensor for tensor in tensors if tensor.device.type != NAME and tensor.dim() > 0
        ]
        if not here and NAME not in devices:
            return func(*args, **kwargs)
        by_mask = "index" in name and any(tensor.dtype == torch.bool for tensor in tensors)
        if name in WAITS or by_mask or (here and "cpu" in devices and name == "_to_copy"):
            self.waits[f"{name} {_place()}"] += 1
            if name == "_local_scalar_dense":
                return 1.0 if args[0].dtype.is_floating_point else 1
            if name == "_to_copy":
                return torch.zeros(
                    here[0].shape, dtype=kwargs.get("dtype") or here[0].dtype, device="cpu"
                )
            assert not by_mask and name == "nonzero", (
                f"the number of results of {name} is not known: {_place()}"
            )
            return torch.empty(0, args[0].dim(), dtype=torch.int64, device=DEVICE)
        if elsewhere:
            assert name in ("_to_copy", "copy_"), f"{name} of tensors on two devices: {_place()}"
            self.copies[_place()] += 1
        elif name not in VIEWS:
            self.kernels[f"{name} {_place()}"] += 1
        with self._fake:
            if name == "_to_copy" and not here:
                return torch.empty(
                    args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype, device=DEVICE
                )
            if name == "segment_reduce":  # which FakeTensorMode lacks
                return torch.empty(
                    len(kwargs["lengths"]), *args[0].shape[1:], dtype=args[0].dtype, device=DEVICE
                )
            args, kwargs = tree_map(_number, (args, kwargs))
            return func(*args, **kwargs)


def _number(leaf: Any) -> Any:
    """A real tensor without dimensions as a number, as PyTorch passes it to kernels of any
    device.
    """
    return (
        leaf.item()
        if isinstance(leaf, Tensor) and not isinstance(leaf, FakeTensor) and leaf.dim() == 0
        else leaf
    )
