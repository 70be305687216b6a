"""Principal components and k-means, with k by the silhouette (Rousseeuw, 1987)."""

from typing import NamedTuple

import numpy as np

RESTARTS = 10
MAX_ITERATIONS = 100
# Unless a number of clusters is asked for.
MAX_CLUSTERS = 5
SMALLEST_SHARE = 0.05
# Below, Kaufman and Rousseeuw (1990) see no substantial structure; docs/log.md has what it decides
# on CoarseWSD-20.
CLEAR_SILHOUETTE = 0.25


class Clustering(NamedTuple):
    """Cluster number of each point, (N,), from the largest cluster; and the mean silhouette."""

    labels: np.ndarray
    silhouette: float


def principal_components(vectors: np.ndarray, count: int) -> np.ndarray:
    """Project vectors on their first principal components.

    Args:
        vectors: (N, D).
        count: Number of components.

    Returns:
        (N, count) coordinates, zeros for components beyond min(N, D). The sign of a component is
        chosen so that its largest coordinate is positive, which makes the projection deterministic.
    """
    centred = vectors - vectors.mean(axis=0)
    left, scales, _ = np.linalg.svd(centred, full_matrices=False)
    components = np.zeros((len(vectors), count), dtype=vectors.dtype)
    components[:, : len(scales)] = left[:, :count] * scales[:count]
    rows = np.abs(components).argmax(axis=0)
    largest = components[rows, range(count)]
    return components * np.where(largest < 0, -1, 1)


def align(points: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Rotate or reflect points (N, d) to be nearest to `target` (orthogonal Procrustes)."""
    left, _, right = np.linalg.svd(points.T @ target)
    return points @ (left @ right)


def _squared_distances(points: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Squared Euclidean distances, (N, k): |p|^2 + |c|^2 - 2 p c."""
    of_points = np.square(points).sum(axis=1)
    of_centres = np.square(centres).sum(axis=1)
    products = points @ centres.T
    return np.maximum(of_points[:, None] + of_centres - 2 * products, 0)


def _first_centres(
    points: np.ndarray,
    k: int,
    random: np.random.Generator,
) -> np.ndarray:
    """Initial centres by k-means++ (Arthur and Vassilvitskii, 2007), of k distinct points."""
    chosen = [points[random.integers(len(points))]]
    while len(chosen) < k:
        nearest = _squared_distances(points, np.stack(chosen)).min(axis=1)
        index = random.choice(len(points), p=nearest / nearest.sum())
        chosen.append(points[index])
    return np.stack(chosen)


def k_means(
    points: np.ndarray,
    k: int,
    random: np.random.Generator,
) -> np.ndarray:
    """Cluster points (N, d) with Lloyd's algorithm; the best of ten restarts by inertia.

    Args:
        points: At least k distinct ones.
        k: Number of clusters.
        random: Draws the initial centres.

    Returns:
        The cluster numbers, (N,).
    """
    best = np.zeros(len(points), dtype=np.int64)
    lowest_inertia = np.inf
    for _ in range(RESTARTS):
        centres = _first_centres(points, k, random)
        distances = _squared_distances(points, centres)
        for _ in range(MAX_ITERATIONS):
            labels = distances.argmin(axis=1)
            for number in np.unique(labels):  # an empty cluster keeps its centre
                centres[number] = points[labels == number].mean(axis=0)
            distances = _squared_distances(points, centres)
            if (labels == distances.argmin(axis=1)).all():
                break
        inertia = distances.min(axis=1).sum()
        if inertia < lowest_inertia:
            best = distances.argmin(axis=1)
            lowest_inertia = inertia
    return best


def silhouette(points: np.ndarray, labels: np.ndarray) -> float:
    """Mean silhouette of all points: (b - a) / max(a, b), or 0 for a point alone in its cluster.

    a is the mean distance of a point to the other points of its cluster, b the mean distance to the
    points of the nearest other cluster.
    """
    distances = np.sqrt(_squared_distances(points, points))
    np.fill_diagonal(distances, 0)
    is_member = labels[:, None] == np.unique(labels)  # (N, k)
    sums = distances @ is_member
    counts = is_member.sum(axis=0)
    size = is_member @ counts  # of the cluster of each point
    inside = sums[is_member] / np.maximum(size - 1, 1)
    outside = np.where(is_member, np.inf, sums / counts).min(axis=1)
    larger = np.maximum(inside, outside)
    widths = (outside - inside) / np.maximum(larger, 1e-12)
    return float(np.where(size > 1, widths, 0).mean())


def cluster(
    points: np.ndarray,
    k: int | None = None,
    seed: int = 0,
) -> Clustering:
    """Cluster points with k-means.

    Args:
        points: (N, d).
        k: Number of clusters; None: the number from 2 to `MAX_CLUSTERS` with the largest
            silhouette, of those in which each has at least `SMALLEST_SHARE` of the points. It is
            limited to the number of distinct points (with coordinates rounded to six decimals), and
            to N - 1, since a silhouette needs a cluster of two points.
        seed: Seed of the initial centres.

    Returns:
        The clustering: a single cluster if all points are equal, there are fewer than three, or `k`
        is 1; or, if it is None, if the largest silhouette, which is returned in any case, is below
        `CLEAR_SILHOUETTE`.
    """
    single = np.zeros(len(points), dtype=np.int64)
    best = Clustering(single, 0.0)
    num_distinct = len(np.unique(points.round(6), axis=0))
    most = min(k or MAX_CLUSTERS, num_distinct, len(points) - 1)
    for count in range(max(2, most) if k else 2, most + 1):
        unordered = k_means(points, count, np.random.default_rng([seed, count]))
        _, numbers, sizes = np.unique(unordered, return_inverse=True, return_counts=True)
        rank = np.argsort(np.argsort(-sizes, kind="stable"))  # of each cluster, from the largest
        labels = rank[numbers]
        score = silhouette(points, labels)
        has_no_tiny_one = sizes.min() >= SMALLEST_SHARE * len(points)
        if k or (score > best.silhouette and has_no_tiny_one):
            best = Clustering(labels, score)
    if k is None and best.silhouette < CLEAR_SILHOUETTE:
        return Clustering(single, best.silhouette)
    return best
