"""Text classification: sentiment, topic, question type, subjectivity (Peters et al. 2018, section
4, "SST-5").

Two networks: the biattentive classification network (McCann et al. 2017, section 5) with the same
text as both of its inputs; and a pooled baseline: a linear layer on the mean and the maximum of the
words' vectors.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise, starmap
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elmokit.data import COLUMN_NAMES, TABLES
from elmokit.fs import read_rows, suffixes_of
from elmokit.settings import Count, DropoutRate, check
from elmokit.tasks.config import FitConfig
from elmokit.tasks.fitting.task import (
    BatchOfWords,
    Confusion,
    Task,
    TaskNetwork,
    check_label,
    confusion_counts,
    label_numbers,
    label_of,
    most_probable,
    words_of,
)
from elmokit.tasks.fitting.words import (
    BiLSTM,
    WordBatch,
    WordEncoder,
    Words,
    masked_max,
    masked_mean,
    masked_softmax,
)

TREE_TOKEN = re.compile(r"\(|\)|[^\s()]+")
OTHER_FORMATS = (".conllu", *TABLES)  # tables are read by `fit`, and what predicts
FASTTEXT = "__label__"
LINES_LOOKED_AT = 100  # of a file to predict, to see whether its lines begin with labels


@dataclass(frozen=True)
class ClassificationConfig:
    """The network of a text classifier."""

    network: Literal["biattentive", "pooled"] = "biattentive"
    """biattentive: McCann et al. 2017; pooled: a linear layer on the mean and maximum of the words'
    vectors.
    """
    encoder_dim: Count = 200
    """Width of the BiLSTM that reads the words, in each direction (biattentive)."""
    integrator_dim: Count = 200
    """Width of the BiLSTM that reads words and attention contexts, in each direction
    (biattentive).
    """
    maxout_dim: Count = 200
    """Width of the maxout layers (biattentive)."""
    dropout: DropoutRate = 0.4
    """Dropout of the input of each layer."""
    lowercase: bool = False
    """Read the texts in lower case."""
    phrases: bool = True
    """Train on every labelled phrase of files of trees (Stanford Sentiment Treebank), not on whole
    sentences only. Development and test sets are always whole sentences.
    """
    balanced: bool = False
    """Weight the loss of a text by the inverse frequency of its label, so that rare labels count as
    much as others.
    """
    column: str = "text"
    """Column of the texts in tables, which are raw: the tokenizer of the model splits them."""
    label_column: str = "label"
    """Column of the labels in tables."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True)
class LabelledText:
    """The words of a text, its label if it is known, and whether it is a phrase of the text before
    it.
    """

    words: tuple[str, ...]
    label: str | None = None
    is_phrase: bool = False


@dataclass(frozen=True)
class Classification:
    """The most probable label of a text, and the probabilities of all labels."""

    words: tuple[str, ...]
    label: str
    scores: dict[str, float]


def labelled_phrases(tree: str) -> list[LabelledText]:
    """The phrases of a tree "(3 (2 It) (4 (2 's) (4 good)))", the whole sentence first, each with
    its label.

    Raises:
        ValueError: The brackets do not form one tree, or a phrase has no label or no words.
    """
    words: list[str] = []
    phrases: list[
        tuple[int, str, int, int]
    ] = []  # position of the opening bracket, label, first word, end
    opened: list[tuple[int, str, int]] = []
    tokens = TREE_TOKEN.findall(tree)
    for position, token in enumerate(tokens):
        if token == "(" and (opened or not phrases):
            opened.append(
                (position, tokens[position + 1] if position + 1 < len(tokens) else "", len(words))
            )
        elif (
            token == ")"
            and opened
            and opened[-1][1] not in ("(", ")")
            and opened[-1][2] < len(words)
        ):
            phrases.append((*opened.pop(), len(words)))
        elif token not in ("(", ")") and opened:
            if tokens[position - 1] != "(":  # after an opening bracket it is a label
                words.append(token)
        else:
            break
    else:
        if not opened:
            in_order = enumerate(sorted(phrases))
            return [
                LabelledText(tuple(words[a:b]), label, place > 0)
                for place, (_, label, a, b) in in_order
            ]
    raise ValueError("the brackets do not form one tree, or one of them has no label or no words")


class ClassificationBatch(NamedTuple):
    """Texts and the indices of their labels, (B,) int64: -1 for a label that the training set
    lacks.
    """

    words: WordBatch
    labels: Tensor


class TextClassifier(TaskNetwork):
    """A network that scores the labels of texts; a subclass has its `forward`: batch -> (B, K)."""

    def __init__(
        self, config: ClassificationConfig, words: WordEncoder, label_weights: Tensor
    ) -> None:
        super().__init__()
        self.register_buffer("label_weights", label_weights, persistent=False)
        self.words = words
        self.dropout = nn.Dropout(config.dropout)

    def loss(self, batch: ClassificationBatch) -> Tensor:
        """Mean negative log-likelihood of the correct labels, weighted by label."""
        return F.cross_entropy(
            self(batch), batch.labels, self.get_buffer("label_weights"), ignore_index=-1
        )

    def decode(
        self, batch: ClassificationBatch, with_probabilities: bool = True
    ) -> list[list[float]]:
        """For each text the probabilities of the labels."""
        return self(batch).softmax(dim=1).tolist()


class PooledNetwork(TextClassifier):
    """The mean and the maximum of the words' vectors -> a linear layer."""

    def __init__(
        self, config: ClassificationConfig, words: WordEncoder, label_weights: Tensor
    ) -> None:
        super().__init__(config, words, label_weights)
        self.output = nn.Linear(2 * (words.dim + words.output_dim), len(label_weights))

    def forward(self, batch: ClassificationBatch) -> Tensor:
        """Scores of the labels, (B, K)."""
        encoded = self.words(batch.words)
        x = encoded.join(encoded.vectors)
        pooled = torch.cat([masked_mean(x, encoded.mask), masked_max(x, encoded.mask)], dim=1)
        return self.output(self.dropout(pooled))


class Maxout(nn.Module):
    """The maximum of several linear layers (Goodfellow et al. 2013): (B, I) -> (B, O)."""

    def __init__(self, input_dim: int, output_dim: int, pool_size: int = 4) -> None:
        super().__init__()
        self.linear = nn.Linear(input_dim, pool_size * output_dim)
        self.shape = (output_dim, pool_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).unflatten(1, self.shape).amax(2)


class BiattentiveNetwork(TextClassifier):
    """The biattentive classification network: encode, attend to itself, integrate, pool,
    classify.
    """

    def __init__(
        self, config: ClassificationConfig, words: WordEncoder, label_weights: Tensor
    ) -> None:
        super().__init__(config, words, label_weights)
        self.reduce = nn.Linear(words.dim, config.encoder_dim)
        self.encoder = BiLSTM(config.encoder_dim, config.encoder_dim)
        self.integrator = BiLSTM(3 * self.encoder.output_dim, config.integrator_dim)
        integrated = self.integrator.output_dim + words.output_dim
        self.attention = nn.Linear(integrated, 1)
        widths = [4 * integrated, config.maxout_dim, config.maxout_dim]
        self.maxouts = nn.ModuleList(starmap(Maxout, pairwise(widths)))
        self.output = nn.Linear(config.maxout_dim, len(label_weights))

    def forward(self, batch: ClassificationBatch) -> Tensor:
        """Scores of the labels, (B, K)."""
        encoded = self.words(batch.words)
        mask = encoded.mask
        x = self.encoder(F.relu(self.reduce(encoded.vectors)), mask)
        attention = masked_softmax(
            x @ x.transpose(1, 2), mask[:, None, :]
        )  # (B, T, T), rows sum to 1
        context = attention @ x
        hidden = self.integrator(
            self.dropout(torch.cat([x, x - context, x * context], dim=2)), mask
        )
        hidden = encoded.join(hidden)
        weights = masked_softmax(self.attention(self.dropout(hidden)).squeeze(2), mask)
        attended = (weights[..., None] * hidden).sum(1)
        minimum = -masked_max(-hidden, mask)
        features = torch.cat(
            [attended, masked_mean(hidden, mask), masked_max(hidden, mask), minimum], dim=1
        )
        for maxout in self.maxouts:
            features = maxout(self.dropout(features))
        return self.output(self.dropout(features))


class ClassificationTask(Task[LabelledText, Classification]):
    """A label for a text. Files are tables, or have one text per line, with spaces between its
    words.

    A line begins with the label, as in "positive A fine film .", or is a tree of the Stanford
    Sentiment Treebank, as in "(3 (2 It) (4 works))". If the first line has a tab, a tab separates
    label and text in every line.
    """

    name = "classification"
    metric = "accuracy"
    Config = ClassificationConfig
    tables = TABLES
    fit_config = FitConfig(max_epochs=15, learning_rate=1e-3)
    config: ClassificationConfig

    def __init__(
        self, config: ClassificationConfig | None = None, labels: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(config, labels)
        if self.config.network == "biattentive":
            self.max_words = 5_000  # attention takes memory that grows with the square

    # --- Examples ---------------------------------------------------------------------------------

    def read(self, path: Path, with_answers: bool = True) -> Iterator[LabelledText]:
        """Stream the texts of a file; of a file of trees, the whole sentences."""
        if not with_answers:
            # If several lines begin with the same word, it takes the place of unknown labels.
            first_words = [
                str(example.label) for example in islice(self._texts(path), LINES_LOOKED_AT)
            ]
            labels = set(first_words)
            if (len(labels) > 1 or len(first_words) == 1) and not labels & set(
                self.labels.get("labels", labels)
            ):
                raise ValueError(
                    f"{path} should have a label and a text in each line, but no line begins with "
                    "a label of the model; predict raw text with --text (text=True in Python)"
                )
        return self._texts(path, with_answers)

    def read_training(self, path: Path) -> Iterator[LabelledText]:
        """Read the texts of a training set; of a file of trees, all phrases if `config.phrases`."""
        return self._texts(path, phrases=self.config.phrases)

    def _texts(
        self, path: Path, with_answers: bool = True, phrases: bool = False
    ) -> Iterator[LabelledText]:
        if (kind := suffixes_of(path).kind) in OTHER_FORMATS:
            raise ValueError(
                f'{path} should have lines "LABEL TEXT", not the format of {kind} files: convert '
                f"it first"
            )
        lines = (
            (number, line.strip())
            for number, line in enumerate(read_rows(path), start=1)
            if line.strip()
        )
        separator = None  # any white space
        for place, (number, line) in enumerate(lines):
            if place == 0 and "\t" in line:
                separator = "\t"
            try:
                if line.startswith("("):
                    texts = labelled_phrases(line)[: None if phrases else 1]
                else:
                    label, text = line.split(separator, maxsplit=1)
                    if label.startswith(FASTTEXT) and text.lstrip().startswith(FASTTEXT):
                        raise ValueError("it has several labels")
                    if (
                        place == 0
                        and separator
                        and {label.strip().lower(), text.strip().lower()} <= COLUMN_NAMES
                    ):
                        raise ValueError("it has names of columns: remove it")
                    texts = [LabelledText(tuple(text.split()), label.rstrip())]
            except ValueError as error:
                between = (
                    "a tab between label and text, as in the first line,"
                    if separator
                    else '"LABEL TEXT"'
                )
                raise ValueError(
                    f"{path}, line {number}: expected {between} or a tree of labels: {error}"
                ) from error
            for each in texts:
                words = (
                    tuple(word.lower() for word in each.words)
                    if self.config.lowercase
                    else each.words
                )
                yield replace(each, words=words, label=each.label if with_answers else None)

    def from_text(self, text: str | Words, tokenize: Callable[[str], list[str]]) -> LabelledText:
        """From a string, which is tokenized, or a list of words."""
        words = words_of(text, tokenize)
        return LabelledText(
            tuple(word.lower() for word in words) if self.config.lowercase else words
        )

    @property
    def columns(self) -> Sequence[Sequence[str]]:
        return [self.config.column], [self.config.label_column]

    def from_values(
        self, values: Sequence[Any], tokenize: Callable[[str], list[str]]
    ) -> LabelledText:
        """From a text, as in `from_text`, and its label."""
        text, label = values
        return replace(self.from_text(text, tokenize), label=label_of(label))

    def sentences(self, example: LabelledText) -> Iterable[Words]:
        return (example.words,)

    def counted_sentences(self, examples: Iterable[LabelledText]) -> Iterator[Words]:
        """Of trees only the whole sentences: a word would count once more for each phrase that
        contains it.
        """
        return (example.words for example in examples if not example.is_phrase)

    def check(self, example: LabelledText) -> None:
        check_label(example.label)

    def learn(self, examples: Sequence[LabelledText]) -> dict[str, Any]:
        counts = Counter(example.label for example in examples if example.label is not None)
        if 2 * len(counts) > len(examples) > 20:
            raise ValueError(
                f"most examples have a label of their own, such as {min(counts)!r:.60}: is it the "
                f"text?"
            )
        return {"labels": sorted(counts), "counts": [counts[label] for label in sorted(counts)]}

    # --- The network ------------------------------------------------------------------------------

    def network(self, words: WordEncoder) -> TextClassifier:
        network = BiattentiveNetwork if self.config.network == "biattentive" else PooledNetwork
        weights = torch.ones(len(self.labels["labels"]))
        if self.config.balanced:
            counts = torch.tensor(self.labels["counts"], dtype=torch.float32)
            weights = counts.sum() / (len(counts) * counts)
        return network(self.config, words, weights)

    def collate(self, examples: Sequence[LabelledText], words: BatchOfWords) -> ClassificationBatch:
        labels = label_numbers((example.label for example in examples), self.labels["labels"])
        return ClassificationBatch(words([example.words for example in examples]), labels)

    # --- Answers ----------------------------------------------------------------------------------

    def predictions(
        self, examples: Sequence[LabelledText], decoded: Sequence[Any]
    ) -> list[Classification]:
        answers = most_probable(self.labels["labels"], decoded)
        return [
            Classification(example.words, *answer)
            for example, answer in zip(examples, answers, strict=True)
        ]

    def score(
        self, examples: Sequence[LabelledText], predictions: Sequence[Classification]
    ) -> dict[str, float]:
        correct = [
            example.label == prediction.label
            for example, prediction in zip(examples, predictions, strict=True)
        ]
        return {"accuracy": sum(correct) / max(len(correct), 1)}

    def confusion(
        self, examples: Sequence[LabelledText], predictions: Sequence[Classification]
    ) -> Confusion:
        return confusion_counts(
            (example.label or "" for example in examples), (each.label for each in predictions)
        )

    def to_json(self, prediction: Classification) -> dict[str, Any]:
        return {"words": prediction.words, "label": prediction.label, "scores": prediction.scores}
