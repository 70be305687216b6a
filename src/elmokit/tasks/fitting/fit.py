"""Training: read the examples, learn the labels, train, keep the best weights, report."""

from __future__ import annotations

import copy
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import reduce
from itertools import takewhile
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from elmokit.checkpoints import ModelSource, check_overwritable, fingerprint, load
from elmokit.fs import OVERWRITE, atomic_path, check_output, only_one_in, read_json, write_json
from elmokit.progress import ProgressBar
from elmokit.runtime import own_random_state, pick_device
from elmokit.settings import conform
from elmokit.tasks.config import FitConfig, WordsConfig
from elmokit.tasks.fitting.frozen import TransformerEncoder, default_cache
from elmokit.tasks.fitting.model import (
    CONFIG,
    LAYOUT,
    REPORT,
    ExampleSet,
    TaskModel,
    load_task_model,
    make_network,
    predict,
    split_by_length,
    text_tokenizer,
)
from elmokit.tasks.fitting.task import (
    Confusion,
    F1Score,
    Task,
    TaskNetwork,
    TaskScores,
    find_task,
    read_examples,
)
from elmokit.tasks.fitting.words import WordTable, read_word_vectors

Examples = str | Path | Iterable[Any]  # whatever `read_examples` reads

# Examples are shuffled into pools of this many batches, and sorted by length within: little
# padding, random order.
POOL = 32
SETTINGS, STATE = (
    "settings.json",
    "epoch.pt",
)  # of an unfinished run: its settings, and the state after its last epoch


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
        return (
            f"gamma {self.gamma:.3f}, layers {' '.join(f'{weight:.3f}' for weight in self.weights)}"
        )


@dataclass(frozen=True)
class FitReport:
    """The result of a training run. Scores are those of `Task.score`."""

    task: str
    metric: str  # the score that stopped the training
    best_epoch: int  # from 1
    dev: dict[str, float]
    test: dict[str, float] | None
    by_label: dict[str, F1Score] | None  # on the test set, or without one the development set
    confusion: Confusion | None  # on the same set
    mixes: list[LearnedMix]  # of ELMo at the input and at the output, as far as it enters there
    encoder_mix: LearnedMix | None  # of the hidden states of another encoder
    parameters: int  # trained ones
    examples: int  # of the training set
    words: int
    words_per_second: float  # of the training set, including the time to score the development set
    settings: dict[
        str, Any
    ]  # those of task, words and training, and what identifies model and data
    epochs: list[Epoch]
    seconds: float  # of all epochs, and of the rest of the process that finished the run

    @property
    def final(self) -> TaskScores:
        """Scores on the test set, or without one on the development set."""
        return TaskScores(
            self.dev if self.test is None else self.test, self.by_label, self.confusion
        )

    def __str__(self) -> str:
        lines = [
            f"{'development' if self.test is None else 'test'} set, in percent",
            str(self.final),
        ]
        if self.test is not None:
            scores = (f"{name} {100 * score:.2f}" for name, score in self.dev.items())
            lines.append(f"\ndevelopment set: {'  '.join(scores)}")
        lines.append(f"\nbest epoch: {self.best_epoch} of {len(self.epochs)}")
        place = self.settings["words"]["elmo"]
        places = ("input", "output") if place == "both" else (place,)
        lines += [
            f"ELMo at the {place}: {mix}" for mix, place in zip(self.mixes, places, strict=False)
        ]
        if self.encoder_mix is not None:
            lines.append(f"encoder: {self.encoder_mix}")
        lines.append(f"trained parameters: {self.parameters:,}")
        lines.append(
            f"time: {self.seconds:.0f} s, {self.words_per_second:,.0f} words/s in training"
        )
        return "\n".join(lines)

    def to_json(self) -> str:
        """The report as indented JSON."""
        return json.dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def read(cls, path: Path) -> FitReport:
        """Read a report.json. ValueError if it is damaged, or of another version."""
        return conform(cls, read_json(path), str(path))


# --- One epoch ------------------------------------------------------------------------------------


def shuffled_batches(
    lengths: np.ndarray, batch_size: int, random: np.random.Generator
) -> Iterator[np.ndarray]:
    """Random batches of examples with similar lengths; examples of length 0 are left out."""
    order = random.permutation(np.flatnonzero(lengths))
    batches = []
    for start in range(0, len(order), POOL * batch_size):
        pool = order[start : start + POOL * batch_size]
        batches += split_by_length(
            pool[np.argsort(lengths[pool], kind="stable")], lengths, batch_size
        )
    for index in random.permutation(len(batches)):
        yield batches[index]


def train_epoch(
    network: TaskNetwork,
    examples: ExampleSet,
    optimizer: torch.optim.Optimizer,
    config: FitConfig,
    number: int,
) -> float:
    """Train for one epoch; the order of examples and the dropout depend on the seed and the epoch's
    number alone.

    Returns:
        The mean loss of the batches.
    """
    torch.manual_seed(config.seed * 1_000_003 + number)
    batches = list(
        shuffled_batches(
            examples.lengths, config.batch_size, np.random.default_rng([config.seed, number])
        )
    )
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
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


def best_epoch(epochs: Sequence[Epoch], metric: str) -> int:
    """Number, from 1, of the first epoch with the best development score; 0 where there is none."""
    return max(range(len(epochs)), key=lambda index: epochs[index].scores[metric], default=-1) + 1


def unimproved(epochs: Sequence[Epoch], metric: str) -> int:
    """The number of epochs since the best score.

    Epochs count from the first change of the score on, unless it is 1 from the start: a network
    that still finds no span, or gives all examples the same answer, has not begun to learn, and
    needs its full learning rate.
    """
    scores = [epoch.scores[metric] for epoch in epochs]
    unchanged = sum(1 for _ in takewhile(lambda score: score == scores[0] < 1, scores))
    return len(epochs) - max(best_epoch(epochs, metric), unchanged)


def _is_over(epochs: Sequence[Epoch], metric: str, config: FitConfig) -> bool:
    seconds = sum(epoch.seconds for epoch in epochs)
    return (
        len(epochs) >= config.max_epochs
        or unimproved(epochs, metric) >= config.patience
        or (config.max_minutes is not None and seconds >= 60 * config.max_minutes)
    )


def _parameter_groups(network: TaskNetwork, config: FitConfig) -> list[dict[str, Any]]:
    """The trained parameters: those of the biLM, if it is fine-tuned, have a rate of their own, and
    wait for others.
    """
    bilm = set() if network.words.elmo is None else set(network.words.elmo.bilm.parameters())
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    own, of_bilm = (
        [each for each in trained if (each in bilm) == is_bilm] for is_bilm in (False, True)
    )
    groups = [{"params": own, "full_rate": config.learning_rate, "waits": 0}]
    if of_bilm:
        groups += [
            {
                "params": of_bilm,
                "full_rate": config.finetune_learning_rate,
                "waits": config.finetune_after,
            }
        ]
    return groups


def train(
    network: TaskNetwork,
    examples: ExampleSet,
    dev: ExampleSet,
    config: FitConfig,
    state: Path | None = None,
) -> list[Epoch]:
    """Train in place until the development score stops improving, then restore the best weights.

    Args:
        network: Network on the device to train on.
        examples: Examples to train on.
        dev: Examples that determine when to stop.
        config: Settings of the training.
        state: File of the state after each epoch, from which an interrupted run goes on; None: not
            written.

    Returns:
        Loss, development scores and time of each epoch.

    Raises:
        ValueError: The loss or a score is not a number.
    """
    metric, epochs = examples.task.metric, list[Epoch]()
    optimizer = torch.optim.Adam(_parameter_groups(network, config), fused=True)
    frozen = {
        name
        for name, value in network.named_parameters(remove_duplicate=False)
        if not value.requires_grad
    }

    def weights() -> dict[str, Tensor]:
        """Copies of all that training changes, which includes buffers such as batch normalization's
        statistics.
        """
        return {
            name: value.clone()
            for name, value in network.state_dict().items()
            if name not in frozen
        }

    best = weights()
    if state is not None and state.is_file():
        saved = torch.load(
            state, weights_only=True, map_location=optimizer.param_groups[0]["params"][0].device
        )
        network.load_state_dict(saved["weights"], strict=False)
        optimizer.load_state_dict(saved["optimizer"])
        best, epochs = saved["best"], [Epoch(**epoch) for epoch in saved["epochs"]]
    while not _is_over(epochs, metric, config):
        start, number = time.perf_counter(), len(epochs) + 1
        # Halved after each `halve_after` epochs in a row without a new best score.
        counts = [unimproved(epochs[:end], metric) for end in range(1, number)]
        scale = 0.5 ** sum(count > 0 and count % config.halve_after == 0 for count in counts)
        for group in optimizer.param_groups:
            group["lr"] = group["full_rate"] * scale
            for parameter in group["params"]:
                parameter.requires_grad_(number > group["waits"])
        loss = train_epoch(network, examples, optimizer, config, number)
        predictions = predict(network, dev, with_probabilities=False)
        scores = {
            name: float(value) for name, value in dev.task.score(dev.examples, predictions).items()
        }
        if not np.isfinite([loss, *scores.values()]).all():
            raise ValueError(
                f"the loss of epoch {number} or a score is not a number, {loss} and {scores}"
            )
        epochs.append(
            Epoch(loss, scores, config.learning_rate * scale, time.perf_counter() - start)
        )
        top = best_epoch(epochs, metric)
        if top == number:
            best = weights()
        if state is not None:
            described = [asdict(epoch) for epoch in epochs]
            saved = {
                "weights": weights(),
                "best": best,
                "optimizer": optimizer.state_dict(),
                "epochs": described,
            }
            with atomic_path(state) as partial:
                torch.save(saved, partial)
        print(
            f"epoch {number}: loss {loss:.4f}, {metric} {100 * scores[metric]:.2f} on the "
            f"development set (best {100 * epochs[top - 1].scores[metric]:.2f}, epoch {top}), "
            f"{epochs[-1].seconds:.1f} s",
            file=sys.stderr,
            flush=True,
        )
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.requires_grad_()
    network.load_state_dict(best, strict=False)
    return epochs


# --- From examples to a model on disk -------------------------------------------------------------


def _read(
    task: Task, name: str, source: Examples, tokenize: Callable[[str], list[str]]
) -> list[Any]:
    """The examples of a set, checked."""
    examples = read_examples(
        task, source, tokenize, task.read_training if name == "training" else task.read
    )
    checked = list(task.checked(examples, name))
    if not any(map(task.length, checked)):
        raise ValueError(f"the {name} set holds no words: check the file and its format")
    return checked


def _digest(examples: Iterable[Any]) -> int:
    """A checksum of examples, by which a run that is repeated is told from one on others."""
    return reduce(
        lambda digest, example: crc32(repr(example).encode("utf-8", "surrogatepass"), digest),
        examples,
        0,
    )


def _word_table(sentences: Iterable[Sequence[str]], config: WordsConfig) -> WordTable:
    """The words of the training set, with their pretrained vectors if the network reads any."""
    table = WordTable.from_sentences(sentences)
    if config.vectors is None:
        return table
    wanted = {*table.words, *(word.lower() for word in table.words)}
    vectors = read_word_vectors(config.vectors, wanted, config.vectors_kept)
    found = sum(vectors.number(word) > 0 for word in table.words)
    print(
        f"{config.vectors}: {found:,} of {len(table.words):,} distinct words have a vector",
        file=sys.stderr,
    )
    return replace(table, vectors=vectors)


def _refuse_others(settings: dict[str, Any], of: dict[str, Any], path: Path) -> None:
    """FileExistsError if the settings of an earlier run, whose output or state is in the way, are
    others.
    """
    others = [
        name
        for part, values in settings.items()
        for name, value in values.items()
        if of.get(part, {}).get(name) != value
    ]
    if others:
        raise FileExistsError(
            f"{path} is of a run with other {', '.join(others)}: repeat that run's command, choose "
            f"another name, or {OVERWRITE}"
        )


def _learned_mix(mix: Any) -> LearnedMix:
    return LearnedMix(mix.layer_weights().tolist(), float(mix.gamma.detach()))


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
        model: The biLM whose layers the network reads: a name, a path, or a loaded model (not
            changed: a copy is used); None: the bundled English model. Not read with elmo "none".
        words: Which vectors the network reads for each word; None: the defaults of `WordsConfig`.
        config: Settings of the training; None: the task's own defaults.
        output: Directory for the model and report.json; None: nothing is written. During training,
            a hidden directory next to it holds the state of the run: the same call resumes an
            interrupted run, which ends with the same weights, and loads the model of a finished
            one. Runs are the same if their settings, their encoders and their examples, as `repr`
            shows them, are.
        overwrite: Replace an earlier task model there, even one of the same run.
        cache: Directory for the vectors of frozen encoders, shared by all runs; None:
            `default_cache()`.
        settings: Settings of a task that is given by its name, as on the command line:
            `network="pooled"`, or the columns of tables, `column="review", label_column="stars"`.

    Returns:
        The model and the report of its training.

    Raises:
        FileExistsError: `output` exists, and `overwrite` is not set or it is not a task model.
        FileNotFoundError: A file of examples or of vectors, or the model, is missing.
        ValueError: A file or an example does not fit the task; the loss or a score is not a number;
            another process trains with this output; or a library that the task or its score needs
            is not installed.
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
    words, config = words or WordsConfig(), config or task.fit_config
    directory, state = None, None  # of the output, and of the state of the unfinished run
    if output is not None:
        directory = Path(output).absolute()
        state = directory.with_name(f".fit-{directory.name}")
        check_output(directory, overwrite=True, directory_of=CONFIG)
        if overwrite:
            check_overwritable(directory, LAYOUT)

    # Read, and learn the labels.
    pretrained = None if words.elmo == "none" else load(model, softmax=False)
    tokenize = text_tokenizer(pretrained)
    sets = {"training": _read(task, "training", train_examples, tokenize)}
    task = type(task)(task.config, task.learn(sets["training"]))  # the given task is not changed
    sets["development"] = _read(task, "development", dev_examples, tokenize)
    if test_examples is not None:
        sets["test"] = _read(task, "test", test_examples, tokenize)
    num_words = sum(len(words) for each in sets["training"] for words in task.sentences(each))
    device = pick_device(config.device)
    if (
        pretrained is model and pretrained is not None
    ):  # the network freezes, moves and trains its biLM
        pretrained = replace(pretrained, bilm=copy.deepcopy(pretrained.bilm))
    encoder = None
    if words.encoder is not None:
        encoder = TransformerEncoder.load(words.encoder, words.encoder_pooling, str(device))
    read = {
        "task": task.name,
        "model": None if pretrained is None else fingerprint(pretrained),
        "encoder": encoder and encoder.name,
        "examples": {name: _digest(examples) for name, examples in sets.items()},
        "vectors": words.vectors and Path(words.vectors).stat().st_mtime_ns,
    }
    run = {"task": asdict(task.config), "words": asdict(words), "fit": asdict(config), "read": read}
    del run["fit"]["device"]
    run = json.loads(json.dumps(run))

    with nullcontext() if state is None else only_one_in(state):
        # Is there a finished run, or an unfinished one?
        if directory is not None and state is not None:
            if (directory / CONFIG).is_file() and not overwrite:
                report = FitReport.read(directory / REPORT)
                _refuse_others(run, report.settings, directory)
                shutil.rmtree(state)
                return load_task_model(directory, config.device, type(task)), report
            if (state / SETTINGS).is_file():
                if overwrite and read_json(state / SETTINGS) != run:
                    (state / STATE).unlink(missing_ok=True)
                else:
                    _refuse_others(run, read_json(state / SETTINGS), state)
            write_json(state / SETTINGS, run)

        # Train, and keep the best weights.
        table = _word_table(task.counted_sentences(sets["training"]), words)
        with own_random_state():
            torch.manual_seed(config.seed)
            network = make_network(task, words, table, pretrained, encoder).to(device)
            task_model = TaskModel(task, network, table, pretrained, encoder)
            caches = task_model.open_caches(cache or default_cache())
            encoded = [task_model.example_set(examples, caches) for examples in sets.values()]
            resumed = time.perf_counter()
            epochs = train(
                network, encoded[0], encoded[1], config, None if state is None else state / STATE
            )
            trained = time.perf_counter()
            final = encoded[-1]
            scores = task.all_scores(
                final.examples, predict(network, final, with_probabilities=False)
            )
        network.eval()

        # Report.
        best, in_epochs = best_epoch(epochs, task.metric), sum(epoch.seconds for epoch in epochs)
        elmo, encoder_mix = network.words.elmo, network.words.encoder_mix
        report = FitReport(
            task=task.name,
            metric=task.metric,
            best_epoch=best,
            dev=epochs[best - 1].scores,
            test=scores.values if test_examples is not None else None,
            by_label=scores.by_label,
            confusion=scores.confusion,
            mixes=[] if elmo is None else [_learned_mix(mix) for mix in elmo.mixes],
            encoder_mix=None if encoder_mix is None else _learned_mix(encoder_mix),
            parameters=sum(
                parameter.numel() for parameter in network.parameters() if parameter.requires_grad
            ),
            examples=len(sets["training"]),
            words=num_words,
            words_per_second=num_words * len(epochs) / max(in_epochs, 1e-9),
            settings=run,
            epochs=epochs,
            seconds=in_epochs + (resumed - start) + (time.perf_counter() - trained),
        )
        if directory is not None and state is not None:
            task_model.save(directory, overwrite, report.to_json())
            shutil.rmtree(state)
    return task_model, report
