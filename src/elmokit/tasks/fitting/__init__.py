"""Training: read the examples, learn the labels, compute frozen layers once, train, report."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, takewhile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from elmokit.checkpoints import ModelSource, load
from elmokit.fs import check_output
from elmokit.progress import ProgressBar
from elmokit.runtime import fork_rng, pick_device
from elmokit.tasks import FitConfig, WordsConfig
from elmokit.tasks.fitting.layers import default_cache
from elmokit.tasks.fitting.model import (
    LAYOUT,
    ExampleSet,
    TaskModel,
    predict,
    split_by_length,
)
from elmokit.tasks.fitting.task import (
    F1Score,
    Task,
    TaskNetwork,
    TaskScores,
    Use,
    checked,
    find_task,
    read_examples,
)
from elmokit.tasks.fitting.words import WordEncoder, WordTable

Examples = str | Path | Iterable[Any]  # whatever `read_examples` reads

# Examples are shuffled into pools of this many batches, and sorted by length within: little
# padding, random order.
POOL = 32


# --- The report: printed in percent; report.json has everything -----------------------------------


@dataclass(frozen=True)
class Epoch:
    """One pass over the training set."""

    loss: float  # mean over batches
    scores: dict[str, float]  # on the development set after it
    learning_rate: float
    seconds: float


@dataclass(frozen=True)
class LearnedMix:
    """A trained scalar mix: the weights of the layers after the softmax, and gamma."""

    weights: list[float]
    gamma: float

    def __str__(self) -> str:
        weights = " ".join(f"{weight:.3f}" for weight in self.weights)
        return f"gamma {self.gamma:.3f}, layers {weights}"


@dataclass(frozen=True, repr=False)
class FitReport:
    """The result of a training run. Scores are those of `Task.score`."""

    task: str
    metric: str  # the score that stopped the training
    best_epoch: int  # from 1
    dev: dict[str, float]
    test: dict[str, float] | None
    by_label: dict[str, F1Score] | None  # on the test set, if given, else the development set
    confusion: dict[str, dict[str, int]] | None  # on the same set
    mixes: list[LearnedMix]  # where ELMo enters: at the input, at the output
    parameters: int  # trained ones
    examples: int  # number of training examples
    words: int
    words_per_second: float  # training words; the time includes scoring the development set
    settings: dict[str, Any]  # settings of task, words and training
    epochs: list[Epoch]
    seconds: float

    @property
    def final(self) -> TaskScores:
        """Scores on the test set, if given, else on the development set."""
        return TaskScores(self.test or self.dev, self.by_label, self.confusion)

    def __repr__(self) -> str:
        scores = f"dev={self.dev[self.metric]:.4f}"
        if self.test is not None:
            scores += f", test={self.test[self.metric]:.4f}"
        epochs = f"best epoch {self.best_epoch} of {len(self.epochs)}"
        return f"FitReport({self.task}, {self.metric}: {scores}, {epochs})"

    def __str__(self) -> str:
        name = "development" if self.test is None else "test"
        lines = [f"{name} set, in percent", str(self.final)]
        if self.test is not None:
            scores = (f"{name} {100 * score:.2f}" for name, score in self.dev.items())
            lines.append(f"\ndevelopment set: {'  '.join(scores)}")
        lines.append(f"\nbest epoch: {self.best_epoch} of {len(self.epochs)}")
        elmo = self.settings["words"]["elmo"]
        sides = ("input", "output") if elmo == "both" else (elmo,)
        for side, mix in zip(sides, self.mixes, strict=False):
            lines.append(f"ELMo at the {side}: {mix}")
        lines.append(f"trained parameters: {self.parameters:,}")
        lines.append(
            f"time: {self.seconds:.0f} s, {self.words_per_second:,.0f} words/s in training"
        )
        return "\n".join(lines)

    def to_json(self) -> str:
        """The report as indented JSON."""
        return json.dumps(asdict(self), indent=2) + "\n"


# --- One epoch ------------------------------------------------------------------------------------


def shuffled_batches(
    lengths: np.ndarray, batch_size: int, random: np.random.Generator
) -> Iterator[np.ndarray]:
    """Random batches of examples with similar lengths; examples of length 0 are left out."""
    order = random.permutation(np.flatnonzero(lengths))
    batches = []
    for start in range(0, len(order), POOL * batch_size):
        pool = order[start : start + POOL * batch_size]
        by_length = pool[np.argsort(lengths[pool], kind="stable")]
        batches += split_by_length(by_length, lengths, batch_size)
    for index in random.permutation(len(batches)):
        yield batches[index]


def train_epoch(
    network: TaskNetwork,
    examples: ExampleSet,
    optimizer: torch.optim.Optimizer,
    config: FitConfig,
    number: int,
) -> float:
    """Train for one epoch, whose batches and dropout depend on the seed and its number alone.

    Returns:
        The mean loss of the batches.
    """
    torch.manual_seed(config.seed * 1_000_003 + number)
    random = np.random.default_rng([config.seed, number])
    batches = list(shuffled_batches(examples.lengths, config.batch_size, random))
    (group,) = optimizer.param_groups
    parameters = group["params"]
    device, losses = parameters[0].device, []
    network.train()
    for chosen in ProgressBar(batches, desc=f"epoch {number}", unit=" batches", leave=False):
        loss = network.loss(examples.batch(chosen, device)) + network.words.penalty()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, config.max_grad_norm)
        optimizer.step()
        losses.append(loss.detach())
    return float(torch.stack(losses).mean())


# --- All epochs -----------------------------------------------------------------------------------


def best_of(scores: Sequence[float]) -> int:
    """Number, from 1, of the first epoch with the best score; 0 where there is none."""
    return max(range(len(scores)), key=lambda index: scores[index], default=-1) + 1


def unimproved(scores: Sequence[float]) -> int:
    """The number of epochs since the best score.

    Epochs count from the first change of the score on, unless it is 1 from the start: a network
    that still finds no span, or gives all examples the same answer, has not begun to learn, and
    needs its full learning rate.
    """
    unchanged = sum(1 for _ in takewhile(lambda score: score == scores[0] < 1, scores))
    return len(scores) - max(best_of(scores), unchanged)


def train(
    network: TaskNetwork, examples: ExampleSet, dev: ExampleSet, config: FitConfig
) -> list[Epoch]:
    """Train in place until the development score stops improving, then restore the best weights.

    Args:
        network: Network on the device to train on.
        examples: Examples to train on.
        dev: Examples that determine when to stop.
        config: Settings of the training.

    Returns:
        Loss, development scores and time of each epoch.

    Raises:
        ValueError: The loss or a score is not a number.
    """
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(trained, config.learning_rate, fused=True)
    best: dict[str, Tensor] = {}
    epochs: list[Epoch] = []
    history: list[float] = []  # the first of the development scores of each epoch
    for number in range(1, config.max_epochs + 1):
        start = time.perf_counter()
        rate = optimizer.param_groups[0]["lr"]
        loss = train_epoch(network, examples, optimizer, config, number)
        values = dev.task.score(dev.examples, predict(network, dev)).values
        scores = {name: float(value) for name, value in values.items()}
        if not np.isfinite([loss, *scores.values()]).all():
            raise ValueError(
                f"the loss of epoch {number} or a score is not a number, {loss} and {scores}"
            )
        seconds = time.perf_counter() - start
        epochs.append(Epoch(loss, scores, rate, seconds))
        metric = next(iter(scores))
        history.append(scores[metric])
        top = best_of(history)
        if top == number:
            best = {name: value.clone() for name, value in network.state_dict().items()}
        print(
            f"epoch {number}: loss {loss:.4f}, {metric} {100 * history[-1]:.2f} on the development "
            f"set (best {100 * history[top - 1]:.2f}, epoch {top}), {seconds:.1f} s",
            file=sys.stderr,
            flush=True,
        )
        waited = unimproved(history)
        if waited and waited % config.halve_after == 0:
            optimizer.param_groups[0]["lr"] = rate / 2
        minutes = sum(epoch.seconds for epoch in epochs) / 60
        if waited >= config.patience or minutes >= (config.max_minutes or float("inf")):
            break
    network.load_state_dict(best)
    return epochs


# --- From examples to a model on disk -------------------------------------------------------------


def _read(task: Task, name: str, source: Examples, use: Use) -> list[Any]:
    """The examples of a set, checked."""
    examples = list(checked(task, read_examples(task, source, use), name))
    if not any(map(task.length, examples)):
        raise ValueError(f"the {name} set holds no words: check the file and its format")
    return examples


def fit(
    task: Task | str,
    train_examples: Examples,
    dev_examples: Examples,
    test_examples: Examples | None = None,
    *,
    model: ModelSource = None,
    words: WordsConfig | None = None,
    config: FitConfig | None = None,
    output: str | Path | None = None,
    overwrite: bool = False,
    cache: str | Path | None = None,
    **settings: Any,
) -> tuple[TaskModel, FitReport]:
    """Train a task's network until the development score stops improving, and keep the best
    weights.

    Args:
        task: The name of a task, e.g. "tagging", or a task with its settings, e.g.
            `TaggingTask(TaggingConfig(hidden_dim=100))`.
        train_examples: Examples to train on: a file in the task's format; for classification,
            tagging and pairs also a table (.csv, .tsv, .jsonl or .parquet), a DataFrame of pandas,
            or a list of tuples such as (text, label), (words, tags) or (first, second, label); or a
            list of the task's examples.
        dev_examples: Examples that determine when to stop, in any of these forms.
        test_examples: Examples for the final score.
        model: The frozen biLM whose layers the network reads: a name, a path, or a loaded model;
            None: the bundled English model. Not read with elmo "none".
        words: Which vectors the network reads for each word; None: the defaults of `WordsConfig`.
        config: Settings of the training, by default those of the task.
        output: Directory for the model and report.json; None: nothing is written.
        overwrite: Replace an earlier task model there.
        cache: Directory for the layers of frozen biLMs, shared by all runs, so that a run that is
            repeated computes none; None: `default_cache()`.
        settings: Settings of a task that is given by its name, as on the command line:
            `network="pooled"`, or the columns of tables, `column="review", label_column="stars"`.

    Returns:
        The model and the report of its training.

    Raises:
        FileExistsError: `output` exists, and `overwrite` is not set or it is not a task model.
        FileNotFoundError: A file of examples, or the model, is missing.
        ValueError: A file or an example does not fit the task; no label of the development set is
            known; the loss or a score is not a number; or a library that the task or its score
            needs is not installed.
    """
    start = time.perf_counter()
    if isinstance(task, str):
        kind = find_task(task)
        task = kind(kind.Config(**settings))
    elif settings:
        raise TypeError(
            f"{', '.join(settings)}: give settings either here, with the name of a task, or to "
            f"the task"
        )
    words, config = words or WordsConfig(), (config or FitConfig()).over(task.fit_config)
    if output is not None:
        inputs = [model, train_examples, dev_examples, test_examples]
        check_output(output, inputs, overwrite=overwrite, **LAYOUT)

    # Read, and learn the labels. The given task is not changed.
    pretrained = None if words.elmo == "none" else load(model, softmax=False)
    tokenizer = (pretrained and pretrained.tokenizer) or "english-1"
    task = type(task)(task.config, None, tokenizer)
    sets = [_read(task, "training", train_examples, "train")]
    task = type(task)(task.config, task.learn(sets[0]), tokenizer)
    sets.append(_read(task, "development", dev_examples, "score"))
    if test_examples is not None:
        sets.append(_read(task, "test", test_examples, "score"))
    counted = filter(task.is_counted, sets[0])
    table = WordTable.from_sentences(chain.from_iterable(map(task.sentences, counted)))

    # Compute the layers of a frozen biLM, train, and keep the best weights.
    with fork_rng():
        torch.manual_seed(config.seed)
        network = task.network(WordEncoder(words, table, pretrained))
        task_model = TaskModel(task, network.to(pick_device(config.device)), table, pretrained)
        layers = task_model.open_cache(cache or default_cache())
        encoded = [task_model.example_set(examples, layers) for examples in sets]
        epochs = train(network, encoded[0], encoded[1], config)
        scores = task.score(sets[-1], predict(network, encoded[-1]))

    # Report.
    metric = next(iter(scores.values))
    best = best_of([epoch.scores[metric] for epoch in epochs])
    num_words = sum(len(sentence) for example in sets[0] for sentence in task.sentences(example))
    in_epochs = sum(epoch.seconds for epoch in epochs)
    mixes: Any = network.words.mixes
    report = FitReport(
        task=task.name,
        metric=metric,
        best_epoch=best,
        dev=epochs[best - 1].scores,
        test=scores.values if test_examples is not None else None,
        by_label=scores.by_label,
        confusion=scores.confusion,
        mixes=[LearnedMix(mix.layer_weights().tolist(), mix.gamma.item()) for mix in mixes],
        parameters=sum(weight.numel() for weight in network.parameters() if weight.requires_grad),
        examples=len(sets[0]),
        words=num_words,
        words_per_second=num_words * len(epochs) / max(in_epochs, 1e-9),
        settings={"task": asdict(task.config), "words": asdict(words), "fit": asdict(config)},
        epochs=epochs,
        seconds=time.perf_counter() - start,
    )
    if output is not None:
        task_model.save(output, overwrite, report.to_json())
    return task_model, report
