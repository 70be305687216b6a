"""Text classification: sentiment, topic, question type, subjectivity (Peters et al. 2018, section
4, "SST-5").

Two networks: the biattentive classification network (McCann et al. 2017, section 5) with the same
text as both of its inputs; and a pooled baseline: a linear layer on the mean and the maximum of the
words' vectors.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, starmap
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elmokit.data import is_table, show_reading
from elmokit.fs import read_lines
from elmokit.settings import Count, DropoutRate, check
from elmokit.tasks import DEFAULT_FIT, FitConfig
from elmokit.tasks.fitting.task import (
    BatchOfWords,
    Task,
    TaskNetwork,
    TaskScores,
    Use,
    accuracy,
    check_label,
    label_ids,
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

TREE_TOKEN = re.compile(r"\(\s*[^\s()]+|[()]|[^\s()]+")  # a bracket is opened with its label
FASTTEXT = "__label__"


@dataclass(frozen=True)
class ClassificationConfig:
    """The network of a text classifier."""

    network: Literal["biattentive", "pooled"] = "biattentive"
    """biattentive: McCann et al. 2017; pooled: linear, on the mean and maximum of the words."""
    encoder_dim: Count = 200
    """Width of the BiLSTM that reads the words, in each direction (biattentive)."""
    integrator_dim: Count = 200
    """Width of the BiLSTM over words and contexts, in each direction (biattentive)."""
    maxout_dim: Count = 200
    """Width of the maxout layers (biattentive)."""
    dropout: DropoutRate = 0.4
    """Dropout of the input of each layer."""
    lowercase: bool = False
    """Read the texts in lower case."""
    column: str = "text"
    """Column of the texts in tables, which are raw: the tokenizer of the model splits them."""
    label_column: str = "label"
    """Column of the labels in tables."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True)
class LabelledText:
    """A text, its label if it is known, and whether it is a phrase of the text before it."""

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
    """The phrases of a tree "(3 (2 It) (4 (2 's) (4 good)))", the whole sentence first.

    Raises:
        ValueError: The brackets do not form one tree, or a phrase has no label or no words.
    """
    error = ValueError("the brackets are not one tree, or one of them has no label or no words")
    words: list[str] = []
    phrases: list[LabelledText] = []
    opened: list[tuple[int, int, str]] = []  # index, first word and label of an unfinished phrase
    for token in TREE_TOKEN.findall(tree):
        if token[0] == "(" and token != "(" and (opened or not phrases):
            opened.append((len(phrases), len(words), token[1:].strip()))
            phrases.append(LabelledText(()))  # whose words follow
        elif token == ")" and opened:
            index, start, label = opened.pop()
            phrases[index] = LabelledText(tuple(words[start:]), label, is_phrase=index > 0)
        elif token != "(" and opened:
            words.append(token)
        else:
            raise error
    if opened or not all(phrase.words for phrase in phrases):
        raise error
    return phrases


class ClassificationBatch(NamedTuple):
    """Texts and their labels."""

    words: WordBatch
    labels: Tensor  # (B,) int64; -1 for one that the training set lacks


class TextClassifier(TaskNetwork):
    """A network that scores the labels of texts; a subclass has its `forward`: batch -> (B, K)."""

    def __init__(self, config: ClassificationConfig, words: WordEncoder) -> None:
        super().__init__(words)
        self.dropout = nn.Dropout(config.dropout)

    def loss(self, batch: ClassificationBatch) -> Tensor:
        """Mean negative log-likelihood of the correct labels."""
        return F.cross_entropy(self(batch), batch.labels, ignore_index=-1)

    def decode(self, batch: ClassificationBatch) -> list[list[float]]:
        """For each text the probabilities of the labels."""
        return self(batch).softmax(dim=1).tolist()


class PooledNetwork(TextClassifier):
    """The mean and the maximum of the words' vectors -> a linear layer."""

    def __init__(self, config: ClassificationConfig, words: WordEncoder, num_labels: int) -> None:
        super().__init__(config, words)
        self.output = nn.Linear(2 * (words.dim + words.output_dim), num_labels)

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
    """The biattentive classification network: encode, attend, integrate, pool, classify."""

    def __init__(self, config: ClassificationConfig, words: WordEncoder, num_labels: int) -> None:
        super().__init__(config, words)
        self.reduce = nn.Linear(words.dim, config.encoder_dim)
        self.encoder = BiLSTM(config.encoder_dim, config.encoder_dim)
        self.integrator = BiLSTM(3 * self.encoder.output_dim, config.integrator_dim)
        integrated = self.integrator.output_dim + words.output_dim
        self.attention = nn.Linear(integrated, 1)
        widths = [4 * integrated, config.maxout_dim, config.maxout_dim]
        self.maxouts = nn.ModuleList(starmap(Maxout, pairwise(widths)))
        self.output = nn.Linear(config.maxout_dim, num_labels)

    def forward(self, batch: ClassificationBatch) -> Tensor:
        """Scores of the labels, (B, K)."""
        encoded = self.words(batch.words)
        mask = encoded.mask
        x = self.encoder(F.relu(self.reduce(encoded.vectors)), mask)
        similarity = x @ x.transpose(1, 2)  # (B, T, T)
        context = masked_softmax(similarity, mask[:, None, :]) @ x
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
    Config = ClassificationConfig
    fit_config = FitConfig(max_epochs=15, learning_rate=1e-3).over(DEFAULT_FIT)
    config: ClassificationConfig

    def __init__(
        self,
        config: ClassificationConfig | None = None,
        labels: Mapping[str, Any] | None = None,
        tokenizer: str = "english-1",
    ) -> None:
        super().__init__(config, labels, tokenizer)
        if self.config.network == "biattentive":
            self.max_words = 5_000  # attention takes memory that grows with the square

    # --- Examples ---------------------------------------------------------------------------------

    def read(self, path: Path, use: Use = "score") -> Iterator[LabelledText]:
        """Stream the texts of a file; of trees the whole sentences, and phrases to train on."""
        separator = None  # any white space, unless the first line has a tab
        is_first = True
        for number, line in enumerate(read_lines(path), start=1):
            line = line.strip()
            if not line:
                continue
            if is_first and "\t" in line:
                separator = "\t"
            try:
                if line.startswith("("):
                    texts = labelled_phrases(line)[: None if use == "train" else 1]
                else:
                    label, text = line.split(separator, maxsplit=1)
                    if label.startswith(FASTTEXT) and text.lstrip().startswith(FASTTEXT):
                        raise ValueError("it has several labels")
                    texts = [LabelledText(tuple(text.split()), label.rstrip())]
            except ValueError as error:
                expected = "a tab between label and text" if separator else '"LABEL TEXT"'
                raise ValueError(
                    f"{path}, line {number}: expected {expected}, as in the first line, or a tree "
                    f"of labels{', or text alone (--text)' * (use == 'predict')}: {error}"
                ) from error
            if is_first:
                is_first = False
                show_reading(path, texts[0].words, {"label": texts[0].label})
                label, known = texts[0].label, self.labels.get("labels")
                if use == "predict" and known and label not in known:
                    warnings.warn(
                        f"{path}: {label!r} is no label of the model: if the file is text alone, "
                        "read it by --text",
                        stacklevel=2,
                    )
            for text in texts:
                label = None if use == "predict" else text.label
                yield LabelledText(self._words(text.words), label, text.is_phrase)

    def _words(self, text: str | Words) -> tuple[str, ...]:
        words = words_of(text, self.tokenizer)
        return tuple(word.lower() for word in words) if self.config.lowercase else words

    def columns(self, path: Path | None) -> Sequence[Sequence[str]]:
        if path is not None and not is_table(path):
            return ()
        return [self.config.column], [self.config.label_column]

    def make_example(self, inputs: str | Words, answer: Any = None) -> LabelledText:
        """From a string, which is tokenized, or a list of words; and a label."""
        return LabelledText(self._words(inputs), label_of(answer))

    def check(self, example: LabelledText) -> None:
        check_label(example.label)

    def is_counted(self, example: LabelledText) -> bool:
        return not example.is_phrase  # whose sentence is an example, too

    def learn(self, examples: Sequence[LabelledText]) -> dict[str, Any]:
        return {"labels": sorted({example.label or "" for example in examples})}

    # --- The network ------------------------------------------------------------------------------

    def network(self, words: WordEncoder) -> TextClassifier:
        network = BiattentiveNetwork if self.config.network == "biattentive" else PooledNetwork
        return network(self.config, words, len(self.labels["labels"]))

    def collate(self, examples: Sequence[LabelledText], words: BatchOfWords) -> ClassificationBatch:
        labels = label_ids((example.label for example in examples), self.labels["labels"])
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
    ) -> TaskScores:
        gold = [example.label or "" for example in examples]
        predicted = [prediction.label for prediction in predictions]
        values = {"accuracy": accuracy(gold, predicted)}
        return TaskScores.of_labels(values, gold, predicted, self.labels["labels"])
