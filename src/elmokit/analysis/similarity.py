"""Cosine similarities between the vectors of one word in different sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from elmokit.analysis.report import Report, table
from elmokit.analysis.uses import Use, unit_vectors, uses_in_each, vectors_of_uses
from elmokit.embed.embedder import Embedder, resolve_embedder
from elmokit.embed.outputs import layer_weights, plain_layers


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


@dataclass(frozen=True, eq=False)
class Comparison(Report):
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

    def __str__(self) -> str:
        count = len(self.uses)
        numbers = [str(number) for number in range(1, count + 1)]
        parts = [
            "\n".join(f"{number:>{len(str(count))}}  {use}" for number, use in zip(numbers, self.uses, strict=True))
        ]
        for name, matrix in self.similarities.items():
            rows = [[number, *(f"{cosine:.2f}" for cosine in row)] for number, row in zip(numbers, matrix, strict=True)]
            parts.append(f"{name}\n{table(['', *numbers], rows)}")
        if self.num_other:
            header = ["mean similarity", "same sense", "other sense", "nearest use has the same sense"]
            rows = [
                [name, f"{same:.2f}", f"{other:.2f}", f"{nearest} of {count}"]
                for name, (same, other, nearest) in self.contrasts.items()
            ]
            parts.append(table(header, rows))
        return "\n\n".join(parts)


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
    tokenize: bool = True,
    other: Sequence[str | Sequence[str]] = (),
) -> Comparison:
    """Compute the cosine similarities between the vectors of all uses of a word in some sentences.

    Args:
        word: The word; case is ignored in sentences without an exact match.
        sentences: Strings, which the model's tokenizer splits, or lists of tokens.
        model: An `Embedder`, or a model as it takes one.
        layers: "all" (every layer, and where there are several the mix), or one representation as in `Embedder.embed`.
        tokenize: Split strings with the model's tokenizer; else at white space.
        other: Sentences in which the word has another sense than in `sentences`.

    Returns:
        The similarities; with `other` also the contrast between the senses.

    Raises:
        ValueError: A sentence lacks the word, there are fewer than two uses (with `other`, in each sense), or a string
            is given in place of a list.
    """
    if isinstance(sentences, str) or isinstance(other, str):
        raise ValueError("give a list of sentences, not a string: [text]")
    embedder = resolve_embedder(model)
    split = embedder.tokenize if tokenize else str.split
    tokens = [split(text) if isinstance(text, str) else list(text) for text in (*sentences, *other)]
    uses = uses_in_each(word, tokens)
    num_other = len(uses_in_each(word, tokens[len(sentences) :]))
    if min(len(uses) - num_other, num_other or 2) < 2:
        of_each = " in each sense" if other else ""
        raise ValueError(f"a comparison needs at least two uses of {word!r}{of_each}: add another sentence with it")
    representations = _representations(uses, embedder, plain_layers(layers))
    units = {name: unit_vectors(vectors) for name, vectors in representations.items()}
    similarities = {name: np.clip(vectors @ vectors.T, -1, 1) for name, vectors in units.items()}  # rounding exceeds 1
    return Comparison(word, uses, similarities, num_other)
