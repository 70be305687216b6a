"""Principal components, k-means, and the choice of k by the silhouette (Rousseeuw, 1987)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

RESTARTS = 10
MAX_ITERATIONS = 100


class Clustering(NamedTuple):
    """Cluster number of each point, (N,), numbered from the largest cluster; and the mean silhouette, in [-1, 1]."""

    labels: np.ndarray
    silhouette: float


def principal_components(vectors: np.ndarray, count: int) -> np.ndarray:
    """Project vectors on their first principal components.

    Args:
        vectors: (N, D).
        count: Number of components.

    Returns:
        (N, count) coordinates, zeros for components beyond min(N, D). The sign of a component is chosen so that its
        largest coordinate is positive, which makes the projection deterministic.
    """
    centred = vectors - vectors.mean(axis=0)
    left, scales, _ = np.linalg.svd(centred, full_matrices=False)
    components = np.zeros((len(vectors), count), dtype=vectors.dtype)
    kept = min(count, len(scales))
    components[:, :kept] = left[:, :kept] * scales[:kept]
    largest = components[np.abs(components).argmax(axis=0), range(count)]
    return components * np.where(largest < 0, -1, 1)


def align(points: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Rotate or reflect points (N, d) to minimize their squared distance to `target` (orthogonal Procrustes)."""
    left, _, right = np.linalg.svd(points.T @ target)
    return points @ (left @ right)


def _squared_distances(points: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Squared Euclidean distances, (N, k)."""
    squares = np.square(points).sum(axis=1)[:, None] + np.square(centres).sum(axis=1) - 2 * points @ centres.T
    return np.maximum(squares, 0)


def _first_centres(points: np.ndarray, k: int, random: np.random.Generator) -> np.ndarray:
    """Initial centres by k-means++ (Arthur and Vassilvitskii, 2007)."""
    chosen = [points[random.integers(len(points))]]
    while len(chosen) < k:
        nearest = _squared_distances(points, np.stack(chosen)).min(axis=1)
        total = nearest.sum()
        chosen.append(points[random.choice(len(points), p=nearest / total if total else None)])
    return np.stack(chosen)


def k_means(points: np.ndarray, k: int, random: np.random.Generator) -> np.ndarray:
    """Cluster points (N, d) with Lloyd's algorithm; of ten restarts, keep the one with the lowest inertia.

    Returns:
        The cluster numbers, (N,).
    """
    best, lowest_inertia = np.zeros(len(points), dtype=np.int64), np.inf
    for _ in range(RESTARTS):
        centres = _first_centres(points, k, random)
        distances = _squared_distances(points, centres)
        for _ in range(MAX_ITERATIONS):
            labels = distances.argmin(axis=1)
            for number in set(labels.tolist()):  # an empty cluster keeps its centre
                centres[number] = points[labels == number].mean(axis=0)
            distances = _squared_distances(points, centres)
            if (labels == distances.argmin(axis=1)).all():
                break
        if (inertia := distances.min(axis=1).sum()) < lowest_inertia:
            best, lowest_inertia = distances.argmin(axis=1), inertia
    return best


def silhouette(points: np.ndarray, labels: np.ndarray) -> float:
    """Mean silhouette of all points: (b - a) / max(a, b), or 0 for a point that is alone in its cluster.

    a is the mean distance of a point to the other points of its cluster, b the mean distance to the points of the
    nearest other cluster.
    """
    distances = np.sqrt(_squared_distances(points, points))
    np.fill_diagonal(distances, 0)
    is_member = labels[:, None] == np.unique(labels)  # (N, k)
    sums, counts = distances @ is_member, is_member.sum(axis=0)
    size = is_member @ counts
    inside = sums[is_member] / np.maximum(size - 1, 1)
    outside = np.where(is_member, np.inf, sums / counts).min(axis=1)
    widths = (outside - inside) / np.maximum(np.maximum(inside, outside), 1e-12)
    return float(np.where(size > 1, widths, 0).mean())


def cluster(points: np.ndarray, k: int | None = None, max_k: int = 8, seed: int = 0) -> Clustering:
    """Cluster points with k-means.

    Args:
        points: (N, d).
        k: Number of clusters; None: the number from 2 to `max_k` with the largest silhouette. It is limited to the
            number of distinct points (with coordinates rounded to six decimals), and to N - 1, since a silhouette needs
            a cluster of two points.
        max_k: Largest number of clusters to try.
        seed: Seed of the initial centres.

    Returns:
        The clustering: a single cluster with a silhouette of 0 if all points are equal, there are fewer than three,
        or `k` is 1.
    """
    distinct = len(np.unique(points.round(6), axis=0))
    highest = min(k or max_k, distinct, len(points) - 1)
    best = Clustering(np.zeros(len(points), dtype=np.int64), 0.0)
    if highest < 2:
        return best
    candidates = [highest] if k else range(2, highest + 1)
    for number, count in enumerate(candidates):
        unordered = k_means(points, count, np.random.default_rng([seed, count]))
        _, numbers, sizes = np.unique(unordered, return_inverse=True, return_counts=True)
        labels = np.argsort(np.argsort(-sizes, kind="stable"))[numbers]  # from the largest to the smallest
        score = silhouette(points, labels) if labels.max() else 0.0
        if not number or score > best.silhouette:
            best = Clustering(labels, score)
    return best
