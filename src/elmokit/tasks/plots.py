"""Pictures of training runs: learning curves, the weights of ELMo's layers, sample efficiency."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from elmokit.plots import COLORS, new_figure, save_figure
from elmokit.tasks.report import PICTURE, REPORT, FitReport, LearnedMix, MeanScore, SeedsReport, elmo_places


def read_reports(directory: str | Path) -> dict[str, FitReport]:
    """The reports of a directory that `fit` wrote, by name: one, or one for each seed of the last call.

    Raises:
        FileNotFoundError: There is none.
        ValueError: A report is damaged.
    """
    directory = Path(directory)
    if runs := sorted(directory.glob(f"seed-*/{REPORT}")):
        if (directory / REPORT).is_file():  # it is written when all seeds are trained
            seeds = SeedsReport.read(directory / REPORT).seeds
            runs = [directory / f"seed-{seed}" / REPORT for seed in seeds]
        return {path.parent.name: FitReport.read(path) for path in runs}
    if not (directory / REPORT).is_file():
        raise FileNotFoundError(f"{directory} holds no {REPORT}: give a directory that fit wrote")
    return {directory.absolute().name: FitReport.read(directory / REPORT)}


def draw_learning_curves(axes: Any, reports: Mapping[str, FitReport]) -> None:
    """The development score after each epoch, a line for each run; the best epoch is marked."""
    for color, (name, report) in zip(COLORS * len(reports), reports.items(), strict=False):
        scores = [100 * epoch.scores[report.metric] for epoch in report.epochs]
        axes.plot(range(1, len(scores) + 1), scores, color=color, label=name, linewidth=1.5)
        axes.plot(report.best_epoch, scores[report.best_epoch - 1], "o", color=color, markersize=5)
    metrics = {report.metric for report in reports.values()}
    axes.set(xlabel="epoch", ylabel=f"{', '.join(sorted(metrics))} on the development set, %")
    axes.xaxis.get_major_locator().set_params(integer=True)
    if len(reports) > 1:
        axes.legend(frameon=False, fontsize=8)


def mixes_by_name(reports: Mapping[str, FitReport]) -> dict[str, LearnedMix]:
    """The mixes of all runs, named by the run and by where ELMo enters."""
    return {
        f"{name}, {place}": mix
        for name, report in reports.items()
        for place, mix in zip(elmo_places(report.settings), report.mixes, strict=True)
    }


def draw_layer_weights(axes: Any, mixes: Mapping[str, LearnedMix]) -> None:
    """The weights of the layers, a row for each mix, as in figure 2 of Peters et al. (2018)."""
    layers = max(len(mix.weights) for mix in mixes.values())
    rows = [[*mix.weights, *[0.0] * (layers - len(mix.weights))] for mix in mixes.values()]
    axes.imshow(rows, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    for row, mix in enumerate(mixes.values()):
        for layer, weight in enumerate(mix.weights):
            color = "white" if weight > 0.5 else "black"
            axes.text(layer, row, f"{weight:.2f}", ha="center", va="center", color=color, fontsize=8)
    axes.set_xticks(range(layers), [f"layer {layer}" for layer in range(layers)])
    axes.set_yticks(range(len(mixes)), list(mixes))
    for label in axes.get_yticklabels():
        label.set_parse_math(False)  # a dollar sign in a name is no formula


def plot_reports(directory: str | Path) -> Path:
    """Draw the learning curves and layer weights of what `fit` wrote in a directory; returns the file, report.png."""
    reports = read_reports(directory)
    mixes = mixes_by_name(reports)
    figure = new_figure(9 if mixes else 4.5, max(3.5, 0.5 * len(mixes)))
    panels = figure.subplots(1, 2 if mixes else 1, squeeze=False)[0]
    draw_learning_curves(panels[0], reports)
    if mixes:
        draw_layer_weights(panels[1], mixes)
    return save_figure(figure, Path(directory) / PICTURE)


def plot_layer_weights(mixes: Mapping[str, LearnedMix], path: str | Path, overwrite: bool = True) -> Path:
    """Draw the layer weights of several runs into one picture; `overwrite` as in `save_figure`."""
    figure = new_figure(3 + 0.08 * max(map(len, mixes)), max(2.5, 0.6 + 0.4 * len(mixes)))  # the names need space
    draw_layer_weights(figure.subplots(), mixes)
    return save_figure(figure, path, overwrite)


def plot_sample_efficiency(
    scores: Mapping[str, Sequence[tuple[int, MeanScore]]], metric: str, path: str | Path, overwrite: bool = True
) -> Path:
    """Draw scores against the size of the training set, as in figure 1 of Peters et al. (2018).

    Args:
        scores: For each kind of word vectors, pairs of a training set's size and the score.
        metric: Name of the score.
        path: The picture: .png, .svg or .pdf.
        overwrite: Replace a picture that exists.

    Returns:
        The path.

    Raises:
        ValueError: matplotlib is not installed, or cannot write such a picture.
        FileExistsError: The picture exists, and `overwrite` is not set.
    """
    figure = new_figure(5, 3.5)
    axes = figure.subplots()
    for color, (name, points) in zip(COLORS, scores.items(), strict=False):
        sizes, means, deviations = zip(
            *((size, 100 * score.mean, 100 * score.deviation) for size, score in points), strict=True
        )
        axes.errorbar(sizes, means, deviations, color=color, label=name, marker="o", markersize=4, capsize=3)
    axes.set(xscale="log", xlabel="training examples", ylabel=f"{metric}, %")
    axes.legend(frameon=False)
    return save_figure(figure, path, overwrite)
