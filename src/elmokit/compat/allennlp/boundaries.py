"""AllenNLP's functions for <S> and </S> (nn/util.py)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from elmokit.compat.carried import without_boundaries


def add_sentence_boundary_token_ids(
    tensor: Tensor, mask: Tensor, sentence_begin_token: Any, sentence_end_token: Any
) -> tuple[Tensor, Tensor]:
    """Put <S> before and </S> after the words of each row.

    Args:
        tensor: Ids or vectors of words, (B, T) or (B, T, D), padded at the right.
        mask: (B, T), True or 1 for a word.
        sentence_begin_token: The id of <S>, or its vector (D,).
        sentence_end_token: The id of </S>, or its vector (D,).

    Returns:
        (B, T+2) or (B, T+2, D), and its mask (B, T+2) bool: an id other than 0, or a vector with any value above 0.
    """
    bounded = tensor.new_zeros(tensor.shape[0], tensor.shape[1] + 2, *tensor.shape[2:])
    bounded[:, 1:-1] = tensor
    bounded[:, 0] = sentence_begin_token
    bounded[torch.arange(len(tensor)), mask.sum(dim=1).cpu() + 1] = sentence_end_token
    return bounded, bounded != 0 if bounded.dim() == 2 else (bounded > 0).any(dim=-1)


def remove_sentence_boundaries(tensor: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Remove <S> and </S>: (B, T+2, D) and mask (B, T+2) -> (B, T, D), zero at padding, and mask (B, T) bool."""
    return without_boundaries(tensor, mask.bool())
