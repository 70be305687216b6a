"""From examples, or files of them, to a trained task model on disk."""

from __future__ import annotations

import copy
import inspect
import json
import shutil
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, fields, is_dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch

from elmokit.checkpoints import loading
from elmokit.checkpoints.overwriting import check_overwritable
from elmokit.checkpoints.pretrained import Pretrained, fingerprint
from elmokit.fs.atomic import OVERWRITE, atomic_path, check_output, check_replaceable, resolve_link
from elmokit.fs.json_files import read_json
from elmokit.fs.lock import only_one_in
from elmokit.runtime import pick_device
from elmokit.tasks.config import FitConfig, WordsConfig
from elmokit.tasks.layer_cache import default_cache
from elmokit.tasks.report import REPORT, Epoch, FitReport, SeedsReport, TaskScores
from elmokit.tasks.task import Task, find_task
from elmokit.tasks.task_model import TaskModel, load_task_model, make_network
from elmokit.tasks.task_model_files import CONFIG, LAYOUT
from elmokit.tasks.training import best_epoch, learned_mix, learned_mixes, predict, train
from elmokit.tasks.transformer_encoder import TransformerEncoder
from elmokit.tasks.word_batches import WordTable
from elmokit.tasks.word_vectors import WordVectors, read_word_vectors
from elmokit.text.tokenizers import TOKENIZED

# Settings on which the weights do not depend: the device, and the path of word vectors, which are hashed themselves.
NOT_DECISIVE = {"device", "vectors"}
PLAIN = {str, int, float, bool, type(None)}  # whose text is their content
Examples = str | Path | Iterable[Any]  # a file of the task's format, or the examples themselves


def _snapshot_of(output: Path) -> Path:
    """Directory for the state of an unfinished run, next to its output."""
    return output.absolute().with_name(f".fit-{output.absolute().name}")


def _check_words(task: Task, example: Any) -> None:
    for words in task.sentences(example):
        if isinstance(words, str):  # whose characters would be taken for its words
            raise ValueError(f"{words!r:.60} is a string, not a sequence of words: tokenize it")
        if broken := [word for word in words if "\n" in word]:
            raise ValueError(f"the word {broken[0]!r} has a line break: split the words there")


def read_examples(task: Task, name: str, examples: Examples) -> list[Any]:
    """Read and check the examples of a set.

    Args:
        task: The task.
        name: The name of the set, for messages: "training", "development" or "test". For "training", examples are read
            and checked as those to train on.
        examples: A file in the task's format, or examples.

    Returns:
        The examples.

    Raises:
        FileNotFoundError: The file is missing.
        ValueError: An example is invalid, which the message names by number; or none has words.
    """
    read = task.read_training if name == "training" else task.read
    checked = list(read(Path(examples)) if isinstance(examples, str | Path) else examples)
    check_examples(task, name, checked)
    if not any(task.length(example) for example in checked):
        raise ValueError(f"the {name} set holds no words: check the file and its format")
    return checked


def check_examples(task: Task, name: str, examples: Iterable[Any]) -> None:
    """ValueError, with its number and set, for the first example that does not fit the task."""
    check = task.check_training if name == "training" else task.check
    for number, example in enumerate(examples, start=1):
        try:
            check(example)
            task.check_length(example)
            _check_words(task, example)
        except ValueError as error:
            raise ValueError(f"example {number} of the {name} set: {error}") from error
        except (AttributeError, TypeError) as error:
            raise ValueError(
                f"example {number} of the {name} set, {str(example)[:60]!r}, is not an example of {task.name} "
                f"({error}): give a file, or examples as {type(task).__name__}().read yields them"
            ) from error


def check_answers(task: Task, labels: Mapping[str, Any], dev: Sequence[Any]) -> None:
    """ValueError if the training set has none of the development set's labels, so that the score would be 0."""
    try:
        of_dev_set = task.learn(dev)
    except ValueError as error:
        raise ValueError(f"the development set: {error}") from error
    known, given = task.answer_types(labels), task.answer_types(of_dev_set)
    if given and not known & given:
        of_training, of_dev = (", ".join(sorted(labels)[:5]) or "none" for labels in (known, given))
        raise ValueError(
            f"the training set has none of the labels of the development set: {of_training} there, {of_dev} here; "
            "check the files and the column of the labels"
        )


def warn_of_unknown_answers(task: Task, labels: Mapping[str, Any], name: str, examples: Sequence[Any]) -> None:
    """Warn of labels in a set to score that the training set lacks: they are never predicted."""
    try:
        unknown = sorted(task.answer_types(task.learn(examples)) - task.answer_types(labels))
    except ValueError:  # such as a test set whose tags show no scheme, which is scored all the same
        return
    if unknown:
        more = f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""
        warnings.warn(
            f"the {name} set has labels that the training set lacks, which are never predicted: "
            f"{', '.join(unknown[:5])}{more}",
            stacklevel=4,
        )


def _with_labels(task: Task, sets: Sequence[Sequence[Any]]) -> Task:
    """The task with the labels of the training set. ValueError, which names the set, if another does not fit them."""
    names = ("training", "development", "test")
    try:
        labels = task.learn(sets[0])
    except ValueError as error:
        raise ValueError(f"the training set: {error}") from error
    labelled = type(task)(task.config, labels)
    for name, examples in zip(names[1:], sets[1:], strict=False):
        check_examples(labelled, name, examples)
    check_answers(task, labels, sets[1])
    for name, examples in zip(names[1:], sets[1:], strict=False):
        warn_of_unknown_answers(task, labels, name, examples)
    return labelled


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


def _code_of(task: Task) -> bytes:
    """The source of a task that is not elmokit's own, as its code may change between calls; else empty."""
    try:
        file = None if type(task).__module__.startswith("elmokit.") else inspect.getsourcefile(type(task))
        return b"" if file is None else Path(file).read_bytes()
    except (OSError, TypeError):  # a class that was typed into an interpreter has no file
        return b""


def _content(value: Any) -> Iterator[bytes]:
    """The content of an example. The text of an array, such as a task of one's own may have, is abbreviated."""
    if isinstance(value, torch.Tensor):  # its bytes, as NumPy lacks some number types
        yield repr((value.dtype, value.shape)).encode()
        value = value.detach().cpu().reshape(-1).view(torch.uint8).numpy()
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        yield repr((value.dtype.str, value.shape)).encode() + value.tobytes()
    elif is_dataclass(value) and not isinstance(value, type):
        yield type(value).__name__.encode()
        for field in fields(value):
            yield from _content(getattr(value, field.name))
    elif isinstance(value, dict):
        yield from _content(list(value.items()))
    elif isinstance(value, list | tuple | np.ndarray) and not set(map(type, value)) <= PLAIN:
        yield len(value).to_bytes(8, "little")
        for each in value:
            yield from _content(each)
    else:
        yield repr(value).encode("utf-8", "surrogatepass")


def _identity(
    task: Task,
    sets: Sequence[Sequence[Any]],
    pretrained: Sequence[Pretrained | WordVectors | TransformerEncoder | None],
    settings: dict[str, Any],
) -> str:
    """A hash of everything that the weights depend on; `pretrained` is what the network reads."""
    decisive = {
        part: {name: value for name, value in of_part.items() if name not in NOT_DECISIVE}
        for part, of_part in settings.items()
    }
    content = blake2b(json.dumps(decisive, sort_keys=True, default=str).encode(), digest_size=16)
    content.update(repr((task.name, task.config, task.labels)).encode() + _code_of(task))
    for read in pretrained:
        if isinstance(read, WordVectors):
            content.update(repr(read.words).encode())
            content.update(read.vectors.tobytes())
        elif read is not None:
            content.update((read.name if isinstance(read, TransformerEncoder) else fingerprint(read)).encode())
    for examples in sets:
        content.update(len(examples).to_bytes(8, "little"))  # the same examples may be split otherwise
        for example in examples:
            for part in _content(example):
                content.update(part)
    return content.hexdigest()


def _check_is_model(output: str | Path, inputs: Sequence[str | Path], overwrite: bool) -> None:
    """FileExistsError if something other than a task model is at `output`: nothing else is replaced.

    Without `overwrite`, the directory may hold other files besides the model.
    """
    if any(Path(output).glob(f"seed-*/{CONFIG}")):
        raise FileExistsError(f"{output} holds the models of several seeds: choose another directory")
    check_output(output, inputs, overwrite=True, directory_of=CONFIG)
    check_replaceable(resolve_link(output))
    check_overwritable(output, LAYOUT if overwrite else replace(LAYOUT, others=None))


def check_holds_models(output: Path) -> None:
    """FileExistsError if a directory for several models is a task model itself."""
    if (output / CONFIG).exists():
        raise FileExistsError(f"{output} is a task model itself: choose another directory for those of all runs")


def _lock_of(output: Path) -> Path:
    """The directory next to the output that a run locks; not its snapshot, which is replaced in every epoch."""
    return output.absolute().with_name(f".lock-fit-{output.absolute().name}")


def _remove_snapshot(output: Path, identity: str) -> None:
    """Remove the state of this run, if it was killed after its model had been saved."""
    state = _snapshot_of(output) / "state.json"
    with suppress(OSError, ValueError):
        if read_json(state).get("identity") == identity:
            shutil.rmtree(state.parent)


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
    task = _with_labels(task, sets)  # a new one: the given task is not changed
    pretrained, device = _pretrained(model, words), pick_device(config.device)
    _warn_of_other_tokenizer(task, pretrained)
    table = _with_vectors(WordTable.of(task.counted_sentences(sets[0])), words)
    encoder = None
    if words.encoder is not None:
        encoder = TransformerEncoder.load(words.encoder, words.encoder_pooling, str(device))
    settings = {"words": asdict(words), "fit": asdict(config), "task": asdict(task.config)}
    identity = "" if output is None else _identity(task, sets, [pretrained, table.vectors, encoder], settings)
    snapshot = None if output is None else _snapshot_of(Path(output))
    with nullcontext() if output is None else only_one_in(_lock_of(Path(output))):
        if output is not None and not overwrite and (finished := _finished(Path(output), identity, settings)):
            _remove_snapshot(Path(output), identity)
            return load_task_model(output, config.device, type(task)), finished
        with torch.random.fork_rng():  # leave the caller's random state unchanged
            torch.manual_seed(config.seed)
            network = make_network(task, words, table, pretrained, encoder).to(device)
            tokenizer = pretrained.tokenizer if pretrained is not None and pretrained.tokenizer else "english-1"
            task_model = TaskModel(task, network, table, pretrained, tokenizer, encoder)
            caches = task_model.open_caches(cache or default_cache())
            example_sets = [task_model.example_set(examples, caches) for examples in sets]
            epochs = train(network, example_sets[0], example_sets[1], config, snapshot, identity)
        final = TaskScores.of(task, sets[-1], predict(network, example_sets[-1], with_probabilities=False))
        report = _report(task_model, sets[0], final, test_examples is not None, epochs, settings, identity)
        report.seconds = time.perf_counter() - start_time
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
        FileExistsError: `output` is a task model itself; or as in `fit`.
        ValueError: There is no seed, or one is repeated; or as in `fit`.
    """
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds must be different numbers, at least one, not {list(seeds)}")
    task = find_task(task)() if isinstance(task, str) else task
    config, output = config or task.fit_config, Path(output)
    check_holds_models(output)
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
