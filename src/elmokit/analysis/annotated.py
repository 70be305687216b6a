"""All layers of annotated sentences, in order and one at a time, whatever the annotation is."""

import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

import numpy as np

from elmokit.embed.embedder import Embedder, Embeddings, TruncationWarning

Item = TypeVar("Item")
SENTENCES_AT_ONCE = 256  # with carried state; without it the embedder chooses


def _embedded(sentences: Iterable[Sequence[str]], embedder: Embedder, state: str | None) -> Iterator[Embeddings]:
    if (state or embedder.model.state_policy) != "carry":
        yield from embedder.embed_groups(sentences, "all", state, tokenize=False)
        return
    remaining, carried = iter(sentences), "carry"
    while batch := list(islice(remaining, SENTENCES_AT_ONCE)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TruncationWarning)  # one at the end counts them all
            found = embedder.embed(batch, "all", carried, batch_size=1, tokenize=False)
        assert found.state is not None
        carried = found.state
        yield found


def all_layers(
    items: Iterable[Item], words_of: Callable[[Item], Sequence[str]], embedder: Embedder, state: str | None = None
) -> Iterator[tuple[Item, np.ndarray]]:
    """Each item with the layers of its words, (L+1, T, 2D), streamed: some thousand words are held at a time.

    `words_of` gives the tokens of an item. `state` is what the LSTMs start from: "zeros" or "warm" at each sentence, or
    "carry", where a sentence goes on from the one before it; the model's own policy when not given. Words longer than
    the model reads are counted in one TruncationWarning at the end.
    """
    pending: deque[Item] = deque()

    def sentences() -> Iterator[Sequence[str]]:
        for item in items:
            pending.append(item)
            yield words_of(item)

    truncated = 0
    for group in _embedded(sentences(), embedder, state):
        truncated += group.truncated_words
        for layers in group:
            yield pending.popleft(), layers
    if truncated:
        warnings.warn(f"{truncated} words are too long and were cut", TruncationWarning, stacklevel=2)
