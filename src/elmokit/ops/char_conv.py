"""Convolutions over the characters of a word and their maxima over all places, for filters of several widths."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from elmokit.ops.autograd import product_dtype
from elmokit.ops.dispatch import choose


def check_ids(ids: Tensor, num_characters: int, widest_filter: int) -> None:
    """IndexError for a character without a row in the embedding, ValueError for rows that are too short."""
    if ids.shape[1] < widest_filter:
        raise ValueError(f"rows of {ids.shape[1]} characters are too short for filters {widest_filter} wide: pad them")
    if len(ids) > 0 and not 0 <= ids.min() <= ids.max() < num_characters:
        raise IndexError(f"characters must lie in 0..{num_characters - 1}, not {int(ids.min())}..{int(ids.max())}")


def char_conv(ids: Tensor, embedding: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> Tensor:
    """Of each filter the maximum over a word's places, plus bias; see `reference.char_conv`.

    Args:
        ids: Characters of words (U, C), rows of the embedding.
        embedding: (n, E).
        weights: Of each width w the filters (F, E, w).
        biases: Of each width (F,).

    Returns:
        (U, sum of F), in the number type of the embedding, or that of autocast.

    Raises:
        IndexError: for a character without a row in the embedding.
        ValueError: where C is less than a width.
    """
    check_ids(ids, len(embedding), max(weight.shape[2] for weight in weights))
    dtype = product_dtype(embedding)
    with torch.autocast(ids.device.type, enabled=False):
        implementation = choose("char_conv", ids.device, torch.promote_types(dtype, embedding.dtype))
        return implementation.char_conv(ids, embedding, weights, biases, dtype)


def prepack_char_conv(
    embedding: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], dtype: torch.dtype
) -> Callable[[Tensor], Tensor]:
    """The weights of `char_conv` -> a function of ids that runs without gradients, with the same errors."""
    with torch.no_grad():
        return choose("char_conv", embedding.device, dtype).prepack_char_conv(embedding, weights, biases, dtype)
