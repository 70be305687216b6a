"""Word maps: geometry against brute force, uniform sampling, the page with hostile text."""

import html
import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from elmokit.analysis.clusters import align, cluster, principal_components, silhouette
from elmokit.analysis.uses import Use, sample_uses
from elmokit.analysis.word_map import UseCluster, WordMap, page, senses
from elmokit.embed.embedder import Embedder
from elmokit.lm.scoring import score

HOSTILE = '</script><img src=x onerror=alert(1)> & "quoted" {title} {data} \u2028 $\\frac{1}{2}$'


# --- Geometry -------------------------------------------------------------------------------------


def test_principal_components_equal_eigenvectors_of_the_covariance() -> None:
    vectors = np.random.default_rng(0).normal(size=(40, 6)) * [5, 3, 1, 1, 0.1, 0.1]
    result = principal_components(vectors, 3)
    variances, directions = np.linalg.eigh(np.cov(vectors.T, bias=True))
    np.testing.assert_allclose(result.var(axis=0), variances[::-1][:3], rtol=1e-6)
    projected = (vectors - vectors.mean(axis=0)) @ directions[:, ::-1][:, :3]
    np.testing.assert_allclose(np.abs(result), np.abs(projected), atol=1e-6)
    assert (result[np.abs(result).argmax(axis=0), range(3)] > 0).all()
    assert not principal_components(np.ones((3, 5)), 4).any()  # constant vectors, fewer than four


def test_align_undoes_rotation_and_reflection() -> None:
    random = np.random.default_rng(1)
    target = random.normal(size=(20, 2))
    angle = 2.0
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    mirrored = target @ turn @ np.diag([1, -1])
    np.testing.assert_allclose(align(mirrored, target), target, atol=1e-9)


def brute_force_silhouette(points: np.ndarray, labels: np.ndarray) -> float:
    widths = []
    for i, point in enumerate(points):
        distances = [float(np.linalg.norm(point - other)) for other in points]
        own = [d for j, d in enumerate(distances) if labels[j] == labels[i] and j != i]
        if not own:
            widths.append(0.0)
            continue
        others = [
            np.mean([d for j, d in enumerate(distances) if labels[j] == k])
            for k in set(labels) - {labels[i]}
        ]
        a = np.mean(own)
        b = min(others)
        widths.append((b - a) / max(a, b))
    return float(np.mean(widths))


def test_silhouette_equals_brute_force() -> None:
    random = np.random.default_rng(2)
    points = random.normal(size=(30, 3))
    labels = random.integers(3, size=30)
    labels[labels == 2] = 5  # labels need not be dense
    labels[7] = 2  # a cluster of one point
    assert silhouette(points, labels) == pytest.approx(brute_force_silhouette(points, labels))


def planted(sizes: tuple[int, ...], seed: int = 3) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(sizes)), sizes)
    return 10 * random.normal(size=(len(sizes), 4))[labels] + random.normal(
        size=(len(labels), 4)
    ), labels


def test_cluster_recovers_planted_clusters_and_their_number() -> None:
    points, labels = planted((30, 20, 10))
    result = cluster(points)
    np.testing.assert_array_equal(result.labels, labels)  # the largest first
    assert result.silhouette == pytest.approx(brute_force_silhouette(points, labels))
    assert cluster(points, k=2).labels.max() == 1
    np.testing.assert_array_equal(cluster(points, seed=1).labels, labels)


def test_cluster_finds_at_most_five_and_none_that_is_tiny_or_unclear_unless_asked() -> None:
    points, _ = planted((30,) * 7)
    assert cluster(points).labels.max() == 4
    assert cluster(points, k=7).labels.max() == 6
    points, labels = planted((60, 40, 3))  # of which the third is no sense, but some outliers
    assert np.bincount(cluster(points).labels).min() > 5
    np.testing.assert_array_equal(cluster(points, k=3).labels, labels)
    noise = np.random.default_rng(4).normal(size=(300, 8))
    assert not cluster(noise).labels.any()
    assert 0 < cluster(noise).silhouette < 0.25
    assert cluster(noise, k=2).labels.any()


def test_cluster_gives_one_cluster_when_points_are_equal() -> None:
    assert cluster(np.ones((5, 3))) == (pytest.approx(np.zeros(5)), 0.0)
    assert cluster(np.array([[0.0], [0.0], [1.0]])).labels.tolist() == [0, 0, 1]


# --- Sampling -------------------------------------------------------------------------------------


def test_sample_is_uniform_of_distinct_uses_whatever_their_order_and_number() -> None:
    copies = [Use(("again",), 0)] * 1000
    others = [Use((f"word{number}",), 0) for number in range(99)]
    assert sample_uses(iter(others), 200, 0) == (others, 99)
    found = []
    for uses in (copies + others, others + copies, others[::-1] + copies):
        sample, count = sample_uses(iter(uses), 50, 0)
        assert len(set(sample)) == 50
        assert count == 1099
        assert sample == sorted(sample, key=uses.index)
        found.append(set(sample))
    assert found[0] == found[1] == found[2]
    counts = Counter(
        use for seed in range(400) for use in sample_uses(iter(copies + others), 50, seed)[0]
    )
    assert len(counts) == 100
    # The standard deviation is 10.
    assert all(abs(count - 200) < 50 for count in counts.values())


# --- Word map -------------------------------------------------------------------------------------


LINES = [
    *(f"the river bank is {word} ." for word in ("wet", "green", "steep")),
    *(f"money lent the bank {word}" for word in ("today", "again", "twice")),
    "Nothing here .",
    "The embankment is no such word .",
    "the Bank , the bank",
    "BANK of America",
]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    (tmp_path / "corpus.txt").write_text("\n".join(LINES))
    return tmp_path / "corpus.txt"


def turned(points: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Points (N, 2) after the rotation, or reflection and rotation, that brings them nearest to a
    target.
    """
    aim = target @ [1, 1j]  # complex numbers, which a rotation multiplies by one of length 1
    candidates = []
    for numbers in (points @ [1, 1j], points @ [1, -1j]):
        factor = np.vdot(numbers, aim)
        candidates.append(numbers * factor / abs(factor))
    nearest = min(candidates, key=lambda numbers: np.square(np.abs(numbers - aim)).sum())
    return np.stack([nearest.real, nearest.imag], axis=1)


def test_word_map_projects_every_use_in_each_layer_and_turns_it_to_the_layer_above(
    corpus: Path, embedder: Embedder
) -> None:
    result = senses("bank", corpus, embedder)
    assert len(result.uses) == result.uses_in_corpus == 8
    assert [use.sentence[use.position] for use in result.uses] == [*["bank"] * 7, "BANK"]
    assert result.planes.shape == (4, 8, 2)
    sentences = [embedder.embed([list(use.sentence)], "all")[0] for use in result.uses]
    layers = np.stack(
        [words[:, use.position] for words, use in zip(sentences, result.uses, strict=True)],
        axis=1,
    )
    mean = layers.mean(axis=1, keepdims=True)
    layers[:, :7] += mean - layers[:, :7].mean(axis=1, keepdims=True)
    layers[:, 7:] = mean  # the only BANK: a spelling does not differ from the others
    layers /= np.linalg.norm(layers, axis=2, keepdims=True)
    texts = np.stack([words[-1].mean(axis=0) for words in sentences])
    texts /= np.linalg.norm(texts, axis=1, keepdims=True)
    uses = np.concatenate([layers[2], texts], axis=1) / np.sqrt(2)
    layers = [*layers, uses]
    components = [principal_components(layer.astype(np.float64), 2) for layer in layers]
    np.testing.assert_allclose(result.planes[3], components[3], atol=1e-5)
    for number in (2, 1, 0):
        above = result.planes[number + 1]
        expected = turned(components[number], above)
        np.testing.assert_allclose(result.planes[number], expected, atol=1e-5)
    distances = np.linalg.norm(result.planes[0] - result.planes[0][0], axis=1)
    np.testing.assert_allclose(distances, 0, atol=1e-5)  # one word in the token layer
    assert sum(each.size for each in result.clusters) == 8
    for number, each in enumerate(result.clusters):
        assert set(result.labels[each.typical]) == {number}


def test_word_map_samples_uses_and_has_as_many_clusters_as_asked(
    corpus: Path, embedder: Embedder
) -> None:
    sampled = senses("bank", corpus, embedder, max_uses=4, clusters=2)
    assert (len(sampled.uses), sampled.uses_in_corpus, len(sampled.clusters)) == (4, 8, 2)
    assert "4 distinct of 8 uses, 2 clusters" in sampled.summary


def test_word_map_substitutes_equal_exhaustive_scoring(corpus: Path, embedder: Embedder) -> None:
    result = senses("bank", corpus, embedder, clusters=1)
    weights: Counter[str] = Counter()
    words = embedder.model.vocab.words  # type: ignore[union-attr]
    for use in {use.sentence: use for use in result.uses}.values():
        position = use.position
        candidates = words[3:]
        texts = [
            [*use.sentence[:position], word, *use.sentence[position + 1 :]] for word in candidates
        ]
        scored = score(texts, embedder.model)
        logs = [-score.surprisal[:, position].sum() * np.log(2) for score in scored]
        logs = np.array(logs) + np.log([words.index(word) + 1 for word in candidates])
        probabilities = np.exp(logs) / np.exp(logs).sum()
        weights.update(dict(zip(candidates, probabilities, strict=True)))
    expected = [
        word for word, _ in weights.most_common() if word not in ("bank", "Bank", ".", "42")
    ]
    assert result.clusters[0].substitutes == expected


def test_word_map_typical_uses_have_distinct_contexts(tmp_path: Path, embedder: Embedder) -> None:
    lines = [f"{n} now of the bank of the king" for n in range(6)]  # equal contexts
    (tmp_path / "repeated.txt").write_text("\n".join([*lines, "a bank"]))
    result = senses("bank", tmp_path / "repeated.txt", embedder, clusters=1)
    assert result.clusters[0].size == 7
    assert sorted(len(result.uses[use].sentence) for use in result.clusters[0].typical) == [2, 8]


def test_too_few_uses_are_refused(corpus: Path, embedder: Embedder) -> None:
    with pytest.raises(ValueError, match="of 'zebra', and there are 0"):
        senses("zebra", corpus, embedder)


# --- Files ----------------------------------------------------------------------------------------


@pytest.fixture
def hostile() -> WordMap:
    uses = [
        Use((*HOSTILE.split(" "), "bank", str(number)), len(HOSTILE.split(" ")))
        for number in range(4)
    ]
    planes = np.random.default_rng(0).normal(size=(3, 4, 2)).astype(np.float32)
    clusters = [UseCluster(2, [0], [HOSTILE]), UseCluster(2, [2], [])]
    return WordMap(HOSTILE, uses, planes, np.array([0, 0, 1, 1]), clusters, 0.5, "top", 4)


def test_page_escapes_corpus_text(hostile: WordMap) -> None:
    text = page(hostile)
    data, script = re.findall("<script[^>]*>(.*?)</script>", text, re.DOTALL)
    assert json.loads(data) == json.loads(json.dumps(hostile.to_json()))
    assert not re.search("[<>&\u2028\u2029]", data)
    assert HOSTILE not in text
    assert "<img" not in text
    assert f"<title>{html.escape(HOSTILE)}" in text
    # The page's own script sets text, never markup, and nothing is loaded.
    assert not re.search("innerHTML|outerHTML|insertAdjacentHTML|document.write|eval", script)
    assert "default-src 'none'" in text
    assert not re.search(r"@import|url\(|<[^>]* (src|href|on\w+)=", text.replace(data, ""))
