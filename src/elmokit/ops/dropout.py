"""Dropout whose random numbers cost little: PyTorch's own draws one for each value, this a quarter of one."""

from __future__ import annotations

import torch
from torch import Tensor

LEVELS = 1 << 16  # of the 16 bits that decide about a value


def dropped(x: Tensor, probability: float) -> Tensor:
    """x with each value 0 by that probability (to the nearest of 65,536 levels), the others larger, so that the mean
    stays. 0: x itself. Draws from PyTorch's generator of the device. ValueError for what is no probability, and 1."""
    if not 0 <= probability < 1:
        raise ValueError(f"dropout must be at least 0 and below 1, not {probability}")
    if probability == 0:
        return x
    kept = min(max(round((1 - probability) * LEVELS), 1), LEVELS - 1)
    draws = torch.empty(-(-x.numel() // 4), dtype=torch.int64, device=x.device).random_(-(1 << 63), None)
    chances = draws.view(torch.int16)[: x.numel()].view(x.shape)
    return x * (chances < kept - LEVELS // 2).to(x.dtype).mul_(LEVELS / kept)
