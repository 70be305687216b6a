"""Map of a word: its uses in a corpus, projected to the plane for each layer and clustered; and its
page.

Each cluster is described by its most typical uses (the nearest to its mean) and by the substitutes
that the language model predicts for them.
"""

from __future__ import annotations

import html
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from elmokit.analysis.config import MapConfig
from elmokit.analysis.corpora import open_corpus
from elmokit.analysis.report import Report, as_json
from elmokit.analysis.uses import Use, Word, WordForms, sample_uses, unit_vectors, vectors_of_uses
from elmokit.embed import Embedder, layer_weights
from elmokit.fs import atomic_path
from elmokit.lm import batch_substitutes

# --- Principal components and k-means; k by the silhouette (Rousseeuw, 1987) ----------------------

RESTARTS = 10
MAX_ITERATIONS = 100
MAX_CLUSTERS, SMALLEST_SHARE = 5, 0.05  # unless a number is asked for
# Below, Kaufman and Rousseeuw (1990) see no substantial structure; docs/log.md has what it decides
# on CoarseWSD-20.
CLEAR_SILHOUETTE = 0.25


class Clustering(NamedTuple):
    """Cluster number of each point, (N,), numbered from the largest cluster; and the mean
    silhouette, in [-1, 1].
    """

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
    kept = min(count, len(scales))
    components[:, :kept] = left[:, :kept] * scales[:kept]
    largest = components[np.abs(components).argmax(axis=0), range(count)]
    return components * np.where(largest < 0, -1, 1)


def align(points: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Rotate or reflect points (N, d) to minimize their squared distance to `target` (orthogonal
    Procrustes).
    """
    left, _, right = np.linalg.svd(points.T @ target)
    return points @ (left @ right)


def _squared_distances(points: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Squared Euclidean distances, (N, k)."""
    squares = (
        np.square(points).sum(axis=1)[:, None]
        + np.square(centres).sum(axis=1)
        - 2 * points @ centres.T
    )
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
    """Cluster points (N, d) with Lloyd's algorithm; of ten restarts, keep the one with the lowest
    inertia.

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
    """Mean silhouette of all points: (b - a) / max(a, b), or 0 for a point that is alone in its
    cluster.

    a is the mean distance of a point to the other points of its cluster, b the mean distance to the
    points of the nearest other cluster.
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


def cluster(points: np.ndarray, k: int | None = None, seed: int = 0) -> Clustering:
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
    distinct = len(np.unique(points.round(6), axis=0))
    highest = min(k or MAX_CLUSTERS, distinct, len(points) - 1)
    single = best = Clustering(np.zeros(len(points), dtype=np.int64), 0.0)
    for count in [highest] if k else range(2, highest + 1):
        if count < 2:
            continue
        unordered = k_means(points, count, np.random.default_rng([seed, count]))
        _, numbers, sizes = np.unique(unordered, return_inverse=True, return_counts=True)
        labels = np.argsort(np.argsort(-sizes, kind="stable"))[
            numbers
        ]  # from the largest to the smallest
        score = silhouette(points, labels) if labels.max() else 0.0
        if k or (score > best.silhouette and sizes.min() >= SMALLEST_SHARE * len(points)):
            best = Clustering(labels, score)
    return (
        best
        if k or best.silhouette >= CLEAR_SILHOUETTE
        else Clustering(single.labels, best.silhouette)
    )


# --- The map --------------------------------------------------------------------------------------

CLUSTERED_DIMENSIONS = 8
TYPICAL_USES = 5
CONTEXT_WORDS = 3  # typical uses must differ in this many words on either side
EXCERPT_WORDS = 12  # on each side of a printed use
# Per cluster, uses whose substitutes are combined; per use, candidates; per cluster, substitutes
# kept.
USES_SUBSTITUTED, CANDIDATES, SUBSTITUTES = 20, 100, 8
# the most frequent ones, with which no cluster is described: function words in any language
COMMON_WORDS = 150
# Words on each side of a use from which its substitutes are predicted. Words further away hardly
# change them, and the language model runs for each use: over the whole of a sentence of thousands
# of words, it would take many minutes.
SUBSTITUTE_CONTEXT = 50

# JSON escapes of the characters that could end a script element or a line of JavaScript.
ESCAPES = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


def _excerpt(use: Use) -> str:
    """The use with its context, shortened."""
    before = "… " if use.position > EXCERPT_WORDS else ""
    after = " …" if use.position + EXCERPT_WORDS + 1 < len(use.sentence) else ""
    return f"{before}{use.window(EXCERPT_WORDS)}{after}"


@dataclass(frozen=True)
class UseCluster:
    """A cluster: the number of its uses, the indices of the most typical ones, and their
    substitutes.
    """

    size: int
    typical: list[int]
    substitutes: list[str]


@dataclass(frozen=True, eq=False, repr=False)
class WordMap(Report):
    """N uses of a word, projected to the plane for each layer, and their clusters.

    Attributes:
        word: The word.
        uses: The sampled uses, in corpus order.
        planes: Coordinates (L+1, N, 2), each layer aligned to the one above it; of stored vectors
            of one representation (1, N, 2).
        labels: Index of the cluster of each use, (N,).
        clusters: The clusters, the largest first.
        silhouette: Mean silhouette of the clustering, in [-1, 1].
        layers: The representation that was clustered.
        uses_in_corpus: Number of uses in the corpus, of which `uses` is a sample.
        fingerprint: Fingerprint of the model's weights.
    """

    word: str
    uses: list[Use]
    planes: np.ndarray
    labels: np.ndarray
    clusters: list[UseCluster]
    silhouette: float
    layers: str | int
    uses_in_corpus: int
    fingerprint: str

    @property
    def summary(self) -> str:
        """One line: the number of uses and clusters, the clustered representation, the
        silhouette.
        """
        sampled = f" of {self.uses_in_corpus}" if self.uses_in_corpus > len(self.uses) else ""
        layers = f"layer {self.layers}" if isinstance(self.layers, int) else f"{self.layers} layer"
        count = f"{len(self.clusters)} clusters" if len(self.clusters) > 1 else "no clear senses"
        return (
            f"{len(self.uses)}{sampled} uses, {count} ({layers}, silhouette {self.silhouette:.2f})"
        )

    def __str__(self) -> str:
        lines = [f"{self.word}: {self.summary}"]
        for number, each in enumerate(self.clusters, start=1):
            words = f": {', '.join(each.substitutes)}" if each.substitutes else ""
            lines += [
                "",
                f"cluster {number}, {each.size} {'use' if each.size == 1 else 'uses'}{words}",
            ]
            lines += [f"    {_excerpt(self.uses[use])}" for use in each.typical]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """The map as JSON values: each use with its cluster, coordinates rounded to four decimals,
        and the summary.
        """
        values = super().to_json() | {"summary": self.summary}
        labels = values.pop("labels")
        uses = [
            use | {"cluster": label}
            for use, label in zip(map(as_json, self.uses), labels, strict=True)
        ]
        return values | {"uses": uses, "planes": self.planes.astype(float).round(4).tolist()}


def _planes(vectors: np.ndarray) -> np.ndarray:
    """(N, L+1, 2D) -> (L+1, N, 2): principal components of each layer's unit vectors, aligned to
    the layer above.
    """
    planes = [
        principal_components(unit_vectors(vectors[:, layer]), 2)
        for layer in range(vectors.shape[1])
    ]
    for layer in reversed(range(len(planes) - 1)):
        planes[layer] = align(planes[layer], planes[layer + 1])
    return np.stack(planes)


def _substitutes(
    embedder: Embedder, uses: list[Use], check: Callable[[], None] | None
) -> list[str]:
    """The most likely replacements of the word in the given uses; empty without a language
    model.
    """
    model, state = embedder.model, embedder.model.single_sentence_state
    if (
        model.softmax is None
        or model.vocab is None
        or not model.config.sequence_encoder.predicts_words
    ):
        return []
    weights: Counter[str] = Counter()
    common = {
        word.lower() for word in model.vocab.words[: min(COMMON_WORDS, len(model.vocab) // 100)]
    }
    near = [use.window(SUBSTITUTE_CONTEXT) for use in uses]
    # A phrase is replaced as a whole.
    sentences = [
        [*use.sentence[: use.position], use.word, *use.sentence[use.stop :]] for use in near
    ]
    positions = [[use.position] for use in near]
    replaced = batch_substitutes(sentences, positions, model, CANDIDATES, state=state, check=check)
    for use, candidates in zip(near, replaced, strict=True):
        probabilities = np.exp([candidate.log_probability for candidate in candidates])
        for candidate, weight in zip(candidates, probabilities / probabilities.sum(), strict=True):
            lowered = candidate.word.lower()
            if any(map(str.isalpha, lowered)) and lowered not in common | {use.word.lower()}:
                weights[candidate.word] += weight
    return [word for word, _ in weights.most_common(SUBSTITUTES)]


def _describe(
    points: np.ndarray,
    members: np.ndarray,
    uses: list[Use],
    embedder: Embedder,
    check: Callable[[], None] | None,
) -> UseCluster:
    """Describe the cluster of the uses with indices `members`, given the clustered points (N, d) of
    all uses.
    """
    distances = np.linalg.norm(points[members] - points[members].mean(axis=0), axis=1)
    typical: dict[Use, int] = {}  # the most typical use with each context
    for number in members[np.argsort(distances, kind="stable")].tolist():
        near = uses[number].window(CONTEXT_WORDS)
        words = *near.sentence[: near.position], "", *near.sentence[near.stop :]
        typical.setdefault(Use(words, near.position), number)
    nearest = list(typical.values())
    words = _substitutes(embedder, [uses[number] for number in nearest[:USES_SUBSTITUTED]], check)
    return UseCluster(len(members), nearest[:TYPICAL_USES], words)


def map_uses(
    word: str,
    uses: list[Use],
    embedder: Embedder,
    layers: str | int = "top",
    config: MapConfig | None = None,
    *,
    uses_in_corpus: int | None = None,
    fingerprint: str | None = None,
    check: Callable[[], None] | None = None,
    vectors: np.ndarray | None = None,
) -> WordMap:
    """Cluster uses of a word by their vectors, and project them to the plane for each layer.

    Clustering is k-means on the first 8 principal components of the unit vectors. Substitutes are
    predicted from the 50 words on each side of a use.

    Args:
        word: The word.
        uses: At least three distinct uses of it.
        embedder: The model.
        layers: Representation to cluster: "mix", "average", "sum", "top" or the number of a layer.
        config: Settings of the clustering.
        uses_in_corpus: Number of uses in the corpus, if `uses` is a sample of them; None: the
            number of `uses`.
        fingerprint: `embedder.fingerprint()` if it is known; None: it is computed, which takes
            time.
        check: Called before each run of the language model, and after each batch of sentences that
            is embedded; an exception that it raises ends the computation.
        vectors: The vectors of the uses at all layers, (N, L+1, 2D), or of the representation, (N,
            1, 2D); None: they are embedded.

    Returns:
        The map.

    Raises:
        ValueError: There are fewer than three uses, or `layers` is invalid.
    """
    config = config or MapConfig()
    if len(uses) < 3:
        raise ValueError(
            f"a map needs 3 distinct uses of {word!r}, and there are {len(uses)}: add sentences"
        )
    weights = layer_weights(embedder.model, layers).numpy()
    if vectors is None:
        vectors = vectors_of_uses(uses, embedder, "all", check)
    elif vectors.shape[1] == 1:
        weights = np.ones(1, np.float32)
    points = principal_components(
        unit_vectors(np.einsum("nld,l->nd", vectors, weights)), CLUSTERED_DIMENSIONS
    )
    labels, silhouette = cluster(points, config.clusters, seed=config.seed)
    members = [np.flatnonzero(labels == number) for number in range(labels.max() + 1)]
    return WordMap(
        word=word,
        uses=uses,
        planes=_planes(vectors),
        labels=labels,
        clusters=[_describe(points, each, uses, embedder, check) for each in members],
        silhouette=silhouette,
        layers=layers,
        uses_in_corpus=len(uses) if uses_in_corpus is None else uses_in_corpus,
        fingerprint=fingerprint or embedder.fingerprint(),
    )


def senses(
    word: Word,
    corpus: str | Path,
    model: Embedder | str | Path | None = None,
    layers: str | int | None = None,
    config: MapConfig | None = None,
    tokenize: bool = True,
) -> WordMap:
    """Collect the uses of a word in a corpus, and cluster them by their vectors; see `map_uses`.

    Args:
        word: A word or a phrase ("New York"), or several forms of it ("play,plays,played", or a
            list); case is ignored in sentences without an exact match, unless `config.match_case`.
        corpus: Text (plain, .gz or .zst) with one sentence per line, or a directory of such files,
            which is streamed; or a directory that `embed_file` wrote with the same model, whose
            vectors are read.
        model: An `Embedder`, which has substitutes if it was loaded with `softmax=True`; or a model
            as it takes one.
        layers: Representation to cluster: "mix", "average", "sum", "top" or the number of a layer;
            None: "top", or the one that is stored.
        config: Settings of the sampling and the clustering.
        tokenize: Split raw lines with the model's tokenizer; else, and lines of `elmokit prepare`,
            at white space.

    Returns:
        The map. Its clusters are senses only as far as these differ in grammar or topic.

    Raises:
        ValueError: The corpus has fewer than three distinct uses of the word, `layers` is invalid,
            or the stored vectors are of another model or other layers.
        FileNotFoundError: There is no such corpus.
    """
    config = config or MapConfig()
    embedder = Embedder.of(model, softmax=True)
    opened = open_corpus(corpus, embedder, tokenize)
    layers = opened.choose_layers(layers)  # an invalid choice is reported before the search
    forms = WordForms.of(word, embedder.tokenize if tokenize else str.split)
    in_corpus = (use for of_sentence in opened.uses(forms) for use in of_sentence)
    if config.match_case:
        in_corpus = (use for use in in_corpus if use.words in forms.forms)
    uses, count = sample_uses(in_corpus, config.max_uses, config.seed)
    vectors = opened.vectors(uses, "all") if len(uses) > 2 else None
    return map_uses(
        forms.name, uses, embedder, layers, config, uses_in_corpus=count, vectors=vectors
    )


# --- The page -------------------------------------------------------------------------------------


def page_part(name: str) -> str:
    """A part of the page, such as word_map.css or word_map.js, which the server's page uses too."""
    return resources.files("elmokit.analysis").joinpath(name).read_text(encoding="utf-8").strip()


def page(word_map: WordMap) -> str:
    """A self-contained HTML document, which needs no network. Corpus text is escaped."""
    head, _, rest = page_part("word_map.html").partition("{data}")
    data = json.dumps(word_map.to_json(), ensure_ascii=False, separators=(",", ":")).translate(
        ESCAPES
    )
    head = head.replace("{style}", page_part("word_map.css"))
    head = head.replace("{title}", html.escape(f"{word_map.word}: its uses"))
    return head + data + rest.replace("{script}", page_part("word_map.js"))


def write_page(word_map: WordMap, file: str | Path, overwrite: bool = False) -> None:
    """Write the page to a file, atomically. FileExistsError if it exists and `overwrite` is not
    set.
    """
    with atomic_path(Path(file), overwrite) as partial:
        partial.write_text(page(word_map), encoding="utf-8")
