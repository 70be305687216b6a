"""Linear probes: the accuracy of a linear classifier of word tags on the frozen vectors of each
layer.

Table 6 of Peters et al. (2018) probes for parts of speech. The classifier is a multinomial logistic
regression, trained to convergence, with the L2 penalty selected on development data.
"""

from __future__ import annotations

import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from elmokit.analysis.report import Report, table
from elmokit.analysis.uses import all_layers
from elmokit.data import Layout, TaggedSentence, read_tagged
from elmokit.embed import Embedder
from elmokit.progress import ProgressBar
from elmokit.settings import StatePolicy

# --- Multinomial logistic regression on features that are read in chunks --------------------------

CHUNK_ROWS = 8192
MAX_ITERATIONS = 100
TOLERANCE = 1e-4  # on the largest component of the gradient; the loss is a mean over examples


class SoftmaxRegression(NamedTuple):
    """A linear classifier of D features into K classes: weight (K, D), bias (K,)."""

    weight: Tensor
    bias: Tensor

    def predict(self, features: np.ndarray) -> np.ndarray:
        """The class with the highest score, (N,) int64, of each row of features (N, D)."""
        chunks = (_floats(chunk, self.weight.device) for chunk in _chunks(features))
        return torch.cat([F.linear(chunk, *self).argmax(dim=1) for chunk in chunks]).cpu().numpy()


def _chunks(features: np.ndarray) -> list[np.ndarray]:
    return [features[begin : begin + CHUNK_ROWS] for begin in range(0, len(features), CHUNK_ROWS)]


def _floats(chunk: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(chunk).to(device).float()


def standardization(features: np.ndarray) -> tuple[Tensor, Tensor]:
    """The mean of each feature (N, D) and the inverse of its standard deviation, 1 where it is
    constant; (D,) each.
    """
    chunks = _chunks(features)
    mean = sum(chunk.sum(axis=0, dtype=np.float64) for chunk in chunks) / len(features)
    deviation = np.sqrt(
        sum(np.square(chunk - mean).sum(axis=0) for chunk in chunks) / len(features)
    )
    deviation[deviation < 1e-6] = 1
    return torch.from_numpy(mean).float(), torch.from_numpy(1 / deviation).float()


def softmax_regressions(
    features: np.ndarray,
    classes: np.ndarray,
    penalties: Sequence[float],
    device: torch.device | None = None,
) -> Iterator[SoftmaxRegression]:
    """Minimize the mean cross-entropy + l2 / 2 |weights of standardized features|^2 with L-BFGS,
    for several penalties.

    Each fit starts from the previous solution, and ends when the gradient is small, or after 100
    iterations: the loss is convex, so that the result depends on the starting point only then.
    Memory holds one chunk of the features, and L-BFGS's history of ten steps.

    Args:
        features: (N, D) of any float type.
        classes: (N,) from 0 to K - 1.
        penalties: The values of l2.
        device: Device to compute on; None: the CPU.

    Yields:
        A classifier of the raw features for each penalty.
    """
    device = device or torch.device("cpu")
    targets = torch.from_numpy(classes.astype(np.int64)).to(device)
    mean, scale = (each.to(device) for each in standardization(features))
    w = torch.zeros(int(classes.max()) + 1, features.shape[1], device=device, requires_grad=True)
    b = torch.zeros(len(w), device=device, requires_grad=True)

    def classifier() -> SoftmaxRegression:
        """For the raw features, so that no standardized copy of them is needed."""
        weight = w * scale
        return SoftmaxRegression(weight, b - weight @ mean)

    for l2 in penalties:
        options = {
            "max_iter": MAX_ITERATIONS,
            "tolerance_grad": TOLERANCE,
            "tolerance_change": 1e-9,
        }
        optimizer = torch.optim.LBFGS(
            [w, b], history_size=10, line_search_fn="strong_wolfe", **options
        )

        def loss_and_gradient(
            l2: float = l2, optimizer: torch.optim.Optimizer = optimizer
        ) -> float:
            optimizer.zero_grad()
            loss = l2 / 2 * w.square().sum()
            loss.backward()
            total = loss.item()
            for chunk, classes in zip(_chunks(features), targets.split(CHUNK_ROWS), strict=True):
                scores = F.linear(_floats(chunk, device), *classifier())
                loss = F.cross_entropy(scores, classes, reduction="sum") / len(features)
                loss.backward()
                total += loss.item()
            return total

        optimizer.step(loss_and_gradient)
        yield SoftmaxRegression(*(each.detach() for each in classifier()))


# --- Probes ---------------------------------------------------------------------------------------

# Candidates for the weight of |w|^2 / 2 in the loss, where w are the weights of standardized
# features.
PENALTIES = (1e-2, 1e-3, 1e-4, 1e-5)
MOST_FREQUENT = "most frequent tag of the word"


@dataclass(frozen=True)
class ProbeScore:
    """Accuracies in percent; `l2` is the penalty selected on the development data, None for a
    baseline.
    """

    dev: float
    test: float | None
    l2: float | None = None


@dataclass(frozen=True, repr=False)
class ProbeReport(Report):
    """Probe accuracies of every layer and of the most-frequent-tag baseline.

    Attributes:
        scores: Scores by method: "layer 0", ..., and the baseline.
        tags: Number of distinct tags in the training set.
        tokens: Number of words in "train", "dev" and "test".
        state: Initial state of a sentence.
        fingerprint: Fingerprint of the model's weights.
    """

    scores: dict[str, ProbeScore]
    tags: int
    tokens: dict[str, int]
    state: str
    fingerprint: str

    def __str__(self) -> str:
        splits = [split for split in ("dev", "test") if split in self.tokens]
        rows = [
            [
                name,
                "" if score.l2 is None else f"{score.l2:g}",
                *(f"{getattr(score, split):.2f}" for split in splits),
            ]
            for name, score in self.scores.items()
        ]
        counts = ", ".join(f"{count} {split}" for split, count in self.tokens.items())
        note = f"accuracy in percent; state {self.state}; {self.tags} tags; tokens: {counts}"
        return table(["", "l2", *splits], rows, note)


def _layer_file(
    sentences: Sequence[TaggedSentence], embedder: Embedder, state: StatePolicy | None
) -> np.ndarray:
    """All layers of the N words of a split, (L+1, N, 2D) float16, in a temporary file that goes
    with the array.
    """
    shape = embedder.num_layers, sum(len(sentence.words) for sentence in sentences), embedder.dim
    with tempfile.TemporaryFile(prefix="elmokit-layers-") as file:
        array = np.memmap(file, np.float16, "w+", shape=shape)
    begin = 0
    progress = ProgressBar(sentences, desc="embed", unit=" sentences", unit_scale=True)
    for sentence, layers in all_layers(progress, lambda sentence: sentence.words, embedder, state):
        array[:, begin : begin + len(sentence.words)] = layers
        begin += len(sentence.words)
    return array


def _most_frequent_tags(
    train: Sequence[TaggedSentence], test: Sequence[TaggedSentence]
) -> list[str]:
    """Baseline: the word's most frequent tag in training; for unknown words, the most frequent tag
    overall.
    """
    by_word, overall = defaultdict[str, Counter[str]](Counter), Counter[str]()
    for sentence in train:
        overall.update(sentence.tags)
        for word, tag in zip(sentence.words, sentence.tags, strict=True):
            by_word[word][tag] += 1
    return [
        by_word.get(word, overall).most_common(1)[0][0]
        for sentence in test
        for word in sentence.words
    ]


def layer_names(count: int) -> list[str]:
    """The names of all layers in reports; a model with a single one has only the top layer."""
    return ["top layer"] if count == 1 else [f"layer {number}" for number in range(count)]


def probe(
    train: Sequence[TaggedSentence],
    dev: Sequence[TaggedSentence],
    test: Sequence[TaggedSentence] | None = None,
    model: Embedder | str | Path | None = None,
    state: StatePolicy | None = None,
    penalties: Sequence[float] = PENALTIES,
) -> ProbeReport:
    """Train a linear classifier of word tags on the frozen vectors of each layer, including the
    token layer (0).

    The layers of all words are kept in temporary files in float16, in the system's directory
    ($TMPDIR); memory holds the sentences and one batch of vectors.

    Args:
        train: Tagged sentences to train on.
        dev: Tagged sentences to select the penalty on.
        test: Tagged sentences for the final score. Tags absent from the training set count as
            wrong.
        model: An `Embedder`, or a model as it takes one.
        state: Initial state of a sentence: "zeros", "warm", or "carry" (the final state of the
            sentence before); the model's policy by default.
        penalties: L2 penalties to select from: weights of |w|^2 / 2, added to the mean
            cross-entropy in nats. They are tried from the strongest to the weakest, until the
            development score stops improving.

    Returns:
        Accuracies in percent.

    Raises:
        ValueError: A split has no tagged word.
    """
    splits = (
        {"train": train, "dev": dev} if test is None else {"train": train, "dev": dev, "test": test}
    )
    for name, sentences in splits.items():
        if not any(sentence.tags for sentence in sentences):
            raise ValueError(
                f"the {name} sentences have no tagged word: give at least one tagged sentence"
            )
    gold = {
        name: np.array([tag for each in sentences for tag in each.tags])
        for name, sentences in splits.items()
    }
    tokens = {name: len(tags) for name, tags in gold.items()}
    known, classes = np.unique(gold.pop("train"), return_inverse=True)
    embedder = Embedder.of(model)
    layers = {name: _layer_file(sentences, embedder, state) for name, sentences in splits.items()}

    def score(predicted: Mapping[str, Any], l2: float | None = None) -> ProbeScore:
        accuracy = {
            name: 100 * float(np.mean(predicted[name] == tags)) for name, tags in gold.items()
        }
        return ProbeScore(accuracy["dev"], accuracy.get("test"), l2)

    scores: dict[str, ProbeScore] = {}
    ordered = sorted(penalties, reverse=True)
    for number, layer in enumerate(
        ProgressBar(layer_names(embedder.num_layers), desc="fit", unit=" layers")
    ):
        classifiers = softmax_regressions(
            layers["train"][number], classes, ordered, embedder.device
        )
        for l2, classifier in zip(ordered, classifiers, strict=True):
            found = score(
                {name: known[classifier.predict(layers[name][number])] for name in gold}, l2
            )
            if layer in scores and found.dev <= scores[layer].dev:
                break
            scores[layer] = found
    scores[MOST_FREQUENT] = score(
        {name: np.array(_most_frequent_tags(train, splits[name])) for name in gold}
    )
    return ProbeReport(
        scores, len(known), tokens, state or embedder.model.state_policy, embedder.fingerprint()
    )


def probe_files(
    train: str | Path,
    dev: str | Path,
    test: str | Path | None = None,
    model: Embedder | str | Path | None = None,
    state: StatePolicy | None = None,
    **columns: Any,
) -> ProbeReport:
    """`probe` on files with one token per line (plain, .gz or .zst), whose format and columns
    `Layout.of` takes.
    """
    files = [file for file in (train, dev, test) if file is not None]
    return probe(
        *(list(read_tagged(file, Layout.of(file, **columns))) for file in files),
        model=model,
        state=state,
    )
