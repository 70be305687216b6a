"""Dropout with four decisions from each random number."""

import torch
from torch import Tensor

LEVELS = 1 << 16  # 16 random bits decide whether a value is dropped


def apply_dropout(x: Tensor, probability: float) -> Tensor:
    """Set each value to 0 with a given probability, and scale the others to the same mean.

    PyTorch's own dropout draws a random number for each value; this draws one for four values, from
    PyTorch's default generator of the device.

    Args:
        x: Of any shape.
        probability: Of a value to be dropped, rounded to a multiple of 1/65,536; with 0, x itself
            is returned.

    Returns:
        A tensor like x.

    Raises:
        ValueError: If the probability is below 0, or 1 or more.
    """
    if not 0 <= probability < 1:
        raise ValueError(f"dropout must be at least 0 and below 1, not {probability}")
    if probability == 0:
        return x
    kept = min(max(round((1 - probability) * LEVELS), 1), LEVELS - 1)
    count = -(-x.numel() // 4)
    numbers = torch.empty(count, dtype=torch.int64, device=x.device)
    numbers.random_(-(1 << 63), None)
    # Four values of 16 bits, from -LEVELS / 2 to LEVELS / 2 - 1, in each number of 64 bits.
    draws = numbers.view(torch.int16)[: x.numel()].view(x.shape)
    return x * (draws < kept - LEVELS // 2).to(x.dtype).mul_(LEVELS / kept)
