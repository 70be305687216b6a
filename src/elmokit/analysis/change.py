"""Change of a word between two corpora, by the vectors of its uses (Kutuzov and Giulianelli 2020).

The average pairwise distance is the mean cosine distance between a use in one corpus and a use in the other; the
prototype distance is the one between the two mean vectors. Permutation tests tell how likely a distance is by chance:
the same uses are assigned to two groups of the same sizes at random.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from elmokit.analysis.config import ChangeConfig
from elmokit.analysis.report import Report, table
from elmokit.analysis.uses import Use, UseSample, sentences_with, use_vectors, uses_of
from elmokit.data.corpus import find_files
from elmokit.embed.embedder import Embedder, resolve_embedder
from elmokit.embed.outputs import layer_weights, plain_layers


@dataclass(frozen=True)
class Distance(Report):
    """A cosine distance, and its p-value (None without permutations).

    The p-value is the share of assignments, random ones and the observed one, whose distance is at least as large.
    """

    distance: float
    p_value: float | None


@dataclass(frozen=True)
class WordChange(Report):
    """How far apart the uses of a word in two corpora are.

    Attributes:
        word: The word.
        uses: Number of sampled uses in the first and in the second corpus.
        pairwise: Average pairwise distance (APD).
        prototype: Prototype distance (PRT).
    """

    word: str
    uses: tuple[int, int]
    pairwise: Distance
    prototype: Distance


@dataclass(frozen=True)
class ChangeReport(Report):
    """The change of some words, and the fingerprint of the model."""

    words: list[WordChange]
    layers: str | int
    fingerprint: str

    def __str__(self) -> str:
        rows = []
        for change in self.words:
            row = [change.word, "/".join(map(str, change.uses))]
            for each in (change.pairwise, change.prototype):
                row += [f"{each.distance:.3f}", "" if each.p_value is None else f"{each.p_value:.3f}"]
            rows.append(row)
        header = ["word", "uses", "pairwise", "p", "prototype", "p"]
        return table(header, rows, f"cosine distances; layers: {self.layers}")


def compare_vectors(
    first: np.ndarray, second: np.ndarray, permutations: int = 1000, seed: int = 0
) -> tuple[Distance, Distance]:
    """Average pairwise and prototype distance of two groups of unit vectors, with p-values.

    Args:
        first: The first group, (N, D).
        second: The second group, (M, D).
        permutations: Random assignments of the vectors to groups of the same sizes, in 8 (N + M) bytes each; 0: no
            p-values.
        seed: Seed of the permutations.

    Returns:
        The average pairwise distance, and the prototype distance.
    """
    vectors = np.concatenate([first, second]).astype(np.float64)
    random = np.random.default_rng(seed)
    groups = np.zeros((permutations + 1, len(vectors)))  # 1 for the members of the first group
    # With the observed assignment, number 0, among them, so that no p-value is 0 (Phipson and Smyth 2010).
    groups[0, : len(first)] = 1
    for row in groups[1:]:
        row[random.permutation(len(vectors))[: len(first)]] = 1
    sums = groups @ vectors
    others = vectors.sum(0) - sums
    products = (sums * others).sum(1)
    norms = np.linalg.norm(sums, axis=1) * np.linalg.norm(others, axis=1)
    # The mean cosine of all pairs is the product of the means.
    cosines = np.stack([products / (len(first) * len(second)), products / np.maximum(norms, 1e-12)])
    values = 1 - np.clip(cosines, -1, 1)  # rounding may exceed 1
    as_large = (values >= values[:, :1] - 1e-12).sum(axis=1)
    p_values = (as_large / (permutations + 1)).tolist() if permutations else (None, None)
    pairwise, prototype = map(Distance, values[:, 0].tolist(), p_values)
    return pairwise, prototype


def _sampled(
    words: Sequence[str], corpus: str | Path, embedder: Embedder, config: ChangeConfig, tokenize: bool
) -> dict[str, list[Use]]:
    """A sample of the uses of each word in a corpus, which is read once. ValueError if a word has fewer than two."""
    samples = {word: UseSample(config.max_uses, config.seed) for word in words}
    for sentence in sentences_with(words, find_files([corpus]), embedder, tokenize):
        for word, sample in samples.items():
            for use in uses_of(word, sentence):
                sample.add(use)
    for word, sample in samples.items():
        if len(sample.uses) < 2:
            tokens = " | ".join(embedder.tokenize(word)) if tokenize else word  # it may be several to the model
            raise ValueError(f"{corpus} has {len(sample.uses)} distinct uses of {tokens!r}, and a comparison needs 2")
    return {word: sample.uses for word, sample in samples.items()}


def semantic_change(
    words: Sequence[str],
    first: str | Path,
    second: str | Path,
    model: Embedder | str | Path | None = None,
    layers: str | int = "top",
    config: ChangeConfig | None = None,
    tokenize: bool = True,
) -> ChangeReport:
    """Compare the uses of words in two corpora, e.g. of two periods.

    Args:
        words: The words; case is ignored in sentences without an exact match.
        first: Text (plain, .gz or .zst) with one sentence per line, or a directory of such files. It is streamed.
        second: Another text.
        model: An `Embedder`, or a model as it takes one.
        layers: Representation, as in `Embedder.embed`, except "all".
        config: Settings of the sampling and of the permutations.
        tokenize: Split raw lines with the model's tokenizer; else, and lines of `elmokit prepare`, at white space.

    Returns:
        The distances, in the order of the words.

    Raises:
        ValueError: `layers` is invalid, or a corpus has fewer than two distinct uses of a word.
        FileNotFoundError: There is no such corpus.
    """
    config = config or ChangeConfig()
    embedder = resolve_embedder(model)
    layers = plain_layers(layers)
    layer_weights(embedder.model, layers)  # an invalid choice is reported before the search
    samples = [_sampled(words, corpus, embedder, config, tokenize) for corpus in (first, second)]
    changes = []
    for word in words:
        left, right = (use_vectors(sample[word], embedder, layers) for sample in samples)
        pairwise, prototype = compare_vectors(left, right, config.permutations, config.seed)
        changes.append(WordChange(word, (len(left), len(right)), pairwise, prototype))
    return ChangeReport(changes, layers, embedder.fingerprint())
