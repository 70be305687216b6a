"""Plot the vectors of ambiguous words: docs/images/senses.png (needs matplotlib).

    python benchmarks/quality/plot_senses.py [--model NAME_OR_PATH]

The sentences are those of sense_pairs.json. A word's vector is the mean of its contextual layers.
Each panel shows the plane in which the six vectors of a word differ most (their first two principal
components), with the same scale on both axes.
"""

import argparse
import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox

from elmokit.analysis.uses import unit_vectors, uses_in_each
from elmokit.embed import Embedder

HERE = Path(__file__).parent
OUTPUT = HERE.parents[1] / "docs" / "images" / "senses.png"
# By word: the names of its two senses, which both of its items share. The first is that of the
# first item's `sentence`.
WORDS = {
    "apple": ("fruit", "company"),
    "play": ("on a stage", "a game"),
    "bank": ("money", "river"),
    "letter": ("mail", "alphabet"),
}
COLORS = ("#c0392b", "#1f618d")
FONT_SIZE, POINT_SIZE = 10, 8  # in points
BEFORE, AFTER = 2, 3  # words that a label shows around its own
# Possible positions of a label, the best first: the share of its width that is left of its point,
# and the number of rows of text by which it is above or below.
SHARES = (0.5, 0.3, 0.7, 0.1, 0.9)
PLACES = (
    (0, 0),
    (1, 0),
    *((share, row) for rows in ((1, -1), (2, -2)) for share in SHARES for row in rows),
)


# --- Vectors --------------------------------------------------------------------------------------


def vectors_of(word: str, sentences: list[list[str]], embedder: Embedder) -> np.ndarray:
    """(sentences, 2D): the mean of the contextual layers, each scaled to length one."""
    found = []
    for use, layers in zip(
        uses_in_each(word, sentences), embedder.embed(sentences, "all"), strict=True
    ):
        found.append(unit_vectors(layers[1:, use.position]).mean(axis=0))
    return np.stack(found)


def in_plane(vectors: np.ndarray) -> np.ndarray:
    """(sentences, 2): the first two principal components of the vectors."""
    centred = vectors - vectors.mean(axis=0)
    return centred @ np.linalg.svd(centred, full_matrices=False)[2][:2].T


# --- Labels ---------------------------------------------------------------------------------------


def excerpt(word: str, sentence: list[str]) -> str:
    """The word in bold, with the words around it."""
    at = sentence.index(word)
    words = [
        *sentence[max(0, at - BEFORE) : at],
        rf"$\bf{{{word}}}$",
        *sentence[at + 1 : at + 1 + AFTER],
    ]
    return " ".join(words).removesuffix(" .")


def put(label: Annotation, share: float, row: int) -> Bbox:
    """Move a label to a position relative to its point; returns the box that it covers, in
    pixels.
    """
    width = label.get_window_extent().width * 72 / label.figure.dpi
    gap = 0 if row else POINT_SIZE * (1 - 2 * share)
    further = 1.2 * FONT_SIZE * (abs(row) - 1)
    label.set_position((gap - share * width, np.sign(row) * (0.7 * POINT_SIZE + further)))
    label.set_verticalalignment({1: "bottom", 0: "center", -1: "top"}[int(np.sign(row))])
    return label.get_window_extent()


def without_overlap(
    options: list[list[Bbox | None]], placed: tuple[Bbox, ...] = ()
) -> tuple[int, ...] | None:
    """For each label the number of a box, chosen so that no two overlap; None if there is no such
    choice.
    """
    if not options:
        return ()
    for number, box in enumerate(options[0]):
        if box is not None and not any(box.overlaps(other) for other in placed):
            rest = without_overlap(options[1:], (*placed, box))
            if rest is not None:
                return (number, *rest)
    return None


def arrange(labels: list[Annotation], axes: plt.Axes) -> None:
    """Put every label next to its point, inside the panel, clear of the points and the other
    labels.
    """
    panel, radius = axes.get_window_extent(), POINT_SIZE / 2 * axes.figure.dpi / 72
    points = [axes.transData.transform(label.xy) for label in labels]
    discs = [Bbox([point - radius, point + radius]) for point in points]

    def box(label: Annotation, place: tuple[float, int]) -> Bbox | None:
        found = put(label, *place).padded(radius / 2, 0)  # a gap between two labels
        inside = (
            panel.x0 < found.x0
            and found.x1 < panel.x1
            and panel.y0 < found.y0
            and found.y1 < panel.y1
        )
        return found if inside and not found.count_overlaps(discs) else None

    options = [[box(label, place) for place in PLACES] for label in labels]
    for count in range(1, len(PLACES) + 1):  # use no worse positions than necessary
        if (chosen := without_overlap([boxes[:count] for boxes in options])) is not None:
            break
    else:
        raise ValueError(
            "the labels do not fit next to their points: enlarge the figure or the margins"
        )
    for label, number in zip(labels, chosen, strict=True):
        put(label, *PLACES[number])


# --- The picture ----------------------------------------------------------------------------------


def draw(
    axes: plt.Axes, word: str, senses: list[list[str]], embedder: Embedder
) -> list[Annotation]:
    """Draw a panel: its points, title and legend. Returns its labels, which are positioned
    later.
    """
    sentences = [text.split() for sense in senses for text in sense]
    plane = in_plane(vectors_of(word, sentences, embedder))
    of_sense = np.repeat(range(len(senses)), [len(sense) for sense in senses])
    for sense, (name, color) in enumerate(zip(WORDS[word], COLORS, strict=True)):
        axes.scatter(
            *plane[of_sense == sense].T, color=color, s=POINT_SIZE**2, linewidth=0, label=name
        )
    axes.set_title(word, loc="left", fontsize=1.3 * FONT_SIZE, weight="bold")
    axes.legend(
        loc="lower right",
        bbox_to_anchor=(1, 1),
        ncols=2,
        frameon=False,
        labelcolor="linecolor",
        fontsize=FONT_SIZE,
        borderaxespad=0.2,
        borderpad=0,
        handletextpad=0,
        columnspacing=1,
    )
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_color("#c8c8c8")
    axes.margins(0.3, 0.2)
    axes.set_aspect("equal", adjustable="datalim")
    style = {"textcoords": "offset points", "fontsize": FONT_SIZE, "in_layout": False}
    return [
        axes.annotate(excerpt(word, sentence), point, color=COLORS[sense], xytext=(0, 0), **style)
        for point, sentence, sense in zip(plane, sentences, of_sense, strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model", help="directory or name; the bundled English model when not given"
    )
    parser.add_argument("--output", type=Path, default=OUTPUT)
    arguments = parser.parse_args()
    embedder = Embedder(arguments.model)
    items = json.loads((HERE / "sense_pairs.json").read_text(encoding="utf-8"))["items"]
    figure, panels = plt.subplots(2, 2, figsize=(10.2, 8.2), dpi=180, layout="constrained")
    figure.get_layout_engine().set(w_pad=0.1, h_pad=0.1)
    labels = []
    for axes, word in zip(panels.flat, WORDS, strict=True):
        first, second = (item for item in items if item["word"] == word)
        senses = [
            [first["sentence"], first["same"], second["other"]],
            [second["sentence"], second["same"], first["other"]],
        ]
        labels.append(draw(axes, word, senses, embedder))
    figure.canvas.draw()  # from here on the panels keep their sizes
    for axes, of_panel in zip(panels.flat, labels, strict=True):
        arrange(of_panel, axes)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(arguments.output)


if __name__ == "__main__":
    main()
