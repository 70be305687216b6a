"""Which examples share a batch: those of like length, in a random order for training."""

from collections.abc import Iterator

import numpy as np

# Batches are cut from pools of this many batches sorted by length: little padding, and still much chance in the order.
POOL = 32
# Padding included, a batch has so many words at most (or one example): a long example does not stretch the others.
PADDED_WORDS = 16_384


def cut(order: np.ndarray, lengths: np.ndarray, batch_size: int) -> Iterator[np.ndarray]:
    """Indices of examples, the shortest first, in batches of `batch_size`, or fewer where the examples are long."""
    begin = 0
    for end in range(1, len(order) + 1):
        if end == len(order) or end - begin == batch_size or (end + 1 - begin) * lengths[order[end]] > PADDED_WORDS:
            yield order[begin:end]
            begin = end


def shuffled(lengths: np.ndarray, batch_size: int, random: np.random.Generator) -> Iterator[np.ndarray]:
    """Batches of like length in a random order; examples of length 0 are left out."""
    order = random.permutation(np.flatnonzero(lengths))
    batches = []
    for start in range(0, len(order), POOL * batch_size):
        pool = order[start : start + POOL * batch_size]
        batches += cut(pool[np.argsort(lengths[pool], kind="stable")], lengths, batch_size)
    for index in random.permutation(len(batches)):
        yield batches[index]


def by_length(lengths: np.ndarray, batch_size: int) -> Iterator[np.ndarray]:
    """Batches of all examples, the shortest first; examples of length 0 are left out."""
    order = np.argsort(lengths, kind="stable")
    yield from cut(order[lengths[order] > 0], lengths, batch_size)
