"""Linear probes: the accuracy of a linear classifier of word tags on the vectors of each layer.

Table 6 of Peters et al. (2018) probes for parts of speech. The classifier is a multinomial logistic
regression, trained to convergence, with the L2 penalty selected on development data.
"""

from __future__ import annotations

import tempfile
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from elmokit.analysis import Report, table
from elmokit.data import TaggedFile, TaggedSentence
from elmokit.embed import Embedder
from elmokit.progress import ProgressBar
from elmokit.settings import StatePolicy
from elmokit.text import TruncationWarning

# --- Multinomial logistic regression --------------------------------------------------------------

MAX_ITERATIONS = 100
TOLERANCE = 1e-4  # on the largest component of the gradient; the loss is a mean over examples


class SoftmaxRegression(NamedTuple):
    """A linear classifier of D features into K classes: weight (K, D), bias (K,)."""

    weight: Tensor
    bias: Tensor

    def predict(self, features: np.ndarray) -> np.ndarray:
        """The class with the highest score, (N,) int64, of each row of features (N, D)."""
        rows = torch.from_numpy(features).to(self.weight.device).float()
        return F.linear(rows, *self).argmax(dim=1).cpu().numpy()


def softmax_regressions(
    features: np.ndarray,
    classes: np.ndarray,
    penalties: Sequence[float],
    device: torch.device | None = None,
) -> Iterator[SoftmaxRegression]:
    """Minimize the mean cross-entropy + l2 / 2 |weights of standardized features|^2 with L-BFGS.

    Each fit starts from the previous solution, and ends when the gradient is small, or after 100
    iterations: the loss is convex, so that the result depends on the starting point only then.

    Args:
        features: (N, D) of any float type.
        classes: (N,) from 0 to K - 1.
        penalties: The values of l2.
        device: Device to compute on; None: the CPU.

    Yields:
        A classifier of the features as they are, for each penalty.
    """
    rows = torch.from_numpy(features).to(device).float()
    deviation, mean = torch.std_mean(rows, dim=0, correction=0)
    deviation[deviation < 1e-6] = 1  # of constant features
    rows = rows.sub(mean).div_(deviation)
    targets = torch.from_numpy(classes.astype(np.int64)).to(device)
    shape = int(classes.max()) + 1, rows.shape[1]
    weight = torch.zeros(shape, device=device, requires_grad=True)
    bias = torch.zeros(shape[0], device=device, requires_grad=True)
    for l2 in penalties:
        optimizer = torch.optim.LBFGS(
            [weight, bias],
            max_iter=MAX_ITERATIONS,
            history_size=10,
            tolerance_grad=TOLERANCE,
            tolerance_change=1e-9,
            line_search_fn="strong_wolfe",
        )

        def loss_and_gradient(
            l2: float = l2, optimizer: torch.optim.Optimizer = optimizer
        ) -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(F.linear(rows, weight, bias), targets)
            loss = loss + l2 / 2 * weight.square().sum()
            loss.backward()
            return loss

        optimizer.step(loss_and_gradient)
        unscaled = weight.detach() / deviation
        yield SoftmaxRegression(unscaled, bias.detach() - unscaled @ mean)


# --- Probes ---------------------------------------------------------------------------------------

# Candidates for the weight of |w|^2 / 2 in the loss, where w are the weights of standardized
# features, from the strongest to the weakest.
PENALTIES = (1e-2, 1e-3, 1e-4, 1e-5)
MOST_FREQUENT = "most frequent tag of the word"


@dataclass(frozen=True)
class ProbeScore:
    """Accuracies in percent, and the penalty selected on the development data."""

    dev: float
    test: float | None
    l2: float | None = None  # of a baseline


@dataclass(frozen=True, repr=False)
class ProbeReport(Report):
    """Probe accuracies of every layer and of the most-frequent-tag baseline.

    Attributes:
        scores: Scores by method: "layer 0", ..., and the baseline.
        tags: Number of distinct tags in the training set.
        tokens: Number of words in "train", "dev" and "test".
        state: Initial state of a sentence.
    """

    scores: dict[str, ProbeScore]
    tags: int
    tokens: dict[str, int]
    state: str

    def __str__(self) -> str:
        rows = []
        for name, score in self.scores.items():
            row = [name, "" if score.l2 is None else f"{score.l2:g}", f"{score.dev:.2f}"]
            rows.append(row if score.test is None else [*row, f"{score.test:.2f}"])
        counts = ", ".join(f"{count} {split}" for split, count in self.tokens.items())
        note = f"accuracy in percent; state {self.state}; {self.tags} tags; tokens: {counts}"
        return table(["", "l2", *list(self.tokens)[1:]], rows, note)


def _layer_file(
    sentences: Sequence[TaggedSentence],
    embedder: Embedder,
    state: StatePolicy | None,
) -> np.ndarray:
    """All layers of the N words of a split, (L+1, N, 2D) float16, in a temporary file."""
    num_words = sum(len(sentence.words) for sentence in sentences)
    shape = embedder.num_layers, num_words, embedder.dim
    with tempfile.TemporaryFile(prefix="elmokit-layers-") as file:
        array = np.memmap(file, np.float16, "w+", shape=shape)  # deleted when the array is
    begin = truncated = 0
    progress = ProgressBar(sentences, desc="embed", unit=" sentences", unit_scale=True)
    words = (sentence.words for sentence in progress)
    for batch in embedder.embed_stream(words, "all", state):
        truncated += batch.truncated_words
        for layers in batch:
            end = begin + layers.shape[1]
            array[:, begin:end] = layers
            begin = end
    if truncated:
        message = f"{truncated} words are too long and are cut"
        warnings.warn(message, TruncationWarning, stacklevel=3)
    return array


def _most_frequent_tags(
    train: Sequence[TaggedSentence], test: Sequence[TaggedSentence]
) -> list[str]:
    """The most frequent tag of each word in training; of unknown words, that of all words."""
    by_word = defaultdict[str, Counter[str]](Counter)
    overall = Counter[str]()
    for sentence in train:
        overall.update(sentence.tags)
        for word, tag in zip(sentence.words, sentence.tags, strict=True):
            by_word[word][tag] += 1
    tags = []
    for sentence in test:
        for word in sentence.words:
            ((tag, _),) = by_word.get(word, overall).most_common(1)
            tags.append(tag)
    return tags


def probe(
    train: Sequence[TaggedSentence],
    dev: Sequence[TaggedSentence],
    test: Sequence[TaggedSentence] | None = None,
    model: Embedder | str | Path | None = None,
    state: StatePolicy | None = None,
) -> ProbeReport:
    """Train a linear classifier of word tags on the frozen vectors of each layer, from layer 0.

    The vectors of all words are in temporary files in float16, in the system's directory ($TMPDIR);
    memory holds those of one layer in float32. Penalties are tried from the strongest to the
    weakest, until the development score stops improving.

    Args:
        train: Tagged sentences to train on.
        dev: Tagged sentences to select the penalty on.
        test: Tagged sentences for the final score. Tags absent from the training set count as
            wrong.
        model: An `Embedder`, or a model as it takes one.
        state: Initial state of a sentence: "zeros", "warm", or "carry" (the final state of the
            sentence before); the model's policy by default.

    Returns:
        Accuracies in percent.

    Raises:
        ValueError: A split has no tagged word.
    """
    splits = {"train": train, "dev": dev}
    if test is not None:
        splits["test"] = test
    gold = {}
    for split, sentences in splits.items():
        gold[split] = np.array([tag for sentence in sentences for tag in sentence.tags])
        if not len(gold[split]):
            raise ValueError(
                f"the {split} sentences have no tagged word: give at least one tagged sentence"
            )
    tokens = {split: len(tags) for split, tags in gold.items()}
    tags, classes = np.unique(gold.pop("train"), return_inverse=True)
    embedder = Embedder.of(model)
    layers = {}
    for split, sentences in splits.items():
        layers[split] = _layer_file(sentences, embedder, state)

    def score(predicted: dict[str, Any], l2: float | None = None) -> ProbeScore:
        accuracy = {}
        for split, right in gold.items():
            accuracy[split] = 100 * float(np.mean(predicted[split] == right))
        return ProbeScore(accuracy["dev"], accuracy.get("test"), l2)

    scores: dict[str, ProbeScore] = {}
    # A model with a single layer has only the top one.
    names = [f"layer {number}" for number in range(embedder.num_layers)]
    names = names if len(names) > 1 else ["top layer"]
    for number, name in enumerate(ProgressBar(names, desc="fit", unit=" layers")):
        features = {split: of_split[number] for split, of_split in layers.items()}
        classifiers = softmax_regressions(features["train"], classes, PENALTIES, embedder.device)
        for l2, classifier in zip(PENALTIES, classifiers, strict=True):
            predicted = {split: tags[classifier.predict(features[split])] for split in gold}
            candidate = score(predicted, l2)
            if name in scores and candidate.dev <= scores[name].dev:
                break
            scores[name] = candidate
    scores[MOST_FREQUENT] = score(
        {split: np.array(_most_frequent_tags(train, splits[split])) for split in gold}
    )
    return ProbeReport(scores, len(tags), tokens, state or embedder.model.state_policy)


def probe_files(
    train: str | Path,
    dev: str | Path,
    test: str | Path | None = None,
    model: Embedder | str | Path | None = None,
    state: StatePolicy | None = None,
    **columns: Any,
) -> ProbeReport:
    """`probe` on files with one token per line; `columns` as in `TaggedFile.of`."""
    files = [file for file in (train, dev, test) if file is not None]
    splits = [list(TaggedFile.of(file, **columns).sentences()) for file in files]
    return probe(*splits, model=model, state=state)
