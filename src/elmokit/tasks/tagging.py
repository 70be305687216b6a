"""Sequence tagging: named entities, chunks, parts of speech (Lample et al. 2016; Peters et al.
2018, section 4).

A bidirectional LSTM reads the word vectors and scores the tags of each word; a conditional random
field on top scores whole sequences if tags mark spans. Internally, spans are tagged as BIOES,
regardless of the scheme of the files.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from math import nan
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from elmokit.data import (
    CSV,
    JSON_LINES,
    PARQUET,
    Layout,
    TaggedSentence,
    conllu_lines,
    read_tagged,
    write_predictions,
)
from elmokit.fs import suffixes_of
from elmokit.nn import CRF, span_transitions
from elmokit.settings import Count, DropoutRate
from elmokit.tasks.config import ColumnsConfig
from elmokit.tasks.fitting.task import (
    BatchOfWords,
    Confusion,
    F1Score,
    Task,
    TaskNetwork,
    confusion_counts,
    tag_numbers,
    words_of,
    write_lines,
)
from elmokit.tasks.fitting.words import BiLSTM, WordBatch, WordEncoder, Words
from elmokit.text import word_offsets

# --- Spans in tag sequences: IOB1, IOB2, BIOES ----------------------------------------------------

Tags = Sequence[str]
SPAN_PREFIXES = ("B", "I", "E", "S")
FOREIGN_SPAN_TAG = re.compile(
    r"[LUM]-.|[BIESLUM]_.|[bieslum][-_]."
)  # of BILOU and BMES; B_PER, b-per
NEARLY_ALL = 0.9  # if at least this share of tags marks spans, the others are taken for mistakes


class Span(NamedTuple):
    """Tokens from `start` to `end` (exclusive), and the type of the span."""

    start: int
    end: int
    type: str


def spans(tags: Tags) -> set[Span]:
    """The spans of a tag sequence as conlleval reads it: IOB1, IOB2 or BIOES, even if
    inconsistent.
    """
    result = set()
    start, previous, previous_type = 0, "O", ""
    for position, tag in enumerate([*tags, "O"]):
        prefix, _, type = tag.partition("-")
        other = type != previous_type
        if previous != "O" and (previous in ("E", "S") or prefix in ("O", "B", "S") or other):
            result.add(Span(start, position, previous_type))
        if prefix != "O" and (previous in ("O", "E", "S") or prefix in ("B", "S") or other):
            start = position
        previous, previous_type = prefix, type
    return result


# --- Scores ---------------------------------------------------------------------------------------


def accuracy(gold: Iterable[Tags], predicted: Iterable[Tags]) -> float:
    """Fraction of tokens with the correct tag over all sentences, from 0 to 1; 0 if there are no
    tokens.
    """
    pairs = (zip(*tags, strict=True) for tags in zip(gold, predicted, strict=True))
    correct = [left == right for left, right in chain.from_iterable(pairs)]
    return sum(correct) / max(len(correct), 1)


def typed_scores(
    gold: Iterable[Set[Any]], predicted: Iterable[Set[Any]]
) -> tuple[F1Score, dict[str, F1Score]]:
    """Scores over all answers, and over those of each `type`, in alphabetical order.

    Args:
        gold: The correct answers of each example; a predicted one is correct if an equal one is
            among them.
        predicted: The predicted answers of each example.
    """
    counts: dict[str, list[int]] = {}  # of correct, predicted and gold answers
    for of_gold, of_predicted in zip(gold, predicted, strict=True):
        for column, answers in enumerate((of_gold & of_predicted, of_predicted, of_gold)):
            for answer in answers:
                counts.setdefault(answer.type, [0, 0, 0])[column] += 1
    total = F1Score.from_counts(
        *(sum(row[column] for row in counts.values()) for column in range(3))
    )
    return total, {type: F1Score.from_counts(*row) for type, row in sorted(counts.items())}


def span_scores(
    gold: Iterable[Tags], predicted: Iterable[Tags]
) -> tuple[F1Score, dict[str, F1Score]]:
    """`typed_scores` of the spans of all sentences; correct: start, end and type agree."""
    return typed_scores(map(spans, gold), map(spans, predicted))


# --- Schemes --------------------------------------------------------------------------------------


def check_scheme(tags: Iterable[str]) -> None:
    """ValueError for a tag of a scheme other than IOB1, IOB2 and BIOES, or of none."""
    if others := [tag for tag in tags if tag != "O" and tag.partition("-")[0] not in SPAN_PREFIXES]:
        raise ValueError(
            f"the tag {others[0]!r} is not read: mark spans as in B-PER, by IOB1, IOB2 or BIOES, "
            f"others by O"
        )


def span_scheme(sequences: Iterable[Tags]) -> str | None:
    """The scheme of tags that mark spans, "IOB1", "IOB2" or "BIOES"; None for other tags, such as
    parts of speech.

    Tags without a type (B, I, E and S), where there are no others but O, mark spans whose type is
    "".

    Raises:
        ValueError: Nearly all tags mark spans, or all but one of them do, and the others are not O.
    """
    sequences = list(sequences)
    tags = Counter(chain.from_iterable(sequences))
    del tags["O"]
    have_no_type = {"B"} <= tags.keys() <= set(SPAN_PREFIXES)
    marking = {
        tag
        for tag in tags
        if tag.partition("-")[0] in SPAN_PREFIXES and (tag.partition("-")[2] or have_no_type)
    }
    like_spans = sum(
        count for tag, count in tags.items() if tag in marking or FOREIGN_SPAN_TAG.match(tag)
    )
    others = tags.keys() - marking
    is_outside = len(others) == 1 and not others <= {
        *SPAN_PREFIXES
    }  # another way to write O, such as 0 or _
    if not like_spans or (like_spans < NEARLY_ALL * tags.total() and not (marking and is_outside)):
        return None
    check_scheme(others)
    # The majority decides, so that a few odd tags do not change the scheme of a file.
    prefixes = Counter(tag[0] for tag in tags.elements())
    if 2 * (prefixes["E"] + prefixes["S"]) > prefixes["B"] + prefixes["S"]:
        return "BIOES"
    # Only after a span of the same type must IOB1 mark a beginning; IOB2 and BIOES mark all of
    # them.
    pairs = chain.from_iterable(pairwise(["O", *sequence]) for sequence in sequences)
    begins = Counter(
        tag[0] for previous, tag in pairs if previous == "O" or previous[1:] != tag[1:]
    )
    return "IOB1" if begins["I"] > begins["B"] else "IOB2"


def _tag(prefix: str, type: str) -> str:
    return f"{prefix}-{type}" if type else prefix


def to_bioes(tags: Tags) -> list[str]:
    """The same spans as BIOES tags; spans are read as conlleval does, from IOB1, IOB2 or BIOES."""
    return from_spans(spans(tags), len(tags), "BIOES")


def from_spans(spans_to_tag: Iterable[Span], length: int, scheme: str) -> list[str]:
    """The tags of a sentence of `length` words from spans that do not overlap, in "IOB1", "IOB2" or
    "BIOES".
    """
    tags = ["O"] * length
    previous = Span(-1, -1, "")
    for span in sorted(spans_to_tag):
        prefixes = ["I"] * (span.end - span.start)
        if scheme != "IOB1" or (previous.end == span.start and previous.type == span.type):
            prefixes[0] = "B"
        if scheme == "BIOES":
            prefixes[-1] = "E" if len(prefixes) > 1 else "S"
        tags[span.start : span.end] = [_tag(prefix, span.type) for prefix in prefixes]
        previous = span
    return tags


# --- The tagger -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class TaggingConfig(ColumnsConfig):
    """The network of a tagger, and the columns of its files."""

    hidden_dim: Count = 200
    """Width of the LSTM in each direction."""
    num_layers: Count = 1
    """LSTM layers."""
    dropout: DropoutRate = 0.5
    """Dropout of the LSTM's output, and between its layers."""
    decoder: Literal["auto", "crf", "softmax"] = "auto"
    """Score whole tag sequences (crf) or each tag by itself (softmax); auto: crf if the tags mark
    spans.
    """
    column: str = "words"
    """Column of the words in tables (.csv, .jsonl, .parquet): lists of words, or texts."""
    label_column: str = "tags"
    """Column of the tags in tables: lists of as many tags."""


@dataclass(frozen=True)
class ScoredSpan:
    """A span: the words `start : end`, their type, and the lowest probability of a tag in it.

    In characters it is `start_char : end_char` of the text that was given, or of the words joined
    by spaces.
    """

    start: int
    end: int
    type: str
    score: float
    text: str
    start_char: int
    end_char: int


@dataclass(frozen=True)
class Tagging:
    """A tagged sentence: a tag and its probability for each word, and the spans that the tags
    mark.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...]
    scores: tuple[float, ...]
    spans: tuple[ScoredSpan, ...] = ()


class TaggingBatch(NamedTuple):
    """Sentences and the indices of their tags, (B, T) int64: -1 for a tag that the training set
    lacks.
    """

    words: WordBatch
    tags: Tensor


class TaggingNetwork(TaskNetwork):
    """Word vectors -> BiLSTM -> scores of K tags -> CRF or softmax."""

    def __init__(
        self, config: TaggingConfig, words: WordEncoder, num_tags: int, crf: CRF | None
    ) -> None:
        super().__init__()
        self.words = words
        self.lstm = BiLSTM(words.dim, config.hidden_dim, config.num_layers, config.dropout)
        self.dropout = nn.Dropout(config.dropout)
        self.output = nn.Linear(self.lstm.output_dim + words.output_dim, num_tags)
        self.crf = crf

    def forward(self, batch: TaggingBatch) -> Tensor:
        """Scores of every tag at every word, (B, T, K)."""
        encoded = self.words(batch.words)
        hidden = self.dropout(self.lstm(encoded.vectors, encoded.mask))
        return self.output(encoded.join(hidden))

    def loss(self, batch: TaggingBatch) -> Tensor:
        """Mean negative log-likelihood of the correct tags, per word. A CRF must know them all."""
        scores, mask = self(batch), batch.words.mask
        if self.crf is None:
            return F.cross_entropy(scores[mask], batch.tags[mask], ignore_index=-1)
        return -self.crf.log_likelihood(scores, batch.tags, mask).sum() / mask.sum()

    def decode(
        self, batch: TaggingBatch, with_probabilities: bool = True
    ) -> list[tuple[list[int], list[float]]]:
        """For each sentence the indices of its best tags, and if asked for their probabilities."""
        scores, mask = self(batch), batch.words.mask
        tags = scores.argmax(dim=2) if self.crf is None else self.crf.decode(scores, mask)
        chosen: list[list[float]] = [[]] * len(tags)
        if with_probabilities:
            marginals = (
                scores.softmax(dim=2) if self.crf is None else self.crf.marginals(scores, mask)
            )
            chosen = marginals.gather(2, tags[..., None]).squeeze(2).tolist()
        rows = zip(tags.tolist(), chosen, batch.words.lengths.tolist(), strict=True)
        return [(row[:length], probabilities[:length]) for row, probabilities, length in rows]


class TaggingTask(Task[TaggedSentence, Tagging]):
    """A tag for each word; the score is the F1 of spans if tags mark spans, otherwise accuracy.

    Files have one word a line, with blank lines between sentences: columns, the last one of tags,
    or CoNLL-U. JSON lines and Parquet have a sentence in each row, with columns of lists.
    """

    name = "tagging"
    metric = "score"
    Config = TaggingConfig
    tables = (CSV, *JSON_LINES, PARQUET)  # files of columns are .tsv, too
    config: TaggingConfig

    # --- Examples ---------------------------------------------------------------------------------

    def read(self, path: Path, with_answers: bool = True) -> Iterator[TaggedSentence]:
        return read_tagged(path, self.layout(path, with_answers), with_answers)

    def layout(self, path: Path, with_tags: bool) -> Layout:
        """The layout of a file; `with_tags`: whether its tags are read."""
        config = self.config
        return Layout.of(path, config.format, config.word_column, config.tag_column, with_tags)

    def from_text(self, text: str | Words, tokenize: Callable[[str], list[str]]) -> TaggedSentence:
        """From a string, which is tokenized, or a list of words."""
        return TaggedSentence(
            words_of(text, tokenize), text=text if isinstance(text, str) else None
        )

    @property
    def columns(self) -> Sequence[Sequence[str]]:
        return [self.config.column], [self.config.label_column]

    def from_values(
        self, values: Sequence[Any], tokenize: Callable[[str], list[str]]
    ) -> TaggedSentence:
        """From the words, as in `from_text`, and their tags."""
        words, tags = values
        return replace(self.from_text(words, tokenize), tags=tuple(() if tags is None else tags))

    def sentences(self, example: TaggedSentence) -> Iterable[Words]:
        return (example.words,)

    def check(self, example: TaggedSentence) -> None:
        if len(example.words) != len(example.tags):
            raise ValueError(
                f"{len(example.words)} words and {len(example.tags)} tags: give one tag for each "
                f"word"
            )
        if others := [tag for tag in example.tags if not isinstance(tag, str)]:
            raise ValueError(
                f"the tag {others[0]!r} is no string: give the names of tags, not their numbers"
            )
        if self.labels.get("scheme"):
            check_scheme(example.tags)

    def learn(self, examples: Sequence[TaggedSentence]) -> dict[str, Any]:
        scheme = span_scheme(example.tags for example in examples)
        tags = (to_bioes(example.tags) if scheme else example.tags for example in examples)
        return {"tags": sorted({tag for sentence in tags for tag in sentence}), "scheme": scheme}

    # --- The network ------------------------------------------------------------------------------

    def network(self, words: WordEncoder) -> TaggingNetwork:
        tags, marks_spans = self.labels["tags"], self.labels["scheme"] is not None
        crf = None
        if self.config.decoder == "crf" or (self.config.decoder == "auto" and marks_spans):
            crf = CRF(len(tags), span_transitions(tags) if marks_spans else None)
        return TaggingNetwork(self.config, words, len(tags), crf)

    def collate(self, examples: Sequence[TaggedSentence], words: BatchOfWords) -> TaggingBatch:
        batch = words([example.words for example in examples])
        tags = (
            to_bioes(example.tags) if self.labels["scheme"] else example.tags
            for example in examples
        )
        return TaggingBatch(batch, tag_numbers(tags, self.labels["tags"], batch.mask))

    # --- Answers ----------------------------------------------------------------------------------

    def predictions(
        self, examples: Sequence[TaggedSentence], decoded: Sequence[Any]
    ) -> list[Tagging]:
        taggings = []
        for example, answer in zip(examples, decoded, strict=True):
            numbers, scores = answer or ([], [])
            tags = [self.labels["tags"][number] for number in numbers]
            marked: list[ScoredSpan] = []
            if scheme := self.labels["scheme"]:
                of_tags = sorted(spans(tags))
                tags = from_spans(of_tags, len(tags), scheme)
                text = " ".join(example.words) if example.text is None else example.text
                offsets = of_tags and word_offsets(text, example.words)
                for span in of_tags:
                    begin, end = offsets[span.start][0], offsets[span.end - 1][1]
                    lowest = min(scores[span.start : span.end], default=nan)
                    marked.append(ScoredSpan(*span, lowest, text[begin:end], begin, end))
            taggings.append(Tagging(example.words, tuple(tags), tuple(scores), tuple(marked)))
        return taggings

    def score(
        self, examples: Sequence[TaggedSentence], predictions: Sequence[Tagging]
    ) -> dict[str, float]:
        gold, predicted = (
            [example.tags for example in examples],
            [prediction.tags for prediction in predictions],
        )
        if not self.labels["scheme"]:
            right = accuracy(gold, predicted)
            return {"score": right, "accuracy": right}
        # In the scheme in which seqeval and conlleval count correctly tagged words: those of the
        # two may differ.
        in_iob2 = (
            (from_spans(spans(tags), len(tags), "IOB2") for tags in each)
            for each in (gold, predicted)
        )
        total, _ = span_scores(gold, predicted)
        of_spans = {"f1": total.f1, "precision": total.precision, "recall": total.recall}
        return {"score": total.f1, **of_spans, "accuracy": accuracy(*in_iob2)}

    def score_by_label(
        self, examples: Sequence[TaggedSentence], predictions: Sequence[Tagging]
    ) -> dict[str, F1Score] | None:
        """Scores of each type of span if tags mark spans, otherwise of each tag."""
        if not self.labels["scheme"]:
            return super().score_by_label(examples, predictions)
        return span_scores(
            (example.tags for example in examples), (each.tags for each in predictions)
        )[1]

    def confusion(
        self, examples: Sequence[TaggedSentence], predictions: Sequence[Tagging]
    ) -> Confusion:
        """Counts of words by their tags, or if tags mark spans, by the types of the spans."""
        gold, predicted = (
            chain.from_iterable(each.tags for each in tagged) for tagged in (examples, predictions)
        )
        if self.labels["scheme"]:
            gold, predicted = (
                (tag.partition("-")[2] or tag for tag in tags) for tags in (gold, predicted)
            )
        return confusion_counts(gold, predicted)

    def to_json(self, prediction: Tagging) -> dict[str, Any]:
        values: dict[str, Any] = {
            "words": prediction.words,
            "tags": prediction.tags,
            "scores": prediction.scores,
        }
        if self.labels["scheme"]:
            values["spans"] = [vars(span) for span in prediction.spans]
        return values

    def write(
        self,
        predictions: Iterable[Tagging],
        output: Path,
        file: Path | None,
        overwrite: bool = False,
    ) -> None:
        """Write JSON lines to a .jsonl file; else a copy of `file` with the tags, or without `file`
        words and tags.
        """
        if suffixes_of(output).kind == ".jsonl":
            super().write(predictions, output, file, overwrite)
        elif file is None:
            layout = self.layout(output, with_tags=False)
            write_lines(
                (_in_columns(tagging, layout) for tagging in predictions), output, overwrite
            )
        else:
            tags = (prediction.tags for prediction in predictions)
            write_predictions(file, tags, output, self.layout(file, with_tags=False), overwrite)


def _in_columns(tagging: Tagging, layout: Layout) -> str:
    """A sentence in CoNLL-U, or as lines "WORD TAG" and an empty line."""
    if layout.conllu:
        return conllu_lines(tagging.words, tagging.tags, layout.tag_column)
    return (
        "".join(f"{word} {tag}\n" for word, tag in zip(tagging.words, tagging.tags, strict=True))
        + "\n"
    )
