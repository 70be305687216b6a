"""Sequence tagging: named entities, chunks, parts of speech (Lample et al. 2016; Peters et al.
2018, section 4).

A bidirectional LSTM reads the word vectors and scores the tags of each word; a conditional random
field on top scores whole sequences if tags mark spans. Internally, spans are tagged as BIOES,
regardless of the scheme of the files.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from elmokit.data import TaggedFile, TaggedSentence, is_table, write_table
from elmokit.fs import COLUMNS, TABLES, suffixes_of, write_lines
from elmokit.nn import CRF
from elmokit.settings import Count, DropoutRate
from elmokit.tasks import ColumnsConfig
from elmokit.tasks.fitting.task import (
    BatchOfWords,
    F1Score,
    Task,
    TaskNetwork,
    TaskScores,
    Use,
    accuracy,
    tag_ids,
    words_of,
)
from elmokit.tasks.fitting.words import BiLSTM, WordBatch, WordEncoder, Words
from elmokit.text import word_offsets

# --- Spans in tag sequences: IOB1, IOB2, BIOES, BMES ----------------------------------------------

Tags = Sequence[str]
HAN = re.compile("[\u3400-\u9fff]")
SPAN_PREFIXES = ("B", "I", "M", "E", "S")
SPAN_TAG = re.compile("[BIMES]-.")


class Span(NamedTuple):
    """Tokens from `start` to `end` (exclusive), and the type of the span."""

    start: int
    end: int
    type: str


def spans(tags: Tags) -> set[Span]:
    """The spans of a tag sequence, of whatever scheme, as conlleval reads any sequence."""
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


def typed_scores(
    gold: Iterable[Set[Any]], predicted: Iterable[Set[Any]]
) -> tuple[F1Score, dict[str, F1Score]]:
    """Scores over all answers, and over those of each `type`, in alphabetical order.

    Args:
        gold: The correct answers of each example; a predicted one is correct if an equal one is
            among them.
        predicted: The predicted answers of each example.
    """
    counts: dict[str, list[int]] = {}  # numbers of correct, predicted and gold answers
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
    """ValueError for a tag of a scheme other than IOB1, IOB2, BIOES and BMES, or of none."""
    for tag in tags:
        if tag != "O" and tag.partition("-")[0] not in SPAN_PREFIXES:
            raise ValueError(
                f"the tag {tag!r} is not read beside tags of spans: mark these as in B-PER, by "
                f"IOB1, IOB2, BIOES or BMES, and other words by O"
            )


def span_scheme(sequences: Iterable[Tags]) -> str | None:
    """The scheme of tags that mark spans: "BIOES", "BMES", or "IOB2" also for IOB1; None: others.

    Tags mark spans if one of them is B-, I-, M-, E- or S- and a type. Without a type they do where
    there are no others but O: the type of the spans is "" then.

    Raises:
        ValueError: Some tags mark spans, and others are not O.
    """
    tags = Counter(chain.from_iterable(sequences))
    del tags["O"]
    have_no_type = {"B"} <= tags.keys() <= set(SPAN_PREFIXES)
    if not have_no_type and not any(SPAN_TAG.match(tag) for tag in tags):
        return None
    check_scheme(tags)
    # The majority decides, so that a few odd tags do not change the scheme of a file.
    prefixes = Counter(tag[0] for tag in tags.elements())
    marks_ends = 2 * (prefixes["E"] + prefixes["S"]) > prefixes["B"] + prefixes["S"]
    if prefixes["M"] > prefixes["I"]:
        return "BMES"
    return "BIOES" if marks_ends else "IOB2"


def type_of(tag: str) -> str:
    """The type of the span that a tag marks; the tag itself if it has none."""
    return tag.partition("-")[2] or tag


def to_bioes(tags: Tags) -> list[str]:
    """The same spans as BIOES tags; spans are read as conlleval does, of whatever scheme."""
    return from_spans(spans(tags), len(tags), "BIOES")


def from_spans(spans_to_tag: Iterable[Span], length: int, scheme: str) -> list[str]:
    """The tags, "IOB2", "BIOES" or "BMES", of `length` words from spans that do not overlap."""
    tags = ["O"] * length
    for span in spans_to_tag:
        prefixes = ["M" if scheme == "BMES" else "I"] * (span.end - span.start)
        prefixes[0] = "B"
        if scheme != "IOB2":
            prefixes[-1] = "E" if len(prefixes) > 1 else "S"
        ending = f"-{span.type}" if span.type else ""
        tags[span.start : span.end] = [prefix + ending for prefix in prefixes]
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
    """Score tag sequences (crf) or each tag (softmax); auto: crf if tags mark spans."""
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
    """A tagged sentence: a tag and its probability for each word, and the spans."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    scores: tuple[float, ...]
    spans: tuple[ScoredSpan, ...] = ()


class TaggingBatch(NamedTuple):
    """Sentences and their tags."""

    words: WordBatch
    tags: Tensor  # (B, T) int64; -1 for one that the training set lacks


class TaggingNetwork(TaskNetwork):
    """Word vectors -> BiLSTM -> scores of K tags -> CRF or softmax."""

    def __init__(
        self, config: TaggingConfig, words: WordEncoder, num_tags: int, crf: CRF | None
    ) -> None:
        super().__init__(words)
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

    def decode(self, batch: TaggingBatch) -> list[tuple[list[int], list[float]]]:
        """For each sentence the indices of its best tags, and their probabilities."""
        scores, mask = self(batch), batch.words.mask
        if self.crf is None:
            tags, marginals = scores.argmax(dim=2), scores.softmax(dim=2)
        else:
            tags, marginals = self.crf.decode(scores, mask), self.crf.marginals(scores, mask)
        chosen = marginals.gather(2, tags[..., None]).squeeze(2)
        rows = zip(tags.tolist(), chosen.tolist(), batch.words.lengths.tolist(), strict=True)
        return [(row[:length], probabilities[:length]) for row, probabilities, length in rows]


class TaggingTask(Task[TaggedSentence, Tagging]):
    """A tag for each word; the score is the F1 of spans if tags mark spans, otherwise accuracy.

    Files have one word a line, with blank lines between sentences: columns, the last one of tags,
    or CoNLL-U. JSON lines and Parquet have a sentence in each row, with columns of lists.
    """

    name = "tagging"
    formats = (*TABLES, *COLUMNS)
    Config = TaggingConfig
    config: TaggingConfig

    # --- Examples ---------------------------------------------------------------------------------

    def read(self, path: Path, use: Use = "score") -> Iterator[TaggedSentence]:
        return self.file(path, use != "predict").sentences()

    def file(self, path: Path, with_tags: bool = False) -> TaggedFile:
        """A file with the columns that the settings name."""
        config = self.config
        return TaggedFile.of(path, config.format, config.word_column, config.tag_column, with_tags)

    def columns(self, path: Path | None) -> Sequence[Sequence[str]]:
        if path is not None and (suffixes_of(path).kind == ".tsv" or not is_table(path)):
            return ()  # .tsv, too, is one word a line
        return [self.config.column], [self.config.label_column]

    def make_example(self, inputs: str | Words, answer: Sequence[str] | None = None) -> Any:
        """From a string, which is tokenized, or a list of words; and their tags."""
        text = inputs if isinstance(inputs, str) else None
        tags = () if answer is None else tuple(answer)
        return TaggedSentence(words_of(inputs, self.tokenizer), tags, text)

    def check(self, example: TaggedSentence) -> None:
        if len(example.words) != len(example.tags):
            raise ValueError(
                f"{len(example.words)} words and {len(example.tags)} tags: give one tag for each "
                f"word"
            )
        if not all(isinstance(tag, str) for tag in example.tags):
            raise ValueError(
                f"the tags {example.tags!r:.60} are no strings: give their names, not numbers"
            )
        if self.labels.get("scheme"):
            check_scheme(example.tags)

    def learn(self, examples: Sequence[TaggedSentence]) -> dict[str, Any]:
        scheme = span_scheme(example.tags for example in examples)
        tags = (to_bioes(example.tags) if scheme else example.tags for example in examples)
        labels = {"tags": sorted({tag for sentence in tags for tag in sentence}), "scheme": scheme}
        # Text is split as the examples are: corpora of Chinese often tag each character.
        chinese = filter(HAN.search, chain.from_iterable(example.words for example in examples))
        if max(map(len, chinese), default=0) == 1:
            labels["tokenizer"] = "characters-1"
        return labels

    # --- The network ------------------------------------------------------------------------------

    def network(self, words: WordEncoder) -> TaggingNetwork:
        tags, marks_spans = self.labels["tags"], self.labels["scheme"] is not None
        crf = None
        if self.config.decoder == "crf" or (self.config.decoder == "auto" and marks_spans):
            crf = CRF.of_spans(tags) if marks_spans else CRF(len(tags))
        return TaggingNetwork(self.config, words, len(tags), crf)

    def collate(self, examples: Sequence[TaggedSentence], words: BatchOfWords) -> TaggingBatch:
        batch = words([example.words for example in examples])
        tags = [example.tags for example in examples]
        if self.labels["scheme"]:
            tags = [to_bioes(sentence) for sentence in tags]
        return TaggingBatch(batch, tag_ids(tags, self.labels["tags"], batch.mask))

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
                marks = sorted(spans(tags))
                tags = from_spans(marks, len(tags), scheme)
                text = " ".join(example.words) if example.text is None else example.text
                offsets = marks and word_offsets(text, example.words)
                for span in marks:
                    begin, end = offsets[span.start][0], offsets[span.end - 1][1]
                    lowest = min(scores[span.start : span.end])
                    marked.append(ScoredSpan(*span, lowest, text[begin:end], begin, end))
            taggings.append(Tagging(example.words, tuple(tags), tuple(scores), tuple(marked)))
        return taggings

    def score(
        self, examples: Sequence[TaggedSentence], predictions: Sequence[Tagging]
    ) -> TaskScores:
        """F1 of spans, and of each type of span, if tags mark spans; else accuracy, F1 of each tag.

        The confusion is that of words by their tags, or by the types of their spans.
        """
        gold = [example.tags for example in examples]
        predicted = [prediction.tags for prediction in predictions]
        if not self.labels["scheme"]:
            gold, predicted = list(chain.from_iterable(gold)), list(chain.from_iterable(predicted))
            right = accuracy(gold, predicted)
            values = {"score": right, "accuracy": right}
            return TaskScores.of_labels(values, gold, predicted, self.labels["tags"])
        total, by_type = span_scores(gold, predicted)
        # In the scheme in which seqeval and conlleval count correctly tagged words: those of the
        # two may differ.
        in_iob2 = (
            [from_spans(spans(tags), len(tags), "IOB2") for tags in side]
            for side in (gold, predicted)
        )
        right = accuracy(*(list(chain.from_iterable(side)) for side in in_iob2))
        values = {"score": total.f1, "f1": total.f1}
        values |= {"precision": total.precision, "recall": total.recall, "accuracy": right}
        scores = TaskScores.of_labels(
            values,
            [type_of(tag) for tags in gold for tag in tags],
            [type_of(tag) for tags in predicted for tag in tags],
            {*map(type_of, self.labels["tags"])},
        )
        return replace(scores, by_label=by_type)

    def to_json(self, prediction: Tagging) -> dict[str, Any]:
        values = super().to_json(prediction)
        if not self.labels["scheme"]:
            del values["spans"]
        return values

    def write(
        self,
        predictions: Iterable[Tagging],
        output: Path,
        file: Path | None,
        overwrite: bool = False,
        inputs: Iterable[Mapping[str, Any]] | None = None,
    ) -> None:
        """Write JSON lines (.jsonl), a table with a row for each word (.csv, .parquet), a copy of
        `file` with the tags, or words and tags.
        """
        kind = suffixes_of(output).kind
        if kind == ".jsonl":
            super().write(predictions, output, file, overwrite)
        elif kind in (".csv", ".parquet"):
            numbered = enumerate(predictions, start=1)
            rows = (
                {"sentence": number, "position": position, "word": word, "tag": tag}
                for number, tagging in numbered
                for position, (word, tag) in enumerate(
                    zip(tagging.words, tagging.tags, strict=True), start=1
                )
            )
            write_table(output, rows, overwrite)
        elif file is None:
            to_text = self.file(output).format
            sentences = (to_text(tagging.words, tagging.tags) for tagging in predictions)
            write_lines(output, sentences, overwrite)
        else:
            tags = (prediction.tags for prediction in predictions)
            self.file(file).write_predictions(tags, output, overwrite)
