"""Predict for files with a task model, or score it on them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from elmokit.data.readers import write_predictions
from elmokit.fs.atomic import atomic_path, check_output, create_bytes
from elmokit.fs.reading import read_lines
from elmokit.progress import ProgressBar
from elmokit.tasks.report import TaskScores
from elmokit.tasks.tagging import Tagging, TaggingTask
from elmokit.tasks.task import Task, find_task
from elmokit.tasks.task_model import TaskModel, load_task_model


@dataclass(frozen=True)
class PredictedFile:
    """How many examples were predicted, and their scores if the file holds correct answers."""

    examples: int
    scores: TaskScores | None = None

    def __str__(self) -> str:
        scores = "" if self.scores is None else f"\n\nagainst the answers in the file, in percent\n{self.scores}"
        return f"{self.examples} examples{scores}"


def _examples(model: TaskModel, file: Path, text: bool) -> Iterator[Any]:
    if not text:
        return model.task.read(file, with_answers=False)
    return (model.example(line) for line in read_lines(file))


def _has_answers(task: Task, file: Path) -> bool:
    """Whether the first example of a file has a correct answer."""
    try:
        for example in islice(task.read(file), 1):
            task.check(example)
            return True
    except ValueError:
        pass
    return False


def _scores(task: Task, file: Path, predictions: list[Any]) -> TaskScores | None:
    """Scores of the predictions for a file; None if not every example of it has an answer."""
    try:
        examples = list(task.read(file))
    except ValueError:
        return None
    return TaskScores.of(task, examples, predictions) if len(examples) == len(predictions) else None


def _loaded(model: TaskModel | str | Path, device: str | None, task: str | None) -> TaskModel:
    if isinstance(model, TaskModel):
        return model
    return load_task_model(model, device, find_task(task) if task else None)


def _json_line(task: Task, prediction: Any) -> str:
    return json.dumps(task.to_json(prediction), ensure_ascii=False) + "\n"


def _columns(tagging: Tagging) -> str:
    """A sentence as lines "WORD TAG", and an empty line."""
    return "".join(f"{word} {tag}\n" for word, tag in zip(tagging.words, tagging.tags, strict=True)) + "\n"


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

    If the file holds correct answers, the predictions are scored, and kept in memory for that.

    Args:
        model: The task model, or its directory.
        file: A file in the task's format, or with `text` raw text, one input per line.
        output: JSON lines, one for each example; with a tagger and a suffix other than .jsonl, a copy of the file
            with the predicted tags: in the tag column of CoNLL-U, in a new last column of other files. Of raw text the
            copy has a word and its tag in each line.
        text: The file is raw text, to be tokenized with the model's tokenizer.
        device: Device of a model that is loaded here.
        task: FILE.py:CLASS of a task of your own, for a model that is loaded here.
        overwrite: Replace an output that exists.

    Returns:
        The number of examples, and their scores.

    Raises:
        FileExistsError: The output exists, and is not to be overwritten.
        ValueError: The output is the input or a directory, or the file is not in the task's format.
    """
    file, output = Path(file), Path(output)
    check_output(output, [file], overwrite=overwrite)
    model = _loaded(model, device, task)
    bar = ProgressBar(desc="predict", unit=" examples", unit_scale=True)
    kept: list[Any] | None = [] if not text and _has_answers(model.task, file) else None
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
        in_columns = isinstance(model.task, TaggingTask) and ".jsonl" not in output.suffixes
        if isinstance(model.task, TaggingTask) and in_columns and not text:
            tags = (prediction.tags for prediction in predictions())
            write_predictions(file, tags, output, model.task.layout(file))
        else:
            written = _columns if in_columns else lambda prediction: _json_line(model.task, prediction)
            with atomic_path(output) as partial, create_bytes(partial) as stream:
                for prediction in predictions():
                    stream.write(written(prediction).encode("utf-8", "surrogatepass"))
    return PredictedFile(count, None if kept is None else _scores(model.task, file, kept))


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
        The scores, with the task's own first.
    """
    model = _loaded(model, device, task)
    return model.score(model.task.read(Path(file)))
