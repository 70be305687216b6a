"""Coreference scores of the CoNLL scorer: MUC, B-cubed, entity-based CEAF, and their average F1.

As its reference implementation (Pradhan et al. 2014) counts them; a mention is any hashable value, here (start, end).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

Clusters = Sequence[Iterable[Hashable]]


@dataclass(frozen=True)
class RecallPrecision:
    """Recall and precision as numerators and denominators, which are added up over documents."""

    right_recall: float = 0.0
    all_recall: float = 0.0
    right_precision: float = 0.0
    all_precision: float = 0.0

    def __add__(self, other: RecallPrecision) -> RecallPrecision:
        return RecallPrecision(
            self.right_recall + other.right_recall,
            self.all_recall + other.all_recall,
            self.right_precision + other.right_precision,
            self.all_precision + other.all_precision,
        )

    @property
    def f1(self) -> float:
        recall = self.right_recall / self.all_recall if self.all_recall else 0.0
        precision = self.right_precision / self.all_precision if self.all_precision else 0.0
        return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def _muc_links(clusters: list[set], other: dict[Hashable, int]) -> tuple[float, float]:
    """Number of links of `clusters` that the other partition has too, and number of all (Vilain et al. 1995)."""
    kept = total = 0
    for cluster in clusters:
        parts = {other[mention] for mention in cluster if mention in other}
        alone = sum(mention not in other for mention in cluster)
        kept += len(cluster) - len(parts) - alone
        total += len(cluster) - 1
    return kept, total


def _b_cubed(clusters: list[set], others: list[set], other: dict[Hashable, int]) -> tuple[float, float]:
    """Sum over mentions of the share of its cluster that the other partition keeps, and their number (Bagga and
    Baldwin 1998)."""
    kept = total = 0.0
    for cluster in clusters:
        total += len(cluster)
        for mention in cluster:
            if mention in other:
                kept += len(cluster & others[other[mention]]) / len(cluster)
    return kept, total


def assignment_function() -> Callable[..., tuple[np.ndarray, np.ndarray]]:
    """SciPy's `linear_sum_assignment`. ValueError if SciPy is not installed."""
    try:
        from scipy.optimize import linear_sum_assignment
    except ImportError as error:
        raise ValueError("scores of coreference need SciPy: pip install scipy (elmokit's extra tasks)") from error
    return linear_sum_assignment


def _ceaf(gold: list[set], predicted: list[set]) -> float:
    """Total similarity (phi 4) of the best one-to-one alignment of clusters (Luo 2005)."""
    if not gold or not predicted:
        return 0.0
    similarity = np.array([[2 * len(one & two) / (len(one) + len(two)) for two in predicted] for one in gold])
    rows, columns = assignment_function()(-similarity)
    return float(similarity[rows, columns].sum())


def coreference_counts(gold: Clusters, predicted: Clusters) -> dict[str, RecallPrecision]:
    """MUC, B-cubed and CEAF counts of one document."""
    gold_sets, predicted_sets = [set(cluster) for cluster in gold], [set(cluster) for cluster in predicted]
    gold_of = {mention: number for number, cluster in enumerate(gold_sets) for mention in cluster}
    predicted_of = {mention: number for number, cluster in enumerate(predicted_sets) for mention in cluster}
    aligned = _ceaf(gold_sets, predicted_sets)
    return {
        "muc": RecallPrecision(*_muc_links(gold_sets, predicted_of), *_muc_links(predicted_sets, gold_of)),
        "b3": RecallPrecision(
            *_b_cubed(gold_sets, predicted_sets, predicted_of), *_b_cubed(predicted_sets, gold_sets, gold_of)
        ),
        "ceaf": RecallPrecision(aligned, len(gold_sets), aligned, len(predicted_sets)),
    }


def coreference_scores(documents: Iterable[tuple[Clusters, Clusters]]) -> dict[str, float]:
    """F1 by "muc", "b3", "ceaf" and "average" over documents of (gold clusters, predicted clusters)."""
    totals = {"muc": RecallPrecision(), "b3": RecallPrecision(), "ceaf": RecallPrecision()}
    for gold, predicted in documents:
        counts = coreference_counts(gold, predicted)
        totals = {name: totals[name] + counts[name] for name in totals}
    scores = {name: ratio.f1 for name, ratio in totals.items()}
    return {"average": sum(scores.values()) / 3, **scores}
