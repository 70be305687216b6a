"""Draw where the vectors of ambiguous words lie: docs/images/senses.png (needs the extra "plots").

    python benchmarks/plot_senses.py [--model NAME_OR_PATH]

The sentences are those of benchmarks/sense_pairs.json. A word's vector is the mean of its contextual layers; each panel
shows the plane in which its six vectors differ most (the first two principal components).
"""

import argparse
import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from elmokit.analysis.uses import of_length_one, uses_in_every
from elmokit.embed.embedder import Embedder

HERE = Path(__file__).parent
WORDS = ("apple", "play", "bank", "letter")  # each with the same two senses in both of its items
OUTPUT = HERE.parent / "docs" / "images" / "senses.png"
COLORS = ("#c0392b", "#2471a3")


def vectors_of(word: str, sentences: list[list[str]], embedder: Embedder) -> np.ndarray:
    """(sentences, 2D): the mean over the contextual layers, each of length one."""
    found = []
    for use, layers in zip(uses_in_every(word, sentences), embedder.embed(sentences, "all"), strict=True):
        found.append(of_length_one(layers[1:, use.position]).mean(axis=0))
    return np.stack(found)


def excerpt(word: str, sentence: list[str]) -> str:
    """The word with what stands around it."""
    at = sentence.index(word)
    words = [*sentence[max(0, at - 3) : at], f"[{word}]", *sentence[at + 1 : at + 4]]
    return " ".join(words)


def draw(axes: plt.Axes, word: str, senses: list[list[str]], embedder: Embedder) -> None:
    sentences = [text.split() for sense in senses for text in sense]
    vectors = vectors_of(word, sentences, embedder)
    centred = vectors - vectors.mean(axis=0)
    plane = centred @ np.linalg.svd(centred, full_matrices=False)[2][:2].T
    gap = 0.09 * np.ptp(plane[:, 1])
    lowest = -np.inf
    for number in np.argsort(plane[:, 1]):
        x, y = plane[number]
        color = COLORS[int(number >= len(senses[0]))]
        lowest = max(y + 0.5 * gap, lowest + gap)  # labels of neighbours stand one above the other
        axes.scatter(x, y, color=color, s=40)
        axes.text(x, lowest, excerpt(word, sentences[number]), ha="center", fontsize=8, color=color)
    axes.margins(0.35, 0.2)
    axes.set(title=word, xticks=[], yticks=[])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="directory or name; the bundled English model when not given")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    arguments = parser.parse_args()
    embedder = Embedder.load(arguments.model)
    items = json.loads((HERE / "sense_pairs.json").read_text(encoding="utf-8"))["items"]
    figure, panels = plt.subplots(2, 2, figsize=(11, 6.5), layout="constrained")
    for axes, word in zip(panels.flat, WORDS, strict=True):
        first, second = (item for item in items if item["word"] == word)
        senses = [
            [first["sentence"], first["same"], second["other"]],
            [second["sentence"], second["same"], first["other"]],
        ]
        draw(axes, word, senses, embedder)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(arguments.output, dpi=110)


if __name__ == "__main__":
    main()
