"""Log-probabilities of the words of sentences.

The forward direction predicts a word from the words before it, the backward direction from the words after it; a model
that merges the directions predicts it from both, with the word hidden. Probabilities are those of the full softmax, and
words outside the vocabulary are scored as <UNK>. Logarithms are natural (nats) except where bits are mentioned.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

import numpy as np

from elmokit.checkpoints.loading import ModelSource
from elmokit.checkpoints.pretrained import Pretrained
from elmokit.data.text_files import line_tokenizer
from elmokit.lm.evaluate import log_losses
from elmokit.lm.language_model import check_start, parts_of, resolve_language_model
from elmokit.lm.masked import masked_log_losses
from elmokit.lm.measures import Perplexity, PseudoPerplexity
from elmokit.settings import StatePolicy
from elmokit.text.tokenizer import Sentence


@dataclass(frozen=True, eq=False)
class SentenceScore:
    """Log-probabilities of a sentence of T words.

    Attributes:
        words: The words.
        forward: Log-probabilities in nats of the words and then </S>, each given the words before it, (T+1,) float32.
        backward: Log-probabilities in nats of <S> and then the words, each given the words after it, (T+1,) float32.
        is_unknown: Whether each word is scored as <UNK>, (T,) bool.
        truncated: Number of words with more characters than the model reads.
    """

    words: tuple[str, ...]
    forward: np.ndarray
    backward: np.ndarray
    is_unknown: np.ndarray
    truncated: int = 0

    @property
    def unknown(self) -> int:
        """Number of words scored as <UNK>."""
        return int(self.is_unknown.sum())

    @property
    def surprisal(self) -> np.ndarray:
        """Surprisal -log2 p of the words in bits, given the words before and given the words after, (2, T) float32.

        Boundaries are left out. Where `is_unknown` is True, it is the surprisal of <UNK>.
        """
        return surprisal_in_nats(self) / np.float32(math.log(2))

    @property
    def losses(self) -> np.ndarray:
        """Sums of -log p of the two directions, (2,) float64."""
        return -np.stack([self.forward, self.backward]).sum(axis=1, dtype=np.float64)

    @property
    def predictions(self) -> int:
        """Number of predictions of one direction: the words and the boundary."""
        return len(self.forward)

    @property
    def perplexity(self) -> Perplexity:
        """Perplexity of the sentence, including the boundary, as defined in `elmokit/lm/evaluate.py`."""
        return Perplexity.of(self.losses, 1, self.predictions, self.unknown, self.truncated)


@dataclass(frozen=True, eq=False)
class MaskedScore:
    """Log-probabilities of a sentence of T words under a model that merges the two directions.

    Attributes:
        words: The words.
        masked: Log-probabilities in nats of the words, each given all others of its sentence, or of its window of at
            most 1,024 words, (T,) float32.
        is_unknown: Whether each word is scored as <UNK>, (T,) bool.
        truncated: Number of words with more characters than the model reads.
    """

    words: tuple[str, ...]
    masked: np.ndarray
    is_unknown: np.ndarray
    truncated: int = 0

    @property
    def unknown(self) -> int:
        """Number of words scored as <UNK>."""
        return int(self.is_unknown.sum())

    @property
    def surprisal(self) -> np.ndarray:
        """Surprisal -log2 p of the words in bits, each given all others, (T,) float32."""
        return -self.masked / np.float32(math.log(2))

    @property
    def losses(self) -> np.ndarray:
        """Sum of -log p of the words, () float64: minus the pseudo-log-likelihood of Salazar et al. 2020."""
        return -np.asarray(self.masked.sum(dtype=np.float64))

    @property
    def predictions(self) -> int:
        """Number of predictions: the words."""
        return len(self.words)

    @property
    def pseudo_perplexity(self) -> PseudoPerplexity:
        """Pseudo-perplexity of the sentence, as defined in `elmokit.lm.masked`."""
        return PseudoPerplexity.of(self.losses, 1, self.predictions, self.unknown, self.truncated)


Score: TypeAlias = SentenceScore | MaskedScore


def surprisal_in_nats(score: Score) -> np.ndarray:
    """Surprisal of the words in nats, (2, T), or (T,) for a `MaskedScore`.

    Position k of `forward` predicts word k, that of `backward` word k - 1.
    """
    if isinstance(score, MaskedScore):
        return -score.masked
    return -np.stack([score.forward[:-1], score.backward[1:]])


def words_of(model: Pretrained, sentence: Sentence, tokenize: bool = True) -> Sequence[str]:
    """The words of a sentence: a string is split by the model's tokenizer, or at white space; see `line_tokenizer`.

    Raises:
        ValueError: It is neither a string nor a list of words.
    """
    if isinstance(sentence, str):
        return line_tokenizer(model.tokenizer, tokenize).split(sentence)
    if isinstance(sentence, np.ndarray):  # as pandas reads lists of words from a Parquet file
        sentence = sentence.tolist()
    if not isinstance(sentence, Sequence) or not all(isinstance(word, str) for word in sentence):
        raise ValueError(f"a sentence is a string or a list of words, not {str(sentence)[:60]!r}")
    return sentence


def scores(
    model: Pretrained,
    sentences: Iterable[Sequence[str]],
    state: str,
    batch_size: int,
    check: Callable[[], None] | None = None,
    batch_words: int | None = None,
) -> Iterator[Score]:
    """Yield the score of each tokenized sentence, from batches that are computed ahead.

    Args:
        model: A loaded model with its softmax.
        sentences: Lists of words.
        state: As in `score`.
        batch_size: As in `score`.
        check: Called before each batch, and before each part of one that takes long; an exception that it raises ends
            the computation.
        batch_words: As in `log_losses`; scores do not depend on it.
    """
    bilm, softmax, vocab = parts_of(model)
    check_start(model, state, batch_size)
    if model.config.sequence_encoder.merges_directions:
        for batch, targets, losses in masked_log_losses(bilm, softmax, vocab, sentences, check, batch_words):
            ends = np.cumsum([len(sentence) for sentence in batch])[:-1]
            unknown, log_p = np.split((targets == vocab.unk).numpy(), ends), np.split(-losses.cpu().numpy(), ends)
            for sentence, masked, is_unknown in zip(batch, log_p, unknown, strict=True):
                yield MaskedScore(tuple(sentence), masked, is_unknown, bilm.token_encoder.count_truncated(sentence))
        return
    start = model.start(state)
    options = {"check": check, "batch_words": batch_words}
    for batch, targets, losses in log_losses(bilm, softmax, vocab, sentences, state, batch_size, start, **options):
        ends = np.cumsum([len(sentence) + 1 for sentence in batch])[:-1]
        unknown = np.split((targets[0] == vocab.unk).numpy(), ends)
        log_p = np.split(-losses.cpu().numpy(), ends, axis=1)
        for sentence, (forward, backward), is_unknown in zip(batch, log_p, unknown, strict=True):
            truncated = bilm.token_encoder.count_truncated(sentence)
            # The last target is </S>.
            yield SentenceScore(tuple(sentence), forward, backward, is_unknown[:-1], truncated)


def score(
    sentences: Sequence[Sentence],
    model: ModelSource = None,
    *,
    state: StatePolicy = "zeros",
    batch_size: int = 1,
    device: str | None = None,
    tokenize: bool = True,
) -> list[SentenceScore] | list[MaskedScore]:
    """Compute the log-probability of every word of some sentences in both directions.

    A model that merges the directions predicts each word from all others of its sentence; a sentence of more than
    1,024 words is read in windows of at most that length.

    Args:
        sentences: Lists of tokens, or strings, which the model's tokenizer splits.
        model: A loaded model with its softmax, or a path or name as for `elmokit.load`.
        state: Initial state of a sentence: "zeros", "warm", or "carry", where sentence i starts from the final state of
            sentence i - `batch_size`.
        batch_size: Number of rows with carried state; otherwise it has no effect.
        device: Device to compute on; None: that of a loaded model, else a GPU if there is one.
        tokenize: Split strings with the model's tokenizer; else at white space.

    Returns:
        A score for each sentence; with a model that merges the directions, a `MaskedScore`.

    Raises:
        ValueError: The model has no softmax, vocabulary, or state of this kind, an argument is invalid, or `sentences`
            is a single string, or has something other than sentences.
    """
    if isinstance(sentences, str):
        raise ValueError("score takes a list of sentences, not a single string: write score([text])")
    pretrained = resolve_language_model(model, device)
    tokenized = [words_of(pretrained, sentence, tokenize) for sentence in sentences]
    return cast(list[SentenceScore] | list[MaskedScore], list(scores(pretrained, tokenized, state, batch_size)))
