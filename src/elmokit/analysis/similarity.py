"""Cosine similarities between the vectors of one word in different sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from elmokit.analysis.uses import Use, unit_vectors, uses_in_each, vectors_of_uses
from elmokit.embed.embedder import Embedder, resolve_embedder
from elmokit.embed.outputs import layer_weights, plain_layers


def _table(name: str, matrix: np.ndarray) -> Iterator[str]:
    """Lines of a square table, with rows and columns numbered from 1."""
    yield name
    yield "     " + "".join(f"{column:>7}" for column in range(1, len(matrix) + 1))
    for number, row in enumerate(matrix, start=1):
        yield f"{number:>5}" + "".join(f"{cosine:>7.2f}" for cosine in row)


class SenseContrast(NamedTuple):
    """Similarities of uses in two senses.

    Attributes:
        same: Mean cosine of two uses in the same sense.
        other: Mean cosine of two uses in different senses.
        nearest_is_same: Number of uses whose most similar other use has the same sense.
    """

    same: float
    other: float
    nearest_is_same: int

    @staticmethod
    def of(cosines: np.ndarray, num_other: int) -> SenseContrast:
        """From the cosines (N, N) of uses, of which the last `num_other` are in the other sense."""
        is_other = np.arange(len(cosines)) >= len(cosines) - num_other
        same, pairs = np.equal.outer(is_other, is_other), ~np.eye(len(cosines), dtype=bool)
        nearest = np.where(same & pairs, cosines, -np.inf).max(axis=1)
        nearest_other = np.where(~same, cosines, -np.inf).max(axis=1)
        # By more than rounding errors: without dependence on the context, all cosines are 1.
        is_nearer = nearest - nearest_other > 1e-6
        return SenseContrast(float(cosines[same & pairs].mean()), float(cosines[~same].mean()), int(is_nearer.sum()))


class Comparison(NamedTuple):
    """N uses of a word and, by name of the representation, their (N, N) cosine similarities.

    The last `num_other` uses are those in another sense, if any were given.
    """

    word: str
    uses: list[Use]
    similarities: dict[str, np.ndarray]
    num_other: int = 0

    @property
    def contrasts(self) -> dict[str, SenseContrast]:
        """How the two senses differ, by name of the representation; empty if no other sense was given."""
        matrices = self.similarities if self.num_other else {}
        return {name: SenseContrast.of(matrix, self.num_other) for name, matrix in matrices.items()}

    def _summary(self) -> str:
        title, count = "mean similarity", len(self.uses)
        width = max(map(len, [title, *self.similarities]))
        lines = [f"{title:{width}}  same sense  other sense  nearest use has the same sense"]
        for name, (same, other, nearest) in self.contrasts.items():
            lines.append(f"{name:{width}}{same:12.2f}{other:13.2f}{f'{nearest} of {count}':>32}")
        return "\n".join(lines)

    def __str__(self) -> str:
        width = len(str(len(self.uses)))
        sentences = [f"{number:>{width}}  {use}" for number, use in enumerate(self.uses, start=1)]
        tables = ["\n".join(_table(name, matrix)) for name, matrix in self.similarities.items()]
        summary = [self._summary()] if self.num_other else []
        return "\n\n".join(["\n".join(sentences), *tables, *summary])


def _representations(uses: Sequence[Use], embedder: Embedder, layers: str | int) -> dict[str, np.ndarray]:
    """The vectors to compare, (N, 2D), by the printed name of the representation; sentences are embedded once."""
    vectors = vectors_of_uses(uses, embedder, layers)
    if layers != "all":
        return {f"layer {layers}" if isinstance(layers, int) else layers: vectors}
    if embedder.num_layers == 1:  # the top layer: a token layer always has others above it
        return {"top layer (contextual)": vectors[:, 0]}
    kinds = ["context-independent", *["contextual"] * (embedder.num_layers - 1)]
    of_layers = {f"layer {number} ({kind})": vectors[:, number] for number, kind in enumerate(kinds)}
    mix = np.einsum("nld,l->nd", vectors, layer_weights(embedder.model, "mix").numpy())
    return {**of_layers, "mix of all layers": mix}


def compare(
    word: str,
    sentences: Sequence[str | Sequence[str]],
    model: Embedder | str | Path | None = None,
    layers: str | int = "all",
    device: str | None = None,
    tokenize: bool = True,
    other: Sequence[str | Sequence[str]] = (),
) -> Comparison:
    """Compute the cosine similarities between the vectors of all uses of a word in some sentences.

    Args:
        word: The word; case is ignored in sentences without an exact match.
        sentences: Strings, which the model's tokenizer splits, or lists of tokens.
        model: An `Embedder`, or a model as `Embedder.load` accepts it.
        layers: "all" (every layer, and where there are several the mix), or one representation as in `Embedder.embed`.
        device: Device to compute on; ignored if `model` is an `Embedder`.
        tokenize: Split strings with the model's tokenizer; else at white space.
        other: Sentences in which the word has another sense than in `sentences`.

    Returns:
        The similarities; with `other` also the contrast between the senses.

    Raises:
        ValueError: A sentence lacks the word, there are fewer than two uses (with `other`, in each sense), or a string
            is given in place of a list.
    """
    for name, given in (("sentences", sentences), ("other", other)):
        if isinstance(given, str):
            raise ValueError(f"{name} must be a list of sentences, not a string: write [text]")
    embedder = resolve_embedder(model, device)
    split = embedder.tokenize if tokenize else str.split
    all_sentences = [*sentences, *other]
    tokens = [split(sentence) if isinstance(sentence, str) else list(sentence) for sentence in all_sentences]
    uses = uses_in_each(word, tokens)
    num_other = len(uses_in_each(word, tokens[len(sentences) :]))
    if min(len(uses) - num_other, num_other or 2) < 2:
        of_each = " in each sense" if other else ""
        raise ValueError(f"a comparison needs at least two uses of {word!r}{of_each}: add another sentence with it")
    representations = _representations(uses, embedder, plain_layers(layers))
    units = {name: unit_vectors(vectors) for name, vectors in representations.items()}
    similarities = {name: np.clip(vectors @ vectors.T, -1, 1) for name, vectors in units.items()}  # rounding exceeds 1
    return Comparison(word, uses, similarities, num_other)
