"""How alike the vectors of one word are in different sentences."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from elmokit.analysis.uses import Use, of_length_one, state_of_single_sentences, uses_in_every
from elmokit.embed.embedder import Embedder, resolve_embedder


def _table(name: str, matrix: np.ndarray) -> Iterator[str]:
    """Rows and columns numbered as the uses are."""
    yield name
    yield "     " + "".join(f"{column:>7}" for column in range(1, len(matrix) + 1))
    for number, row in enumerate(matrix, start=1):
        yield f"{number:>5}" + "".join(f"{cosine:>7.2f}" for cosine in row)


class Comparison(NamedTuple):
    """Cosines of a word's vectors: for each representation, by name, a matrix (N, N) over its N uses."""

    word: str
    uses: list[Use]
    similarities: dict[str, np.ndarray]

    def __str__(self) -> str:
        width = len(str(len(self.uses)))
        sentences = [f"{number:>{width}}  {use}" for number, use in enumerate(self.uses, start=1)]
        tables = ["\n".join(_table(name, matrix)) for name, matrix in self.similarities.items()]
        return "\n\n".join(["\n".join(sentences), *tables])


def _representations(layers: str | int, num_layers: int) -> dict[str, str | int]:
    """What is shown as what."""
    if layers != "all":
        return {f"layer {layers}" if isinstance(layers, int) else layers: layers}
    contextual = {f"layer {number} (the word in its sentence)": number for number in range(1, num_layers)}
    return {"layer 0 (the word alone)": 0, **contextual, "mix of all layers": "mix"}


def compare(
    word: str,
    sentences: Sequence[str | Sequence[str]],
    model: Embedder | str | Path | None = None,
    layers: str | int = "all",
    device: str | None = None,
) -> Comparison:
    """Cosine similarities between the word's vectors in the given sentences, at every place where it stands.

    Sentences are strings, which the model's tokenizer splits, or lists of tokens. `layers` is "all" (every layer, and
    the mix), or one choice of `Embedder.embed`. The word counts as it is spelled, or where a sentence has no such
    token, in any case. ValueError where a sentence lacks it, or where there are fewer than two uses.
    """
    embedder = resolve_embedder(model, device)
    tokens = [embedder.tokenize(sentence) if isinstance(sentence, str) else list(sentence) for sentence in sentences]
    uses = uses_in_every(word, tokens)
    if len(uses) < 2:
        raise ValueError(f"a comparison needs {word!r} at least twice: give another sentence with it")
    texts = [use.sentence for use in uses]
    similarities = {}
    for name, choice in _representations(layers, embedder.num_layers).items():
        found = embedder.embed(texts, choice, state_of_single_sentences(embedder))
        vectors = of_length_one(np.stack([words[use.position] for words, use in zip(found, uses, strict=True)]))
        similarities[name] = vectors @ vectors.T
    return Comparison(word, uses, similarities)
