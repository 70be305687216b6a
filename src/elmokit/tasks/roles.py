"""Semantic roles: who did what to whom, by interleaved highway LSTMs (He et al. 2017, "Deep
semantic role labeling").

An example is a sentence and one of its predicates; the network reads word vectors with an indicator
of the predicate, and tags each word with BIO tags of roles. Decoding allows valid BIO sequences
only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elmokit.fs import read_lines
from elmokit.nn import CRF
from elmokit.settings import Count, CountOrZero, DropoutRate, check
from elmokit.tasks import DEFAULT_FIT, FitConfig
from elmokit.tasks.fitting.task import (
    BatchOfWords,
    Task,
    TaskNetwork,
    TaskScores,
    Use,
    parts_of,
    tag_ids,
    words_of,
)
from elmokit.tasks.fitting.words import WordBatch, WordEncoder, Words
from elmokit.tasks.tagging import from_spans, spans, typed_scores

VERB = "V"  # the predicate's own span, which no score counts
DOCUMENT_MARKS = ("#begin document", "#end document")
# "(ARG0*", "*", "*)", "(V*)"; CoNLL-2004 closes "*A0)".
ROLE_CELL = re.compile(r"(\([^()*]+)?\*([^()*]*\))?")
CONTINUED = "C-"  # the prefix of the role of a later phrase of a discontinuous argument
VERB_TYPES = frozenset({VERB, CONTINUED + VERB})


@dataclass(frozen=True)
class RolesConfig:
    """The network for semantic roles, and the columns of its files."""

    hidden_dim: Count = 200
    """Width of the LSTMs; directions alternate from layer to layer."""
    num_layers: Count = 4
    """LSTM layers."""
    dropout: DropoutRate = 0.1
    """Dropout on the output of each layer, with one mask for all steps of a sentence."""
    predicate_dim: Count = 100
    """Width of the vector that indicates the predicate."""
    word_column: CountOrZero = 3
    """Column of the words, from 0."""
    predicate_column: CountOrZero = 7
    """Column of the predicates' senses, which has "-" for other words."""
    role_column: CountOrZero = 8
    """First column of roles, one for each predicate of the sentence, in order: 8 in PropBank's
    releases, 11 in CoNLL-2012, whose last column, of coreference, is not read.
    """

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True)
class PredicateFrame:
    """A sentence, one of its predicates, and BIO tags of its arguments if they are known."""

    words: tuple[str, ...]
    predicate: int
    tags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.predicate < len(self.words):
            raise ValueError(
                f"there is no word {self.predicate} in a sentence of {len(self.words)} words, "
                f"counted from 0"
            )


@dataclass(frozen=True)
class Argument:
    """The words `start : end`, and their role."""

    start: int
    end: int
    role: str


@dataclass(frozen=True)
class Frame:
    """A predicate with its arguments."""

    words: tuple[str, ...]
    predicate: int
    arguments: tuple[Argument, ...]
    tags: tuple[str, ...]


class RolesBatch(NamedTuple):
    """Sentences, each with one of its predicates."""

    words: WordBatch
    predicate: Tensor  # (B, T) int64; 1 at the predicate, else 0
    tags: Tensor  # (B, T) int64; -1 for one that the training set lacks


class HighwayLSTM(nn.Module):
    """One layer in one direction, with a highway connection (Srivastava et al. 2015).

    (B, T, I) -> (B, T, H): r * h + (1 - r) * (W x), with the gate r computed from x and h. He et
    al. put the gate inside the recurrence; outside of it PyTorch's fused LSTM computes the steps,
    many times as fast on a CPU.
    """

    def __init__(self, input_dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(input_dim, hidden_dim, batch_first=True)
        self.gate = nn.Linear(input_dim + hidden_dim, hidden_dim)
        self.carry = nn.Linear(input_dim, hidden_dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        hidden, _ = self.lstm(x)
        gate = torch.sigmoid(self.gate(torch.cat([x, hidden], dim=2)))
        return gate * hidden + (1 - gate) * self.carry(x)


def reversed_words(x: Tensor, mask: Tensor) -> Tensor:
    """Reverse each sentence, but not its padding: (B, T, I) -> (B, T, I)."""
    steps = torch.arange(x.shape[1], device=x.device)
    lengths = mask.sum(1, keepdim=True)
    order = torch.where(steps < lengths, lengths - 1 - steps, steps)
    return x.gather(1, order[..., None].expand_as(x))


class RolesNetwork(TaskNetwork):
    """Word vectors and predicate -> highway LSTMs of alternating direction -> tags."""

    def __init__(self, config: RolesConfig, words: WordEncoder, tags: Sequence[str]) -> None:
        super().__init__(words)
        self.dropout = nn.Dropout(config.dropout)
        self.predicate = nn.Embedding(2, config.predicate_dim)
        widths = [words.dim + config.predicate_dim] + config.num_layers * [config.hidden_dim]
        self.layers = nn.ModuleList(map(HighwayLSTM, widths, widths[1:]))
        self.output = nn.Linear(config.hidden_dim + words.output_dim, len(tags))
        # Only constrains decoding: its scores are zero.
        self.rules = CRF.of_spans(tags)
        for parameter in self.rules.parameters():
            parameter.requires_grad_(False).zero_()

    def forward(self, batch: RolesBatch) -> Tensor:
        """Scores of every tag at every word, (B, T, K)."""
        encoded = self.words(batch.words)
        x = torch.cat([encoded.vectors, self.predicate(batch.predicate)], dim=2)
        for number, layer in enumerate(self.layers):
            backward = number % 2 == 1
            x = reversed_words(x, encoded.mask) if backward else x
            x = layer(x)
            # One dropout mask for all steps (Gal and Ghahramani 2016).
            x = x * self.dropout(torch.ones_like(x[:, :1]))
            x = reversed_words(x, encoded.mask) if backward else x
        return self.output(encoded.join(x))

    def loss(self, batch: RolesBatch) -> Tensor:
        """Mean negative log-likelihood of the correct tags, per word."""
        mask = batch.words.mask
        return F.cross_entropy(self(batch)[mask], batch.tags[mask], ignore_index=-1)

    def decode(self, batch: RolesBatch) -> list[list[int]]:
        """For each example the best valid BIO sequence."""
        tags = self.rules.decode(self(batch).log_softmax(dim=2), batch.words.mask).tolist()
        return [
            row[:length] for row, length in zip(tags, batch.words.lengths.tolist(), strict=True)
        ]


def _bio(cells: Sequence[str]) -> tuple[str, ...]:
    """A column of brackets, "(ARG0*", "*", "*)", as BIO tags. ValueError if they do not match."""
    tags, role = [], ""
    for cell in cells:
        opens, closes = cell.startswith("("), cell.endswith(")")
        if not ROLE_CELL.fullmatch(cell) or (opens and role) or (closes and not (opens or role)):
            raise ValueError(
                f"{cell!r} is no role in brackets, '(ARG0*', '*' or '*)', or overlaps another one"
            )
        if opens:
            role = cell[1:].split("*")[0]
        tags.append(f"{'B' if opens else 'I'}-{role}" if role else "O")
        if closes:
            role = ""
    if role:
        raise ValueError(f"the span of {role} is never closed")
    return tuple(tags)


class RolesTask(Task[PredicateFrame, Frame]):
    """The arguments of a predicate. Files have PropBank's columns, with bracketed roles."""

    name = "roles"
    Config = RolesConfig
    fit_config = FitConfig(
        max_epochs=25, batch_size=48, learning_rate=1e-3, max_grad_norm=1.0
    ).over(DEFAULT_FIT)
    config: RolesConfig

    # --- Examples ---------------------------------------------------------------------------------

    def read(self, path: Path, use: Use = "score") -> Iterator[PredicateFrame]:
        rows: list[list[str]] = []
        for number, line in enumerate(chain(read_lines(path), [""]), start=1):
            if line.strip() and not line.startswith(DOCUMENT_MARKS):
                rows.append(line.split())
            elif rows := self._without_comments(rows):
                try:
                    yield from self._frames(rows, use != "predict")
                except ValueError as error:
                    raise ValueError(
                        f"{path}, sentence that ends in line {number}: {error}"
                    ) from error
                rows = []

    def _without_comments(self, rows: list[list[str]]) -> list[list[str]]:
        """Drop comments; keep a full-width row whose word is "#"."""
        widths: set[int] = set()
        if self.config.word_column == 0:
            widths = {len(row) for row in rows if not row[0].startswith("#")}
        return [row for row in rows if not row[0].startswith("#") or len(row) in widths]

    def _frames(self, rows: list[list[str]], with_answers: bool) -> Iterator[PredicateFrame]:
        config = self.config
        width, last = len(rows[0]), max(config.word_column, config.predicate_column)
        if any(len(row) != width for row in rows) or width <= last:
            raise ValueError(f"its lines must have equally many columns, at least {last + 1}")
        words = tuple(row[config.word_column] for row in rows)
        predicates = [
            position for position, row in enumerate(rows) if row[config.predicate_column] != "-"
        ]
        columns = width - config.role_column
        if columns == len(predicates) + 1 and not any("*" in row[-1] for row in rows):
            columns -= 1  # the last one holds coreference
        if with_answers and columns != len(predicates):
            raise ValueError(
                f"{len(predicates)} predicates, but {max(columns, 0)} columns of roles; is "
                f"{config.role_column} the first one, counted from 0 (role_column)?"
            )
        for column, predicate in enumerate(predicates, start=config.role_column):
            tags = _bio([row[column] for row in rows]) if with_answers else ()
            yield PredicateFrame(words, predicate, tags)

    def make_example(self, inputs: tuple[str | Words, int], answer: Any = None) -> PredicateFrame:
        """From a sentence, a string, which is tokenized, or words; and the predicate's position."""
        sentence, predicate = parts_of(inputs)
        return PredicateFrame(words_of(sentence, self.tokenizer), predicate, tuple(answer or ()))

    def check(self, example: PredicateFrame) -> None:
        tags = list(example.tags)
        if len(example.words) != len(tags) or from_spans(spans(tags), len(tags), "IOB2") != tags:
            raise ValueError(
                "give a tag for each word: B-ROLE at the first word of a role, then I-ROLE; O "
                "elsewhere"
            )

    def learn(self, examples: Sequence[PredicateFrame]) -> dict[str, Any]:
        return {"tags": sorted({tag for example in examples for tag in example.tags} | {"O"})}

    # --- The network ------------------------------------------------------------------------------

    def network(self, words: WordEncoder) -> RolesNetwork:
        return RolesNetwork(self.config, words, self.labels["tags"])

    def collate(self, examples: Sequence[PredicateFrame], words: BatchOfWords) -> RolesBatch:
        batch = words([example.words for example in examples])
        predicate = torch.zeros(batch.mask.shape, dtype=torch.int64)
        for row, example in zip(predicate, examples, strict=True):
            row[example.predicate] = 1
        tags = tag_ids((example.tags for example in examples), self.labels["tags"], batch.mask)
        return RolesBatch(batch, predicate, tags)

    # --- Answers ----------------------------------------------------------------------------------

    def predictions(
        self, examples: Sequence[PredicateFrame], decoded: Sequence[Any]
    ) -> list[Frame]:
        frames = []
        for example, numbers in zip(examples, decoded, strict=True):
            tags = tuple(self.labels["tags"][number] for number in numbers or ())
            arguments = tuple(
                Argument(*span) for span in sorted(spans(tags)) if span.type not in VERB_TYPES
            )
            frames.append(Frame(example.words, example.predicate, arguments, tags))
        return frames

    def score(self, examples: Sequence[PredicateFrame], predictions: Sequence[Frame]) -> TaskScores:
        """Scores of arguments as CoNLL-2005's srl-eval.pl counts them: role and phrases agree."""
        gold = [scored_arguments(example.tags) for example in examples]
        total, by_role = typed_scores(gold, [scored_arguments(frame.tags) for frame in predictions])
        values = {"f1": total.f1, "precision": total.precision, "recall": total.recall}
        return TaskScores(values, by_role)


class ScoredArgument(NamedTuple):
    """An argument as it is scored: its role, and (start, end) of each phrase, usually one."""

    type: str
    phrases: tuple[tuple[int, int], ...]


def scored_arguments(tags: Sequence[str]) -> set[ScoredArgument]:
    """The arguments of a frame without the predicate itself, as srl-eval.pl reads them.

    A span C-A1 continues the last argument A1, with which it makes one discontinuous argument;
    without an A1 before it, it begins one.
    """
    arguments: list[tuple[str, list[tuple[int, int]]]] = []
    latest: dict[str, list[tuple[int, int]]] = {}  # the phrases of the last argument of each role
    for start, end, name in sorted(spans(tags)):
        role = name.removeprefix(CONTINUED)
        if role == name or role not in latest:
            latest[role] = []
            arguments.append((role, latest[role]))
        latest[role].append((start, end))
    return {ScoredArgument(role, tuple(phrases)) for role, phrases in arguments if role != VERB}
