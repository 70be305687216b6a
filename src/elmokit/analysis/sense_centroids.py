"""Nearest-centroid word-sense disambiguation for each layer (Melamud et al., 2016; Peters et al., 2018, section 5.3).

The centroid of a sense is the mean contextual vector of its uses in the training text; a use is assigned the sense of
its lemma with the nearest centroid by cosine. It is called "1NN" in the papers on CoarseWSD-20 and in table 5 of the
ELMo paper.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from elmokit.analysis.annotated import all_layers
from elmokit.analysis.uses import unit_vectors
from elmokit.data.sense_tagged import SenseInstance, SenseSentence
from elmokit.embed.embedder import Embedder
from elmokit.settings import StatePolicy

TIE = 1e-6  # smaller differences between cosines are rounding errors


def instance_vectors(
    sentences: Iterable[SenseSentence], embedder: Embedder, state: StatePolicy | None = None
) -> Iterator[tuple[SenseInstance, np.ndarray]]:
    """Yield every instance with its vectors, (L+1, 2D), averaged over its words; `state` as in `all_layers`."""
    for sentence, layers in all_layers(sentences, lambda sentence: sentence.words, embedder, state):
        for instance in sentence.instances:
            yield instance, layers[:, instance.start : instance.end].mean(axis=1)


@dataclass(frozen=True, eq=False)
class LemmaSenses:
    """The senses of a lemma in the training text, the most frequent first.

    Attributes:
        names: Names of the senses.
        counts: Number of training uses of each sense.
        centroids: Unit vectors, (senses, L+1, 2D).
    """

    names: list[str]
    counts: list[int]
    centroids: np.ndarray

    def nearest(self, vectors: np.ndarray) -> list[str]:
        """The sense with the nearest centroid by cosine, for each layer of `vectors`, (L+1, 2D).

        Ties go to the most frequent sense; in the context-independent token layer, all senses are tied.
        """
        cosines = np.einsum("sld,ld->ls", self.centroids, unit_vectors(vectors))
        best = (cosines >= cosines.max(axis=1, keepdims=True) - TIE).argmax(axis=1)
        return [self.names[number] for number in best]


class _Sums:
    """The running sum of a sense's vectors, (L+1, 2D), and their number."""

    def __init__(self, vectors: np.ndarray) -> None:
        self.total, self.count = np.zeros_like(vectors), 0

    def add(self, vectors: np.ndarray) -> None:
        self.total += vectors
        self.count += 1


def _lemma_senses(sums: dict[str, _Sums]) -> LemmaSenses:
    names = sorted(sums, key=lambda name: (-sums[name].count, name))
    centroids = unit_vectors(np.stack([sums[name].total for name in names]))
    return LemmaSenses(names, [sums[name].count for name in names], centroids)


def sense_centroids(
    sentences: Iterable[SenseSentence], embedder: Embedder, state: StatePolicy | None = None
) -> dict[str, LemmaSenses]:
    """Compute the senses of every lemma in a training text.

    The text is streamed; memory holds one (L+1, 2D) sum per sense.

    Args:
        sentences: The training text. A use annotated with several senses counts for each of them.
        embedder: The model.
        state: Initial LSTM state of a sentence, as in `all_layers`.

    Returns:
        The senses by lemma.
    """
    sums: dict[str, dict[str, _Sums]] = {}
    for instance, vectors in instance_vectors(sentences, embedder, state):
        of_lemma = sums.setdefault(instance.lemma, {})
        for name in instance.senses:
            of_lemma.setdefault(name, _Sums(vectors)).add(vectors)
    senses = {}
    while sums:  # free the sums of each lemma as soon as its centroids are computed
        lemma, of_lemma = sums.popitem()
        senses[lemma] = _lemma_senses(of_lemma)
    return senses
