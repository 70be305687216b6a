"""Change of a word between two corpora, by the vectors of its uses (Kutuzov and Giulianelli 2020).

The average pairwise distance is the mean cosine distance between a use in one corpus and a use in the other; the
prototype distance is the one between the two mean vectors. Permutation tests tell how likely a distance is by chance:
the same uses are assigned to two groups of the same sizes at random.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from elmokit.analysis.clusters import principal_components
from elmokit.analysis.config import ChangeConfig
from elmokit.analysis.uses import Use, UseSample, sentences_with, use_vectors, uses_of
from elmokit.data.corpus import find_files
from elmokit.embed.embedder import Embedder, resolve_embedder
from elmokit.embed.outputs import layer_weights, plain_layers
from elmokit.plots import COLORS, new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ASSIGNMENTS_AT_ONCE = 1_000  # in memory: 8 bytes each for every use


@dataclass(frozen=True)
class Distance:
    """A cosine distance, and its p-value (None without permutations).

    The p-value is the share of assignments, random ones and the observed one, whose distance is at least as large.
    """

    distance: float
    p_value: float | None


@dataclass(frozen=True)
class WordChange:
    """How far apart the uses of a word in two corpora are.

    Attributes:
        word: The word.
        uses: Number of sampled uses in the first and in the second corpus.
        pairwise: Average pairwise distance (APD).
        prototype: Prototype distance (PRT).
        points: Coordinates of the uses of both corpora on their first two principal components, (N, 2).
    """

    word: str
    uses: tuple[int, int]
    pairwise: Distance
    prototype: Distance
    points: np.ndarray = field(repr=False, compare=False)


@dataclass(frozen=True)
class ChangeReport:
    """The change of some words, and the fingerprint of the model."""

    words: list[WordChange]
    layers: str | int
    fingerprint: str

    def __str__(self) -> str:
        width = max(len("word"), *(len(change.word) for change in self.words))
        lines = [f"{'word':{width}}{'uses':>12}{'pairwise':>10}{'p':>8}{'prototype':>11}{'p':>8}"]
        for change in self.words:
            uses = "/".join(map(str, change.uses))
            cells = [f"{change.pairwise.distance:>10.3f}", _p(change.pairwise), f"{change.prototype.distance:>11.3f}"]
            lines.append(f"{change.word:{width}}{uses:>12}{''.join(cells)}{_p(change.prototype)}")
        return "\n".join([*lines, f"(cosine distances; layers: {self.layers})"])

    def to_json(self) -> dict[str, Any]:
        """The report as JSON values, without the coordinates."""
        words = [{name: value for name, value in asdict(change).items() if name != "points"} for change in self.words]
        return {"layers": self.layers, "fingerprint": self.fingerprint, "words": words}


def _p(distance: Distance) -> str:
    return f"{'':>8}" if distance.p_value is None else f"{distance.p_value:>8.3f}"


def distances(sums: np.ndarray, others: np.ndarray, sizes: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Average pairwise and prototype distances of P pairs of groups, each (P,).

    Args:
        sums: Sums of the unit vectors of the first groups, (P, D).
        others: Sums of the second groups, (P, D).
        sizes: Number of vectors in the first and in the second groups.
    """
    products = (sums * others).sum(1)  # the mean cosine of all pairs is the product of the means
    norms = np.linalg.norm(sums, axis=1) * np.linalg.norm(others, axis=1)
    cosines = products / (sizes[0] * sizes[1]), products / np.maximum(norms, 1e-12)
    pairwise, prototype = (1 - np.clip(of_each, -1, 1) for of_each in cosines)  # rounding may exceed 1
    return pairwise, prototype


def compare_vectors(
    first: np.ndarray, second: np.ndarray, permutations: int = 1000, seed: int = 0
) -> tuple[Distance, Distance]:
    """Average pairwise and prototype distance of two groups of unit vectors, with p-values.

    Args:
        first: The first group, (N, D).
        second: The second group, (M, D).
        permutations: Random assignments of the vectors to groups of the same sizes; 0: no p-values.
        seed: Seed of the permutations.

    Returns:
        The average pairwise distance, and the prototype distance.
    """
    sizes, vectors = (len(first), len(second)), np.concatenate([first, second]).astype(np.float64)
    total, random = vectors.sum(0), np.random.default_rng(seed)
    observed, as_large = np.zeros((2, 1)), np.zeros(2)
    # With the observed assignment, number 0, among them, so that no p-value is 0 (Phipson and Smyth 2010).
    for begin in range(0, permutations + 1, ASSIGNMENTS_AT_ONCE):
        numbers = range(begin, min(begin + ASSIGNMENTS_AT_ONCE, permutations + 1))
        groups = np.zeros((len(numbers), len(vectors)))  # 1 for the members of the first group
        for number, row in zip(numbers, groups, strict=True):
            row[random.permutation(len(vectors))[: len(first)] if number else slice(len(first))] = 1
        sums = groups @ vectors
        values = np.stack(distances(sums, total - sums, sizes))
        if begin == 0:
            observed = values[:, :1]
        as_large += (values >= observed - 1e-12).sum(axis=1)
    p_values = (as_large / (permutations + 1)).tolist() if permutations else (None, None)
    pairwise, prototype = map(Distance, observed[:, 0].tolist(), p_values)
    return pairwise, prototype


def _sampled(
    words: Sequence[str], corpus: str | Path, embedder: Embedder, config: ChangeConfig, tokenize: bool
) -> dict[str, list[Use]]:
    """A sample of the uses of each word in a corpus, which is read once. ValueError if a word has fewer than two."""
    samples = {word: UseSample(config.max_uses, config.seed) for word in words}
    for sentence in sentences_with(words, find_files([corpus]), embedder, tokenize):
        lowered = set(map(str.lower, sentence))
        for word in samples:
            if word.lower() in lowered:
                for use in uses_of(word, sentence):
                    samples[word].add(use)
    for word, sample in samples.items():
        if len(sample.uses) < 2:
            tokens = embedder.tokenize(word) if tokenize else [word]
            reason = f"; it is several tokens to this model: {' | '.join(tokens)}" if len(tokens) > 1 else ""
            raise ValueError(
                f"{corpus} has {len(sample.uses)} distinct uses of {word!r}, and a comparison needs 2{reason}"
            )
    return {word: sample.uses for word, sample in samples.items()}


def semantic_change(
    words: Sequence[str],
    first: str | Path,
    second: str | Path,
    model: Embedder | str | Path | None = None,
    layers: str | int = "top",
    device: str | None = None,
    config: ChangeConfig | None = None,
    tokenize: bool = True,
) -> ChangeReport:
    """Compare the uses of words in two corpora, e.g. of two periods.

    Args:
        words: The words; case is ignored in sentences without an exact match.
        first: Text (plain, .gz or .zst) with one sentence per line, or a directory of such files. It is streamed.
        second: Another text.
        model: An `Embedder`, or a model as `Embedder.load` accepts it.
        layers: Representation, as in `Embedder.embed`, except "all".
        device: Device to compute on; ignored if `model` is an `Embedder`.
        config: Settings of the sampling and of the permutations.
        tokenize: Split raw lines with the model's tokenizer; else, and lines of `elmokit prepare`, at white space.

    Returns:
        The distances, in the order of the words.

    Raises:
        ValueError: No word is given, `layers` is invalid, or a corpus has fewer than two distinct uses of a word.
        FileNotFoundError: There is no such corpus.
    """
    if isinstance(words, str) or not words:
        raise ValueError("give a list of words, at least one")
    config = config or ChangeConfig()
    embedder = resolve_embedder(model, device)
    layers = plain_layers(layers)
    layer_weights(embedder.model, layers)  # an invalid choice is reported before the search
    samples = [_sampled(words, corpus, embedder, config, tokenize) for corpus in (first, second)]
    changes = []
    for word in words:
        uses = [of_corpus[word] for of_corpus in samples]
        left, right = (use_vectors(of_corpus, embedder, layers) for of_corpus in uses)
        pairwise, prototype = compare_vectors(left, right, config.permutations, config.seed)
        points = principal_components(np.concatenate([left, right]), 2)
        changes.append(WordChange(word, (len(uses[0]), len(uses[1])), pairwise, prototype, points))
    return ChangeReport(changes, layers, embedder.fingerprint())


def plot_change(report: ChangeReport, names: tuple[str, str], path: str | Path, overwrite: bool = True) -> Path:
    """Draw the uses of each word in both corpora, a panel for each word.

    Args:
        report: The change of some words.
        names: What the legend calls the first and the second corpus.
        path: The picture, in the format that its suffix names: .png, .svg or .pdf.
        overwrite: Replace a picture that exists.

    Returns:
        The path.

    Raises:
        ValueError: matplotlib is missing, or cannot write this format.
        FileExistsError: The picture exists, and `overwrite` is not set.
    """
    return save_figure(change_figure(report, names), path, overwrite)


def change_figure(report: ChangeReport, names: tuple[str, str]) -> Figure:
    """The figure that `plot_change` writes."""
    columns = min(4, len(report.words))
    rows = -(-len(report.words) // columns)
    figure = new_figure(3.2 * columns, 3.4 * rows)
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes in panels:
        axes.set(xticks=[], yticks=[])
    for axes, change in zip(panels, report.words, strict=False):
        split = change.uses[0]
        for color, points in zip(COLORS, (change.points[:split], change.points[split:]), strict=False):
            axes.scatter(*points.T, s=14, color=color, alpha=0.7, linewidth=0)
        title = f"{change.word}: {change.pairwise.distance:.2f}, {change.prototype.distance:.2f}"
        axes.set_title(title, fontsize=10, parse_math=False)
    # With the names given here, as matplotlib leaves out labels that begin with an underscore.
    legend = figure.legend(panels[0].collections[:2], names, loc="outside lower left", ncols=2, frameon=False)
    for text in legend.get_texts():
        text.set_parse_math(False)  # a dollar sign in a file name is no formula
    return figure
