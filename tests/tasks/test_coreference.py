"""Clusters from brackets, the network by its formulas, the scores of the CoNLL scorer."""

from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from oracle import relu
from task_oracles import (
    GivenWords,
    Sentence,
    TaskOracle,
    concat,
    random_network,
    random_words,
    sentences_of,
    softmax,
)
from torch import nn

from elmokit.tasks.coreference import (
    CorefBatch,
    CorefClusters,
    CorefDocument,
    CoreferenceConfig,
    CoreferenceTask,
    SpanRanker,
    bounds,
    coreference_counts,
    coreference_scores,
    non_crossing,
)

Span = tuple[int, int]  # first and last word, counted over the document


def cross(one: Span, two: Span) -> bool:
    """Whether two spans overlap and neither holds the other."""
    (a, b), (c, d) = sorted([one, two])
    return a < c <= b < d


class CoreferenceOracle(TaskOracle):
    """Lee et al. 2017, section 4: all candidates, the kept mentions, scores of pairs."""

    def __init__(self, network: nn.Module, sentences: list[Sentence]) -> None:
        super().__init__(network)
        self.config: Any = network.config
        encoded = [concat(self.bilstm("lstm", each.vectors), each.at_output) for each in sentences]
        self.words = np.concatenate(encoded)
        self.vectors: dict[Span, np.ndarray] = {}
        start = 0
        for sentence in encoded:
            end = start + len(sentence)
            for first in range(start, end):
                for last in range(first, min(first + self.config.max_span_words, end)):
                    self.vectors[first, last] = self._vector(first, last)
            start = end
        self.mention_scores = {
            span: self._feedforward("mention.1", self.affine("mention.0", vector))
            for span, vector in self.vectors.items()
        }
        self.mentions = self._mentions()

    def _vector(self, first: int, last: int) -> np.ndarray:
        """From [first word; last word; head; width], with the head found by attention."""
        inside = self.words[first : last + 1]
        head = softmax(self.affine("head", inside)[:, 0]) @ inside
        width = self.weights["width.weight"][last - first]
        weight = concat(
            *np.split(self.weights["span_words.weight"], 3), self.weights["span_width.weight"]
        )
        features = concat(self.words[first], self.words[last], head, width)
        return relu(weight @ features + self.weights["span_width.bias"])

    def _feedforward(self, name: str, first_layer: np.ndarray) -> float:
        """The score from the outputs of a network's first linear layer."""
        return self.affine(f"{name}.5", relu(self.affine(f"{name}.2", relu(first_layer)))).item()

    def _mentions(self) -> list[Span]:
        """The best spans that do not cross better ones, in the order of the text."""
        kept: list[Span] = []
        for span in sorted(self.mention_scores, key=lambda span: -self.mention_scores[span]):
            if len(kept) < int(self.config.mentions_per_word * len(self.words)):
                kept += [] if any(cross(span, other) for other in kept) else [span]
        return sorted(kept)

    def pair_score(self, number: int, before: int) -> float:
        """The score of `before` as the antecedent of `number`, with their own scores."""
        mention = self.mentions[number]
        antecedent = self.mentions[before]
        a = self.vectors[mention]
        b = self.vectors[antecedent]
        bin_of_distance = sum(number - before >= bound for bound in (1, 2, 3, 4, 5, 8, 16, 32, 64))
        weight = concat(
            *np.split(self.weights["pair_spans.weight"], 2),
            self.weights["pair_product.weight"],
            self.weights["pair_distance.weight"],
        )
        features = concat(a, b, a * b, self.weights["distance.weight"][bin_of_distance])
        score = self._feedforward("pair", weight @ features + self.weights["pair_distance.bias"])
        return score + self.mention_scores[mention] + self.mention_scores[antecedent]

    def antecedent_scores(self) -> list[dict[int | None, float]]:
        """For each mention the scores of its antecedents by number; None, which is none, has 0."""
        reach = self.config.max_antecedents
        return [
            {
                None: 0.0,
                **{
                    before: self.pair_score(number, before)
                    for before in range(max(0, number - reach), number)
                },
            }
            for number in range(len(self.mentions))
        ]

    def loss(self, cluster_of: dict[Span, int]) -> float:
        """Of the correct antecedents, and of all candidates as mentions or not."""
        losses = []
        for mention, scores in zip(self.mentions, self.antecedent_scores(), strict=True):
            correct = [
                before
                for before in scores
                if before is not None
                and mention in cluster_of
                and cluster_of.get(self.mentions[before]) == cluster_of[mention]
            ]
            total = sum(np.exp(score) for score in scores.values())
            losses.append(
                -np.log(sum(np.exp(scores[before]) for before in correct or [None]) / total)
            )
        signs = {span: 1 if span in cluster_of else -1 for span in self.mention_scores}
        missed = sum(
            np.log1p(np.exp(-signs[span] * score)) for span, score in self.mention_scores.items()
        )
        return float(np.mean(losses) + self.config.mention_loss * missed / len(cluster_of))


pytest.importorskip("scipy")


def write_document(path: Path, cells: list[str]) -> None:
    rows = [f"d\t0\t{i}\tw{i}\t_\t{cell}" if cell != "|" else "" for i, cell in enumerate(cells)]
    path.write_text("\n".join(["#begin document (d); part 0", *rows, "", "#end document", ""]))


def test_read_converts_brackets_to_clusters(tmp_path: Path) -> None:
    write_document(tmp_path / "d.conll", ["(0|(1)", "0)", "_", "|", "(1|(2", "1)", "2)", "(0)"])
    write_document(tmp_path / "e.conll", ["(0", "(1", "0)", "1)|(0)"])  # mentions that cross
    (tmp_path / "README").write_text("no document")
    (tmp_path / "f.v4_auto_conll").write_text(
        "#begin document (d)\nd\t0\t0\tword\n#end document\n"
    )  # without clusters
    (*_, words) = CoreferenceTask().read(tmp_path, use="predict")
    assert words.sentences == (("word",),)
    assert words.clusters is None
    (tmp_path / "f.v4_auto_conll").unlink()
    document, crossing = CoreferenceTask().read(tmp_path)
    assert [len(sentence) for sentence in document.sentences] == [3, 4]
    assert document.clusters == (((0, 1), (3, 5)), ((0, 2), (6, 7)), ((3, 6),))
    assert crossing.clusters == (((0, 3), (3, 4)), ((1, 4),))


def test_non_crossing_equals_brute_force() -> None:
    spans = [(first, last) for first in range(6) for last in range(first, min(first + 4, 6))]
    order = sorted(range(len(spans)), key=lambda index: (index * 7) % len(spans))
    kept = non_crossing(order, [first for first, _ in spans], [last for _, last in spans], 12)
    expected: list[int] = []
    for index in order:
        if len(expected) < 12 and not any(cross(spans[index], spans[other]) for other in expected):
            expected.append(index)
    assert kept == expected


# --- The network ----------------------------------------------------------------------------------


def ranker_and_batch(
    **settings: Any,
) -> tuple[SpanRanker, CoreferenceOracle, CorefBatch, dict[tuple[int, int], int]]:
    """A network with random weights, its oracle, a document, and the cluster of each gold mention
    (first, last).

    Gold mentions are most of those that the network keeps, in two clusters, and a span that it does
    not keep.
    """
    config = CoreferenceConfig(
        4, span_dim=6, feature_dim=3, max_span_words=3, mentions_per_word=0.9, **settings
    )
    network = random_network(SpanRanker, config, GivenWords(), scale=0.6)
    network.pair[-1].bias -= 5  # or all mentions have an antecedent
    words = random_words([5, 1, 7])
    oracle = CoreferenceOracle(network, sentences_of(words))
    cluster_of = {span: number // 6 for number, span in enumerate(oracle.mentions) if number % 5}
    cluster_of[next(span for span in oracle.vectors if span not in oracle.mentions)] = 0
    spans = torch.tensor([(first, last + 1) for first, last in cluster_of])
    batch = CorefBatch(words, spans, torch.tensor([*cluster_of.values()]))  # type: ignore[arg-type]
    return network, oracle, batch, cluster_of


@pytest.mark.parametrize("max_antecedents, mention_loss", [(2, 0.0), (100, 0.0), (2, 0.7)])
def test_network_and_loss_equal_the_formulas_for_every_span_and_pair(
    max_antecedents: int, mention_loss: float
) -> None:
    settings = {"max_antecedents": max_antecedents, "mention_loss": mention_loss}
    network, oracle, batch, cluster_of = ranker_and_batch(**settings)
    assert network.loss(batch).item() == pytest.approx(oracle.loss(cluster_of))
    candidates, mentions, scores = network(batch)
    assert len(oracle.mentions) == 11  # of 13 words
    for spans, expected in ((candidates, [*oracle.vectors]), (mentions, oracle.mentions)):
        assert bounds(spans) == [(first, last + 1) for first, last in expected]
        np.testing.assert_allclose(
            spans.vectors, [oracle.vectors[span] for span in expected], rtol=1e-9
        )
        np.testing.assert_allclose(
            spans.scores, [oracle.mention_scores[span] for span in expected], rtol=1e-9
        )
    assert scores.shape == (11, 1 + min(max_antecedents, 10))
    for number, (row, by_antecedent) in enumerate(
        zip(scores.tolist(), oracle.antecedent_scores(), strict=True)
    ):
        numbers = [
            None,
            *(number - back if number >= back else -1 for back in range(1, scores.shape[1])),
        ]
        assert row == pytest.approx(
            [by_antecedent.get(each, -np.inf) for each in numbers], rel=1e-9
        )


@pytest.mark.parametrize("max_antecedents", [2, 100])
def test_decode_links_each_mention_to_its_best_antecedent(max_antecedents: int) -> None:
    network, oracle, batch, _ = ranker_and_batch(max_antecedents=max_antecedents)
    clusters = [{number} for number in range(len(oracle.mentions))]
    for number, scores in enumerate(oracle.antecedent_scores()):
        best = max(scores, key=lambda before: scores[before])
        if best is not None:
            one, other = (
                next(cluster for cluster in clusters if each in cluster) for each in (best, number)
            )
            clusters = [cluster for cluster in clusters if cluster not in (one, other)] + [
                one | other
            ]
    expected = [
        [oracle.mentions[number] for number in sorted(cluster)]
        for cluster in clusters
        if len(cluster) > 1
    ]
    (found,) = network.decode(batch)
    assert sorted(found) == sorted(
        [(first, last + 1) for first, last in cluster] for cluster in expected
    )
    assert found


# --- Scores ---------------------------------------------------------------------------------------

# The worked example of Pradhan et al. 2014 ("Scoring coreference partitions of predicted mentions",
# section 4).
GOLD = [["a", "b", "c"], ["d", "e", "f", "g"]]
PREDICTED = [["a", "b"], ["c", "d"], ["f", "g", "h", "i"]]


def test_scores_equal_the_published_example() -> None:
    counts = coreference_counts(GOLD, PREDICTED)
    expected = {
        "muc": (2 / 5, 2 / 5),
        "b3": (0.42, 0.50),
        "ceaf": (0.65, 0.43),
    }  # recall and precision
    for name, scores in expected.items():
        assert [right / all for right, all in counts[name]] == pytest.approx(scores, abs=0.005)


def test_score_counts_a_mention_that_is_marked_twice_once() -> None:
    """Its cluster has one mention, and such clusters are not scored."""
    found = CorefClusters("d", ("a", "b", "c"), (((1, 2), (2, 3)),))
    gold = CorefDocument("d", (("a", "b", "c"),), (((0, 1), (0, 1)), ((1, 2), (2, 3))))
    CoreferenceTask().check(gold)
    assert CoreferenceTask().score([gold], [found]).values == {
        "average": 1.0,
        "muc": 1.0,
        "b3": 1.0,
        "ceaf": 1.0,
    }
    assert coreference_scores([(GOLD, [])])["average"] == 0.0


def random_partition(mentions: list[int], random: np.random.Generator) -> list[list[int]]:
    kept = [mention for mention in mentions if random.random() < 0.8]
    numbers = random.integers(0, 4, len(kept))
    return [
        cluster
        for n in range(4)
        if (cluster := [m for m, k in zip(kept, numbers, strict=True) if k == n])
    ]


def test_b_cubed_and_ceaf_equal_their_definitions_on_any_partition() -> None:
    random = np.random.default_rng(0)
    for _ in range(50):
        gold, predicted = (random_partition([*range(8)], random) for _ in range(2))
        counts = coreference_counts(gold, predicted)
        for row, (clusters, others) in zip(
            counts["b3"], ((gold, predicted), (predicted, gold)), strict=True
        ):
            of = {mention: set(cluster) for cluster in others for mention in cluster}
            shares = [
                len(of[mention] & {*cluster}) / len(cluster) if mention in of else 0.0
                for cluster in clusters
                for mention in cluster
            ]
            assert row == pytest.approx([sum(shares), len(shares)])
        few, many = sorted((gold, predicted), key=len)
        alignments = permutations(many, len(few))
        best = max(
            sum(2 * len({*a} & {*b}) / (len(a) + len(b)) for a, b in zip(few, each, strict=True))
            for each in alignments
        )
        assert counts["ceaf"].tolist() == [
            pytest.approx([best, len(gold)]),
            pytest.approx([best, len(predicted)]),
        ]
