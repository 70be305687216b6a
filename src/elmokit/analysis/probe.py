"""A linear probe for each layer: how well a linear classifier on frozen vectors tells the tag of a word.

Table 6 of Peters et al. (2018) does so for parts of speech. The classifier is a multinomial logistic regression, fitted
to its optimum, with the penalty that is best on development data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from elmokit.analysis.annotated import all_layers
from elmokit.analysis.layer_files import LayerFiles
from elmokit.analysis.softmax_regression import SoftmaxRegressionFit
from elmokit.config import StatePolicy
from elmokit.data.readers import Layout, TaggedSentence, read_tagged
from elmokit.embed.embedder import Embedder, resolve_embedder

# Weights of |w|^2 / 2 beside the mean cross-entropy, where w are the weights of standardised features.
PENALTIES = (1e-2, 1e-3, 1e-4, 1e-5)
MOST_FREQUENT = "most frequent tag of the word"


@dataclass(frozen=True)
class ProbeScore:
    """Accuracy in percent; `l2` is the penalty that was best on the development data, None for a baseline."""

    dev: float
    test: float | None
    l2: float | None = None


@dataclass(frozen=True)
class ProbeReport:
    """The accuracy of every layer, and of the tag that each word has most often in training.

    `tokens` are counted by part: train, dev and test. `state` is the initial LSTM state of a sentence, `fingerprint`
    that of the model.
    """

    scores: dict[str, ProbeScore]
    tags: int
    tokens: dict[str, int]
    state: str
    fingerprint: str

    def __str__(self) -> str:
        width = max(map(len, self.scores))
        parts = [part for part in ("dev", "test") if part in self.tokens]
        lines = [f"{'':{width}}{'l2':>9}" + "".join(f"{part:>9}" for part in parts)]
        for name, score in self.scores.items():
            l2 = "" if score.l2 is None else f"{score.l2:g}"
            lines.append(f"{name:{width}}{l2:>9}" + "".join(f"{getattr(score, part):>9.2f}" for part in parts))
        counts = ", ".join(f"{count} {part}" for part, count in self.tokens.items())
        lines.append(f"(accuracy in percent; state {self.state}; {self.tags} tags; tokens: {counts})")
        return "\n".join(lines)


Parts = dict[str, Sequence[TaggedSentence]]


def _tags(sentences: Sequence[TaggedSentence]) -> list[str]:
    return [tag for sentence in sentences for tag in sentence.tags]


def _accuracy(predicted: Sequence[str] | np.ndarray, gold: Sequence[str] | np.ndarray) -> float:
    """In percent."""
    return 100 * float(np.mean(np.asarray(predicted) == np.asarray(gold)))


def _most_frequent_tags(parts: Parts) -> ProbeScore:
    """The score of each word's most frequent tag in training; of unknown words, of the most frequent tag of all."""
    by_word: dict[str, Counter[str]] = {}
    for sentence in parts["train"]:
        for word, tag in zip(sentence.words, sentence.tags, strict=True):
            by_word.setdefault(word, Counter())[tag] += 1
    overall = Counter(_tags(parts["train"])).most_common(1)[0][0]
    best = {word: counts.most_common(1)[0][0] for word, counts in by_word.items()}
    scores = {
        name: _accuracy([best.get(word, overall) for each in sentences for word in each.words], _tags(sentences))
        for name, sentences in parts.items()
        if name != "train"
    }
    return ProbeScore(scores["dev"], scores.get("test"))


def _probe_layer(
    features: dict[str, np.ndarray], classes: dict[str, np.ndarray], embedder: Embedder, penalties: Sequence[float]
) -> ProbeScore:
    """From the strongest penalty to the weakest, as long as the development score rises."""
    fit = SoftmaxRegressionFit(features["train"], classes["train"], int(classes["train"].max()) + 1, embedder.device)
    best = None
    for l2 in sorted(penalties, reverse=True):
        classifier = fit.fit(l2)
        found = {
            name: _accuracy(classifier.predict(features[name]), classes[name]) for name in features if name != "train"
        }
        if best is not None and found["dev"] <= best.dev:
            break
        best = ProbeScore(found["dev"], found.get("test"), l2)
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
    """Fit a linear classifier of words' tags on the frozen vectors of each layer, the token layer (0) included.

    The layers of all words lie in temporary files while they are needed (`LayerFiles`: 2 bytes a number); memory holds
    the sentences and some thousand vectors.

    Args:
        train: Tagged sentences to fit on.
        dev: Tagged sentences on which the penalty is chosen.
        test: Tagged sentences for the final score. A tag that training lacks counts as wrong.
        model: An embedder, or a model as `Embedder.load` takes it.
        state: The initial LSTM state of a sentence, as in `Embedder.embed` ("carry": that after the sentence before);
            the model's own policy when not given.
        device: Where to compute, where `model` is no embedder yet.
        dtype: The number type to compute in, where `model` is no embedder yet (`Embedder.load`'s dtype).
        penalties: L2 penalties to choose from, weights of |w|^2 / 2 beside the mean cross-entropy in nats.

    Returns:
        Accuracies in percent.

    Raises:
        ValueError: A part has no tagged word, or there is no penalty to choose from.
    """
    parts: Parts = {"train": train, "dev": dev} | ({} if test is None else {"test": test})
    tags = {name: _tags(sentences) for name, sentences in parts.items()}
    for name, found in tags.items():
        if not found:
            raise ValueError(f"the {name} part has no tagged word: a probe needs some of each")
    if not penalties:
        raise ValueError("a probe needs at least one L2 penalty")
    numbers = {tag: number for number, tag in enumerate(sorted(set(tags["train"])))}
    classes = {name: np.array([numbers.get(tag, -1) for tag in found]) for name, found in tags.items()}
    embedder = resolve_embedder(model, device, dtype)
    scores = {}
    with ExitStack() as stack:
        layers = {}
        for name, sentences in parts.items():
            shown = tqdm(sentences, desc=f"embed {name}", unit=" sentences", unit_scale=True, disable=None)
            embedded = all_layers(shown, lambda sentence: sentence.words, embedder, state)
            layers[name] = stack.enter_context(LayerFiles(found for _, found in embedded))
        for number in tqdm(range(embedder.num_layers), desc="fit", unit=" layers", disable=None):
            features = {name: files.layer(number) for name, files in layers.items()}
            scores[f"layer {number}"] = _probe_layer(features, classes, embedder, penalties)
    scores[MOST_FREQUENT] = _most_frequent_tags(parts)
    tokens = {name: len(found) for name, found in tags.items()}
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
    """`probe` of files of one token a line, CoNLL-U or columns (plain, .gz or .zst).

    `format`, `word_column` and `tag_column` are those of `elmokit.data.readers.Layout.of`.
    """

    def sentences(file: str | Path) -> list[TaggedSentence]:
        return list(read_tagged(file, Layout.of(file, format, word_column, tag_column)))

    tested = None if test is None else sentences(test)
    return probe(sentences(train), sentences(dev), tested, model, state, device, dtype)
