"""All layers of annotated sentences, in order and one at a time, whatever the annotation is."""

import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

import numpy as np

from elmokit.config import StatePolicy
from elmokit.embed.embedder import Embedder, Embeddings, TruncationWarning
from elmokit.nn.bilm import BiLMState

Item = TypeVar("Item")
SENTENCES_AT_ONCE = 256  # with carried state; without it the embedder chooses


def _from_same_state(
    sentences: Iterable[Sequence[str]], embedder: Embedder, state: StatePolicy
) -> Iterator[Embeddings]:
    """Warns once, at the end, of all words that are too long."""
    truncated = 0
    for group in embedder.embed_stream(sentences, "all", state):
        truncated += group.truncated_words
        yield group
    if truncated:
        warnings.warn(f"{truncated} words are too long and were cut", TruncationWarning, stacklevel=3)


def _from_carried_state(sentences: Iterable[Sequence[str]], embedder: Embedder) -> Iterator[Embeddings]:
    """One row, so that each sentence goes on from the one before it; `embed` warns of words that are too long."""
    remaining = iter(sentences)
    carried: StatePolicy | BiLMState | None = "carry"
    while batch := list(islice(remaining, SENTENCES_AT_ONCE)):
        found = embedder.embed(batch, "all", carried, batch_size=1)
        carried = found.state
        yield found


def all_layers(
    items: Iterable[Item],
    words_of: Callable[[Item], Sequence[str]],
    embedder: Embedder,
    state: StatePolicy | None = None,
) -> Iterator[tuple[Item, np.ndarray]]:
    """Each item with the layers of its words, (L+1, T, 2D), streamed: some thousand words are held at a time.

    Args:
        items: Sentences with whatever belongs to them.
        words_of: Gives the tokens of an item.
        embedder: Embeds them.
        state: The initial LSTM state: "zeros" or "warm" for each sentence, or "carry", where a sentence goes on from
            the one before it; the model's own policy when not given.
    """
    state = state or embedder.model.state_policy
    pending: deque[Item] = deque()

    def sentences() -> Iterator[Sequence[str]]:
        for item in items:
            pending.append(item)
            yield words_of(item)

    if state == "carry":
        groups = _from_carried_state(sentences(), embedder)
    else:
        groups = _from_same_state(sentences(), embedder, state)
    for group in groups:
        for layers in group:
            yield pending.popleft(), layers
