"""All layers of annotated sentences, streamed in order."""

import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

import numpy as np

from elmokit.embed.embedder import Embedder, Embeddings, TruncationWarning
from elmokit.nn.bilm import BiLMState
from elmokit.settings import StatePolicy

Item = TypeVar("Item")
CARRIED_BATCH_SENTENCES = 256  # without carried state, the embedder chooses the batches


def _embed_carrying(sentences: Iterable[Sequence[str]], embedder: Embedder) -> Iterator[Embeddings]:
    """Embed with state carried over in a single row, so that each sentence starts where the one before it ended."""
    remaining = iter(sentences)
    state: StatePolicy | BiLMState | None = "carry"
    while batch := list(islice(remaining, CARRIED_BATCH_SENTENCES)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TruncationWarning)  # issued for the whole text
            embeddings = embedder.embed(batch, "all", state, batch_size=1)
        state = embeddings.state
        yield embeddings


def all_layers(
    items: Iterable[Item],
    words_of: Callable[[Item], Sequence[str]],
    embedder: Embedder,
    state: StatePolicy | None = None,
) -> Iterator[tuple[Item, np.ndarray]]:
    """Pair each annotated sentence with all layers of its words; memory holds one batch of sentences at a time.

    Args:
        items: Annotated sentences of any type.
        words_of: Returns the T tokens of an item.
        embedder: The model.
        state: Initial state of a sentence: "zeros", "warm", or "carry" (the final state of the sentence before);
            the model's policy by default.

    Yields:
        The items in order, each with its layers, (L+1, T, 2D) float32. Words longer than the model reads are counted in
        a TruncationWarning at the end.
    """
    state = state or embedder.model.state_policy
    pending: deque[Item] = deque()
    truncated = 0

    def sentences() -> Iterator[Sequence[str]]:
        for item in items:
            pending.append(item)
            yield words_of(item)

    carrying = _embed_carrying(sentences(), embedder) if state == "carry" else None
    for batch in carrying or embedder.embed_stream(sentences(), "all", state):
        truncated += batch.truncated_words
        for layers in batch:
            yield pending.popleft(), layers
    if truncated:
        warnings.warn(f"{truncated} words are too long and are cut", TruncationWarning, stacklevel=2)
