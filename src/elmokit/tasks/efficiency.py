"""Sample efficiency: scores with and without ELMo by size of the training set (Peters et al. 2018, figure 1)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from elmokit.checkpoints.loading import ModelSource
from elmokit.fs.atomic import OVERWRITE, atomic_path
from elmokit.tasks.config import FitConfig, WordsConfig
from elmokit.tasks.examples import Examples, check_answers, read_examples
from elmokit.tasks.fit import check_is_no_model, fit_seeds
from elmokit.tasks.report import REPORT, MeanScore, check_report
from elmokit.tasks.task import Task, find_task

ORDER_SEED = 0  # of the order in which examples are added to the training set


@dataclass(frozen=True)
class EfficiencyReport:
    """Scores on the set `split`, "with ELMo" and "without ELMo": pairs of a number of training examples and a score."""

    task: str
    metric: str
    split: str
    scores: dict[str, list[tuple[int, MeanScore]]]

    def __str__(self) -> str:
        sizes = [size for size, _ in next(iter(self.scores.values()))]
        width = max(map(len, self.scores))
        lines = [
            f"{self.metric} on the {self.split} set, in percent",
            f"{'':{width}}" + "".join(f"{n:>16,}" for n in sizes),
        ]
        lines += [
            f"{name:{width}}" + "".join(f"{score!s:>16}" for _, score in row) for name, row in self.scores.items()
        ]
        return "\n".join(lines)

    def to_json(self) -> str:
        """The report as indented JSON."""
        return json.dumps(asdict(self), indent=2) + "\n"


def _check_smallest(task: Task, part: Sequence[Any], dev: Sequence[Any]) -> None:
    """ValueError if the smallest part of a training set is too small to learn anything from."""
    try:
        read_examples(task, "training", part)
        check_answers(task, task.learn(part), dev)
    except ValueError as error:
        message = "has no words, or none of the labels of the development set: raise the smallest fraction"
        raise ValueError(f"the smallest part of the training set, {len(part)} examples, {message}") from error


def sample_efficiency(
    task: Task | str,
    train_examples: Examples,
    dev_examples: Examples,
    test_examples: Examples | None = None,
    *,
    fractions: Sequence[float],
    seeds: Sequence[int],
    output: str | Path,
    words: WordsConfig | None = None,
    model: ModelSource = None,
    config: FitConfig | None = None,
    cache: str | Path | None = None,
) -> EfficiencyReport:
    """Train on parts of the training set, with and without ELMo.

    A smaller part is contained in every larger one.

    Args:
        task: As in `fit`.
        train_examples: As in `fit`.
        dev_examples: As in `fit`.
        test_examples: As in `fit`; None: scores are those on the development set.
        fractions: Fractions of the training set, above 0 and at most 1.
        seeds: Seeds of the runs on each part.
        output: Directory for all models, and for report.json. The same call resumes an interrupted run.
        words: Which vectors the network reads for each word, besides ELMo.
        model: As in `fit`.
        config: As in `fit`; its seed is replaced.
        cache: As in `fit`.

    Returns:
        The scores.

    Raises:
        FileExistsError: `output` is a task model, or its report.json is another one; or as in `fit`.
        ValueError: A fraction is out of range or too small; `words` has no ELMo, or nothing but ELMo; or as in `fit`.
    """
    if not fractions or not all(0 < fraction <= 1 for fraction in fractions):
        raise ValueError(f"fractions must be numbers above 0, at most 1, not {list(fractions)}")
    words = words or WordsConfig()
    if words.elmo == "none":
        raise ValueError('this compares a network with ELMo to the same without: elmo "none" leaves nothing to compare')
    if not words.has_input_without_elmo:
        raise ValueError("without ELMo the network has no input: give word_dim, character_dim, vectors or encoder")
    task, output = find_task(task)() if isinstance(task, str) else task, Path(output)
    check_is_no_model(output)
    check_report(output / REPORT, EfficiencyReport)
    train = read_examples(task, "training", train_examples)
    dev = read_examples(task, "development", dev_examples)
    test = None if test_examples is None else read_examples(task, "test", test_examples)
    order = np.random.default_rng(ORDER_SEED).permutation(len(train))
    kinds: dict[str, dict[str, Any]] = {
        "without ELMo": {"words": replace(words, elmo="none", finetune=False, mix_l2=0.0)},
        "with ELMo": {"words": words, "model": model},
    }
    sizes = sorted({max(1, round(fraction * len(train))) for fraction in fractions})
    parts = {size: [train[number] for number in sorted(order[:size])] for size in sizes}
    check_answers(task, task.learn(train), dev)
    _check_smallest(task, parts[sizes[0]], dev)
    scores: dict[str, list[tuple[int, MeanScore]]] = {name: [] for name in kinds}
    for size, part in parts.items():
        for name, options in kinds.items():
            directory = output / f"{name.replace(' ', '-')}-{size}"
            try:
                report = fit_seeds(
                    task, part, dev, test, seeds=seeds, output=directory, config=config, cache=cache, **options
                )
            except FileExistsError as error:  # `fit` overwrites if asked to, but this does not
                raise FileExistsError(str(error).replace(OVERWRITE, "remove it")) from error
            scores[name].append((size, (report.test or report.dev)[task.metric]))
    report = EfficiencyReport(task.name, task.metric, "development" if test is None else "test", scores)
    with atomic_path(output / REPORT) as partial:
        partial.write_text(report.to_json(), encoding="utf-8")
    return report
