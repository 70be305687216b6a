"""Batches of examples with similar lengths, in random order for training."""

from collections.abc import Iterator

import numpy as np

# Examples are shuffled into pools of this many batches, and sorted by length within: little padding, random order.
POOL = 32
# Maximum words of a batch of several examples, with padding: a long example does not pad the others to its length.
PADDED_WORDS = 16_384


def split_by_length(order: np.ndarray, lengths: np.ndarray, batch_size: int) -> Iterator[np.ndarray]:
    """Indices of examples, the shortest first, in batches of `batch_size`, or fewer if they are long."""
    begin = 0
    for end in range(1, len(order) + 1):
        if end == len(order) or end - begin == batch_size or (end + 1 - begin) * lengths[order[end]] > PADDED_WORDS:
            yield order[begin:end]
            begin = end


def shuffled(lengths: np.ndarray, batch_size: int, random: np.random.Generator) -> Iterator[np.ndarray]:
    """Random batches of examples with similar lengths; examples of length 0 are left out."""
    order = random.permutation(np.flatnonzero(lengths))
    batches = []
    for start in range(0, len(order), POOL * batch_size):
        pool = order[start : start + POOL * batch_size]
        batches += split_by_length(pool[np.argsort(lengths[pool], kind="stable")], lengths, batch_size)
    for index in random.permutation(len(batches)):
        yield batches[index]


def by_length(lengths: np.ndarray, batch_size: int) -> Iterator[np.ndarray]:
    """Batches of all examples, the shortest first; examples of length 0 are left out."""
    order = np.argsort(lengths, kind="stable")
    yield from split_by_length(order[lengths[order] > 0], lengths, batch_size)
