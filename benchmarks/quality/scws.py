"""Similarity of words in context: SCWS, Stanford's Contextual Word Similarities (Huang et al. 2012).

    python benchmarks/quality/scws.py RATINGS [--model MODEL]

Prints Spearman's correlation, times 100, of the cosines of words in context with human ratings, for each layer and the
model's mix: of all pairs of ratings.txt, and of those of the same word. Layer 0 does not depend on the context.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from elmokit.analysis.annotated import all_layers
from elmokit.analysis.uses import Use, unit_vectors
from elmokit.correlation import spearman
from elmokit.embed.embedder import Embedder
from elmokit.embed.outputs import layer_names, layer_weights
from elmokit.fs.reading import read_lines

BEGIN, END = "<b>", "</b>"
Pair = tuple[Use, Use, float]  # two words in context, and the mean rating of their similarity, from 0 to 10


def marked_use(context: str) -> Use:
    """The use that "<b> word </b>" marks in a tokenized context; if it marks several words, the last, as the head."""
    words = context.split()
    return Use(tuple(word for word in words if word not in (BEGIN, END)), words.index(END) - 2)


def read_scws(path: Path) -> Iterator[Pair]:
    """Number, two words with their parts of speech, two contexts, the mean rating, ten ratings."""
    for line in read_lines(path):
        columns = line.split("\t")
        yield marked_use(columns[5]), marked_use(columns[6]), float(columns[7])


def scws(path: Path, embedder: Embedder) -> tuple[dict[str, float], dict[str, float]]:
    """The correlations of all pairs, and of pairs of the same word, by representation."""
    pairs = list(read_scws(path))
    weights = layer_weights(embedder.model, "mix").numpy()
    uses = [use for pair in pairs for use in pair[:2]]
    embedded = all_layers(uses, lambda use: use.sentence, embedder, embedder.model.single_sentence_state)
    layers = np.stack([each[:, use.position] for use, each in embedded])
    vectors = unit_vectors(np.concatenate([layers, np.einsum("nld,l->nd", layers, weights)[:, None]], axis=1))
    cosines = (vectors[::2] * vectors[1::2]).sum(2).round(6)  # so that rounding errors do not rank equal vectors
    names, ratings = [*layer_names(embedder.num_layers), "mix"], np.array([rating for _, _, rating in pairs])
    same = np.array([first.word.lower() == second.word.lower() for first, second, _ in pairs])
    every, of_same = (
        {name: 100 * spearman(column, ratings[chosen]) for name, column in zip(names, cosines[chosen].T, strict=True)}
        for chosen in (np.ones_like(same), same)
    )
    return every, of_same


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ratings", type=Path)
    parser.add_argument("--model")
    arguments = parser.parse_args()
    for of_name, values in zip(
        ("all pairs", "same word"), scws(arguments.ratings, Embedder(arguments.model)), strict=True
    ):
        print(of_name, *(f"{name} {value:.1f}" for name, value in values.items()), sep="  ")


if __name__ == "__main__":
    main()
