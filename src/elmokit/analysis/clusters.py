"""Points in few dimensions: principal components, k-means, and the silhouette (Rousseeuw, 1987), which chooses k."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

RESTARTS = 10
MAX_ITERATIONS = 100


class Clustering(NamedTuple):
    """Which of k clusters each of N points is in, (N,), the largest cluster first; the mean silhouette, -1 to 1."""

    labels: np.ndarray
    silhouette: float


def principal_components(vectors: np.ndarray, count: int) -> np.ndarray:
    """(N, D) -> (N, count): coordinates along the directions of the largest variance; zeros where there are no more.

    A direction's largest coordinate is positive, so that the same vectors give the same picture.
    """
    centred = vectors - vectors.mean(axis=0)
    left, scales, _ = np.linalg.svd(centred, full_matrices=False)
    found = np.zeros((len(vectors), count), dtype=vectors.dtype)
    kept = min(count, len(scales))
    found[:, :kept] = left[:, :kept] * scales[:kept]
    largest = found[np.abs(found).argmax(axis=0), range(count)]
    return found * np.where(largest < 0, -1, 1)


def turned_like(points: np.ndarray, target: np.ndarray) -> np.ndarray:
    """(N, d) points, turned or mirrored to lie as near to `target` as they can (orthogonal Procrustes)."""
    left, _, right = np.linalg.svd(points.T @ target)
    return points @ (left @ right)


def _squared_distances(points: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """(N, k)."""
    squares = np.square(points).sum(axis=1)[:, None] + np.square(centres).sum(axis=1) - 2 * points @ centres.T
    return np.maximum(squares, 0)


def _first_centres(points: np.ndarray, k: int, random: np.random.Generator) -> np.ndarray:
    """k-means++ (Arthur and Vassilvitskii, 2007): far points are likelier."""
    chosen = [points[random.integers(len(points))]]
    while len(chosen) < k:
        nearest = _squared_distances(points, np.stack(chosen)).min(axis=1)
        total = nearest.sum()
        chosen.append(points[random.choice(len(points), p=nearest / total if total else None)])
    return np.stack(chosen)


def k_means(points: np.ndarray, k: int, random: np.random.Generator) -> np.ndarray:
    """(N,) labels of the best of some runs of Lloyd's algorithm: the least sum of squared distances to the centres."""
    best, least = np.zeros(len(points), dtype=np.int64), np.inf
    for _ in range(RESTARTS):
        centres, labels = _first_centres(points, k, random), None
        for _ in range(MAX_ITERATIONS):
            distances = _squared_distances(points, centres)
            before, labels = labels, distances.argmin(axis=1)
            if before is not None and (labels == before).all():
                break
            for number in set(labels.tolist()):  # an empty cluster keeps its centre
                centres[number] = points[labels == number].mean(axis=0)
        assert labels is not None
        sum_of_squares = distances.min(axis=1).sum()
        if sum_of_squares < least:
            best, least = labels, sum_of_squares
    return best


def silhouette(points: np.ndarray, labels: np.ndarray) -> float:
    """The mean over all points of (b - a) / max(a, b), 0 for a point alone in its cluster.

    a is a point's mean distance to the others of its cluster, b that to the nearest other cluster.
    """
    distances = np.sqrt(_squared_distances(points, points))
    np.fill_diagonal(distances, 0)
    present, counts = np.unique(labels, return_counts=True)
    sums = np.stack([distances[:, labels == label].sum(axis=1) for label in present], axis=1)
    own = np.searchsorted(present, labels)
    rows = np.arange(len(points))
    inside = sums[rows, own] / np.maximum(counts[own] - 1, 1)
    means = sums / counts
    means[rows, own] = np.inf
    outside = means.min(axis=1)
    widths = np.where(counts[own] > 1, (outside - inside) / np.maximum(np.maximum(inside, outside), 1e-12), 0)
    return float(widths.mean())


def _by_size(labels: np.ndarray) -> np.ndarray:
    """The same clusters, numbered from the largest to the smallest."""
    present, counts = np.unique(labels, return_counts=True)
    numbers = np.empty(labels.max() + 1, dtype=np.int64)
    numbers[present[np.argsort(-counts, kind="stable")]] = np.arange(len(present))
    return numbers[labels]


def cluster(points: np.ndarray, k: int | None = None, max_k: int = 8, seed: int = 0) -> Clustering:
    """k-means with k clusters, or with the k from 2 to `max_k` whose silhouette is largest.

    Fewer, where fewer points differ; one cluster, of silhouette 0, where all points are the same.
    """
    distinct = len(np.unique(points.round(6), axis=0))
    highest = min(k or max_k, distinct, len(points) - 1)
    found = Clustering(np.zeros(len(points), dtype=np.int64), 0.0)
    if highest < 2:
        return found
    candidates = [highest] if k else range(2, highest + 1)
    for number, count in enumerate(candidates):
        labels = _by_size(k_means(points, count, np.random.default_rng([seed, count])))
        score = silhouette(points, labels) if labels.max() else 0.0
        if not number or score > found.silhouette:
            found = Clustering(labels, score)
    return found
