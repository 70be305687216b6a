"""Linear probes: the classifier's optimality conditions, layers on tags of known difficulty."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from elmokit.analysis.probe import PENALTIES, probe, probe_files, softmax_regressions
from elmokit.data.readers import TaggedSentence
from elmokit.embed.embedder import Embedder

# --- Classifier -----------------------------------------------------------------------------------


@pytest.fixture
def examples() -> tuple[np.ndarray, np.ndarray]:
    """Three classes and five features, among them noise, a large feature and a constant one."""
    random = np.random.default_rng(5)
    classes = random.integers(3, size=300)
    features = random.normal(size=(300, 5)).astype(np.float16)
    features[:, 0] += classes
    features[:, 1] = 100 * features[:, 1] + 60 * (classes == 1) + 40
    features[:, 4] = 7
    return features, classes


def gradient_at(
    weight: np.ndarray, bias: np.ndarray, features: np.ndarray, classes: np.ndarray, l2: float
) -> np.ndarray:
    """Gradient of the mean cross-entropy + l2 / 2 |w|^2, with w for standardized features, in
    float64.
    """
    x = features.astype(np.float64)
    mean = x.mean(axis=0)
    scale = x.std(axis=0)
    scale[scale == 0] = 1
    standardized = (x - mean) / scale
    w = weight * scale
    b = bias + weight @ mean
    scores = standardized @ w.T + b
    probabilities = np.exp(scores - scores.max(axis=1, keepdims=True))
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    errors = (probabilities - np.eye(len(w))[classes]) / len(x)
    return np.concatenate([(errors.T @ standardized + l2 * w).ravel(), errors.sum(axis=0)])


def test_softmax_regression_reaches_zero_gradient(examples) -> None:
    features, classes = examples
    penalties = (1.0, 1e-2, 1e-3)
    for l2, result in zip(
        penalties, softmax_regressions(features, classes, penalties), strict=True
    ):
        weight = result.weight.double().numpy()
        bias = result.bias.double().numpy()
        assert np.abs(gradient_at(weight, bias, features, classes, l2)).max() < 2e-4
        scores = features.astype(np.float64) @ weight.T + bias
        agree = result.predict(features) == scores.argmax(axis=1)
        assert agree.mean() > 0.99  # all but ties in float32


# --- Probe ----------------------------------------------------------------------------------------

WORDS = ["Alpha", "beta", "gamma", "Delta", "x", "yy"]


def tagged(count: int, seed: int, of_context: bool) -> list[TaggedSentence]:
    """Sentences tagged by the case of each word, or with `of_context`, of the word before it."""
    random = np.random.default_rng(seed)
    sentences = []
    for _ in range(count):
        words = tuple(random.choice(WORDS, size=random.integers(2, 8)).tolist())
        shown = ("", *words) if of_context else words
        sentences.append(
            TaggedSentence(words, tuple("AB"[word[:1].isupper()] for word in shown[: len(words)]))
        )
    return sentences


def test_probe_of_context_beats_chance_only_in_contextual_layers(embedder: Embedder) -> None:
    alone = probe(
        tagged(80, 1, False), tagged(20, 2, False), tagged(20, 3, False), embedder, "zeros"
    )
    assert alone.scores["layer 0"].test == alone.scores["most frequent tag of the word"].test == 100
    test = tagged(100, 3, True)
    result = probe(tagged(200, 1, True), tagged(40, 2, True), test, embedder, "zeros")
    (_, majority), *_ = (
        counts := Counter(tag for sentence in test for tag in sentence.tags)
    ).most_common()
    chance = 100 * majority / counts.total()
    assert abs(result.scores["layer 0"].test - chance) < 3
    assert result.scores["layer 1"].test > chance + 10
    assert list(result.scores) == ["layer 0", "layer 1", "layer 2", "most frequent tag of the word"]
    assert result.tags == 2
    assert result.scores["layer 1"].l2 in PENALTIES


def test_probe_baseline_is_the_most_frequent_tag_of_each_word(embedder: Embedder) -> None:
    train = [
        TaggedSentence(("a", "b", "a", "a", "c"), ("N", "V", "N", "V", "V")),
        TaggedSentence(("d", "b"), ("V", "N")),
    ]
    test = [TaggedSentence(("a", "a", "new", "b"), ("N", "V", "V", "V"))]
    result = probe(train, test, None, embedder, "zeros")
    assert (
        result.scores["most frequent tag of the word"].dev == 75
    )  # a: N, new: V (the most frequent one), b: V (a tie)
    assert result.scores["layer 0"].test is None


def test_probe_counts_unseen_test_tags_as_wrong(embedder: Embedder) -> None:
    train = tagged(40, 1, False)
    test = [TaggedSentence(("Alpha", "Alpha"), ("B", "NEW"))]
    assert probe(train, tagged(10, 2, False), test, embedder, "zeros").scores["layer 0"].test == 50


def test_probe_files_reads_the_columns_that_are_named(embedder: Embedder, tmp_path: Path) -> None:
    for name, seed in (("train", 1), ("dev", 2)):
        blocks = (
            "".join(map("{} {}\n".format, sentence.tags, sentence.words))
            for sentence in tagged(30, seed, False)
        )
        (tmp_path / name).write_text("\n".join(blocks))
    files = tmp_path / "train", tmp_path / "dev"
    found = probe_files(*files, None, embedder, "zeros", word_column=1, tag_column="0")
    assert found == probe(tagged(30, 1, False), tagged(30, 2, False), None, embedder, "zeros")
    assert found.scores["layer 0"].dev == 100
