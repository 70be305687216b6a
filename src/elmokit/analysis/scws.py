"""Similarity of words in context: SCWS, Stanford's Contextual Word Similarities (Huang et al. 2012)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from elmokit.analysis.annotated import all_layers
from elmokit.analysis.uses import Use, unit_vectors
from elmokit.correlation import spearman
from elmokit.embed.embedder import Embedder, resolve_embedder
from elmokit.embed.outputs import layer_names, layer_weights
from elmokit.fs.reading import read_lines
from elmokit.plots import COLORS, new_figure, save_figure

COLUMNS = 18  # number, two words with their parts of speech, two contexts, the mean rating, ten ratings
BEGIN, END = "<b>", "</b>"


@dataclass(frozen=True)
class RatedPair:
    """Two words in context, and the mean rating of their similarity, from 0 to 10."""

    first: Use
    second: Use
    rating: float


@dataclass(frozen=True)
class ScwsReport:
    """Spearman's correlations of cosines with ratings, times 100, by representation.

    Attributes:
        correlations: Of all pairs.
        pairs: Number of pairs.
        same_word: Of pairs of the same word, ignoring case; None if there are fewer than two.
        fingerprint: Fingerprint of the model.
    """

    correlations: dict[str, float]
    pairs: int
    same_word: dict[str, float] | None
    fingerprint: str

    def __str__(self) -> str:
        width = max(map(len, self.correlations))
        lines = [f"{'':{width}}{'all pairs':>11}{'same word':>11}"]
        for name, correlation in self.correlations.items():
            same = "" if self.same_word is None else f"{self.same_word[name]:.1f}"
            lines.append(f"{name:{width}}{correlation:>11.1f}{same:>11}")
        return "\n".join([*lines, f"(Spearman's correlation with the ratings, times 100; {self.pairs} pairs)"])


def marked_use(context: str, place: str) -> Use:
    """The use that "<b> word </b>" marks in a tokenized context; if it marks several words, the last, as the head."""
    words = context.split()
    if words.count(BEGIN) != 1 or words.count(END) != 1 or words.index(END) < words.index(BEGIN) + 2:
        raise ValueError(f"{place}: expected one word between {BEGIN} and {END}")
    position = words.index(END) - 2
    return Use(tuple(word for word in words if word not in (BEGIN, END)), position)


def read_scws(path: str | Path) -> Iterator[RatedPair]:
    """Stream the pairs of ratings.txt. ValueError names a line that is not in its format."""
    for number, line in enumerate(read_lines(path), start=1):
        place, columns = f"{path}, line {number}", line.split("\t")
        if len(columns) != COLUMNS:
            raise ValueError(f"{place}: {len(columns)} columns, but SCWS has {COLUMNS}")
        try:
            rating = float(columns[7])
        except ValueError:
            rating = math.nan
        if not math.isfinite(rating):
            raise ValueError(f"{place}: the rating {columns[7]!r} is not a number")
        yield RatedPair(marked_use(columns[5], place), marked_use(columns[6], place), rating)


def scws(path: str | Path, model: Embedder | str | Path | None = None, device: str | None = None) -> ScwsReport:
    """Correlate the cosine similarity of words in context with human ratings, for each layer and the model's mix.

    Layer 0 does not depend on the context: for two words that are spelled alike, its cosine is 1.

    Args:
        path: ratings.txt of SCWS.
        model: An `Embedder`, or a model as `Embedder.load` accepts it.
        device: Device to compute on; ignored if `model` is an `Embedder`.

    Returns:
        The correlations.

    Raises:
        ValueError: The file is not in the format of SCWS, or has fewer than two pairs.
    """
    pairs = list(read_scws(path))
    if len(pairs) < 2:
        raise ValueError(f"{path} has {len(pairs)} pairs, and a correlation needs 2")
    embedder = resolve_embedder(model, device)
    uses = [use for pair in pairs for use in (pair.first, pair.second)]
    weights = layer_weights(embedder.model, "mix").numpy()
    cosines = np.empty((len(pairs), embedder.num_layers + 1))
    embedded = all_layers(uses, lambda use: use.sentence, embedder, embedder.model.single_sentence_state)
    vectors = (_representations(layers[:, use.position], weights) for use, layers in embedded)
    for row, (first, second) in zip(cosines, zip(vectors, vectors, strict=True), strict=True):
        row[:] = (first * second).sum(1).round(6)  # so that rounding errors do not rank equal vectors
    names = [*layer_names(embedder.num_layers), "mix"]
    ratings = np.array([pair.rating for pair in pairs])
    same = np.array([_word(pair.first) == _word(pair.second) for pair in pairs])

    def correlations(chosen: np.ndarray) -> dict[str, float]:
        columns = zip(names, cosines[chosen].T, strict=True)
        return {name: 100 * spearman(column, ratings[chosen]) for name, column in columns}

    same_word = correlations(same) if same.sum() > 1 else None
    return ScwsReport(correlations(np.ones_like(same)), len(pairs), same_word, embedder.fingerprint())


def _representations(layers: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Unit vectors of each layer and of the mix, (L+2, 2D)."""
    return unit_vectors(np.concatenate([layers, weights[None] @ layers]))


def _word(use: Use) -> str:
    return use.sentence[use.position].lower()


def plot_scws(report: ScwsReport, path: str | Path, overwrite: bool = True) -> Path:
    """Draw the correlations of all representations as bars.

    Args:
        report: The correlations.
        path: The picture, in the format that its suffix names: .png, .svg or .pdf.
        overwrite: Replace a picture that exists.

    Returns:
        The path.

    Raises:
        ValueError: matplotlib is missing, or cannot write this format.
        FileExistsError: The picture exists, and `overwrite` is not set.
    """
    groups = {"all pairs": report.correlations, **({"same word": report.same_word} if report.same_word else {})}
    figure = new_figure(1.5 + 0.9 * len(report.correlations), 3.2)
    axes = figure.subplots()
    places, width = np.arange(len(report.correlations)), 0.8 / len(groups)
    for number, (name, values) in enumerate(groups.items()):
        axes.bar(places + number * width, list(values.values()), width, color=COLORS[number], label=name)
    axes.set_xticks(places + (len(groups) - 1) * width / 2, list(report.correlations))
    axes.set(ylabel="Spearman's correlation, times 100")
    axes.legend(frameon=False)
    return save_figure(figure, path, overwrite)
