"""SST-2 by logistic regression on the mean of a sentence's vectors, as `Embedder.encode` returns
it, and on TF-IDF.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from elmokit.embed import Embedder, layer_weights
from elmokit.fs import read_lines

PARTS = ("train", "dev", "test")
STRENGTHS = (1e-3, 1e-2, 1e-1, 1.0, 10.0)  # scikit-learn's C, chosen on dev

Sentences = dict[str, list[list[str]]]
Labels = dict[str, np.ndarray]


def read_sst2(directory: Path) -> tuple[Sentences, Labels]:
    """stsa.binary.train, .dev and .test: a label, 0 or 1, and a tokenized sentence on each line."""
    sentences, labels = {}, {}
    for part in PARTS:
        lines = [
            line.split() for line in read_lines(directory / f"stsa.binary.{part}") if line.strip()
        ]
        labels[part] = np.array([int(line[0]) for line in lines])
        sentences[part] = [line[1:] for line in lines]
    return sentences, labels


def accuracies(features: dict[str, Any], labels: Labels) -> dict[str, float]:
    """Accuracies in percent with the C that is best on dev; of equal ones, the smallest (the
    strongest penalty).
    """
    best: dict[str, float] = {}
    for strength in STRENGTHS:
        classifier = LogisticRegression(C=strength, max_iter=1000).fit(
            features["train"], labels["train"]
        )
        dev, test = (
            round(100 * classifier.score(features[part], labels[part]), 2)
            for part in ("dev", "test")
        )
        if not best or dev > best["dev"]:
            best = {"dev": dev, "test": test, "C": strength}
    return best


def tf_idf(sentences: Sentences, labels: Labels) -> dict[str, float]:
    """Accuracies of single words, weighted by TF-IDF."""
    vectorizer = TfidfVectorizer(analyzer=lambda words: words).fit(sentences["train"])
    return accuracies({part: vectorizer.transform(sentences[part]) for part in PARTS}, labels)


def mean_vectors(
    embedder: Embedder, state: str, sentences: Sentences, labels: Labels
) -> dict[str, Any]:
    """Accuracies of the mean vectors of each layer, and of the mix that `encode` uses by
    default.
    """
    pooled = {
        part: np.stack(
            [
                layers.mean(axis=1)
                for batch in embedder.embed_stream(texts, "all", state)
                for layers in batch
            ]
        )
        for part, texts in sentences.items()
    }
    found = {}
    for name in (*range(embedder.num_layers), "mix"):
        weights = layer_weights(embedder.model, name).numpy()
        features = {
            part: np.einsum("nld,l->nd", layers, weights) for part, layers in pooled.items()
        }
        scaler = StandardScaler().fit(features["train"])
        scaled = {part: scaler.transform(vectors) for part, vectors in features.items()}
        found[name if isinstance(name, str) else f"layer {name}"] = accuracies(scaled, labels)
    return found
