"""The scores of sentences, and their sums: surprisal of words and regions, perplexity.

The forward direction predicts a word from the words before it, the backward direction from the
words after it; a model that merges the directions predicts it from both, with the word hidden.
Probabilities are those of the full softmax, and words outside the vocabulary are scored as <UNK>.
Logarithms are natural (nats) except where bits are mentioned.

The *perplexity* of a direction is exp of the mean of -log p over every word and one boundary per
sentence (</S> forward, <S> backward). The mean perplexity is exp of the mean loss of the two
directions, which is their geometric mean. This is the definition of bilm-tf
(training.py:955-1044), except that bilm-tf drops the sentences that do not fill its last batch.

The *pseudo-perplexity* of a text, for a model that merges the directions, is exp of the mean of
-log p over its words, each hidden in turn while all others of its sentence are visible (Salazar et
al. 2020, "Masked Language Model Scoring", section 2); in a sentence of more than 1,024 words, all
others of its window. It is not a perplexity, and never compared with one: each word is predicted
with the words after it in view, and no boundary is predicted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from elmokit.checkpoints import ModelSource, Pretrained
from elmokit.lm.losses import Check, log_losses, predictor, resolve_language_model
from elmokit.runtime import check_list
from elmokit.settings import StatePolicy
from elmokit.text import Sentence, word_offsets

BIT = np.float32(math.log(2))  # in nats
ROWS = 32  # in which state is carried, as in training, whose evaluations give the same figures
# Positions of word losses among the losses of a sentence a b c:
#
#   forward    a   b   c  </S>         backward   <S>  a   b   c         masked   a   b   c
WORDS = {"forward": slice(0, -1), "backward": slice(1, None), "masked": slice(None)}


@dataclass(frozen=True)
class Perplexity:
    """Perplexity of a text, or pseudo-perplexity, for a model that merges the two directions.

    Attributes:
        losses: Sums of -log p in nats by direction: "forward" and "backward", or "masked".
        sentences: Number of sentences.
        predictions: Number of predictions of one direction: words and one boundary per sentence; of
            masked words, words alone.
        unknown: Number of words scored as <UNK>.
        truncated: Number of words with more characters than the model reads.
    """

    losses: dict[str, float]
    sentences: int
    predictions: int
    unknown: int
    truncated: int = 0

    @classmethod
    def of(
        cls,
        model: Pretrained,
        sentences: Iterable[Sequence[str]],
        state: str | None = None,
        batch_size: int = ROWS,
    ) -> Perplexity:
        """Compute the perplexity of tokenized sentences, with the arguments of `log_losses`.

        Raises:
            ValueError: There is no word; and as `log_losses`.
        """
        scored = scores(model, sentences, state, batch_size)
        if (first := next(scored, None)) is None:
            raise ValueError("there is no word to evaluate: the text is empty")
        return reduce(add, (score.perplexity for score in scored), first.perplexity)

    def __add__(self, other: Perplexity) -> Perplexity:
        """Combined perplexity of two texts."""
        return Perplexity(
            {name: loss + other.losses[name] for name, loss in self.losses.items()},
            self.sentences + other.sentences,
            self.predictions + other.predictions,
            self.unknown + other.unknown,
            self.truncated + other.truncated,
        )

    @property
    def measure(self) -> str:
        """The name of the measure: perplexity or pseudo-perplexity."""
        return "pseudo-perplexity" if "masked" in self.losses else "perplexity"

    @property
    def values(self) -> dict[str, float]:
        """Values by direction, and their mean; or only the pseudo-perplexity."""
        means = {name: loss / max(1, self.predictions) for name, loss in self.losses.items()}
        if "masked" in means:
            means = {"pseudo_perplexity": means["masked"]}
        else:
            means["mean"] = sum(means.values()) / 2
        with np.errstate(over="ignore"):  # infinity, as in a run that diverges
            return {name: float(np.exp(mean)) for name, mean in means.items()}

    @property
    def value(self) -> float:
        """The mean perplexity, or the pseudo-perplexity, to compare models."""
        return [*self.values.values()][-1]

    @property
    def words(self) -> int:
        """Number of words."""
        return self.predictions - (0 if "masked" in self.losses else self.sentences)

    @property
    def unknown_share(self) -> float:
        """Share of the words scored as <UNK>: the higher it is, the less the perplexity says."""
        return self.unknown / max(1, self.words)

    def to_json(self) -> dict[str, Any]:
        """The name of the measure, its values and counts."""
        counts = {name: count for name, count in vars(self).items() if name != "losses"}
        return {"measure": self.measure, **self.values, **counts}

    def __str__(self) -> str:
        if "masked" in self.losses:
            details = "each word given all others of its sentence"
        else:
            details = "forward {forward:.2f}, backward {backward:.2f}".format(**self.values)
        unknown = f"{self.unknown_share:.1%} of them unknown"
        if self.truncated:
            unknown += f", {self.truncated:,} truncated"
        return (
            f"{self.measure}: {self.value:.2f} ({details}) on {self.words:,} words in "
            f"{self.sentences:,} sentences, {unknown}"
        )


@dataclass(frozen=True)
class TextSurprisal:
    """Surprisal of a stretch of a text, summed over the words that begin in it.

    Attributes:
        text: The stretch, without white space around it.
        start: Its first character in the text that was given, from 0.
        end: The character after its last one.
        bits: Its surprisal given the words before, and given the words after; a single one where
            directions are merged.
        unknown: Number of its words scored as <UNK>.
    """

    text: str
    start: int
    end: int
    bits: tuple[float, ...]
    unknown: int


@dataclass(frozen=True, eq=False, repr=False)
class Score:
    """Losses of a sentence of T words.

    Attributes:
        words: The words.
        losses: -log p in nats by direction: "forward" of the words and then </S>, each given the
            words before it, and "backward" of <S> and then the words, each given the words after
            it, (T+1,) float32. Of a model that merges the directions "masked", of the words, each
            given all others of its sentence, or of its window of at most 1,024 words, (T,).
        is_unknown: Whether each word is scored as <UNK>, (T,) bool.
        truncated: Number of words with more characters than the model reads.
        text: The sentence that was given; None: it was given as words.
    """

    words: tuple[str, ...]
    losses: dict[str, np.ndarray]
    is_unknown: np.ndarray
    truncated: int = 0
    text: str | None = None

    @property
    def surprisal(self) -> np.ndarray:
        """-log2 p of the words in bits, a row for each direction, (2, T) or (1, T) float32.

        Boundaries are left out. Where `is_unknown` is True, it is the surprisal of <UNK>.
        """
        return np.stack([losses[WORDS[name]] for name, losses in self.losses.items()]) / BIT

    @property
    def perplexity(self) -> Perplexity:
        """The perplexity of the sentence, including the boundary."""
        return Perplexity(
            {name: float(loss.sum(dtype=np.float64)) for name, loss in self.losses.items()},
            sentences=1,
            predictions=len(next(iter(self.losses.values()))),
            unknown=int(self.is_unknown.sum()),
            truncated=self.truncated,
        )

    @property
    def offsets(self) -> tuple[tuple[int, int], ...]:
        """The start and end of each word in characters of the text, or of the words with spaces.

        A word that the tokenizer changed has length 0.
        """
        return word_offsets(self.words if self.text is None else self.text, self.words)

    def parts(self, parts: Sequence[str] | None = None) -> list[TextSurprisal]:
        """Surprisal of the words of the text that white space separates, or of other parts of it.

        Args:
            parts: Parts of the text, in its order, such as the regions of a reading experiment.

        Raises:
            ValueError: A part does not follow the one before in the text.
        """
        text = " ".join(self.words) if self.text is None else self.text
        parts = text.split() if parts is None else parts
        spans = word_offsets(text, ["".join(part.split()) for part in parts])
        for part, (start, end) in zip(parts, spans, strict=True):
            if start == end and part.strip():
                raise ValueError(f"{part!r} does not follow the part before it in the text")
        part_of, surprisal = self.part_of_words(spans), self.surprisal.T
        # The last row, -1, counts words outside of all parts.
        bits = np.zeros((len(parts) + 1, surprisal.shape[1]))
        unknown = np.zeros(len(parts) + 1, dtype=np.int64)
        np.add.at(bits, part_of, surprisal)
        np.add.at(unknown, part_of, self.is_unknown)
        return [
            TextSurprisal(text[start:end], start, end, tuple(row), count)
            for (start, end), row, count in zip(
                spans, bits.tolist(), unknown.tolist(), strict=False
            )
        ]

    def part_of_words(self, spans: Sequence[tuple[int, int]]) -> np.ndarray:
        """The number of the span in which each word begins, (T,); -1 for a word outside of all."""
        starts, ends = np.array(self.offsets, dtype=np.int64).reshape(-1, 2).T
        # A word that does not occur in the text, of length 0, belongs to the span of the character
        # before it.
        starts = starts - (starts == ends)
        numbers = np.searchsorted([start for start, _ in spans], starts, side="right") - 1
        return np.where(starts < np.array([*(end for _, end in spans), 0])[numbers], numbers, -1)

    def to_json(self, bits: bool = False) -> dict[str, Any]:
        """The words, log-probabilities (natural, or to base 2), and perplexity as JSON values."""
        values = self.perplexity.values
        return {
            "words": list(self.words),
            "offsets": self.offsets,
            "unit": "bits" if bits else "nats",
            **{n: (-loss / (BIT if bits else 1)).tolist() for n, loss in self.losses.items()},
            **(values if "masked" in self.losses else {"perplexity": values}),
            "unknown": int(self.is_unknown.sum()),
            "is_unknown": self.is_unknown.tolist(),
            "truncated": self.truncated,
        }

    def __repr__(self) -> str:
        """A line for each word, with its surprisal in each direction."""
        rows = zip(self.words, self.surprisal.T.tolist(), strict=True)
        return "\n".join(
            f"{'  '.join(f'{bits:6.2f}' for bits in surprisal)}  {word}" for word, surprisal in rows
        )


def scores(
    model: Pretrained,
    sentences: Iterable[Sequence[str]],
    state: str | None = None,
    batch_size: int = 1,
    check: Check | None = None,
) -> Iterator[Score]:
    """Yield the score of each tokenized sentence, batch by batch; arguments as in `log_losses`."""
    bilm, _, vocab = predictor(model)
    for batch, losses in log_losses(model, sentences, state, batch_size, check):
        arrays = {direction: loss.cpu().numpy() for direction, loss in losses.items()}
        boundaries = 0 if "masked" in arrays else 1
        begin = 0
        for sentence in batch:
            end = begin + len(sentence) + boundaries
            yield Score(
                tuple(sentence),
                {direction: array[begin:end] for direction, array in arrays.items()},
                vocab.ids(sentence) == vocab.unk,
                bilm.token_encoder.count_truncated(sentence),
            )
            begin = end


def score(
    sentences: Sequence[Sentence],
    model: ModelSource = None,
    *,
    state: StatePolicy = "zeros",
    batch_size: int = 1,
    device: str | None = None,
    tokenize: bool = True,
    check: Check | None = None,
) -> list[Score]:
    """Compute the log-probability of every word of some sentences in both directions.

    A model that merges the directions predicts each word from all others of its sentence; a
    sentence of more than 1,024 words is read in windows of at most that length.

    Args:
        sentences: Lists of tokens, or strings, which the model's tokenizer splits.
        model: A loaded model with its softmax, an `Embedder` that has it, or a path or name as for
            `elmokit.load`.
        state: Initial state of a sentence: "zeros", "warm", or "carry", where sentence i starts
            from the final state of sentence i - `batch_size`.
        batch_size: Number of rows with carried state; otherwise it has no effect.
        device: Device to compute on; None: that of a loaded model, else a GPU if there is one.
        tokenize: Split strings with the model's tokenizer; else at white space.
        check: Called every few seconds at least; an exception that it raises ends the computation.

    Returns:
        A score for each sentence.

    Raises:
        ValueError: The model has no softmax, vocabulary, or state of this kind, an argument is
            invalid, or `sentences` is a single string, or a table.
    """
    check_list(sentences)
    sentences, pretrained = list(sentences), resolve_language_model(model, device)
    tokenized = [pretrained.split(sentence, tokenize) for sentence in sentences]
    scored = scores(pretrained, tokenized, state, batch_size, check)
    return [
        replace(score, text=sentence) if isinstance(sentence, str) else score
        for sentence, score in zip(sentences, scored, strict=True)
    ]
