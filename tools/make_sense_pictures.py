"""Draw the pictures of words in two senses each, docs/images/senses.png and senses-zh.png.

    python tools/make_sense_pictures.py

sense_pictures.tsv has the sentences, three of each sense. Vectors are those of the uses, word
beside text, projected to the first two principal components. Needs matplotlib, and a font with
Chinese characters.
"""

from __future__ import annotations

import csv
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import numpy as np
from matplotlib import font_manager, pyplot

from elmokit.analysis.clusters import principal_components
from elmokit.analysis.uses import USE, UseVectors, unit_vectors, uses_in_each
from elmokit.checkpoints import list_models
from elmokit.embed import Embedder

IMAGES = Path(__file__).parents[1] / "docs" / "images"
SENTENCES = Path(__file__).with_name("sense_pictures.tsv")
COLOURS = "#c0392b", "#1f618d"
WORDS_SHOWN = 3  # on either side of the word


def draw(path: Path, embedder: Embedder, words: list[list[dict[str, str]]]) -> None:
    """Draw a panel for each word, of which the rows are given."""
    columns = 2 if len(words) < 5 else 3
    space = "" if embedder.model.language == "zh" else " "
    figure, panels = pyplot.subplots(2, columns, figsize=(6.1 * columns, 9.8), layout="constrained")
    for axes, rows in zip(panels.flat, words, strict=True):
        uses = uses_in_each(rows[0]["word"], [embedder.tokenize(row["sentence"]) for row in rows])
        vectors = UseVectors.of(uses, embedder).select(embedder.model, USE)
        points = principal_components(unit_vectors(vectors), 2)
        senses = [row["sense"] for row in rows]
        colour = dict(zip(dict.fromkeys(senses), COLOURS, strict=True))
        axes.set(xticks=[], yticks=[])
        axes.set_title(rows[0]["word"], loc="left", fontsize=16, fontweight="bold")
        axes.margins(0.5, 0.15)
        for sense in colour:
            of_sense = points[[each == sense for each in senses]]
            axes.scatter(*of_sense.T, s=80, color=colour[sense], label=sense)
        # From the top downwards, each label above its point, or below the labels that are there.
        line, reach = np.ptp(points, axis=0)[::-1] * (0.055, 0.6)
        placed: list[np.ndarray] = []
        for number in np.argsort(-points[:, 1]):
            at = points[number] + (0, 0.6 * line)
            for other in placed:
                if abs(at[0] - other[0]) < reach and abs(at[1] - other[1]) < line:
                    at[1] = min(points[number, 1] - 1.2 * line, other[1] - line)
            placed.append(at)
            text = space.join(uses[number].window(WORDS_SHOWN).sentence)
            axes.text(*at, text, ha="center", fontsize=11, color=colour[senses[number]], zorder=3)
        axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2, frameon=False)
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


def main() -> None:
    installed = font_manager.fontManager.get_font_names()
    asian = sorted(name for name in installed if "CJK" in name or name.endswith("Hei"))
    pyplot.rcParams["font.family"] = ["DejaVu Sans", *asian]
    with SENTENCES.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    for language, name in (("en", "senses.png"), ("zh", "senses-zh.png")):
        if f"{language}-small" in list_models():
            words = groupby(
                (row for row in rows if row["language"] == language), itemgetter("word")
            )
            draw(IMAGES / name, Embedder(f"{language}-small"), [list(group) for _, group in words])


if __name__ == "__main__":
    main()
