"""Correlation of two samples."""

import numpy as np


def pearson(left: np.ndarray, right: np.ndarray) -> float:
    """Pearson's correlation of two samples; 0 where one of them is constant."""
    if any((sample == sample[:1]).all() for sample in (left, right)):
        return 0.0
    return float(np.corrcoef(left, right)[0, 1])


def ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 1, equal values sharing their mean rank."""
    _, number, count = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count - 1) / 2)[number]


def spearman(left: np.ndarray, right: np.ndarray) -> float:
    """Spearman's rank correlation of two samples; 0 where one of them is constant."""
    return pearson(ranks(left), ranks(right))
