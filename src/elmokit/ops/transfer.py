"""Copies to and from a GPU through pinned memory, so that the caller waits only for results."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

ALIGNMENT = 16  # bytes


def upload(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Tensors on a device, in one copy that nothing waits for; on the CPU themselves."""
    if device.type == "cpu":
        return list(tensors)
    sizes = [-(-tensor.nbytes // ALIGNMENT) * ALIGNMENT for tensor in tensors]
    # PyTorch does not reuse pinned memory before the copy from it has ended.
    buffer = torch.empty(
        sum(sizes), dtype=torch.uint8, device="cpu", pin_memory=device.type == "cuda"
    )

    def views(whole: Tensor) -> list[Tensor]:
        parts = zip(whole.split(sizes), tensors, strict=True)
        return [
            part[: tensor.nbytes].view(tensor.dtype).view(tensor.shape) for part, tensor in parts
        ]

    for view, tensor in zip(views(buffer), tensors, strict=True):
        view.copy_(tensor)
    return views(buffer.to(device, non_blocking=True))


def download(tensor: Tensor) -> Tensor:
    """A copy of a tensor in main memory, or the tensor itself if it is there."""
    if tensor.device.type != "cuda":
        return tensor.cpu()
    copied = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
    copied.copy_(tensor, non_blocking=True)
    torch.cuda.current_stream(tensor.device).record_event().synchronize()
    return copied
