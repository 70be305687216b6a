"""The map of a word: its uses in a corpus, where their vectors lie in each layer, the clusters that they form.

Each cluster is described by its most typical uses, those nearest to its mean, and by the words that the language model
would put in the word's place there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from elmokit.analysis.annotated import all_layers
from elmokit.analysis.clusters import cluster, principal_components, turned_like
from elmokit.analysis.uses import Use, of_length_one, state_of_single_sentences, uses_in_files
from elmokit.checkpoints.pretrained import fingerprint
from elmokit.data.corpus import find_files
from elmokit.embed.embedder import Embedder
from elmokit.embed.files import opened
from elmokit.embed.outputs import layer_weights
from elmokit.lm.scoring import substitutes

CLUSTERED_DIMENSIONS = 8
TYPICAL_USES = 5
SAME_CONTEXT = 3  # typical uses differ in the words so near
WORDS_SHOWN = 12  # on each side of a use, in print
# Of each cluster: uses whose substitutes are weighed, candidates of each use, and words that are kept.
USES_SUBSTITUTED, CANDIDATES, SUBSTITUTES = 20, 100, 8


@dataclass(frozen=True)
class MapConfig:
    """How a word's uses are chosen and clustered."""

    max_uses: int = 500
    """Uses on the map: a random sample where the corpus has more."""
    match_case: bool = False
    """Only the uses that are spelled as the word is; otherwise in any case, where a sentence has none of those."""
    clusters: int | None = None
    """Number of clusters; that of the largest silhouette, from 2 to 8, when not given."""
    seed: int = 0
    """Seed of the sample and of the clustering."""

    def __post_init__(self) -> None:
        if self.max_uses < 3:
            raise ValueError(f"a map needs at least 3 uses, not {self.max_uses}")
        if self.clusters is not None and self.clusters < 1:
            raise ValueError(f"there must be at least one cluster, not {self.clusters}")


def _excerpt(use: Use) -> str:
    """The use with some words on each side."""
    start, end = max(0, use.position - WORDS_SHOWN), use.position + WORDS_SHOWN + 1
    before, after = "… " if start else "", " …" if end < len(use.sentence) else ""
    return f"{before}{Use(use.sentence[start:end], use.position - start)}{after}"


@dataclass(frozen=True)
class UseCluster:
    """Uses of a word whose vectors lie together: how many, the most typical ones by number, and their substitutes."""

    size: int
    typical: list[int]
    substitutes: list[str]


@dataclass(frozen=True, eq=False)
class WordMap:
    """N uses of a word on a plane for each layer, and their clusters.

    `planes` is (L+1, N, 2), each layer turned to lie as the one above it; `labels` (N,) says which cluster a use is in,
    found in layer `layers`, with the mean silhouette `silhouette` (-1 to 1). `found` uses are in the corpus.
    """

    word: str
    uses: list[Use]
    planes: np.ndarray
    labels: np.ndarray
    clusters: list[UseCluster]
    silhouette: float
    layers: str | int
    found: int
    fingerprint: str

    @property
    def summary(self) -> str:
        """How many uses and clusters there are, and where they were found."""
        sampled = f" of {self.found}" if self.found > len(self.uses) else ""
        layers = f"layer {self.layers}" if isinstance(self.layers, int) else f"{self.layers} layer"
        count = f"{len(self.clusters)} clusters" if len(self.clusters) > 1 else "1 cluster"
        return f"{len(self.uses)}{sampled} uses, {count} ({layers}, silhouette {self.silhouette:.2f})"

    def __str__(self) -> str:
        lines = [f"{self.word}: {self.summary}"]
        for number, each in enumerate(self.clusters, start=1):
            words = f": {', '.join(each.substitutes)}" if each.substitutes else ""
            lines += ["", f"cluster {number}, {each.size} uses{words}"]
            lines += [f"    {_excerpt(self.uses[use])}" for use in each.typical]
        return "\n".join(lines)


def _sample(uses: Iterable[Use], size: int, seed: int) -> tuple[list[Use], int]:
    """A uniform sample without repetition, in the order of the text, and how many uses there were (algorithm R)."""
    random, count = np.random.default_rng(seed), 0
    kept: list[tuple[int, Use]] = []
    for count, use in enumerate(uses, start=1):
        if len(kept) < size:
            kept.append((count, use))
        elif (place := random.integers(count)) < size:
            kept[place] = count, use
    in_order = sorted(kept, key=lambda numbered: numbered[0])
    return list(dict.fromkeys(use for _, use in in_order)), count


def _vectors(uses: list[Use], embedder: Embedder) -> np.ndarray:
    """(N, L+1, 2D)."""
    embedded = all_layers(uses, lambda use: use.sentence, embedder, state_of_single_sentences(embedder))
    return np.stack([layers[:, use.position] for use, layers in embedded])


def _planes(vectors: np.ndarray) -> np.ndarray:
    """(N, L+1, 2D) -> (L+1, N, 2): principal components of each layer's unit vectors, turned like those of the next."""
    planes = [principal_components(of_length_one(vectors[:, layer]), 2) for layer in range(vectors.shape[1])]
    for layer in reversed(range(len(planes) - 1)):
        planes[layer] = turned_like(planes[layer], planes[layer + 1])
    return np.stack(planes)


def _substitutes(embedder: Embedder, uses: list[Use]) -> list[str]:
    """The words that fit best in the place of the uses; none without a language model.

    Their weight in a use is p(word | left) p(word | right) / p(word), the probability given both sides where the sides
    are independent given the word. p(word) is taken as 1 / rank, as the sampled softmax takes it: a vocabulary has its
    most frequent words first.
    """
    model, state = embedder.model, state_of_single_sentences(embedder)
    if not model.has_softmax or model.vocab is None or model.config.lstm.interleaved:
        return []
    ranks = {word: rank for rank, word in enumerate(model.vocab.words, start=1)}
    weights: Counter[str] = Counter()
    for use in uses:
        (candidates,) = substitutes(model, use.sentence, [use.position], CANDIDATES, state=state)
        words = [each.word for each in candidates]
        scores = np.array([each.log_probability for each in candidates]) + np.log([ranks[word] for word in words])
        probabilities = np.exp(scores - scores.max())
        for word, weight in zip(words, probabilities / probabilities.sum(), strict=True):
            if any(map(str.isalpha, word)) and word.lower() != use.sentence[use.position].lower():
                weights[word] += weight
    return [word for word, _ in weights.most_common(SUBSTITUTES)]


def _in_other_contexts(uses: list[Use], order: list[int]) -> list[int]:
    """The numbers of uses in `order`, less those whose nearest words are the same as those of one before."""
    found = {}
    for number in order:
        words, position = uses[number]
        context = words[max(0, position - SAME_CONTEXT) : position], words[position + 1 : position + 1 + SAME_CONTEXT]
        found.setdefault(context, number)
    return list(found.values())


def _describe(points: np.ndarray, members: np.ndarray, uses: list[Use], embedder: Embedder) -> UseCluster:
    """The cluster of the uses whose numbers are `members`, among the clustered points (N, d)."""
    distances = np.linalg.norm(points[members] - points[members].mean(axis=0), axis=1)
    typical = _in_other_contexts(uses, members[np.argsort(distances, kind="stable")].tolist())
    words = _substitutes(embedder, [uses[number] for number in typical[:USES_SUBSTITUTED]])
    return UseCluster(len(members), typical[:TYPICAL_USES], words)


def word_map(
    word: str,
    corpus: str | Path,
    model: Embedder | str | Path | None = None,
    layers: str | int = "top",
    device: str | None = None,
    config: MapConfig | None = None,
) -> WordMap:
    """Collect the uses of a word in a corpus, and cluster them by their vectors.

    Args:
        word: Counts as it is spelled, or where a sentence has no such token, in any case.
        corpus: Text (plain, .gz or .zst), one sentence a line, or a directory of such files; of any size, streamed.
        model: An embedder, or a model as `Embedder.load` takes it.
        layers: The vectors that are clustered: "mix", "average", "top" or the number of a layer.
        device: Where to compute, where `model` is no embedder yet.
        config: How uses are chosen and clustered.

    Returns:
        The map. Clusters are those of k-means on the first 8 principal components of the vectors, scaled to length one.

    Raises:
        ValueError: The corpus has fewer than three uses of the word, or there are no such layers.
    """
    config = config or MapConfig()
    files = find_files([corpus])
    embedder = opened(model, device)
    weights = layer_weights(embedder.model, layers).numpy()
    in_corpus = (use for of_sentence in uses_in_files(word, files, embedder) for use in of_sentence)
    if config.match_case:
        in_corpus = (use for use in in_corpus if use.sentence[use.position] == word)
    uses, found = _sample(in_corpus, config.max_uses, config.seed)
    if len(uses) < 3:
        raise ValueError(f"{corpus} has {len(uses)} different uses of {word!r}, and a map needs 3: try another corpus")
    vectors = _vectors(uses, embedder)
    clustered = of_length_one(np.einsum("nld,l->nd", vectors, weights))
    points = principal_components(clustered, CLUSTERED_DIMENSIONS)
    labels, silhouette = cluster(points, config.clusters, seed=config.seed)
    members = [np.flatnonzero(labels == number) for number in range(labels.max() + 1)]
    described = [_describe(points, each, uses, embedder) for each in members]
    return WordMap(
        word, uses, _planes(vectors), labels, described, silhouette, layers, found, fingerprint(embedder.model)
    )
