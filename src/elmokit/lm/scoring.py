"""Predictions of the language model: log-probabilities of words, substitutes, and next words.

The forward direction predicts a word from the words before it, the backward direction from the words after it; a model
that merges the directions predicts it from both, with the word hidden. Probabilities are those of the full softmax, and
words outside the vocabulary are scored as <UNK>. Logarithms are natural (nats) except where bits are mentioned.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor

from elmokit.checkpoints.loading import ModelSource
from elmokit.checkpoints.pretrained import Pretrained
from elmokit.config import StatePolicy
from elmokit.data.streams import scoring_batch
from elmokit.data.text_files import file_tokenizers, line_tokenizer
from elmokit.fs.atomic import atomic_path, check_output, create_bytes
from elmokit.fs.reading import read_lines
from elmokit.lm.evaluate import Measure, Perplexity, final_outputs, log_losses, warn_of_unknown
from elmokit.lm.language_model import check_single_start, check_start, parts_of, resolve_language_model
from elmokit.lm.masked import PseudoPerplexity, masked_log_losses, outputs_of_hidden
from elmokit.progress import ProgressBar
from elmokit.text.vocab import is_mark

Sentence = str | Sequence[str]
CHUNK_LOGITS = 1 << 22  # logits of one direction to compute at a time: 16 MB in float32
DIRECTIONS = {"forward": (0,), "backward": (1,), "both": (0, 1)}


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
        return _surprisal(self) / np.float32(math.log(2))

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
        """Perplexity of the sentence, including the boundary, as defined in `elmokit.lm.evaluate`."""
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


def _surprisal(score: Score) -> np.ndarray:
    """Surprisal of the words in nats, (2, T), or (T,) for a `MaskedScore`.

    Position k of `forward` predicts word k, that of `backward` word k - 1.
    """
    if isinstance(score, MaskedScore):
        return -score.masked
    return -np.stack([score.forward[:-1], score.backward[1:]])


@dataclass(frozen=True)
class Candidate:
    """A word of the vocabulary predicted at some position, and its log-probability in nats."""

    word: str
    log_probability: float

    def __str__(self) -> str:
        return f"{self.word} {self.log_probability:.3f}"


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


def _words_of_one(model: Pretrained, sentence: Sentence, tokenize: bool) -> Sequence[str]:
    """`words_of`; ValueError for a list of sentences."""
    words = words_of(model, sentence, tokenize)
    if words and all(" " in word for word in words):
        raise ValueError(f"{words[0][:60]!r} is not a word: give one sentence, as a string or a list of words")
    return words


# --- Scores --------------------------------------------------------------------------------------------------------


def _scores(model: Pretrained, sentences: Iterable[Sequence[str]], state: str, batch_size: int) -> Iterator[Score]:
    bilm, softmax, vocab = parts_of(model)
    check_start(model, state, batch_size)
    if model.config.sequence_encoder.merges_directions:
        for batch, targets, losses in masked_log_losses(bilm, softmax, vocab, sentences):
            ends = np.cumsum([len(sentence) for sentence in batch])[:-1]
            unknown, log_p = np.split((targets == vocab.unk).numpy(), ends), np.split(-losses.cpu().numpy(), ends)
            for sentence, masked, is_unknown in zip(batch, log_p, unknown, strict=True):
                yield MaskedScore(tuple(sentence), masked, is_unknown, bilm.token_encoder.count_truncated(sentence))
        return
    start = model.start(state)
    for batch, targets, losses in log_losses(bilm, softmax, vocab, sentences, state, batch_size, start):
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
            is a single string or has something other than sentences.
    """
    if isinstance(sentences, str):
        raise ValueError("score takes a list of sentences, not a single string: write score([text])")
    pretrained = resolve_language_model(model, device)
    tokenized = [words_of(pretrained, sentence, tokenize) for sentence in sentences]
    return cast(list[SentenceScore] | list[MaskedScore], list(_scores(pretrained, tokenized, state, batch_size)))


# --- Substitutes and next words ------------------------------------------------------------------------------------


@torch.no_grad()
def _outputs(model: Pretrained, words: Sequence[str], state: str) -> Tensor:
    """Inputs of the softmax for a sentence, (2, T+1, D).

    Position k predicts word k forward (</S> at the last position), and word k-1 backward (<S> at the first).
    """
    bilm, softmax, vocab = parts_of(model)
    batch = scoring_batch([words], np.zeros(1, dtype=np.int64), 1, reset=True)
    outputs, _ = final_outputs(bilm, vocab, batch, start=model.start(state))
    return outputs.to(softmax.weight.dtype)


@torch.no_grad()
def _outputs_of_hidden(model: Pretrained, words: Sequence[str], positions: Sequence[int]) -> Tensor:
    """Inputs of the softmax for words of a sentence, each hidden while all others are visible, (1, P, D)."""
    bilm, softmax, vocab = parts_of(model)
    return outputs_of_hidden(bilm, vocab, [words], [positions])[None].to(softmax.weight.dtype)


def _in_both_contexts(forward: Tensor, backward: Tensor) -> Tensor:
    """log p(word | words before, words after) of every word (P, V), from those of the two directions.

    If the two contexts are independent given the word, p is proportional to p(word | before) p(word | after) / p(word);
    without the division, the frequency of the word would count twice, and function words would win. p(word) is taken
    to be proportional to 1 / rank (Zipf), since vocabularies are sorted by descending frequency.
    """
    log_rank = torch.arange(1, forward.shape[1] + 1, device=forward.device).log()
    return (forward + backward + log_rank).log_softmax(dim=1)


@torch.no_grad()
def _best(model: Pretrained, outputs: Tensor, excluded: Sequence[Sequence[int]], top: int) -> list[list[Candidate]]:
    """The most likely words at P positions, except the ids excluded at each, from softmax inputs (1 or 2, P, D)."""
    if top < 1:
        raise ValueError(f"top must be at least 1, not {top}")
    _, softmax, vocab = parts_of(model)
    candidates = []
    for chunk in outputs.split(max(1, CHUNK_LOGITS // len(vocab)), dim=1):
        directions = [torch.addmm(softmax.bias, hidden, softmax.weight.T).log_softmax(dim=1) for hidden in chunk]
        log_p = directions[0] if len(directions) == 1 else _in_both_contexts(*directions)
        if log_p.isnan().any():
            raise ValueError("the model's predictions are NaN: its weights are damaged, or its training diverged")
        for row in log_p:
            row[excluded[len(candidates)]] = -math.inf
            values, ids = row.topk(min(top, len(vocab)))
            named = zip(ids.tolist(), values.tolist(), strict=True)
            candidates.append([Candidate(vocab.words[number], value) for number, value in named if value > -math.inf])
    return candidates


def _directions(direction: str, allowed: Sequence[str]) -> tuple[int, ...]:
    if direction not in allowed:
        raise ValueError(f"direction must be {' or '.join(allowed)}, not {direction!r}")
    return DIRECTIONS[direction]


def substitutes(
    sentence: Sentence,
    model: ModelSource = None,
    *,
    positions: Sequence[int] | None = None,
    top: int = 10,
    direction: str = "both",
    state: StatePolicy = "zeros",
    device: str | None = None,
    tokenize: bool = True,
) -> list[list[Candidate]]:
    """Predict the most likely replacements of words, given their contexts.

    The word itself is not part of its context, and may be among its candidates. <S>, </S> and <UNK> are excluded, and
    for a word with a letter or a digit the words without one, such as commas.

    Args:
        sentence: A list of tokens, or a string, which the model's tokenizer splits.
        model: A loaded model with its softmax, or a path or name as for `elmokit.load`.
        positions: Positions of the words to replace, from 0; all by default.
        top: Number of candidates for each word.
        direction: The context: the words before ("forward"), the words after ("backward"), or "both", where the
            probabilities of the two directions are multiplied, and divided by that of the word without context.
        state: Initial state of the sentence: "zeros" or "warm".
        device: As in `score`.
        tokenize: As in `score`.

    Returns:
        For each position the candidates, the most likely first.

    Raises:
        ValueError: A position is outside the sentence, an argument is invalid (also state="carry": there is no sentence
            before), or the model has no softmax or vocabulary.
    """
    model, directions = resolve_language_model(model, device), _directions(direction, tuple(DIRECTIONS))
    words = _words_of_one(model, sentence, tokenize)
    positions = range(len(words)) if positions is None else positions
    for position in positions:
        if not 0 <= position < len(words):
            raise ValueError(f"there is no word {position} in a sentence of {len(words)} words, counted from 0")
    vocab = parts_of(model)[2]
    check_single_start(model, state)
    if model.config.sequence_encoder.merges_directions:
        if direction != "both":
            raise ValueError(f"this model reads both directions at once: direction must be both, not {direction!r}")
        selected = _outputs_of_hidden(model, words, positions)
    else:
        outputs, indices = _outputs(model, words, state), torch.tensor(positions, dtype=torch.int64, device="cpu")
        selected = torch.stack([outputs[d, indices + d] for d in directions])
    specials = [vocab.bos, vocab.eos, vocab.unk]
    of_word = [*specials, *vocab.marks.tolist()]
    excluded = [specials if is_mark(words[position]) else of_word for position in positions]
    return _best(model, selected, excluded, top)


def next_words(
    sentence: Sentence,
    model: ModelSource = None,
    *,
    top: int = 10,
    direction: str = "forward",
    state: StatePolicy = "zeros",
    device: str | None = None,
    tokenize: bool = True,
) -> list[Candidate]:
    """Predict the next word of an unfinished sentence, or the word before the given words.

    Probabilities are those of the full softmax: </S> (backward <S>) means that the sentence ends (begins) there, <UNK>
    stands for all words outside the vocabulary.

    Args:
        sentence: A list of tokens, or a string, which the model's tokenizer splits.
        model: A loaded model with its softmax, or a path or name as for `elmokit.load`.
        top: Number of candidates.
        direction: "forward" for the word after, "backward" for the word before.
        state: Initial state of the sentence: "zeros" or "warm".
        device: As in `score`.
        tokenize: As in `score`.

    Returns:
        The candidates, the most likely first.

    Raises:
        ValueError: An argument is invalid (also state="carry": there is no sentence before), or the model has no
            softmax or vocabulary.
    """
    model, (d,) = resolve_language_model(model, device), _directions(direction, ("forward", "backward"))
    check_single_start(model, state)
    if model.config.sequence_encoder.merges_directions:
        raise ValueError("this model predicts words from both sides, so it cannot predict a next word: use substitutes")
    outputs = _outputs(model, _words_of_one(model, sentence, tokenize), state)
    end = outputs[d, :1] if d else outputs[d, -1:]
    return _best(model, end[None], [[]], top)[0]


# --- Files ---------------------------------------------------------------------------------------------------------


def _to_json(number: int, score: Score, bits: bool) -> str:
    scale = np.float32(math.log(2)) if bits else np.float32(1)
    if isinstance(score, MaskedScore):
        of_text = {"pseudo_perplexity": score.pseudo_perplexity.value}
        of_words = {"masked": score.masked}
    else:
        of_text = {"perplexity": {name: getattr(score.perplexity, name) for name in ("forward", "backward", "mean")}}
        of_words = {"forward": score.forward, "backward": score.backward}
    values: dict[str, Any] = {
        "line": number,
        **of_text,
        "unknown": score.unknown,
        "unit": "bits" if bits else "nats",
        "words": score.words,
        **{name: (log_p / scale).tolist() for name, log_p in of_words.items()},
    }
    return json.dumps(values, ensure_ascii=False) + "\n"


def _tsv_header(model: Pretrained, bits: bool) -> str:
    contexts = ("masked",) if model.config.sequence_encoder.merges_directions else ("forward", "backward")
    surprisals = [f"{context}_{'bits' if bits else 'nats'}" for context in contexts]
    return "\t".join(("sentence", "position", "word", *surprisals, "unknown")) + "\n"


def _to_tsv(number: int, score: Score, bits: bool) -> str:
    surprisals = np.atleast_2d(score.surprisal if bits else _surprisal(score))
    rows = zip(score.words, surprisals.T, score.is_unknown, strict=True)
    return "".join(
        "\t".join((str(number), str(position), word, *(f"{value:.6f}" for value in of_word), f"{is_unknown:d}")) + "\n"
        for position, (word, of_word, is_unknown) in enumerate(rows, start=1)
    )


def score_file(
    file: str | Path,
    output: str | Path,
    model: ModelSource = None,
    state: str = "zeros",
    batch_size: int = 1,
    device: str | None = None,
    tokenize: bool = True,
    *,
    tsv: bool = False,
    bits: bool = False,
    overwrite: bool = False,
) -> Measure:
    """Score the sentences of a text file, and write the scores as JSON lines or as a table.

    Args:
        file: Text (plain, .gz or .zst) with one sentence per line; blank lines are skipped.
        output: File for the scores (also .gz or .zst). By default JSON lines, one object per sentence with its line
            number from 1, perplexity, number of unknown words, unit, words, and the log-probabilities as in
            `SentenceScore`; of a model that merges the directions pseudo-perplexity, and those of `MaskedScore`.
        model: A loaded model, or a path or name as for `elmokit.load`; the bundled English model by default.
        state: As in `score`.
        batch_size: As in `score`.
        device: As in `score`.
        tokenize: Split raw lines with the model's tokenizer; else, and for text of `elmokit prepare`, at white space.
        tsv: Write a table with a row per word instead, separated by tabs without quotes: the line number, the position
            from 1, the word, its surprisal -log p given the words before and given the words after (of a model that
            merges the directions: given all others), and 1 if it is unknown, else 0. An unknown word has the surprisal
            of <UNK>. Boundaries are in the context of the words, and have no rows.
        bits: Use logarithms to base 2.
        overwrite: Replace an output that exists.

    Returns:
        The perplexity of the whole file, or where directions are merged its pseudo-perplexity.

    Raises:
        ValueError: The file has no sentence, the output is the file, or the model has no softmax or vocabulary.
        FileNotFoundError: The file or the model does not exist.
        FileExistsError: The output exists, or appears meanwhile, and `overwrite` is not set.
    """
    check_output(output, [file], overwrite=overwrite)
    pretrained = resolve_language_model(model, device)
    parts_of(pretrained)
    check_start(pretrained, state, batch_size)
    count = sum(1 for line in read_lines(file) if line.strip())
    if not count:
        raise ValueError(f"{file} has no sentence to score")
    lines = (number for number, line in enumerate(read_lines(file), start=1) if line.strip())
    (tokenizer,) = file_tokenizers([Path(file)], pretrained.tokenizer, tokenize, by_line=True)
    sentences = (tokenizer.tokenize(line) for line in read_lines(file) if line.strip())
    kind = PseudoPerplexity if pretrained.config.sequence_encoder.merges_directions else Perplexity
    losses, predictions, unknown, truncated = np.zeros(()), 0, 0, 0
    with (
        atomic_path(output, overwrite) as path,
        io.TextIOWrapper(create_bytes(path), encoding="utf-8", newline="\n") as stream,
    ):
        stream.write(_tsv_header(pretrained, bits) if tsv else "")
        scores = _scores(pretrained, sentences, state, batch_size)
        for number, score in ProgressBar(zip(lines, scores, strict=True), "score", count):
            stream.write((_to_tsv if tsv else _to_json)(number, score, bits))
            losses = losses + score.losses
            predictions, unknown = predictions + score.predictions, unknown + score.unknown
            truncated += score.truncated
    result = kind.of(losses, count, predictions, unknown, truncated)
    warn_of_unknown(result.unknown_share, file, measure=result.measure)
    return result
