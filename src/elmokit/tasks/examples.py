"""Reading the examples of a training, development or test set, and checking them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from elmokit.tasks.task import Task

Examples = str | Path | Iterable[Any]  # a file of the task's format, or the examples themselves


def check_words(task: Task, example: Any) -> None:
    """ValueError unless the words of an example are strings."""
    for words in task.sentences(example):
        if isinstance(words, str):  # whose characters would be taken for its words
            raise ValueError(f"{words!r:.60} is a string, not a sequence of words: tokenize it")
        if wrong := [word for word in words if not isinstance(word, str)]:
            raise ValueError(f"{wrong[0]!r:.60} is not a word, which is a string")


def _check_no_line_breaks(task: Task, example: Any) -> None:
    """ValueError for a word that the file of a model's words could not hold, which has one per line."""
    for words in task.sentences(example):
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
            check_words(task, example)
            _check_no_line_breaks(task, example)
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


def with_labels(task: Task, sets: Sequence[Sequence[Any]]) -> Task:
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
