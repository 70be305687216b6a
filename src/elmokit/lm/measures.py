"""Perplexity and pseudo-perplexity: two measures of how well a model predicts a text, which are
never compared.

The perplexity of a direction is exp of the mean of -log p over every word and one boundary per
sentence (</S> forward, <S> backward), from the full softmax, with unknown words scored as <UNK>.
The mean perplexity is exp of the mean loss of the two directions, which is their geometric mean.
This is the definition of bilm-tf (training.py:955-1044), except that bilm-tf drops the sentences
that do not fill its last batch.

The pseudo-perplexity of a text, for a model that merges the directions, is exp of the mean of -log
p over its words, each hidden in turn while all others of its sentence are visible (Salazar et al.
2020, "Masked Language Model Scoring", section 2); in a sentence of more than 1,024 words, all
others of its window. It is not a perplexity: each word is predicted with the words after it in
view, and no boundary is predicted.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import ClassVar, TypeAlias, cast

import numpy as np


def _exp(loss: float) -> float:
    """exp of a mean of -log p in nats; infinity where it exceeds the largest float, as in a run
    that diverges.
    """
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


class _OfText:
    """The counts of a text that both measures have."""

    sentences: int
    predictions: int
    unknown: int
    truncated: int

    @property
    def words(self) -> int:
        """Number of words."""
        return self.predictions

    @property
    def unknown_share(self) -> float:
        """Share of the words that are scored as <UNK>: the higher it is, the less the measure
        says.
        """
        return self.unknown / max(1, self.words)

    def __add__(self, other: Measure) -> Measure:
        """The measure of two texts together: their mean losses weighted by the number of
        predictions.
        """
        names = ("sentences", "predictions", "unknown", "truncated")
        counts = {name: getattr(self, name) + getattr(other, name) for name in names}
        return type(other).of(cast(Measure, self).losses + other.losses, **counts)

    def _text(self) -> str:
        truncated = f", {self.truncated:,} truncated" if self.truncated else ""
        unknown = f"{self.unknown_share:.1%} of them unknown{truncated}"
        return f"{self.words:,} words in {self.sentences:,} sentences, {unknown}"


@dataclass(frozen=True)
class Perplexity(_OfText):
    """Perplexity of a text.

    Attributes:
        forward: Perplexity of the forward direction.
        backward: Perplexity of the backward direction.
        mean: Geometric mean of both.
        sentences: Number of sentences.
        predictions: Number of predictions of one direction: words and one boundary per sentence.
        unknown: Number of words scored as <UNK>.
        truncated: Number of words with more characters than the model reads.
    """

    forward: float
    backward: float
    mean: float
    sentences: int
    predictions: int
    unknown: int
    truncated: int = 0

    measure: ClassVar[str] = "perplexity"

    @property
    def value(self) -> float:
        """The mean, the number by which evaluations of a model are compared."""
        return self.mean

    @property
    def words(self) -> int:
        """Number of words: the predictions without those of boundaries."""
        return self.predictions - self.sentences

    @property
    def losses(self) -> np.ndarray:
        """Sums of -log p of both directions, (2,)."""
        return self.predictions * np.log([self.forward, self.backward])

    def __str__(self) -> str:
        directions = f"forward {self.forward:.2f}, backward {self.backward:.2f}"
        return f"{self.measure}: {self.mean:.2f} ({directions}) on {self._text()}"

    @staticmethod
    def of(losses: np.ndarray, predictions: int, **counts: int) -> Perplexity:
        """Compute the perplexities from the sums of -log p of both directions, (2,)."""
        forward, backward = (losses / predictions).tolist()
        mean = (forward + backward) / 2
        return Perplexity(
            _exp(forward), _exp(backward), _exp(mean), predictions=predictions, **counts
        )


@dataclass(frozen=True)
class PseudoPerplexity(_OfText):
    """Pseudo-perplexity of a text.

    Attributes:
        pseudo_perplexity: exp of the mean of -log p of its words, each given all others of its
            sentence, or window.
        sentences: Number of sentences.
        predictions: Number of predictions: words.
        unknown: Number of words scored as <UNK>.
        truncated: Number of words with more characters than the model reads.
    """

    pseudo_perplexity: float
    sentences: int
    predictions: int
    unknown: int
    truncated: int = 0

    measure: ClassVar[str] = "pseudo-perplexity"

    @property
    def value(self) -> float:
        """The number by which evaluations of a model are compared."""
        return self.pseudo_perplexity

    @property
    def losses(self) -> np.ndarray:
        """Sum of -log p, (1,)."""
        return self.predictions * np.log([self.pseudo_perplexity])

    def __str__(self) -> str:
        return (
            f"{self.measure}: {self.value:.2f} (each word given all others of its sentence) on "
            f"{self._text()}"
        )

    @staticmethod
    def of(losses: np.ndarray, predictions: int, **counts: int) -> PseudoPerplexity:
        """Compute it from the sum of -log p, (1,); without any word, it is 1."""
        return PseudoPerplexity(
            _exp(losses.item() / max(1, predictions)), predictions=predictions, **counts
        )


Measure: TypeAlias = (
    Perplexity | PseudoPerplexity
)  # by the kind of model; the two are never compared

UNKNOWN_SHARE = 0.1  # above it, a perplexity says more about <UNK> than about words


def warn_of_unknown(
    share: float,
    text: object,
    advice: str = "use a model of its language or domain",
    measure: str = "perplexity",
) -> None:
    """Warn if the share of unknown words of a text is so high that its perplexity, or other
    measure, says little.
    """
    if share > UNKNOWN_SHARE:
        message = (
            f"{text}: {share:.0%} of the words are not in the model's vocabulary and count "
            f"as one word, <UNK>"
        )
        warnings.warn(f"{message}, so that the {measure} says little: {advice}", stacklevel=3)
