"""Coreference by ranking spans, end to end (Lee et al. 2017).

Every span of up to a few words is a candidate; the best-scoring ones are kept as mentions, and each
chooses its antecedent among the mentions before it, or none. Smaller than the original: spans are
projected before pairs of them are scored, and each mention is compared with its nearest
predecessors only.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elmokit.extras import import_extra
from elmokit.fs import read_lines
from elmokit.settings import Count, DropoutRate, NonNegative, Positive, check
from elmokit.tasks import DEFAULT_FIT, FitConfig
from elmokit.tasks.fitting.task import (
    BatchOfWords,
    Task,
    TaskNetwork,
    TaskScores,
    Use,
    parts_of,
    words_of,
)
from elmokit.tasks.fitting.words import BiLSTM, WordBatch, WordEncoder, Words

Mention = tuple[int, int]  # the words start : end, counted over the document
WORD_COLUMN = 3  # as in CoNLL-2012
# As in LitBank, or OntoNotes' .v4_gold_conll.
FILE_NAME = re.compile(r"conll(\.gz|\.zst)?$", re.IGNORECASE)
# Lower bounds of the bins of the distance feature, in mentions.
DISTANCES = (1, 2, 3, 4, 5, 8, 16, 32, 64)


@dataclass(frozen=True)
class CoreferenceConfig:
    """The network for coreference."""

    hidden_dim: Count = 150
    """Width of the BiLSTM in each direction, and of the scoring networks."""
    span_dim: Count = 256
    """Width to which a span is projected before pairs are scored."""
    feature_dim: Count = 20
    """Width of the vectors of a span's width and of a pair's distance."""
    dropout: DropoutRate = 0.3
    """Dropout of the input of each layer; word vectors have a dropout of their own."""
    max_span_words: Count = 10
    """Longest span that can be a mention, in words."""
    mentions_per_word: Positive = 0.3
    """Number of spans that are kept as mentions, per word of the document."""
    max_antecedents: Count = 100
    """Number of nearest preceding mentions with which a mention is compared."""
    mention_loss: NonNegative = 1.0
    """Weight of a second loss, which trains the mention scores of all spans, kept or not; 0 for
    texts in which mentions without a coreferent one are not annotated.
    """

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True)
class CorefDocument:
    """A document: its name, its sentences, and its clusters of mentions, where they are known."""

    name: str
    sentences: tuple[tuple[str, ...], ...]
    clusters: tuple[tuple[Mention, ...], ...] | None = None


@dataclass(frozen=True)
class CorefClusters:
    """The clusters found in a document, each of at least two mentions."""

    name: str
    words: tuple[str, ...]
    clusters: tuple[tuple[Mention, ...], ...]


class CorefBatch(NamedTuple):
    """One document: its sentences, and its mentions in clusters."""

    words: WordBatch
    mentions: Tensor  # (M, 2)
    clusters: Tensor  # (M,): the index of the cluster of each mention


class Spans(NamedTuple):
    """Candidate spans, or those that are kept as mentions."""

    first: Tensor  # (S,): first word, counted over the document
    last: Tensor  # (S,)
    vectors: Tensor  # (S, G)
    scores: Tensor  # (S,)


def bounds(spans: Spans) -> list[Mention]:
    """The spans as (start, end) in words of the document."""
    return list(zip(spans.first.tolist(), (spans.last + 1).tolist(), strict=True))


def scorer(hidden_dim: int, dropout: float) -> nn.Sequential:
    """A scoring network after its first linear layer: pre-activations (..., H) -> (..., 1)."""
    return nn.Sequential(
        nn.ReLU(), nn.Dropout(dropout),
        nn.Linear(hidden_dim, hidden_dim), nn.ReLU(), nn.Dropout(dropout),
        nn.Linear(hidden_dim, 1),
    )  # fmt: skip


class SpanRanker(TaskNetwork):
    """Words -> spans -> mentions -> antecedents.

    A linear layer on the concatenated features of a span, or of a pair, is the sum of a layer on
    each feature. So the features of a word or a mention are multiplied once, not for each span or
    pair that it is a part of.
    """

    def __init__(self, config: CoreferenceConfig, words: WordEncoder) -> None:
        super().__init__(words)
        self.config = config
        self.dropout = nn.Dropout(config.dropout)
        self.lstm = BiLSTM(words.dim, config.hidden_dim)
        hidden = self.lstm.output_dim + words.output_dim
        self.head = nn.Linear(hidden, 1)
        self.width = nn.Embedding(config.max_span_words, config.feature_dim)
        # First word, last word, head.
        self.span_words = nn.Linear(hidden, 3 * config.span_dim, bias=False)
        self.span_width = nn.Linear(config.feature_dim, config.span_dim)
        self.mention = nn.Sequential(
            nn.Linear(config.span_dim, config.hidden_dim), scorer(config.hidden_dim, config.dropout)
        )
        self.distance = nn.Embedding(len(DISTANCES) + 1, config.feature_dim)
        # Mention, antecedent.
        self.pair_spans = nn.Linear(config.span_dim, 2 * config.hidden_dim, bias=False)
        self.pair_product = nn.Linear(config.span_dim, config.hidden_dim, bias=False)
        self.pair_distance = nn.Linear(config.feature_dim, config.hidden_dim)
        self.pair = scorer(config.hidden_dim, config.dropout)
        self.register_buffer("bins", torch.tensor(DISTANCES), persistent=False)

    def _candidates(self, hidden: Tensor, sentence: Tensor) -> Spans:
        """All spans within a sentence, from the words (N, H) and the sentence of each (N,).

        two sentences "a b" and "c", spans of up to 2 words:
        first   0 0  1 1  2 2
        last    0 1  1 2  2 3
        inside  x x  x    x      1-2 crosses sentences, 3 is no word
        """
        num_words, longest = len(hidden), self.config.max_span_words
        first = torch.arange(num_words, device=hidden.device).repeat_interleave(longest)
        last = first + torch.arange(longest, device=hidden.device).repeat(num_words)
        inside = last < num_words
        inside &= sentence[first] == sentence[last.clamp(max=num_words - 1)]
        first, last = first[inside], last[inside]
        width = last - first
        # The head: attention over the words of the span, summed word by word to save memory.
        position = first[:, None] + torch.arange(longest, device=hidden.device)
        within = position <= last[:, None]
        position = position.clamp(max=num_words - 1)
        scores = self.head(hidden).squeeze(1)[position]
        weights = scores.masked_fill(~within, -torch.inf).softmax(dim=1)
        at_first, at_last, in_head = self.span_words(self.dropout(hidden)).chunk(3, dim=1)
        # F.embedding(index, x) is x[index], with a faster gradient.
        features = F.embedding(first, at_first) + F.embedding(last, at_last)
        features = features + F.embedding(width, self.span_width(self.width.weight))
        for k in range(longest):
            features = features + weights[:, k, None] * F.embedding(position[:, k], in_head)
        vectors = F.relu(features)
        return Spans(first, last, vectors, self.mention(vectors).squeeze(1))

    def _mentions(self, spans: Spans, num_words: int) -> Spans:
        """The best candidates, none of which crosses a better one, in the order of the text."""
        count = max(1, int(self.config.mentions_per_word * num_words))
        order = spans.scores.argsort(descending=True).tolist()
        chosen = non_crossing(order, spans.first.tolist(), spans.last.tolist(), count)
        index = torch.tensor(sorted(chosen), device=spans.first.device)
        return Spans(*(field[index] for field in spans))

    def forward(self, batch: CorefBatch) -> tuple[Spans, Spans, Tensor]:
        """All candidates, the M mentions, and the scores of their antecedents (M, 1 + A).

        The first column is that of no antecedent; then comes the nearest mention before, and so on:

        mention     antecedents (A = 2)
        0           none  -  -
        1           none  0  -
        2           none  1  0
        3           none  2  1
        """
        encoded = self.words(batch.words)
        mask = encoded.mask
        hidden = encoded.join(self.lstm(encoded.vectors, mask))[mask]
        sentence = torch.arange(len(mask), device=mask.device)[:, None].expand_as(mask)[mask]
        candidates = self._candidates(hidden, sentence)
        mentions = self._mentions(candidates, len(hidden))
        count = len(mentions.first)
        number = torch.arange(count, device=mask.device)
        farthest = min(self.config.max_antecedents, max(count - 1, 1))
        back = torch.arange(1, farthest + 1, device=mask.device)
        antecedent = number[:, None] - back
        exists = antecedent >= 0
        antecedent = antecedent.clamp(min=0)
        of_mention, of_antecedent = self.pair_spans(mentions.vectors).chunk(2, dim=1)
        product = self.pair_product(
            mentions.vectors[:, None] * F.embedding(antecedent, mentions.vectors)
        )
        bins = torch.bucketize(back, self.get_buffer("bins"), right=True)
        distance = self.pair_distance(self.distance(bins))
        pairs = of_mention[:, None] + F.embedding(antecedent, of_antecedent) + product + distance
        scores = self.pair(pairs).squeeze(2)
        scores = scores + mentions.scores[:, None] + mentions.scores[antecedent]
        scores = scores.masked_fill(~exists, -torch.inf)
        return candidates, mentions, torch.cat([scores.new_zeros(count, 1), scores], dim=1)

    def loss(self, batch: CorefBatch) -> Tensor:
        """Mean negative log-probability of all gold antecedents of a mention (Lee et al. 2017)."""
        candidates, mentions, scores = self(batch)
        pairs = zip(batch.mentions.tolist(), batch.clusters.tolist(), strict=True)
        gold = {tuple(span): cluster for span, cluster in pairs}
        clusters = [gold.get(span, -1) for span in bounds(mentions)]
        cluster = torch.tensor(clusters, device=scores.device)
        number = torch.arange(len(cluster), device=scores.device)
        antecedent = number[:, None] - torch.arange(1, scores.shape[1], device=scores.device)
        same = (
            (cluster[antecedent.clamp(min=0)] == cluster[:, None])
            & (antecedent >= 0)
            & (cluster >= 0)[:, None]
        )
        right = torch.cat([~same.any(1, keepdim=True), same], dim=1)
        log_right = scores.masked_fill(~right, -torch.inf).logsumexp(dim=1)
        loss = (scores.logsumexp(dim=1) - log_right).mean()
        if not self.config.mention_loss:
            return loss
        are_gold = [float(span in gold) for span in bounds(candidates)]
        target = torch.tensor(are_gold, device=scores.device)
        missed = F.binary_cross_entropy_with_logits(candidates.scores, target, reduction="sum")
        return loss + self.config.mention_loss * missed / max(len(gold), 1)

    def decode(self, batch: CorefBatch) -> list[list[list[Mention]]]:
        """The clusters of the document."""
        _, mentions, scores = self(batch)
        spans = bounds(mentions)
        cluster_of: dict[int, list[Mention]] = {}
        clusters: list[list[Mention]] = []
        for number, best in enumerate(scores.argmax(dim=1).tolist()):
            if not best:
                continue
            antecedent = number - best
            if antecedent not in cluster_of:
                cluster_of[antecedent] = [spans[antecedent]]
                clusters.append(cluster_of[antecedent])
            cluster_of[antecedent].append(spans[number])
            cluster_of[number] = cluster_of[antecedent]
        return [clusters]


def non_crossing(
    order: Sequence[int], first: Sequence[int], last: Sequence[int], count: int
) -> list[int]:
    """The first `count` spans in `order` that cross, overlap without nesting, no span before."""
    kept: list[int] = []
    last_from: dict[int, int] = {}  # the farthest last word of the kept spans that begin at a word
    first_to: dict[int, int] = {}  # the earliest first word of the kept spans that end at a word
    for index in order:
        if len(kept) == count:
            break
        begin, end = first[index], last[index]
        #            begin ------- end
        # first_to:  <------|               a kept span ends within, and begins before
        # last_from:              |------>  a kept span begins within, and ends after
        is_crossed_before = any(first_to.get(word, begin) < begin for word in range(begin, end))
        is_crossed_after = any(last_from.get(word, -1) > end for word in range(begin + 1, end + 1))
        if not is_crossed_before and not is_crossed_after:
            kept.append(index)
            last_from[begin] = max(last_from.get(begin, -1), end)
            first_to[end] = min(first_to.get(end, begin), begin)
    return kept


# --- Scores, as the reference implementation of the CoNLL scorer (Pradhan et al. 2014) counts them

Clusters = Sequence[Iterable[Hashable]]  # clusters of mentions
Counts = np.ndarray  # (2, 2): rows of recall and precision, each a numerator and a denominator


def _muc(clusters: list[set], other: list[set]) -> tuple[float, float]:
    """(shared links, all links) (Vilain et al. 1995)."""
    right = links = 0
    for cluster in clusters:
        # The parts into which the other partition divides the cluster, and mentions that it lacks.
        parts = sum(bool(cluster & part) for part in other) + len(cluster.difference(*other))
        right += len(cluster) - parts
        links += len(cluster) - 1
    return right, links


def _b_cubed(clusters: list[set], other: list[set]) -> tuple[float, float]:
    """(sum of per-mention overlaps, number of mentions)."""
    shared = 0.0
    for cluster in clusters:
        shared += sum(len(cluster & part) ** 2 for part in other) / len(cluster)
    return shared, sum(map(len, clusters))


def coreference_counts(gold: Clusters, predicted: Clusters) -> dict[str, Counts]:
    """MUC, B-cubed and entity-based CEAF (phi 4, Luo 2005) counts of one document."""
    linear_sum_assignment = import_extra("scipy.optimize", "tasks").linear_sum_assignment
    left, right = [set(cluster) for cluster in gold], [set(cluster) for cluster in predicted]
    similarity = np.zeros((len(left), len(right)))
    for row, cluster in enumerate(left):
        for column, other in enumerate(right):
            similarity[row, column] = 2 * len(cluster & other) / (len(cluster) + len(other))
    aligned = similarity[linear_sum_assignment(-similarity)].sum()
    return {
        "muc": np.array([_muc(left, right), _muc(right, left)]),
        "b3": np.array([_b_cubed(left, right), _b_cubed(right, left)]),
        "ceaf": np.array([[aligned, len(left)], [aligned, len(right)]]),
    }


def coreference_scores(documents: Iterable[tuple[Clusters, Clusters]]) -> dict[str, float]:
    """F1 by "muc", "b3", "ceaf" and their average, over documents of (gold, predicted)."""
    counts = {name: np.zeros((2, 2)) for name in ("muc", "b3", "ceaf")}
    for gold, predicted in documents:
        for name, of_document in coreference_counts(gold, predicted).items():
            counts[name] += of_document
    scores = {}
    for name, total in counts.items():
        recall, precision = total[:, 0] / np.maximum(total[:, 1], 1)
        f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
        scores[name] = float(f1)
    return {"average": sum(scores.values()) / 3, **scores}


class CoreferenceTask(Task[CorefDocument, CorefClusters]):
    """Which mentions of a document refer to the same. Files have CoNLL-2012's columns, the last one
    with the clusters.

    Clusters of one mention are not predicted, nor counted in the scores (as in OntoNotes).
    Published scores of LitBank count them, and cannot be compared.
    """

    name = "coreference"
    Config = CoreferenceConfig
    fit_config = FitConfig(max_epochs=40, batch_size=1, learning_rate=1e-3, patience=6).over(
        DEFAULT_FIT
    )
    config: CoreferenceConfig

    # --- Examples ---------------------------------------------------------------------------------

    def read(self, path: Path, use: Use = "score") -> Iterator[CorefDocument]:
        """The documents of a file, or of a directory's files whose names end in conll."""
        files = [path]
        if path.is_dir():
            files = sorted(file for file in path.iterdir() if FILE_NAME.search(file.name))
        for file in files:
            yield from _documents(file, use != "predict")

    def make_example(self, inputs: Sequence[str | Words], answer: Any = None) -> CorefDocument:
        """From the sentences of a document: strings, which are tokenized, or lists of words."""
        sentences = (words_of(sentence, self.tokenizer) for sentence in parts_of(inputs))
        return CorefDocument("", tuple(sentences), answer)

    def sentences(self, example: CorefDocument) -> Iterable[Words]:
        return example.sentences

    def length(self, example: CorefDocument) -> int:
        return sum(map(len, example.sentences))

    def check(self, example: CorefDocument) -> None:
        clusters, end = example.clusters, self.length(example)
        mentions = [mention for cluster in clusters or () for mention in set(cluster)]
        are_words = all(0 <= start < stop <= end for start, stop in mentions)
        if clusters is None or not are_words or len(set(mentions)) < len(mentions):
            raise ValueError(
                f"document {example.name} needs clusters of mentions within its words, each in "
                f"one of them"
            )

    def learn(self, examples: Sequence[CorefDocument]) -> dict[str, Any]:
        coreference_counts((), ())  # needs SciPy: fail before the training
        if not any(map(_scored_clusters, examples)):
            raise ValueError(
                "no document has a cluster of several mentions: is the last column that of "
                "coreference?"
            )
        return {}

    # --- The network ------------------------------------------------------------------------------

    def network(self, words: WordEncoder) -> SpanRanker:
        return SpanRanker(self.config, words)

    def collate(self, examples: Sequence[CorefDocument], words: BatchOfWords) -> CorefBatch:
        (document,) = examples  # more documents in a batch are not read
        clusters = document.clusters or ()
        mentions = [mention for cluster in clusters for mention in cluster]
        numbers = [number for number, cluster in enumerate(clusters) for _ in cluster]
        return CorefBatch(
            words(document.sentences),
            torch.tensor(mentions, dtype=torch.int64).reshape(-1, 2),
            torch.tensor(numbers, dtype=torch.int64),
        )

    # --- Answers ----------------------------------------------------------------------------------

    def predictions(
        self, examples: Sequence[CorefDocument], decoded: Sequence[Any]
    ) -> list[CorefClusters]:
        documents = []
        for example, clusters in zip(examples, decoded, strict=True):
            words = tuple(word for sentence in example.sentences for word in sentence)
            documents.append(CorefClusters(example.name, words, tuple(map(tuple, clusters or ()))))
        return documents

    def score(
        self, examples: Sequence[CorefDocument], predictions: Sequence[CorefClusters]
    ) -> TaskScores:
        gold = map(_scored_clusters, examples)
        predicted = (prediction.clusters for prediction in predictions)
        return TaskScores(coreference_scores(zip(gold, predicted, strict=True)))


def _scored_clusters(example: CorefDocument) -> list[tuple[Mention, ...]]:
    """The clusters of several mentions; a mention that is marked twice is one mention."""
    return [cluster for cluster in example.clusters or () if len(set(cluster)) > 1]


def _documents(path: Path, with_answers: bool) -> Iterator[CorefDocument]:
    name, sentences, cells = "", [[]], []
    for number, line in enumerate([*read_lines(path), "#begin document"], start=1):
        if line.startswith("#begin document"):
            if cells:
                raise ValueError(
                    f"{path}, line {number}: the document before, {name}, has no #end document"
                )
            name, sentences, cells = line.removeprefix("#begin document").strip(), [[]], []
        elif line.startswith("#end document"):
            words = tuple(tuple(sentence) for sentence in sentences if sentence)
            clusters = _clusters(cells, f"{path}, {name}") if with_answers else None
            yield CorefDocument(name, words, clusters)
            name, sentences, cells = "", [[]], []
        elif line.strip():
            columns = line.split("\t") if "\t" in line else line.split()
            if len(columns) <= WORD_COLUMN + with_answers:
                raise ValueError(
                    f"{path}, line {number}: no column of words, or of clusters, in {line!r}"
                )
            sentences[-1].append(columns[WORD_COLUMN])
            cells.append(columns[-1].strip())
        else:
            sentences.append([])


def _clusters(cells: Sequence[str], place: str) -> tuple[tuple[Mention, ...], ...]:
    """The clusters that brackets like "(0|(1)" and "0)" mark, ordered by their first mentions."""
    opened: dict[str, list[int]] = {}
    clusters: dict[str, list[Mention]] = {}
    for position, cell in enumerate(cells):
        for part in cell.split("|"):
            number = part.strip("()")
            if part.startswith("("):
                opened.setdefault(number, []).append(position)
            if part.endswith(")"):
                if not opened.get(number):
                    raise ValueError(
                        f"{place}: word {position} closes a mention of cluster {number} that is "
                        f"not open"
                    )
                clusters.setdefault(number, []).append((opened[number].pop(), position + 1))
    if any(opened.values()):
        raise ValueError(f"{place}: mentions of a cluster are never closed")
    return tuple(tuple(sorted(cluster)) for cluster in sorted(clusters.values(), key=min))
