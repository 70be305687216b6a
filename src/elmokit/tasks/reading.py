"""Question answering: the span of a passage that answers a question, by BiDAF with self-attention.

The network follows Clark and Gardner 2017 ("Simple and effective multi-paragraph reading
comprehension", section 3.1), which the ELMo paper improved: attention in both directions (Seo et
al. 2017), a residual layer in which the passage attends to itself, and two BiLSTMs that score where
the answer starts and ends.
"""

from __future__ import annotations

import json
import re
import string
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elmokit.fs import read_lines
from elmokit.settings import Count, DropoutRate, check
from elmokit.tasks import DEFAULT_FIT, FitConfig
from elmokit.tasks.fitting.task import (
    BatchOfWords,
    Task,
    TaskNetwork,
    TaskScores,
    Use,
    parts_of,
)
from elmokit.tasks.fitting.words import (
    BiLSTM,
    EncodedWords,
    WordBatch,
    WordEncoder,
    Words,
    masked_softmax,
)
from elmokit.text import get_tokenizer, word_offsets


@dataclass(frozen=True)
class ReadingConfig:
    """The network that answers questions."""

    hidden_dim: Count = 100
    """Width of the BiLSTMs, in each direction."""
    dropout: DropoutRate = 0.2
    """Dropout of the input of each layer; word vectors have a dropout of their own."""
    max_answer_words: Count = 17
    """Longest answer that is predicted, in words."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True)
class Question:
    """A question about a passage.

    Attributes:
        id: Identifier, also of its prediction.
        question: Its words.
        passage: The words of the passage.
        text: The passage as it is written.
        offsets: Position of each word of the passage in `text`: (begin, end) in characters.
        answers: The texts of all correct answers.
        span: First and last word of the first answer, if it is where the file says.
    """

    id: str
    question: tuple[str, ...]
    passage: tuple[str, ...]
    text: str
    offsets: tuple[tuple[int, int], ...]
    answers: tuple[str, ...] = ()
    span: tuple[int, int] | None = None


@dataclass(frozen=True)
class Answer:
    """The characters `start : end` of the passage, which are `text`; and their probability."""

    id: str
    text: str
    start: int
    end: int
    score: float


class ReadingBatch(NamedTuple):
    """Questions about passages, and where their answers are."""

    question: WordBatch
    passage: WordBatch
    spans: Tensor  # (B, 2) int64: first and last word of the answer, -1 if unknown


class TrilinearAttention(nn.Module):
    """Similarity w . [a; b; a * b] of all pairs of words: (B, T, D) and (B, S, D) -> (B, T, S)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(dim, 1, bias=False), nn.Linear(dim, 1, bias=False)
        self.product = nn.Parameter(torch.empty(dim).uniform_(-(dim**-0.5), dim**-0.5))

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return (
            self.left(left)
            + self.right(right).transpose(1, 2)
            + (left * self.product) @ right.transpose(1, 2)
        )


class BiDAF(TaskNetwork):
    """Encode, attend in both directions, attend to itself, score starts and ends."""

    def __init__(self, config: ReadingConfig, words: WordEncoder) -> None:
        super().__init__(words)
        self.max_answer_words = config.max_answer_words
        self.dropout = nn.Dropout(config.dropout)
        hidden = 2 * config.hidden_dim
        self.encoder = BiLSTM(words.dim, config.hidden_dim)
        encoded = hidden + words.output_dim
        self.attention = TrilinearAttention(encoded)
        self.merge = nn.Linear(4 * encoded, hidden)
        self.reader = BiLSTM(hidden, config.hidden_dim)
        self.self_attention = TrilinearAttention(hidden)
        self.merge_self = nn.Linear(3 * hidden, hidden)
        self.start_lstm = BiLSTM(hidden, config.hidden_dim)
        self.start = nn.Linear(hidden, 1)
        self.end_lstm = BiLSTM(2 * hidden, config.hidden_dim)
        self.end = nn.Linear(hidden, 1)

    def forward(self, batch: ReadingBatch) -> tuple[Tensor, Tensor]:
        """Log-probabilities of each word of the passage as first and as last one, each (B, T)."""
        question, passage = self.words(batch.question), self.words(batch.passage)
        q, p = self._encode(question), self._encode(passage)
        x = F.relu(self.merge(self.dropout(self._attend(p, q, passage.mask, question.mask))))
        x = x + self._attend_to_itself(x, passage.mask)
        starts = self.start_lstm(self.dropout(x), passage.mask)
        ends = self.end_lstm(self.dropout(torch.cat([x, starts], dim=2)), passage.mask)
        scores = self.start(starts).squeeze(2), self.end(ends).squeeze(2)
        lowest = torch.finfo(x.dtype).min
        start, end = (
            score.masked_fill(~passage.mask, lowest).log_softmax(dim=1) for score in scores
        )
        return start, end

    def _encode(self, words: EncodedWords) -> Tensor:
        return words.join(self.encoder(words.vectors, words.mask))

    def _attend(self, p: Tensor, q: Tensor, passage_mask: Tensor, question_mask: Tensor) -> Tensor:
        """Seo et al. 2017, equations 1 to 3: [p; attended q; both's product; p * attended p]."""
        similarity = self.attention(p, q)
        attended = masked_softmax(similarity, question_mask[:, None, :]) @ q
        lowest = torch.finfo(p.dtype).min
        most_similar = similarity.masked_fill(~question_mask[:, None, :], lowest).amax(2)
        summary = masked_softmax(most_similar, passage_mask)[:, None, :] @ p
        return torch.cat([p, attended, p * attended, p * summary], dim=2)

    def _attend_to_itself(self, x: Tensor, mask: Tensor) -> Tensor:
        read = self.reader(self.dropout(x), mask)
        other_words = mask[:, None, :] & ~torch.eye(x.shape[1], dtype=torch.bool, device=x.device)
        attended = masked_softmax(self.self_attention(read, read), other_words) @ read
        return F.relu(
            self.merge_self(self.dropout(torch.cat([read, attended, read * attended], dim=2)))
        )

    def loss(self, batch: ReadingBatch) -> Tensor:
        """Mean negative log-likelihood of the answer's first and last word, added up."""
        start, end = self(batch)
        loss_of_start = F.nll_loss(start, batch.spans[:, 0], ignore_index=-1)
        return loss_of_start + F.nll_loss(end, batch.spans[:, 1], ignore_index=-1)

    def decode(self, batch: ReadingBatch) -> list[tuple[int, int, float]]:
        """For each question the first and last word of the best answer, and its probability."""
        start, end = self(batch)
        scores = start[:, :, None] + end[:, None, :]
        # (first, last): last is not before first, and at most so many words after it.
        allowed = torch.ones_like(scores[0], dtype=torch.bool).triu()
        allowed = allowed.tril(self.max_answer_words - 1)
        best, index = scores.masked_fill(~allowed, -torch.inf).flatten(1).max(dim=1)
        first, last = index // start.shape[1], index % start.shape[1]
        return list(zip(first.tolist(), last.tolist(), best.exp().tolist(), strict=True))


# --- Words of an answer ---------------------------------------------------------------------------


def words_of_answer(
    offsets: Sequence[tuple[int, int]], begin: int, end: int
) -> tuple[int, int] | None:
    """First and last of the words that overlap the characters `begin : end`; None if none does."""
    inside = [
        number for number, (first, last) in enumerate(offsets) if first < end and begin < last
    ]
    return (inside[0], inside[-1]) if inside else None


# --- The official scores --------------------------------------------------------------------------

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalized_answer(text: str) -> str:
    """Lower case, no punctuation, no articles, single spaces (SQuAD's evaluate-v1.1.py)."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def answer_f1(predicted: str, gold: str) -> float:
    """F1 of the normalized words of two answers (evaluate-v1.1.py)."""
    left, right = normalized_answer(predicted).split(), normalized_answer(gold).split()
    same = sum((Counter(left) & Counter(right)).values())
    return 2 * same / (len(left) + len(right)) if same else 0.0


class ReadingTask(Task[Question, Answer]):
    """The span of a passage that answers a question. Files are SQuAD's JSON."""

    name = "reading"
    Config = ReadingConfig
    fit_config = FitConfig(max_epochs=15, batch_size=24, learning_rate=1e-3, patience=3).over(
        DEFAULT_FIT
    )
    max_words = 5_000  # attention takes memory that grows with the square
    config: ReadingConfig

    # --- Examples ---------------------------------------------------------------------------------

    def read(self, path: Path, use: Use = "score") -> Iterator[Question]:
        """Stream the questions of a file; to train on, those whose answer is where the file says.

        Warns:
            UserWarning: To train on, questions are left out.
        """
        missing: list[Question] = []
        try:
            for article in json.loads("\n".join(read_lines(path)))["data"]:
                for paragraph in article["paragraphs"]:
                    for question in self._questions(paragraph, use != "predict"):
                        if use == "train" and question.answers and question.span is None:
                            missing.append(question)
                        else:
                            yield question
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is not JSON in the format of SQuAD: {error!r}") from error
        if missing:
            warnings.warn(
                f"{path}: {len(missing)} answers are left out, which are not at their "
                f"answer_start, counted in characters, such as {missing[0].answers[0]!r} of "
                f"question {missing[0].id}",
                stacklevel=2,
            )

    def _questions(self, paragraph: Mapping[str, Any], with_answers: bool) -> Iterator[Question]:
        text = paragraph["context"]
        unasked = self.make_example(("", text))
        for entry in paragraph["qas"]:
            answers = entry["answers"] if with_answers else ()
            span = None
            if answers:
                begin, first = answers[0]["answer_start"], answers[0]["text"]
                if text[begin : begin + len(first)] == first:
                    span = words_of_answer(unasked.offsets, begin, begin + len(first))
            yield replace(
                unasked,
                id=str(entry["id"]),
                question=self._words(entry["question"]),
                answers=tuple(answer["text"] for answer in answers),
                span=span,
            )

    def make_example(self, inputs: tuple[str, str], answer: Any = None) -> Question:
        """From (question, passage), two strings, which are tokenized."""
        question, passage = parts_of(inputs)
        words = self._words(passage)
        return Question("", self._words(question), words, passage, word_offsets(passage, words))

    def _words(self, text: str) -> tuple[str, ...]:
        return tuple(get_tokenizer(self.tokenizer).tokenize(text))

    def sentences(self, example: Question) -> Iterable[Words]:
        return (example.question, example.passage)

    def length(self, example: Question) -> int:
        return len(example.passage)

    def check(self, example: Question) -> None:
        words, (first, last) = len(example.passage), example.span or (0, 0)
        if (
            not example.answers
            or len(example.offsets) != words
            or not 0 <= first <= last < max(words, 1)
        ):
            raise ValueError(
                f"question {example.id} needs an answer in its passage, and an offset for each "
                "word of it: leave unanswerable questions (SQuAD 2.0) out"
            )

    # --- The network ------------------------------------------------------------------------------

    def network(self, words: WordEncoder) -> BiDAF:
        return BiDAF(self.config, words)

    def collate(self, examples: Sequence[Question], words: BatchOfWords) -> ReadingBatch:
        spans = torch.tensor([example.span or (-1, -1) for example in examples])
        question = words([example.question for example in examples])
        return ReadingBatch(question, words([example.passage for example in examples]), spans)

    # --- Answers ----------------------------------------------------------------------------------

    def predictions(self, examples: Sequence[Question], decoded: Sequence[Any]) -> list[Answer]:
        answers = []
        for example, answer in zip(examples, decoded, strict=True):
            first, last, score = answer or (0, 0, 0.0)
            start = end = 0
            if example.offsets:
                start, end = example.offsets[first][0], example.offsets[last][1]
            answers.append(Answer(example.id, example.text[start:end], start, end, score))
        return answers

    def score(self, examples: Sequence[Question], predictions: Sequence[Answer]) -> TaskScores:
        """F1 and exact match of SQuAD: for each question the best over its correct answers."""
        exact, f1 = 0.0, 0.0
        for example, prediction in zip(examples, predictions, strict=True):
            texts = [normalized_answer(answer) for answer in example.answers]
            exact += normalized_answer(prediction.text) in texts
            f1 += max(
                (answer_f1(prediction.text, answer) for answer in example.answers), default=0.0
            )
        count = max(len(predictions), 1)
        return TaskScores({"f1": f1 / count, "exact match": exact / count})
