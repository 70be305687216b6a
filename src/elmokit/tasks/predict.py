"""Predict for files with a task model, or score it on them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from elmokit.fs.atomic import check_output
from elmokit.fs.reading import read_lines
from elmokit.progress import ProgressBar
from elmokit.tasks.report import TaskScores
from elmokit.tasks.task import Task, find_task
from elmokit.tasks.task_model import TaskModel, load_task_model


@dataclass(frozen=True)
class PredictedFile:
    """The number of predicted examples, and their scores; or `unscored`: why a file in the task's format has none."""

    examples: int
    scores: TaskScores | None = None
    unscored: str | None = None

    def __str__(self) -> str:
        if self.scores is not None:
            return f"{self.examples} examples\n\nagainst the answers in the file, in percent\n{self.scores}"
        return f"{self.examples} examples" + (f"; not scored: {self.unscored}" if self.unscored else "")


def _examples(model: TaskModel, file: Path, text: bool) -> Iterator[Any]:
    if not text:
        return model.task.read(file, with_answers=False)
    return (model.example(line) for line in read_lines(file))


def _why_unscored(task: Task, file: Path) -> str | None:
    """Why the predictions for a file cannot be scored, judged by its first example; None if they can."""
    try:
        for example in islice(task.read(file), 1):
            task.check(example)
            return None
    except ValueError as error:
        return str(error)
    return "the file holds no example with an answer"


def _scores(task: Task, file: Path, predictions: list[Any]) -> TaskScores:
    """Scores of the predictions for a file. ValueError if not every example of it has an answer."""
    examples = list(task.checked(task.read(file)))
    if len(examples) != len(predictions):
        raise ValueError("not every example of the file has an answer")
    return TaskScores.of(task, examples, predictions)


def _loaded(model: TaskModel | str | Path, device: str | None, task: str | None) -> TaskModel:
    if isinstance(model, TaskModel):
        return model
    return load_task_model(model, device, find_task(task) if task else None)


def predict_file(
    model: TaskModel | str | Path,
    file: str | Path,
    output: str | Path,
    *,
    text: bool = False,
    device: str | None = None,
    task: str | None = None,
    overwrite: bool = False,
) -> PredictedFile:
    """Predict for a file of any size, and write the output atomically.

    If the file holds gold answers, the predictions are scored, and held in memory for that.

    Args:
        model: The task model, or its directory.
        file: A file in the task's format, or with `text` raw text, one input per line.
        output: JSON lines, one for each example; with a tagger and a suffix other than .jsonl, a copy of the file
            with the predicted tags: in the tag column of CoNLL-U, in a new last column of other files. For raw text,
            each line has a word and its tag.
        text: The file is raw text, to be tokenized with the model's tokenizer.
        device: Device of a model that is loaded here.
        task: FILE.py:CLASS of a task of your own, for a model that is loaded here.
        overwrite: Replace an output that exists.

    Returns:
        The number of examples, and their scores or the reason why there are none.

    Raises:
        FileExistsError: The output exists, and `overwrite` is not set.
        FileNotFoundError: The model or the file is missing.
        ValueError: The output is the input or a directory, the file is not in the task's format, or `text` is set and
            an input of the task is not a line of raw text.
    """
    file, output = Path(file), Path(output)
    check_output(output, [file], overwrite=overwrite)
    model = _loaded(model, device, task)
    check_output(output, model.task.files(file), overwrite=overwrite)
    if text and not model.task.reads_text:
        raise ValueError(
            f"an input of {model.task.name} is not a line of raw text: give a file in the task's format, without --text"
        )
    unscored = None if text else _why_unscored(model.task, file)
    bar = ProgressBar(desc="predict", unit=" examples", unit_scale=True)
    kept: list[Any] | None = None if text or unscored else []
    count = 0

    def predictions() -> Iterator[Any]:
        nonlocal count
        for prediction in model.predict_examples(_examples(model, file, text)):
            count += 1
            bar.update()
            if kept is not None:
                kept.append(prediction)
            yield prediction

    with bar:
        model.task.write(predictions(), output, None if text else file, overwrite)
    if kept is None:
        return PredictedFile(count, unscored=unscored)
    try:
        return PredictedFile(count, _scores(model.task, file, kept))
    except ValueError as error:
        return PredictedFile(count, unscored=str(error))


def score_file(
    model: TaskModel | str | Path, file: str | Path, *, device: str | None = None, task: str | None = None
) -> TaskScores:
    """Score a task model on a file of examples with answers.

    Args:
        model: The task model, or its directory.
        file: A file in the task's format.
        device: Device of a model that is loaded here.
        task: FILE.py:CLASS of a task of your own, for a model that is loaded here.

    Returns:
        The scores, in the order of the task's own `score`.

    Raises:
        FileNotFoundError: The model or the file is missing.
        ValueError: The file is not in the task's format, or an example has no answer.
    """
    model = _loaded(model, device, task)
    return model.score(model.task.read(Path(file)))
