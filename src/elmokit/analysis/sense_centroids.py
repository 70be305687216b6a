"""Word senses by the nearest neighbour, for each layer (Melamud et al., 2016; Peters et al., 2018, section 5.3).

A sense is the mean of the contextual vectors of its uses in training text; a use gets the sense of its lemma whose mean
is nearest by cosine. This is the "1NN" of the papers on CoarseWSD-20 and of the ELMo paper's table 5.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from elmokit.analysis.annotated import all_layers
from elmokit.analysis.uses import of_length_one
from elmokit.config import StatePolicy
from elmokit.data.sense_tagged import SenseInstance, SenseSentence
from elmokit.embed.embedder import Embedder

TIE = 1e-6  # cosines that differ by less differ by rounding


def instance_vectors(
    sentences: Iterable[SenseSentence], embedder: Embedder, state: StatePolicy | None = None
) -> Iterator[tuple[SenseInstance, np.ndarray]]:
    """Every instance with its vectors, (L+1, 2D): of several words their mean. `state` as in `all_layers`."""
    for sentence, layers in all_layers(sentences, lambda sentence: sentence.words, embedder, state):
        for instance in sentence.instances:
            yield instance, layers[:, instance.start : instance.end].mean(axis=1)


@dataclass(frozen=True, eq=False)
class LemmaSenses:
    """The senses of a lemma in training text, the most frequent first, and their mean vectors."""

    names: list[str]
    counts: list[int]
    directions: np.ndarray
    """(senses, L+1, 2D), each of length one."""

    def nearest(self, vectors: np.ndarray) -> list[str]:
        """For each layer the sense whose mean is nearest by cosine to `vectors`, (L+1, 2D).

        Of senses that are equally near, as all are to a layer that knows no context, the most frequent.
        """
        cosines = np.einsum("sld,ld->ls", self.directions, of_length_one(vectors))
        best = (cosines >= cosines.max(axis=1, keepdims=True) - TIE).argmax(axis=1)
        return [self.names[number] for number in best]


class _Sums:
    """The running sum of a sense's vectors, (L+1, 2D), and how many they are."""

    def __init__(self, vectors: np.ndarray) -> None:
        self.total, self.count = np.zeros_like(vectors), 0

    def add(self, vectors: np.ndarray) -> None:
        self.total += vectors
        self.count += 1


def _lemma_senses(sums: dict[str, _Sums]) -> LemmaSenses:
    names = sorted(sums, key=lambda name: (-sums[name].count, name))
    directions = of_length_one(np.stack([sums[name].total for name in names]))
    return LemmaSenses(names, [sums[name].count for name in names], directions)


def sense_centroids(
    sentences: Iterable[SenseSentence], embedder: Embedder, state: StatePolicy | None = None
) -> dict[str, LemmaSenses]:
    """The senses that training text shows, by lemma. `state` as in `all_layers`.

    Text is streamed; memory holds a vector of every layer for each sense. A use with several senses counts for each.
    """
    sums: dict[str, dict[str, _Sums]] = {}
    for instance, vectors in instance_vectors(sentences, embedder, state):
        of_lemma = sums.setdefault(instance.lemma, {})
        for name in instance.senses:
            of_lemma.setdefault(name, _Sums(vectors)).add(vectors)
    found = {}
    while sums:  # each lemma's sums are freed once its means are there
        lemma, of_lemma = sums.popitem()
        found[lemma] = _lemma_senses(of_lemma)
    return found
