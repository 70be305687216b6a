"""Verbs that train a model for a task on the vectors, and that use it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Generic, TypeVar

from tyro.conf import Positional, arg

from elmokit.cli.options import UNSET, Device, Model, Overwrite
from elmokit.cli.show import show
from elmokit.tasks.config import FitConfig, WordsConfig

TaskConfig = TypeVar("TaskConfig")
Task = Annotated[
    Positional[str],
    arg(
        help="tagging, classification, pairs, roles, reading, coreference or translation; or FILE.py:CLASS for a task "
        "of your own. `elmokit fit TASK --help` shows the options of a task."
    ),
]


@dataclass(frozen=True)
class NoTask:
    """The settings if no task is named."""


@dataclass(frozen=True)
class Fit(Generic[TaskConfig]):
    """Train a task model on contextual vectors until the development score stops improving."""

    task: Task
    train: Positional[Path]
    """Examples to train on, in the task's format (plain, .gz or .zst)."""
    dev: Positional[Path]
    """Examples that determine when to stop, and which weights are kept."""
    output: Path
    """Directory for the model and report.json."""
    settings: Annotated[TaskConfig, arg(name="")]
    test: Annotated[Path | None, UNSET] = None
    """Examples for the final score."""
    model: Model = None
    words: Annotated[WordsConfig, arg(name="")] = WordsConfig()  # noqa: RUF009 (it is frozen)
    config: Annotated[FitConfig, arg(name="")] = FitConfig()  # noqa: RUF009 (it is frozen)
    cache: Annotated[Path | None, UNSET] = None
    """Directory for the vectors of frozen encoders, shared by all runs (default: elmokit in the user's cache)."""
    seeds: Annotated[str | None, arg(metavar="N,N,..."), UNSET] = None
    """Seeds of several runs, as in 0,1,2; output then holds seed-0, ..., and report.json with means and deviations."""
    plot: bool = False
    """Write a picture, report.png, next to report.json: learning curve and layer weights (needs matplotlib)."""
    overwrite: Overwrite = False

    def run(self) -> None:
        from elmokit.tasks.fit import fit, fit_seeds
        from elmokit.tasks.task import find_task

        if isinstance(self.settings, NoTask):
            raise ValueError(f"name the task first: elmokit fit {self.task} ...")
        if self.plot:
            from elmokit.plots import require_matplotlib

            require_matplotlib()
        task = find_task(self.task)(self.settings)
        options = {
            "model": None if self.words.elmo == "none" else self.model,
            "output": self.output,
            **{name: getattr(self, name) for name in ("words", "config", "cache", "overwrite")},
        }
        if self.seeds is None:
            _, report = fit(task, self.train, self.dev, self.test, **options)
        else:
            report = fit_seeds(task, self.train, self.dev, self.test, seeds=_numbers(self.seeds), **options)
        show(report)
        print(f"{self.output}: the model and its report.json")
        if self.plot:
            from elmokit.tasks.plots import plot_reports

            print(plot_reports(self.output))


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"seeds are numbers separated by commas, as in 0,1,2, not {text!r}") from None


def fit_verb(name: str) -> type[Fit]:
    """The verb `fit` with the settings of a task, and the task's own defaults of the training."""
    from elmokit.tasks.task import find_task

    task = find_task(name)

    @dataclass(frozen=True)
    class FitTask(Fit[task.Config]):  # pyright: ignore[reportInvalidTypeForm]  (it is known at run time)
        __doc__ = f"{Fit.__doc__}\n\n{task.__doc__}"
        settings: Annotated[task.Config, arg(name="")] = task.Config()  # pyright: ignore[reportInvalidTypeForm]  # noqa: RUF009
        config: Annotated[FitConfig, arg(name="")] = task.fit_config

    return FitTask


@dataclass(frozen=True)
class Predict:
    """Predict with a task model that `fit` trained; a file with correct answers is scored."""

    task_model: Positional[Path]
    """Directory that fit wrote."""
    file: Positional[Path]
    """Examples in the task's format, or raw text with --text (plain, .gz or .zst)."""
    output: Path
    """JSON lines; with a tagger and a suffix other than .jsonl, the file with predicted tags."""
    text: bool = False
    """The file is raw text, one input per line."""
    task: Annotated[str | None, UNSET] = None
    """FILE.py:CLASS of a task of your own."""
    device: Device = None
    overwrite: Overwrite = False

    def run(self) -> None:
        from elmokit.tasks.predict import predict_file

        options = {"text": self.text, "device": self.device, "task": self.task, "overwrite": self.overwrite}
        print(f"{self.output}: {predict_file(self.task_model, self.file, self.output, **options)}")


@dataclass(frozen=True)
class EvaluateTask:
    """Score a task model on a file of examples with answers."""

    task_model: Positional[Path]
    """Directory that fit wrote."""
    file: Positional[Path]
    """Examples in the task's format (plain, .gz or .zst)."""
    task: Annotated[str | None, UNSET] = None
    """FILE.py:CLASS of a task of your own."""
    device: Device = None

    def run(self) -> None:
        from elmokit.tasks.predict import score_file

        show(score_file(self.task_model, self.file, device=self.device, task=self.task))
