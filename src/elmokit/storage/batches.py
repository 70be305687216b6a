"""Stored sentences as padded batches, for a `torch.utils.data.DataLoader` over an
`EmbeddingStore`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence


class VectorBatch(NamedTuple):
    """B sentences, the longest of T words: `vectors` (B, T, 2D), or (B, T, L+1, 2D), and the `mask`
    (B, T) of words.
    """

    words: list[list[str]]
    vectors: Tensor
    mask: Tensor


def collate(sentences: Sequence[tuple[Sequence[str], np.ndarray]]) -> VectorBatch:
    """Pad the vectors of sentences with zeros: `DataLoader(store, batch_size=32,
    collate_fn=elmokit.collate)`.

    Args:
        sentences: Pairs of words and their vectors, (T, 2D) or (T, L+1, 2D), as `EmbeddingStore`
            yields; at least one.

    Returns:
        The batch, its vectors in float32.
    """
    padded = pad_sequence(
        [torch.from_numpy(vectors.astype(np.float32)) for _, vectors in sentences], batch_first=True
    )
    mask = torch.arange(padded.shape[1]) < torch.tensor(
        [[len(vectors)] for _, vectors in sentences]
    )
    return VectorBatch([list(words) for words, _ in sentences], padded, mask)
