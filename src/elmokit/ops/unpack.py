"""From the streams of a batch to the vectors of its words, in the order of the text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from elmokit.ops.dispatch import choose


def unpack_sentences(streams: Tensor, slots: Tensor, begins: np.ndarray, outs: Sequence[np.ndarray]) -> None:
    """Write each sentence's vectors, float32.

    Args:
        streams: (K, 2, N, D), in stream order.
        slots: Where each token of the text lies in either direction (2, M).
        begins: The first token of each sentence.
        outs: Of each sentence (K, T, 2D), to be filled.
    """
    choose("unpack", streams.device, streams.dtype).unpack_sentences(streams, slots, begins, outs)


def unpack_words(streams: Tensor, slots: Tensor, out: np.ndarray) -> None:
    """Write the vectors of words as they are stored, end to end.

    Args:
        streams: (K, 2, N, D), in stream order.
        slots: Where each word lies in either direction (2, M).
        out: (M, K, 2D), float32 or float16, to be filled.

    Raises:
        FloatingPointError: where finite numbers are too large for float16.
    """
    if choose("unpack", streams.device, streams.dtype).unpack_words(streams, slots, out):
        raise FloatingPointError("finite numbers have become infinite")
