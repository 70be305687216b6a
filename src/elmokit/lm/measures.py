"""Perplexity and pseudo-perplexity: two measures of how well a model predicts a text, which are never compared.

`lm/evaluate.py` and `lm/masked.py` define and compute them.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import numpy as np


def perplexity_of(loss: float) -> float:
    """exp of a mean of -log p in nats; infinity where it exceeds the largest float, as in a run that diverges."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


class _OfText(ABC):
    """The counts of a text that both measures have."""

    sentences: int
    unknown: int
    truncated: int

    @property
    @abstractmethod
    def words(self) -> int:
        """Number of words."""

    @property
    def unknown_share(self) -> float:
        """Share of the words that are scored as <UNK>: the higher it is, the less the measure says."""
        return self.unknown / max(1, self.words)

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

    def __str__(self) -> str:
        directions = f"forward {self.forward:.2f}, backward {self.backward:.2f}"
        return f"{self.measure}: {self.mean:.2f} ({directions}) on {self._text()}"

    @staticmethod
    def of(losses: np.ndarray, sentences: int, predictions: int, unknown: int, truncated: int = 0) -> Perplexity:
        """Compute the perplexities from the sums of -log p of both directions, (2,)."""
        forward, backward = (losses / predictions).tolist()
        perplexities = perplexity_of(forward), perplexity_of(backward), perplexity_of((forward + backward) / 2)
        return Perplexity(*perplexities, sentences, predictions, unknown, truncated)

    @staticmethod
    def total(files: Sequence[Perplexity]) -> Perplexity:
        """The perplexity of several texts together: their mean losses weighted by the number of predictions."""
        predictions = [file.predictions for file in files]
        losses = np.log([[file.forward, file.backward, file.mean] for file in files])
        forward, backward, mean = np.exp(np.average(losses, axis=0, weights=predictions)).tolist()
        counts = {name: sum(getattr(file, name) for file in files) for name in ("sentences", "unknown", "truncated")}
        return Perplexity(forward, backward, mean, predictions=sum(predictions), **counts)


@dataclass(frozen=True)
class PseudoPerplexity(_OfText):
    """Pseudo-perplexity of a text.

    Attributes:
        pseudo_perplexity: exp of the mean of -log p of its words, each given all others of its sentence, or window.
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
    def words(self) -> int:
        """Number of words, which are the predictions."""
        return self.predictions

    def __str__(self) -> str:
        return f"{self.measure}: {self.value:.2f} (each word given all others of its sentence) on {self._text()}"

    @staticmethod
    def of(
        loss: float | np.ndarray, sentences: int, predictions: int, unknown: int, truncated: int = 0
    ) -> PseudoPerplexity:
        """Compute it from the sum of -log p; without any word, it is 1."""
        value = perplexity_of(float(loss) / max(1, predictions))
        return PseudoPerplexity(value, sentences, predictions, unknown, truncated)

    @staticmethod
    def total(files: Sequence[PseudoPerplexity]) -> PseudoPerplexity:
        """The measure of several texts together: their mean losses weighted by the number of predictions."""
        loss = sum(file.predictions * math.log(file.value) for file in files)
        names = ("sentences", "predictions", "unknown", "truncated")
        return PseudoPerplexity.of(loss, **{name: sum(getattr(file, name) for file in files) for name in names})


Measure: TypeAlias = Perplexity | PseudoPerplexity  # by the kind of model; the two are never compared

UNKNOWN_SHARE = 0.1  # above it, a perplexity says more about <UNK> than about words


def warn_of_unknown(
    share: float, text: object, advice: str = "use a model of its language or domain", measure: str = "perplexity"
) -> None:
    """Warn if the share of unknown words of a text is so high that its perplexity, or other measure, says little."""
    if share > UNKNOWN_SHARE:
        message = f"{text}: {share:.0%} of the words are not in the model's vocabulary and count as one word, <UNK>"
        warnings.warn(f"{message}, so that the {measure} says little: {advice}", stacklevel=3)
