"""Log-probabilities of the words of sentences.

The forward direction predicts a word from the words before it, the backward direction from the
words after it; a model that merges the directions predicts it from both, with the word hidden.
Probabilities are those of the full softmax, and words outside the vocabulary are scored as <UNK>.
Logarithms are natural (nats) except where bits are mentioned.
"""

from __future__ import annotations

import io
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import tee
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

import numpy as np

from elmokit.checkpoints import ModelSource, Pretrained
from elmokit.data import file_tokenizers, line_tokenizer, read_texts
from elmokit.fs import atomic_path, check_output, create_bytes
from elmokit.lm.losses import log_losses, parts_of, resolve_language_model
from elmokit.lm.measures import Measure, Perplexity, PseudoPerplexity, warn_of_unknown
from elmokit.progress import ProgressBar
from elmokit.runtime import check_list
from elmokit.settings import StatePolicy
from elmokit.text import Sentence, word_offsets

BIT = np.float32(math.log(2))  # in nats
Unit: TypeAlias = Literal["token", "word", "region"]  # of a row of a table


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


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class _Score(ABC):
    """What the scores of both kinds of models share."""

    words: tuple[str, ...]
    is_unknown: np.ndarray
    truncated: int = 0
    text: str | None = None

    @property
    def unknown(self) -> int:
        """Number of words scored as <UNK>."""
        return int(self.is_unknown.sum())

    def __repr__(self) -> str:
        """A line for each word, with its surprisal in each direction."""
        rows = zip(self.words, np.atleast_2d(self.surprisal).T.tolist(), strict=True)
        return "\n".join(
            f"{'  '.join(f'{bits:6.2f}' for bits in surprisal)}  {word}" for word, surprisal in rows
        )

    @property
    @abstractmethod
    def surprisal(self) -> np.ndarray:
        """Surprisal -log2 p of the words in bits. Where `is_unknown` is True, it is the surprisal
        of <UNK>.
        """

    @property
    def offsets(self) -> tuple[tuple[int, int], ...]:
        """The start and end of each word in characters of the text that was given, or of the words
        joined by spaces.

        A word that the tokenizer changed has length 0.
        """
        return word_offsets(self.words if self.text is None else self.text, self.words)

    def numbers(self, places: Sequence[tuple[int, int]]) -> np.ndarray:
        """The number of the place in which each word begins, (T,); -1 for a word outside of all."""
        starts, ends = np.array(self.offsets, dtype=np.int64).reshape(-1, 2).T
        starts = starts - (starts == ends)  # a word that does not occur belongs to the one before
        numbers = np.searchsorted([start for start, _ in places], starts, side="right") - 1
        return np.where(starts < np.array([*(end for _, end in places), 0])[numbers], numbers, -1)

    def parts(self, parts: Sequence[str] | None = None) -> list[TextSurprisal]:
        """Surprisal of the words of the text that was given, which white space separates; or of
        other parts of it.

        Args:
            parts: Parts of the text, in its order, such as the regions of a reading experiment.

        Raises:
            ValueError: A part does not follow the one before in the text.
        """
        text = " ".join(self.words) if self.text is None else self.text
        parts = text.split() if parts is None else parts
        places = word_offsets(text, ["".join(part.split()) for part in parts])
        for part, (start, end) in zip(parts, places, strict=True):
            if start == end and part.strip():
                raise ValueError(f"{part!r} does not follow the part before it in the text")
        numbers, surprisal = self.numbers(places), np.atleast_2d(self.surprisal)
        sums, unknown = (
            np.zeros((len(parts) + 1, len(surprisal))),
            np.zeros(len(parts) + 1, dtype=np.int64),
        )
        np.add.at(sums, numbers, surprisal.T)  # the last row is that of words outside of all parts
        np.add.at(unknown, numbers, self.is_unknown)
        rows = zip(places, sums.tolist(), unknown.tolist(), strict=False)
        return [
            TextSurprisal(text[start:end], start, end, tuple(bits), count)
            for (start, end), bits, count in rows
        ]


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class SentenceScore(_Score):
    """Log-probabilities of a sentence of T words.

    Attributes:
        words: The words.
        forward: Log-probabilities in nats of the words and then </S>, each given the words before
            it, (T+1,) float32.
        backward: Log-probabilities in nats of <S> and then the words, each given the words after
            it, (T+1,) float32.
        is_unknown: Whether each word is scored as <UNK>, (T,) bool.
        truncated: Number of words with more characters than the model reads.
        text: The sentence that was given; None: it was given as words.
    """

    forward: np.ndarray
    backward: np.ndarray

    @property
    def log_probabilities(self) -> dict[str, np.ndarray]:
        """Of each direction, by its name."""
        return {"forward": self.forward, "backward": self.backward}

    @property
    def surprisal(self) -> np.ndarray:
        """Surprisal -log2 p of the words in bits, given the words before and given the words after,
        (2, T) float32.

        Boundaries are left out. Where `is_unknown` is True, it is the surprisal of <UNK>.
        """
        return -np.stack([self.forward[:-1], self.backward[1:]]) / BIT

    @property
    def perplexity(self) -> Perplexity:
        """Perplexity of the sentence, including the boundary, as defined in
        `elmokit.lm.measures`.
        """
        losses = -np.stack([self.forward, self.backward]).sum(axis=1, dtype=np.float64)
        return Perplexity.of(
            losses, len(self.forward), sentences=1, unknown=self.unknown, truncated=self.truncated
        )

    measure = perplexity


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class MaskedScore(_Score):
    """Log-probabilities of a sentence of T words under a model that merges the two directions.

    Attributes:
        words: The words.
        masked: Log-probabilities in nats of the words, each given all others of its sentence, or of
            its window of at most 1,024 words, (T,) float32.
        is_unknown: Whether each word is scored as <UNK>, (T,) bool.
        truncated: Number of words with more characters than the model reads.
        text: The sentence that was given; None: it was given as words.
    """

    masked: np.ndarray

    @property
    def log_probabilities(self) -> dict[str, np.ndarray]:
        """Of the words, under the name "masked"."""
        return {"masked": self.masked}

    @property
    def surprisal(self) -> np.ndarray:
        """Surprisal -log2 p of the words in bits, each given all others, (T,) float32."""
        return -self.masked / BIT

    @property
    def pseudo_perplexity(self) -> PseudoPerplexity:
        """Pseudo-perplexity of the sentence, as defined in `elmokit.lm.measures`."""
        losses = -self.masked.sum(keepdims=True, dtype=np.float64)
        return PseudoPerplexity.of(
            losses, len(self.words), sentences=1, unknown=self.unknown, truncated=self.truncated
        )

    measure = pseudo_perplexity


Score: TypeAlias = SentenceScore | MaskedScore


def words_of(model: Pretrained, sentence: Sentence, tokenize: bool = True) -> Sequence[str]:
    """The words of a sentence: a string is split by the model's tokenizer, or at white space; see
    `line_tokenizer`.
    """
    if isinstance(sentence, str):
        return line_tokenizer(model.tokenizer, tokenize).split(sentence)
    return list(sentence)


def _directions(model: Pretrained) -> tuple[str, ...]:
    """The names of the log-probabilities of a word."""
    return (
        ("masked",) if model.config.sequence_encoder.merges_directions else ("forward", "backward")
    )


def scores(
    model: Pretrained,
    sentences: Iterable[Sequence[str]],
    state: str,
    batch_size: int,
    check: Callable[[], None] | None = None,
    batch_words: int | None = None,
) -> Iterator[Score]:
    """Yield the score of each tokenized sentence, batch by batch; arguments as in `log_losses`."""
    bilm, _, vocab = parts_of(model)
    merged = model.config.sequence_encoder.merges_directions
    kind = cast(Callable[..., Score], MaskedScore if merged else SentenceScore)
    directions = _directions(model)
    for batch, targets, losses in log_losses(
        model, sentences, state, batch_size, check, batch_words
    ):
        ends = np.cumsum([len(sentence) + (not merged) for sentence in batch])[:-1]
        log_p = np.split(-losses.cpu().numpy(), ends, axis=1)
        unknown = np.split((targets[0] == vocab.unk).numpy(), ends)
        for sentence, of_sentence, is_unknown in zip(batch, log_p, unknown, strict=True):
            truncated = bilm.token_encoder.count_truncated(sentence)
            # The last target of the forward direction is </S>.
            known = {
                "words": tuple(sentence),
                "is_unknown": is_unknown[: len(sentence)],
                "truncated": truncated,
            }
            yield kind(**known, **dict(zip(directions, of_sentence, strict=True)))


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

    Returns:
        A score for each sentence; with a model that merges the directions, a `MaskedScore`.

    Raises:
        ValueError: The model has no softmax, vocabulary, or state of this kind, an argument is
            invalid, or `sentences` is a single string, or a table.
    """
    check_list(sentences)
    sentences, pretrained = list(sentences), resolve_language_model(model, device)
    tokenized = [words_of(pretrained, sentence, tokenize) for sentence in sentences]
    scored = zip(sentences, scores(pretrained, tokenized, state, batch_size), strict=True)
    result = [replace(each, text=text) if isinstance(text, str) else each for text, each in scored]
    return cast(list[SentenceScore] | list[MaskedScore], result)


# --- Files ----------------------------------------------------------------------------------------


def perplexity_fields(score: Score) -> dict[str, Any]:
    """The measure of a sentence, as files and the server have it."""
    measure = score.measure
    if isinstance(measure, PseudoPerplexity):
        return {"pseudo_perplexity": measure.value}
    return {
        "perplexity": {name: getattr(measure, name) for name in ("forward", "backward", "mean")}
    }


def _to_json(number: int, score: Score, bits: bool) -> str:
    unit, scale = ("bits", BIT) if bits else ("nats", np.float32(1))
    log_p = {name: (values / scale).tolist() for name, values in score.log_probabilities.items()}
    values = {
        "line": number,
        **perplexity_fields(score),
        "unknown": score.unknown,
        "unit": unit,
        "words": score.words,
    }
    return json.dumps(values | {"offsets": score.offsets} | log_p, ensure_ascii=False) + "\n"


def _to_tsv(line: int, score: Score, bits: bool, per: Unit, regions: Sequence[str] | None) -> str:
    parts, scale = score.parts(regions), 1 if bits else BIT
    rows = [
        (" ".join(part.text.split()), part.start, part.end, part.bits, part.unknown)
        for part in parts
    ]
    if per == "token":
        numbers = score.numbers([(part.start, part.end) for part in parts]) + 1
        tokens = (
            score.words,
            score.offsets,
            numbers,
            np.atleast_2d(score.surprisal).T,
            score.is_unknown,
        )
        rows = [
            (word, *place, number, values, unk)
            for word, place, number, values, unk in zip(*tokens, strict=True)
        ]
    cells = (
        (line, position, *row, *(f"{value * scale:.6f}" for value in values), int(unknown))
        for position, (*row, values, unknown) in enumerate(rows, start=1)
    )
    return "".join("\t".join(map(str, row)) + "\n" for row in cells)


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
    per: Unit = "token",
    overwrite: bool = False,
    column: str | None = None,
) -> Measure:
    """Score the sentences of a text file or a table, and write the scores as JSON lines or as a
    table.

    Args:
        file: Text (plain, .gz or .zst) with one sentence per line, or a table, as for `embed_file`;
            lines and rows without words are skipped.
        output: File for the scores (also .gz or .zst). By default JSON lines, one object per
            sentence with the number of its line or row from 1, perplexity, number of unknown words,
            unit, words, offsets, and log-probabilities as in `SentenceScore`; of a model that
            merges the directions pseudo-perplexity, and those of `MaskedScore`.
        model: A loaded model, or a path or name as for `elmokit.load`; the bundled English model by
            default.
        state: As in `score`.
        batch_size: As in `score`.
        device: As in `score`.
        tokenize: Split raw lines with the model's tokenizer; else, and for text of `elmokit
            prepare`, at white space.
        tsv: Write a table instead, separated by tabs without quotes: the line number, the position
            from 1, the word, its first character in the line, from 0, and the one after its last,
            the number from 1 of the word between white space that it belongs to, its surprisal -log
            p given the words before and given the words after (of a model that merges the
            directions: given all others), and 1 if it is unknown, else 0. An unknown word has the
            surprisal of <UNK>. Boundaries are in the context of the words, and have no rows.
        per: The rows of the table: the words as the model reads them ("token"), or, also without
            `tsv`, with their surprisals added up, the words between white space ("word"), or the
            regions of each line, which | separates ("region"; the model does not read the |). The
            last column then counts unknown words.
        bits: Use logarithms to base 2.
        overwrite: Replace an output that exists.
        column: The column of a table with the sentences; None: "text".

    Returns:
        The perplexity of the whole file, or where directions are merged its pseudo-perplexity.

    Raises:
        ValueError: The file has no sentence, the output is the file, or the model has no softmax or
            vocabulary.
        FileNotFoundError: The file or the model does not exist.
        FileExistsError: The output exists, or appears meanwhile, and `overwrite` is not set.
    """
    check_output(output, [file], overwrite=overwrite)
    tsv = tsv or per != "token"
    pretrained = resolve_language_model(model, device)
    parts_of(pretrained)
    read_lines_of = partial(read_texts, column=column)
    (tokenizer,) = file_tokenizers([Path(file)], pretrained.tokenizer, tokenize, read=read_lines_of)

    def read() -> Iterator[tuple[int, str, list[str] | None, list[str]]]:
        for number, line in enumerate(read_lines_of(Path(file)), start=1):
            text, regions = (
                (line.replace("|", " "), line.split("|")) if per == "region" else (line, None)
            )
            if words := tokenizer.tokenize(text):
                yield number, text, regions, words

    lines, again = tee(read())
    surprisals = [f"{context}_{'bits' if bits else 'nats'}" for context in _directions(pretrained)]
    columns = ["line", "position", per if per == "region" else "word", "start", "end"]
    columns += ["text_word"] * (per == "token")
    total: Measure | None = None
    with (
        atomic_path(output, overwrite) as path,
        io.TextIOWrapper(create_bytes(path), encoding="utf-8", newline="\n") as stream,
    ):
        stream.write("\t".join((*columns, *surprisals, "unknown")) + "\n" if tsv else "")
        scored = scores(pretrained, (words for *_, words in again), state, batch_size)
        for (number, text, regions, _), each in ProgressBar(
            zip(lines, scored, strict=True), "score", unit=" sentences"
        ):
            score = replace(each, text=text)
            stream.write(
                _to_tsv(number, score, bits, per, regions) if tsv else _to_json(number, score, bits)
            )
            total = score.measure if total is None else total + score.measure
        if total is None:
            raise ValueError(f"{file} has no sentence to score")
    warn_of_unknown(total.unknown_share, file, measure=total.measure)
    return total
