"""From examples, or files of them, to a trained task model on disk."""

from __future__ import annotations

import copy
import json
import shutil
import sys
import time
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from elmokit.checkpoints import loading
from elmokit.checkpoints.overwriting import check_overwritable
from elmokit.checkpoints.pretrained import Pretrained
from elmokit.fs.atomic import OVERWRITE, atomic_path, check_output, check_replaceable, resolve_link
from elmokit.fs.json_files import read_json
from elmokit.fs.lock import only_one_in
from elmokit.runtime import own_random_state, pick_device
from elmokit.tasks.config import TASKS, FitConfig, WordsConfig
from elmokit.tasks.examples import Examples, read_examples, with_labels
from elmokit.tasks.identity import NOT_DECISIVE, identity_of
from elmokit.tasks.layer_cache import default_cache
from elmokit.tasks.report import REPORT, Epoch, FitReport, SeedsReport, TaskScores, check_report
from elmokit.tasks.task import Task, find_task
from elmokit.tasks.task_model import TaskModel, load_task_model, make_network
from elmokit.tasks.task_model_files import CONFIG, LAYOUT
from elmokit.tasks.training import best_epoch, check_finite, learned_mix, learned_mixes, predict, train
from elmokit.tasks.transformer_encoder import TransformerEncoder
from elmokit.tasks.word_batches import WordTable
from elmokit.tasks.word_vectors import read_word_vectors
from elmokit.text.tokenizers import TOKENIZED


def _snapshot_of(output: Path) -> Path:
    """Directory for the state of an unfinished run, next to its output."""
    return output.absolute().with_name(f".fit-{output.absolute().name}")


def _pretrained(model: loading.ModelSource, config: WordsConfig) -> Pretrained | None:
    if config.elmo == "none":
        if model is not None:
            raise ValueError('with elmo "none" no model is read: leave the model out, or choose where ELMo enters')
        return None
    pretrained = loading.resolve_model(model)
    # The network freezes, moves and trains its biLM, so it gets a copy of the caller's.
    return replace(pretrained, bilm=copy.deepcopy(pretrained.bilm)) if pretrained is model else pretrained


def _warn_of_other_tokenizer(task: Task, pretrained: Pretrained | None) -> None:
    """Warn if a task tokenizes its files with another tokenizer than that of the biLM's training text."""
    own, model = (getattr(each, "tokenizer", None) for each in (task.config, pretrained))
    if own and model and own != model and TOKENIZED not in (own, model):
        warnings.warn(
            f"the files are tokenized by {own}, but the language model has read text tokenized by {model}, whose "
            f"words differ from these: choose the tokenizer {model} for the task",
            stacklevel=3,
        )


def _with_vectors(table: WordTable, config: WordsConfig) -> WordTable:
    """The table with pretrained vectors, if the network reads any; prints how many words have one."""
    if config.vectors is None:
        return table
    vectors = read_word_vectors(
        config.vectors, {*table.words, *(word.lower() for word in table.words)}, config.vectors_kept
    )
    print(f"{config.vectors}: {vectors.coverage(table.words)}", file=sys.stderr, flush=True)
    return replace(table, vectors=vectors)


def _check_is_model(output: str | Path, inputs: Sequence[str | Path], overwrite: bool) -> None:
    """FileExistsError if something other than a task model is at `output`: nothing else is replaced.

    Without `overwrite`, the directory may hold other files besides the model.
    """
    if any(Path(output).glob(f"seed-*/{CONFIG}")):
        raise FileExistsError(f"{output} holds the models of several seeds: choose another directory")
    check_output(output, inputs, overwrite=True, directory_of=CONFIG)
    check_replaceable(resolve_link(output))
    check_overwritable(output, LAYOUT if overwrite else replace(LAYOUT, others=None))


def check_is_no_model(output: Path) -> None:
    """FileExistsError if a directory for several models is that of one."""
    if (output / CONFIG).exists():
        raise FileExistsError(f"{output} is a task model: choose another directory, in which each run gets its own")


def _lock_of(output: Path) -> Path:
    """The directory next to the output that a run locks; not its snapshot, which is replaced in every epoch."""
    return output.absolute().with_name(f".lock-fit-{output.absolute().name}")


def _check_snapshot(snapshot: Path, identity: str, is_finished: bool, overwrite: bool) -> None:
    """Remove the state of another run if `overwrite` is set, and that of this one if it is finished.

    FileExistsError if it is of another run otherwise, before vectors are computed.
    """
    try:
        is_of_this = read_json(snapshot / "state.json")["identity"] == identity
    except (OSError, ValueError, LookupError, TypeError):  # there is none, or it is damaged, which `train` will say
        return
    if (is_finished and is_of_this) or (overwrite and not is_of_this):
        shutil.rmtree(snapshot)
    elif not is_of_this and not is_finished:
        raise FileExistsError(
            f"{snapshot} is the state of an unfinished run with other data or settings: repeat that run's command, "
            f"choose another name, or {OVERWRITE}"
        )


def _finished(output: Path, identity: str, settings: dict[str, Any]) -> FitReport | None:
    """The report of an earlier run with this output, if there is one. FileExistsError if it was another run."""
    if not (output / CONFIG).is_file():
        return None
    if not (output / REPORT).is_file():
        raise FileExistsError(f"{output} is a model without a report: choose another name, or {OVERWRITE}")
    report = FitReport.read(output / REPORT)
    if report.identity != identity:
        others = [
            name
            for part, of_part in json.loads(json.dumps(settings, default=str)).items()
            for name, value in of_part.items()
            if name not in NOT_DECISIVE and report.settings.get(part, {}).get(name, value) != value
        ]
        other = ", ".join(others) or "data, or other code of the task"
        raise FileExistsError(f"{output} is from a run with other {other}: choose another name, or {OVERWRITE}")
    return report


def _check_settings(task: Task, words: WordsConfig, config: FitConfig) -> None:
    """ValueError, before any work, for settings of another kind or that the task does not support."""
    for setting, kind in ((words, WordsConfig), (config, FitConfig)):
        if not isinstance(setting, kind):
            raise ValueError(f"{setting!r:.60} is not a {kind.__name__}: write elmokit.tasks.{kind.__name__}(...)")
    if task.name in TASKS and type(task) is not find_task(task.name):
        raise ValueError(
            f"{type(task).__name__} has the name of elmokit's own task {task.name!r}, as which its model would be "
            "loaded: give the class a name of its own"
        )
    if task.max_batch_size is not None and config.batch_size > task.max_batch_size:
        raise ValueError(f"{task.name} does not support batches of this size: set batch_size to {task.max_batch_size}")
    task.check_libraries()


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
            changed: a copy is used); None: the bundled English model.
        words: Which vectors the network reads for each word; None: the defaults of `WordsConfig`.
        config: Settings of the training; None: the task's own defaults.
        output: Directory for the model and report.json; None: nothing is written. During training, a hidden directory
            next to it holds the state of the run: the same call resumes an interrupted run, which ends with the same
            weights, and loads the model of a finished one.
        overwrite: Replace an earlier task model there, even one of the same run.
        cache: Directory for the vectors of frozen encoders, shared by all runs; None: `default_cache()`.

    Returns:
        The model and the report of its training.

    Raises:
        FileExistsError: `output` exists, and `overwrite` is not set or it is not a task model.
        FileNotFoundError: A file of examples or of vectors, or the model, is missing.
        ValueError: A file or an example does not fit the task; the loss or a score is not a number; another process
            trains with this output; or a library that the task or its score needs is not installed.
    """
    task = find_task(task)() if isinstance(task, str) else task
    words, config = words or WordsConfig(), config or task.fit_config
    _check_settings(task, words, config)
    if output is not None:
        given = [each for each in (train_examples, dev_examples, test_examples) if isinstance(each, str | Path)]
        files = [file for each in given for file in task.files(Path(each))]
        _check_is_model(output, files, overwrite)
    start_time = time.perf_counter()
    sets = [read_examples(task, "training", train_examples), read_examples(task, "development", dev_examples)]
    if test_examples is not None:
        sets.append(read_examples(task, "test", test_examples))
    task = with_labels(task, sets)  # a new one: the given task is not changed
    pretrained, device = _pretrained(model, words), pick_device(config.device)
    _warn_of_other_tokenizer(task, pretrained)
    table = _with_vectors(WordTable.of(task.counted_sentences(sets[0])), words)
    encoder = None
    if words.encoder is not None:
        encoder = TransformerEncoder.load(words.encoder, words.encoder_pooling, str(device))
    settings = {"words": asdict(words), "fit": asdict(config), "task": asdict(task.config)}
    identity = "" if output is None else identity_of(task, sets, [pretrained, table.vectors, encoder], settings)
    snapshot = None if output is None else _snapshot_of(Path(output))
    with nullcontext() if output is None else only_one_in(_lock_of(Path(output))):
        if output is not None:
            finished = None if overwrite else _finished(Path(output), identity, settings)
            _check_snapshot(_snapshot_of(Path(output)), identity, finished is not None, overwrite)
            if finished is not None:
                return load_task_model(output, config.device, type(task)), finished
        with own_random_state():
            torch.manual_seed(config.seed)
            network = make_network(task, words, table, pretrained, encoder).to(device)
            tokenizer = pretrained.tokenizer if pretrained is not None and pretrained.tokenizer else "english-1"
            task_model = TaskModel(task, network, table, pretrained, tokenizer, encoder)
            caches = task_model.open_caches(cache or default_cache())
            example_sets = [task_model.example_set(examples, caches) for examples in sets]
            training_start = time.perf_counter()
            epochs = train(network, example_sets[0], example_sets[1], config, snapshot, identity)
            training_end = time.perf_counter()
        final = TaskScores.of(task, sets[-1], predict(network, example_sets[-1], with_probabilities=False))
        check_finite(final.values, f"on the {'development' if test_examples is None else 'test'} set")
        report = _report(task_model, sets[0], final, test_examples is not None, epochs, settings, identity)
        # A resumed run counts the epochs of all its processes.
        rest = time.perf_counter() - start_time - (training_end - training_start)
        report.seconds = rest + sum(epoch.seconds for epoch in epochs)
        network.eval()
        if output is not None:
            task_model.save(output, overwrite=overwrite, more_files={REPORT: report.to_json()})
            shutil.rmtree(str(snapshot), ignore_errors=True)
    return task_model, report


def _report(
    model: TaskModel,
    examples: Sequence[Any],
    final: TaskScores,
    has_test: bool,
    epochs: list[Epoch],
    settings: dict[str, Any],
    identity: str,
) -> FitReport:
    """The report of training on `examples`; `final`: scores on the test set, or without one the development set."""
    task, network, vectors = model.task, model.network, model.table.vectors
    best = best_epoch(epochs, task.metric)
    num_words = sum(len(words) for example in examples for words in task.sentences(example))
    encoder_mix = network.words.encoder_mix
    return FitReport(
        task=task.name,
        metric=task.metric,
        best_epoch=best,
        dev=epochs[best - 1].scores,
        test=final.values if has_test else None,
        by_label=final.by_label,
        confusion=final.confusion,
        mixes=learned_mixes(network),
        encoder_mix=None if encoder_mix is None else learned_mix(encoder_mix),
        coverage=None if vectors is None else asdict(vectors.coverage(model.table.words)),
        parameters=sum(parameter.numel() for parameter in network.parameters() if parameter.requires_grad),
        examples=len(examples),
        words=num_words,
        words_per_second=num_words * len(epochs) / max(sum(epoch.seconds for epoch in epochs), 1e-9),
        settings=json.loads(json.dumps(settings, default=str)),
        identity=identity,
        epochs=epochs,
    )


def fit_seeds(
    task: Task | str,
    train_examples: Examples,
    dev_examples: Examples,
    test_examples: Examples | None = None,
    *,
    seeds: Sequence[int],
    output: str | Path,
    config: FitConfig | None = None,
    **options: Any,
) -> SeedsReport:
    """Call `fit` once for each seed, to see how much the scores vary by chance.

    Args:
        task: As in `fit`.
        train_examples: As in `fit`.
        dev_examples: As in `fit`.
        test_examples: As in `fit`.
        seeds: Distinct seeds, which replace that of `config`.
        output: Directory for the models, seed-0, seed-1, ..., and for report.json. The same call resumes an
            interrupted run, and does not repeat finished seeds unless `overwrite` is set.
        config: As in `fit`.
        **options: Further arguments of `fit`.

    Returns:
        Mean and standard deviation of the scores.

    Raises:
        FileExistsError: `output` is the directory of a task model, or its report.json is another one; or as in `fit`.
        ValueError: There is no seed, or one is repeated; or as in `fit`.
    """
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds must be different numbers, at least one, not {list(seeds)}")
    task = find_task(task)() if isinstance(task, str) else task
    config, output = config or task.fit_config, Path(output)
    check_is_no_model(output)
    check_report(output / REPORT, SeedsReport)
    sets = [
        examples if examples is None else read_examples(task, name, examples)
        for name, examples in (("training", train_examples), ("development", dev_examples), ("test", test_examples))
    ]
    reports = {}
    for seed in seeds:
        print(f"seed {seed}", file=sys.stderr, flush=True)
        directory = output / f"seed-{seed}"
        _, reports[seed] = fit(task, *sets, config=replace(config, seed=seed), output=directory, **options)  # pyright: ignore[reportArgumentType]
    report = SeedsReport.of(reports, [output / f"seed-{seed}" for seed in seeds])
    with atomic_path(output / REPORT) as partial:
        partial.write_text(report.to_json(), encoding="utf-8")
    return report
