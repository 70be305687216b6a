"""Stored sentences as padded batches, for a `torch.utils.data.DataLoader` over an `EmbeddingStore`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class VectorBatch(NamedTuple):
    """B sentences, the longest of T words: `vectors` (B, T, 2D), or (B, T, L+1, 2D), and the `mask` (B, T) of words."""

    words: list[list[str]]
    vectors: Tensor
    mask: Tensor


def collate(sentences: Sequence[tuple[Sequence[str], np.ndarray]]) -> VectorBatch:
    """Pad the vectors of sentences with zeros: `DataLoader(store, batch_size=32, collate_fn=elmokit.collate)`.

    Args:
        sentences: Pairs of words and their vectors, (T, 2D) or (T, L+1, 2D), as `EmbeddingStore` yields; at least one.

    Returns:
        The batch, its vectors in float32.

    Raises:
        ValueError: There are no sentences.
    """
    if not sentences:
        raise ValueError("collate takes at least one sentence")
    # On the CPU in float32, whatever PyTorch's defaults are.
    lengths = torch.tensor([len(vectors) for _, vectors in sentences], device="cpu")
    mask = torch.arange(int(lengths.max()), device="cpu") < lengths[:, None]
    padded = torch.zeros(*mask.shape, *sentences[0][1].shape[1:], dtype=torch.float32, device="cpu")
    padded[mask] = torch.from_numpy(np.concatenate([vectors for _, vectors in sentences]).astype(np.float32))
    return VectorBatch([list(words) for words, _ in sentences], padded, mask)
