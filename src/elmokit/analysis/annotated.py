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
from elmokit.text.characters import first_truncated, truncation_message

Item = TypeVar("Item")
CARRIED_BATCH_SENTENCES = 256  # without carried state, the embedder chooses the batches


def _warning_of_truncated(batches: Iterable[Embeddings], embedder: Embedder) -> Iterator[Embeddings]:
    """Yield the batches, and warn once, at the end, of truncated words."""
    read, truncated, place, word = 0, 0, "", ""
    for batch in batches:
        if batch.truncated_words and not truncated:
            number, word = first_truncated(batch.tokens, embedder.count_truncated)
            place = f"sentence {read + number}"
        read, truncated = read + len(batch), truncated + batch.truncated_words
        yield batch
    if truncated:
        message = truncation_message(truncated, embedder.word_limit, place, word)
        warnings.warn(message, TruncationWarning, stacklevel=3)


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
        The items in order, each with its layers, (L+1, T, 2D) float32.
    """
    state = state or embedder.model.state_policy
    pending: deque[Item] = deque()

    def sentences() -> Iterator[Sequence[str]]:
        for item in items:
            pending.append(item)
            yield words_of(item)

    carries = state == "carry"
    batches = _embed_carrying(sentences(), embedder) if carries else embedder.embed_stream(sentences(), "all", state)
    for batch in _warning_of_truncated(batches, embedder):
        for layers in batch:
            yield pending.popleft(), layers
