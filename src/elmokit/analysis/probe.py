"""Linear probes: the accuracy of a linear classifier of word tags on the frozen vectors of each layer.

Table 6 of Peters et al. (2018) probes for parts of speech. The classifier is a multinomial logistic regression, trained
to convergence, with the L2 penalty selected on development data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from elmokit.analysis.annotated import all_layers
from elmokit.analysis.layer_files import LayerFiles
from elmokit.analysis.softmax_regression import SoftmaxRegressionFit
from elmokit.data.readers import Layout, TaggedSentence, read_tagged
from elmokit.embed.embedder import Embedder, resolve_embedder
from elmokit.embed.outputs import layer_names
from elmokit.progress import ProgressBar
from elmokit.settings import StatePolicy

# Candidates for the weight of |w|^2 / 2 in the loss, where w are the weights of standardized features.
PENALTIES = (1e-2, 1e-3, 1e-4, 1e-5)
MOST_FREQUENT = "most frequent tag of the word"


@dataclass(frozen=True)
class ProbeScore:
    """Accuracies in percent; `l2` is the penalty selected on the development data, None for a baseline."""

    dev: float
    test: float | None
    l2: float | None = None


@dataclass(frozen=True)
class ProbeReport:
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
        width = max(map(len, self.scores))
        splits = [split for split in ("dev", "test") if split in self.tokens]
        lines = [f"{'':{width}}{'l2':>9}" + "".join(f"{split:>9}" for split in splits)]
        for name, score in self.scores.items():
            l2 = "" if score.l2 is None else f"{score.l2:g}"
            lines.append(f"{name:{width}}{l2:>9}" + "".join(f"{getattr(score, split):>9.2f}" for split in splits))
        counts = ", ".join(f"{count} {split}" for split, count in self.tokens.items())
        lines.append(f"(accuracy in percent; state {self.state}; {self.tags} tags; tokens: {counts})")
        return "\n".join(lines)


Splits = dict[str, Sequence[TaggedSentence]]  # "train", "dev", "test"


def _tags(sentences: Sequence[TaggedSentence]) -> list[str]:
    return [tag for sentence in sentences for tag in sentence.tags]


def _accuracy(predicted: Sequence[str] | np.ndarray, gold: Sequence[str] | np.ndarray) -> float:
    """Accuracy in percent."""
    return 100 * float(np.mean(np.asarray(predicted) == np.asarray(gold)))


def _most_frequent_tags(splits: Splits) -> ProbeScore:
    """Baseline: the word's most frequent tag in training; for unknown words, the most frequent tag overall."""
    by_word: dict[str, Counter[str]] = {}
    for sentence in splits["train"]:
        for word, tag in zip(sentence.words, sentence.tags, strict=True):
            by_word.setdefault(word, Counter())[tag] += 1
    overall = Counter(_tags(splits["train"])).most_common(1)[0][0]
    best = {word: counts.most_common(1)[0][0] for word, counts in by_word.items()}
    scores = {
        name: _accuracy(
            [best.get(word, overall) for sentence in sentences for word in sentence.words], _tags(sentences)
        )
        for name, sentences in splits.items()
        if name != "train"
    }
    return ProbeScore(scores["dev"], scores.get("test"))


def _probe_layer(
    features: dict[str, np.ndarray], classes: dict[str, np.ndarray], embedder: Embedder, penalties: Sequence[float]
) -> ProbeScore:
    """Fit with penalties from the strongest to the weakest, until the development score stops improving."""
    fit = SoftmaxRegressionFit(features["train"], classes["train"], int(classes["train"].max()) + 1, embedder.device)
    best = None
    for l2 in sorted(penalties, reverse=True):
        classifier = fit.fit(l2)
        scores = {
            name: _accuracy(classifier.predict(features[name]), classes[name]) for name in features if name != "train"
        }
        if best is not None and scores["dev"] <= best.dev:
            break
        best = ProbeScore(scores["dev"], scores.get("test"), l2)
    assert best is not None
    return best


def probe(
    train: Sequence[TaggedSentence],
    dev: Sequence[TaggedSentence],
    test: Sequence[TaggedSentence] | None = None,
    model: Embedder | str | Path | None = None,
    state: StatePolicy | None = None,
    device: str | None = None,
    dtype: str | None = None,
    penalties: Sequence[float] = PENALTIES,
) -> ProbeReport:
    """Train a linear classifier of word tags on the frozen vectors of each layer, including the token layer (0).

    The layers of all words are kept in temporary files in float16 (`LayerFiles`); memory holds the sentences and one
    batch of vectors.

    Args:
        train: Tagged sentences to train on.
        dev: Tagged sentences to select the penalty on.
        test: Tagged sentences for the final score. Tags absent from the training set count as wrong.
        model: An `Embedder`, or a model as `Embedder.load` accepts it.
        state: Initial state of a sentence: "zeros", "warm", or "carry" (the final state of the sentence before);
            the model's policy by default.
        device: Device to compute on; ignored if `model` is an `Embedder`.
        dtype: Number type to compute in, as for `Embedder.load`; ignored if `model` is an `Embedder`.
        penalties: L2 penalties to select from: weights of |w|^2 / 2, added to the mean cross-entropy in nats.

    Returns:
        Accuracies in percent.

    Raises:
        ValueError: A split has no tagged word, a sentence has not as many tags as words, or `penalties` is empty.
    """
    splits: Splits = {"train": train, "dev": dev} | ({} if test is None else {"test": test})
    tags = {name: _tags(sentences) for name, sentences in splits.items()}
    for name, of_split in tags.items():
        if not of_split:
            raise ValueError(f"the {name} sentences have no tagged word: give at least one tagged sentence")
        for number, sentence in enumerate(splits[name], start=1):
            if len(sentence.words) != len(sentence.tags):
                counts = f"{len(sentence.words)} words and {len(sentence.tags)} tags"
                raise ValueError(f"{name} sentence {number} has {counts}: give one tag for each word")
    if not penalties:
        raise ValueError("a probe needs at least one L2 penalty")
    numbers = {tag: number for number, tag in enumerate(sorted(set(tags["train"])))}
    classes = {name: np.array([numbers.get(tag, -1) for tag in of_split]) for name, of_split in tags.items()}
    embedder = resolve_embedder(model, device, dtype)
    scores = {}
    with ExitStack() as stack:
        files = {}
        for name, sentences in splits.items():
            progress = ProgressBar(sentences, desc=f"embed {name}", unit=" sentences", unit_scale=True)
            embedded = all_layers(progress, lambda sentence: sentence.words, embedder, state)
            files[name] = stack.enter_context(LayerFiles(layers for _, layers in embedded))
        names = layer_names(embedder.num_layers)
        for number, layer_name in enumerate(ProgressBar(names, desc="fit", unit=" layers")):
            features = {name: of_split.layer(number) for name, of_split in files.items()}
            scores[layer_name] = _probe_layer(features, classes, embedder, penalties)
    scores[MOST_FREQUENT] = _most_frequent_tags(splits)
    tokens = {name: len(of_split) for name, of_split in tags.items()}
    return ProbeReport(scores, len(numbers), tokens, state or embedder.model.state_policy, embedder.fingerprint())


def probe_files(
    train: str | Path,
    dev: str | Path,
    test: str | Path | None = None,
    model: Embedder | str | Path | None = None,
    state: StatePolicy | None = None,
    device: str | None = None,
    dtype: str | None = None,
    *,
    format: str | None = None,
    word_column: int = 0,
    tag_column: str | int | None = None,
) -> ProbeReport:
    """`probe` on files with one token per line, CoNLL-U or columns (plain, .gz or .zst).

    Args:
        train: File of tagged sentences to train on.
        dev: File of tagged sentences to select the penalty on.
        test: File of tagged sentences for the final score.
        model: As in `probe`.
        state: As in `probe`.
        device: As in `probe`.
        dtype: As in `probe`.
        format: "conllu" or "columns"; inferred from the file name by default.
        word_column: Column of the words, from 0 (format "columns").
        tag_column: Name ("conllu") or number ("columns") of the column with the tags.

    Returns:
        Accuracies in percent.

    Raises:
        ValueError: A file is not in its format, or has no tagged word.
        FileNotFoundError: A file is missing.
    """

    def sentences(file: str | Path) -> list[TaggedSentence]:
        return list(read_tagged(file, Layout.of(file, format, word_column, tag_column)))

    test_sentences = None if test is None else sentences(test)
    return probe(sentences(train), sentences(dev), test_sentences, model, state, device, dtype)
