"""Cosine similarities between the vectors of one word in different sentences."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from elmokit.analysis.uses import Use, single_sentence_state, unit_vectors, uses_in_each
from elmokit.embed.embedder import Embedder, resolve_embedder


def _table(name: str, matrix: np.ndarray) -> Iterator[str]:
    """Lines of a square table, with rows and columns numbered from 1."""
    yield name
    yield "     " + "".join(f"{column:>7}" for column in range(1, len(matrix) + 1))
    for number, row in enumerate(matrix, start=1):
        yield f"{number:>5}" + "".join(f"{cosine:>7.2f}" for cosine in row)


class Comparison(NamedTuple):
    """N uses of a word and, by name of the representation, their (N, N) cosine similarities."""

    word: str
    uses: list[Use]
    similarities: dict[str, np.ndarray]

    def __str__(self) -> str:
        width = len(str(len(self.uses)))
        sentences = [f"{number:>{width}}  {use}" for number, use in enumerate(self.uses, start=1)]
        tables = ["\n".join(_table(name, matrix)) for name, matrix in self.similarities.items()]
        return "\n\n".join(["\n".join(sentences), *tables])


def _representations(layers: str | int, num_layers: int) -> dict[str, str | int]:
    """The representations to compare, by the name that is printed."""
    if layers != "all":
        return {f"layer {layers}" if isinstance(layers, int) else layers: layers}
    contextual = {f"layer {number} (contextual)": number for number in range(1, num_layers)}
    return {"layer 0 (context-independent)": 0, **contextual, "mix of all layers": "mix"}


def compare(
    word: str,
    sentences: Sequence[str | Sequence[str]],
    model: Embedder | str | Path | None = None,
    layers: str | int = "all",
    device: str | None = None,
    tokenize: bool = True,
) -> Comparison:
    """Compute the cosine similarities between the vectors of all uses of a word in some sentences.

    Args:
        word: Matched exactly; in sentences without an exact match, regardless of case.
        sentences: Strings, which the model's tokenizer splits, or lists of tokens.
        model: An `Embedder`, or a model as `Embedder.load` accepts it.
        layers: "all" (every layer, and the mix), or one representation as in `Embedder.embed`.
        device: Device to compute on; ignored if `model` is an `Embedder`.
        tokenize: Split strings with the model's tokenizer; else at white space.

    Returns:
        The similarities.

    Raises:
        ValueError: A sentence lacks the word, or there are fewer than two uses.
    """
    embedder = resolve_embedder(model, device)
    split = embedder.tokenize if tokenize else str.split
    tokens = [split(sentence) if isinstance(sentence, str) else list(sentence) for sentence in sentences]
    uses = uses_in_each(word, tokens)
    if len(uses) < 2:
        raise ValueError(f"a comparison needs at least two uses of {word!r}: add another sentence with it")
    texts = [use.sentence for use in uses]
    similarities = {}
    for name, choice in _representations(layers, embedder.num_layers).items():
        embeddings = embedder.embed(texts, choice, single_sentence_state(embedder))
        vectors = unit_vectors(np.stack([words[use.position] for words, use in zip(embeddings, uses, strict=True)]))
        similarities[name] = vectors @ vectors.T
    return Comparison(word, uses, similarities)
