"""Word-sense disambiguation by a vote of the k most similar training uses, for each layer.

Unlike a centroid, single uses can represent a sense that is used in several ways, and a frequent sense has more of the
votes where a use is similar to nothing in particular.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from elmokit.analysis.sense_centroids import TIE, instance_vectors
from elmokit.analysis.uses import unit_vectors
from elmokit.data.sense_tagged import SenseSentence
from elmokit.embed.embedder import Embedder
from elmokit.settings import StatePolicy


@dataclass(frozen=True, eq=False)
class LemmaUses:
    """The training uses of a lemma.

    Attributes:
        names: Names of its senses, the most frequent first.
        vectors: Unit vectors of its uses, (L+1, uses, 2D).
        has_sense: Whether a use is annotated with a sense, (uses, senses).
        neighbors: k, the number of uses that vote.
    """

    names: list[str]
    vectors: np.ndarray
    has_sense: np.ndarray
    neighbors: int

    def nearest(self, vectors: np.ndarray) -> list[str]:
        """The sense with most votes among the k nearest uses by cosine, for each layer of `vectors`, (L+1, 2D).

        Uses as near as the k-th vote too; in the context-independent token layer, these are all uses of a word form.
        Equal votes go to the most frequent sense.
        """
        cosines = np.matmul(self.vectors, unit_vectors(vectors)[:, :, None])[:, :, 0]
        k = min(self.neighbors, cosines.shape[1])
        least = np.partition(cosines, -k, axis=1)[:, -k, None] - TIE
        votes = (cosines >= least).astype(np.int64) @ self.has_sense
        return [self.names[number] for number in votes.argmax(axis=1)]


def _uses_of_lemma(uses: list[tuple[tuple[str, ...], np.ndarray]], neighbors: int) -> LemmaUses:
    """`uses` are pairs of the senses of a use and its vectors, (L+1, 2D)."""
    counts: dict[str, int] = {}
    for senses, _ in uses:
        for name in senses:
            counts[name] = counts.get(name, 0) + 1
    names = sorted(counts, key=lambda name: (-counts[name], name))
    has_sense = np.array([[name in senses for name in names] for senses, _ in uses])
    return LemmaUses(names, unit_vectors(np.stack([vectors for _, vectors in uses], axis=1)), has_sense, neighbors)


def lemma_uses(
    sentences: Iterable[SenseSentence], embedder: Embedder, neighbors: int, state: StatePolicy | None = None
) -> dict[str, LemmaUses]:
    """Compute the vectors of the uses of every lemma in a training text, and hold them all in memory.

    Args:
        sentences: The training text. A use annotated with several senses votes for each of them.
        embedder: The model.
        neighbors: The number of uses that vote.
        state: Initial LSTM state of a sentence, as in `all_layers`.

    Returns:
        The uses by lemma.
    """
    uses: dict[str, list[tuple[tuple[str, ...], np.ndarray]]] = {}
    for instance, vectors in instance_vectors(sentences, embedder, state):
        uses.setdefault(instance.lemma, []).append((instance.senses, vectors))
    of_lemma = {}
    while uses:  # free the vectors of each lemma as soon as they are copied
        lemma, of_one = uses.popitem()
        of_lemma[lemma] = _uses_of_lemma(of_one, neighbors)
    return of_lemma
