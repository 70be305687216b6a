"""From examples, or files of them, to a trained task model on disk."""

from __future__ import annotations

import copy
import json
import shutil
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch

from elmokit.checkpoints import loading
from elmokit.checkpoints.pretrained import Pretrained, fingerprint
from elmokit.runtime import pick_device
from elmokit.tasks.config import FitConfig, WordsConfig
from elmokit.tasks.layer_cache import LayerCache, default_cache
from elmokit.tasks.task import Task, find_task
from elmokit.tasks.task_model import TaskModel, make_network
from elmokit.tasks.training import Epoch, FitReport, best_epoch, learned_mixes, predict, train
from elmokit.tasks.word_batches import WordTable

REPORT = "report.json"
Examples = str | Path | Iterable[Any]  # a file of the task's format, or the examples themselves


def _check_free(output: Path, overwrite: bool) -> None:
    """FileExistsError, before the training, if `output` must not be written."""
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return
    if not overwrite:
        raise FileExistsError(f"{output} exists: remove it, choose another name, or ask to overwrite it")
    if not (output / REPORT).is_file():
        raise FileExistsError(f"{output} holds no task model, so it is not overwritten: choose another name")


def _snapshot_of(output: Path) -> Path:
    """Directory for the state of an unfinished run, next to its output."""
    return output.absolute().with_name(f".fit-{output.absolute().name}")


def _read(task: Task, name: str, examples: Examples) -> list[Any]:
    """The examples of a set. ValueError names the first that is invalid."""
    checked = list(task.read(Path(examples)) if isinstance(examples, str | Path) else examples)
    for number, example in enumerate(checked, start=1):
        try:
            task.check(example)
        except ValueError as error:
            raise ValueError(f"example {number} of the {name} set: {error}") from error
    if not any(task.length(example) for example in checked):
        raise ValueError(f"the {name} set holds no words: check the file and its format")
    return checked


def _pretrained(model: loading.ModelSource, config: WordsConfig) -> Pretrained | None:
    if config.elmo == "none":
        if model is not None:
            raise ValueError('with elmo "none" no model is read: leave the model out, or choose where ELMo enters')
        return None
    pretrained = loading.resolve_model(model)
    return replace(pretrained, bilm=copy.deepcopy(pretrained.bilm)) if config.finetune else pretrained


def _identity(task: Task, sets: Sequence[Sequence[Any]], model: Pretrained | None, settings: dict[str, Any]) -> str:
    """A hash of everything that the weights depend on."""
    content = blake2b(json.dumps(settings, sort_keys=True, default=str).encode(), digest_size=16)
    content.update(repr((task.name, task.config, task.labels)).encode())
    content.update((fingerprint(model) if model is not None else "").encode())
    for examples in sets:
        for example in examples:
            content.update(repr(example).encode("utf-8", "surrogatepass"))
    return content.hexdigest()


def fit(
    task: Task | str,
    train_examples: Examples,
    dev_examples: Examples,
    test_examples: Examples | None = None,
    *,
    model: loading.ModelSource = None,
    words: WordsConfig | None = None,
    config: FitConfig | None = None,
    output: str | Path | None = None,
    overwrite: bool = False,
    cache: str | Path | None = None,
) -> tuple[TaskModel, FitReport]:
    """Train a task's network until the development score stops improving, and keep the best weights.

    Args:
        task: The task with its settings, e.g. `TaggingTask(TaggingConfig(hidden_dim=100))`, or the name of a task with
            its default settings, e.g. "tagging".
        train_examples: File in the task's format, or examples.
        dev_examples: File or examples that determine when to stop.
        test_examples: File or examples for the final score.
        model: The biLM whose layers the network reads: a name, a path, or a loaded model (not
            changed: `words.finetune` trains a copy); None: the bundled English model.
        words: Which vectors the network reads for each word.
        config: Settings of the training; None: the task's own defaults.
        output: Directory for the model and report.json. During the training, a hidden directory next to it
            holds its state: an interrupted run is resumed by the same call, and ends with the same weights.
        overwrite: Replace an earlier task model there.
        cache: Directory for the layers of frozen biLMs, shared by all runs; None: `default_cache()`.

    Returns:
        The model and the report of its training.

    Raises:
        FileExistsError: `output` exists, and must not be overwritten.
        ValueError: A file or an example does not fit the task; the loss is not a number.
    """
    task = find_task(task)() if isinstance(task, str) else task
    words, config = words or WordsConfig(), config or task.fit_config
    if output is not None:
        _check_free(Path(output), overwrite)
    start_time = time.perf_counter()
    sets = [_read(task, "training", train_examples), _read(task, "development", dev_examples)]
    if test_examples is not None:
        sets.append(_read(task, "test", test_examples))
    task = type(task)(task.config, task.learn(sets[0]))  # the given task stays as it is
    pretrained = _pretrained(model, words)
    table = WordTable.of(sentence for example in sets[0] for sentence in task.sentences(example))
    with torch.random.fork_rng():  # leave the caller's random state unchanged
        torch.manual_seed(config.seed)
        network = make_network(task, words, table, pretrained).to(pick_device(config.device))
        tokenizer = pretrained.tokenizer if pretrained is not None and pretrained.tokenizer else "english-1"
        task_model = TaskModel(task, network, table, pretrained, tokenizer)
        layers = LayerCache(task_model.encoder(), cache or default_cache()) if task_model.reads_layers else None
        example_sets = [task_model.example_set(examples, layers) for examples in sets]
        settings = {"words": asdict(words), "fit": asdict(config), "task": asdict(task.config)}
        snapshot = None if output is None else _snapshot_of(Path(output))
        identity = "" if snapshot is None else _identity(task, sets, pretrained, settings)
        epochs = train(network, example_sets[0], example_sets[1], config, snapshot, identity)
    predictions = predict(network, example_sets[-1])
    best = best_epoch(epochs, task.metric)
    num_words = sum(len(words) for example in sets[0] for words in task.sentences(example))
    report = FitReport(
        task=task.name,
        metric=task.metric,
        best_epoch=best,
        dev=epochs[best - 1].scores,
        test=None if test_examples is None else task.score(sets[-1], predictions),
        confusion=task.confusion(sets[-1], predictions),
        mixes=learned_mixes(network),
        parameters=sum(parameter.numel() for parameter in network.parameters() if parameter.requires_grad),
        examples=len(sets[0]),
        words=num_words,
        seconds=time.perf_counter() - start_time,
        words_per_second=_words_per_second(num_words, epochs),
        settings=json.loads(json.dumps(settings, default=str)),
        epochs=epochs,
    )
    network.eval()
    if output is not None:
        task_model.save(output, overwrite=overwrite, more_files={REPORT: report.to_json()})
        shutil.rmtree(str(snapshot), ignore_errors=True)
    return task_model, report


def _words_per_second(words: int, epochs: Sequence[Epoch]) -> float:
    return words * len(epochs) / max(sum(epoch.seconds for epoch in epochs), 1e-9)
