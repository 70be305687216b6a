"""Predict for files with a task model, or score it on them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tqdm import tqdm

from elmokit.data.readers import write_predictions
from elmokit.fs.atomic import atomic_path, create_bytes
from elmokit.fs.reading import read_lines
from elmokit.tasks.tagging import TaggingTask
from elmokit.tasks.task import find_task
from elmokit.tasks.task_model import TaskModel, load_task_model


def _check_output(file: Path, output: Path, overwrite: bool) -> None:
    if output.exists() and (output.is_dir() or output.samefile(file)):
        raise ValueError(f"{output} is {'a directory' if output.is_dir() else 'the input'}: choose another output")
    if output.exists() and not overwrite:
        raise FileExistsError(f"{output} exists: remove it, choose another name, or ask to overwrite it")


def _examples(model: TaskModel, file: Path, text: bool) -> Iterator[Any]:
    if not text:
        return model.task.read(file, with_answers=False)
    return (model.example(line) for line in read_lines(file))


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
) -> int:
    """Predict for a file of any size, and write the output atomically.

    Args:
        model: The task model, or its directory.
        file: A file in the task's format, or with `text` raw text, one input per line.
        output: JSON lines, one for each example; with a tagger and a suffix other than .jsonl, a copy of the file
            with the predicted tags: in the tag column of CoNLL-U, in a new last column of other files.
        text: The file is raw text, to be tokenized with the model's tokenizer.
        device: Device of a model that is loaded here.
        task: FILE.py:CLASS of a task of your own, for a model that is loaded here.
        overwrite: Replace an output that exists.

    Returns:
        The number of examples.

    Raises:
        FileExistsError: The output exists, and is not to be overwritten.
        ValueError: The output is the input or a directory, or the file is not in the task's format.
    """
    file, output = Path(file), Path(output)
    _check_output(file, output, overwrite)
    model = _loaded(model, device, task)
    bar = tqdm(desc="predict", unit=" examples", unit_scale=True, disable=None)

    def predictions() -> Iterator[Any]:
        for prediction in model.predict_examples(_examples(model, file, text)):
            yield prediction
            bar.update()

    with bar:
        if isinstance(model.task, TaggingTask) and not text and ".jsonl" not in output.suffixes:
            tags = (prediction.tags for prediction in predictions())
            sentences, _ = write_predictions(file, tags, output, model.task.layout(file))
            return sentences
        count = 0
        with atomic_path(output) as partial, create_bytes(partial) as stream:
            for prediction in predictions():
                line = json.dumps(model.task.to_json(prediction), ensure_ascii=False)
                stream.write(line.encode("utf-8", "surrogatepass") + b"\n")
                count += 1
        return count


def score_file(
    model: TaskModel | str | Path, file: str | Path, *, device: str | None = None, task: str | None = None
) -> dict[str, float]:
    """Score a task model on a file of examples with answers.

    Args:
        model: The task model, or its directory.
        file: A file in the task's format.
        device: Device of a model that is loaded here.
        task: FILE.py:CLASS of a task of your own, for a model that is loaded here.

    Returns:
        Scores from 0 to 1 by name, with the task's own first.
    """
    model = _loaded(model, device, task)
    return model.score(model.task.read(Path(file)))
