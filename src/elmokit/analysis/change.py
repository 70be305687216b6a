"""Change of a word between two corpora, by the vectors of its uses (Kutuzov and Giulianelli 2020).

The average pairwise distance is the mean cosine distance between a use in one corpus and a use in
the other; the prototype distance is the one between the two mean vectors. Permutation tests tell
how likely a distance is by chance: the same uses are assigned to two groups of the same sizes at
random.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from elmokit.analysis import Report, table
from elmokit.analysis.corpora import Corpus, Source, open_corpus
from elmokit.analysis.uses import Use, UseSample, Word, WordForms, unit_vectors, uses_of
from elmokit.embed import Embedder


@dataclass(frozen=True)
class Distance:
    """A cosine distance, and its p-value (None without permutations).

    The p-value is the share of assignments, random ones and the observed one, whose distance is at
    least as large.
    """

    distance: float
    p_value: float | None


@dataclass(frozen=True)
class WordChange:
    """How far apart the uses of a word in two corpora are.

    Attributes:
        word: The word.
        uses: Number of sampled uses in the first and in the second corpus.
        pairwise: Average pairwise distance (APD); None of a word with fewer than two uses in one of
            them.
        prototype: Prototype distance (PRT), or None.
    """

    word: str
    uses: tuple[int, int]
    pairwise: Distance | None = None
    prototype: Distance | None = None


@dataclass(frozen=True, repr=False)
class ChangeReport(Report):
    """The change of some words, and the representation that was compared."""

    words: list[WordChange]
    layers: str | int

    def __str__(self) -> str:
        rows = []
        for word in self.words:
            row = [word.word, "/".join(map(str, word.uses))]
            for distance in filter(None, (word.pairwise, word.prototype)):
                p_value = "" if distance.p_value is None else f"{distance.p_value:.3f}"
                row += [f"{distance.distance:.3f}", p_value]
            rows.append(row + [""] * (6 - len(row)))
        header = ["word", "uses", "pairwise", "p", "prototype", "p"]
        rare = [word.word for word in self.words if word.pairwise is None]
        note = f"; too rare, with fewer than 2 uses: {', '.join(rare)}" if rare else ""
        return table(header, rows, f"cosine distances; layers: {self.layers}{note}")

    def rows(self) -> Iterator[dict[str, Any]]:
        """A row for each word."""
        for word in self.words:
            first, second = word.uses
            row = {"word": word.word, "first_uses": first, "second_uses": second}
            for name in ("pairwise", "prototype"):
                found = getattr(word, name) or Distance(math.nan, None)
                row |= {name: found.distance, f"{name}_p": found.p_value}
            yield row

    def plot(self, figure: Any) -> None:
        """Dots at the average pairwise distances; filled if p < 0.05."""
        words = [word for word in self.words if word.pairwise][::-1]
        distances = [word.pairwise.distance for word in words if word.pairwise]
        p_values = [word.pairwise.p_value for word in words if word.pairwise]
        filled = ["C0" if p is not None and p < 0.05 else "none" for p in p_values]
        figure.set_size_inches(6, 1 + 0.3 * len(words))
        axes = figure.subplots()
        axes.scatter(distances, range(len(words)), facecolors=filled, edgecolors="C0")
        axes.set_yticks(range(len(words)), [word.word for word in words])
        axes.set_xlabel("average pairwise cosine distance (filled: p < 0.05)")


def compare_vectors(
    first: np.ndarray,
    second: np.ndarray,
    permutations: int = 1000,
    seed: int = 0,
) -> tuple[Distance, Distance]:
    """Average pairwise and prototype distance of two groups of unit vectors, with p-values.

    Args:
        first: The first group, (N, D).
        second: The second group, (M, D).
        permutations: Random assignments of the vectors to groups of the same sizes, in 8 (N + M)
            bytes each; 0: no p-values.
        seed: Seed of the permutations.

    Returns:
        The average pairwise distance, and the prototype distance.
    """
    vectors = np.concatenate([first, second]).astype(np.float64)
    random = np.random.default_rng(seed)
    # A row for each assignment, with 1 for the members of the first group. The observed one,
    # row 0, is among them, so that no p-value is 0 (Phipson and Smyth 2010).
    groups = np.zeros((permutations + 1, len(vectors)))
    groups[0, : len(first)] = 1
    for row in groups[1:]:
        row[random.permutation(len(vectors))[: len(first)]] = 1
    first_sums = groups @ vectors
    second_sums = vectors.sum(axis=0) - first_sums
    products = (first_sums * second_sums).sum(axis=1)
    # The mean cosine of all pairs is the product of the mean vectors.
    pairwise = products / (len(first) * len(second))
    first_norms = np.linalg.norm(first_sums, axis=1)
    second_norms = np.linalg.norm(second_sums, axis=1)
    prototype = products / np.maximum(first_norms * second_norms, 1e-12)
    distances = []
    for cosines in (pairwise, prototype):
        values = 1 - np.clip(cosines, -1, 1)  # rounding may exceed 1
        share = float((values >= values[0] - 1e-12).mean())
        distances.append(Distance(float(values[0]), share if permutations else None))
    return distances[0], distances[1]


def _sample(
    words: Sequence[WordForms],
    corpus: Corpus,
    max_uses: int,
    seed: int,
) -> list[list[Use]]:
    """A sample of the uses of each word in a corpus, which is read once."""
    samples = [UseSample(max_uses, seed) for _ in words]
    for line, sentence in corpus.sentences(words):
        for word, sample in zip(words, samples, strict=True):
            for use in uses_of(word, sentence, line):
                sample.add(use)
    return [sample.uses for sample in samples]


def change(
    words: Sequence[Word],
    first: Source,
    second: Source,
    model: Embedder | str | Path | None = None,
    layers: str | int | None = None,
    tokenize: bool = True,
    *,
    column: str | None = None,
    max_uses: int = 500,
    permutations: int = 1000,
    seed: int = 0,
) -> ChangeReport:
    """Compare the uses of words in two corpora, e.g. of two periods.

    Args:
        words: Words and phrases, each as in `elmokit.senses`: one with several forms is a string
            with commas, or a list of its own. Or one word, as a string.
        first: A corpus, as for `elmokit.senses`.
        second: Another corpus.
        model: An `Embedder`, or a model as it takes one.
        layers: Representation, as `UseVectors.select` names them; None: "top", or the one that is
            stored.
        tokenize: Split raw lines with the model's tokenizer; else, and lines of `elmokit prepare`,
            at white space.
        column: The column of tables; None: "text".
        max_uses: Maximum number of uses in each corpus; a random sample if there are more.
        permutations: Random assignments of the uses to the corpora, for the p-values; 0: none.
        seed: Seed of the sampling and of the permutations.

    Returns:
        The distances, in the order of the words; none of words with fewer than two distinct uses in
        a corpus.

    Raises:
        ValueError: `layers` is invalid, or stored vectors are of another model or other layers.
        FileNotFoundError: There is no such corpus.
    """
    embedder = Embedder.of(model)
    corpora = [open_corpus(path, embedder, tokenize, column) for path in (first, second)]
    # Not "use": the texts of two corpora differ, whatever a word means in them.
    chosen = corpora[0].choose_layers(layers, "top")  # errors are raised before the search
    corpora[1].choose_layers(chosen)
    words = [words] if isinstance(words, str) else words
    forms = [WordForms.of(word, corpora[0].split) for word in words]
    samples = [_sample(forms, corpus, max_uses, seed) for corpus in corpora]
    changes = []
    for word, *uses in zip(forms, *samples, strict=True):
        counts = len(uses[0]), len(uses[1])
        distances = ()
        if min(counts) > 1:
            left, right = (
                unit_vectors(corpus.vectors(sample).select(embedder.model, chosen))
                for corpus, sample in zip(corpora, uses, strict=True)
            )
            distances = compare_vectors(left, right, permutations, seed)
        changes.append(WordChange(word.name, counts, *distances))
    return ChangeReport(changes, chosen)
