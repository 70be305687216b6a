"""Verbs that train a model for a downstream task on the vectors, and that use it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, TypeVar

from tyro.conf import Positional, arg

from elmokit.cli.options import UNSET, Device, Model, Overwrite, state_defaults_in_text
from elmokit.cli.show import check_outputs, show
from elmokit.cli.standard_output import output_file
from elmokit.tasks.config import TASKS, FitConfig, WordsConfig

TaskConfig = TypeVar("TaskConfig")
T = TypeVar("T", int, float)
state_defaults_in_text(FitConfig)
state_defaults_in_text(WordsConfig)

Task = Annotated[
    Positional[str],
    arg(
        help=f"{', '.join(TASKS)}; or FILE.py:CLASS for a task of your own. `elmokit fit TASK --help` shows the "
        "options of a task."
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
    """Seeds of several runs, as in 0,1,2; output then holds seed-0, ..., and report.json with means and standard
    deviations."""
    plot: bool = False
    """Write a picture, report.png, next to report.json: learning curve and layer weights (needs matplotlib)."""
    overwrite: Annotated[bool, arg(help="Train again, and replace the model in the output directory.")] = False

    def run(self) -> None:
        from elmokit.plots import require_matplotlib
        from elmokit.tasks.fit import fit, fit_seeds
        from elmokit.tasks.plots import plot_reports

        task = _configured(self.task, self.settings, "fit")
        if self.plot:
            require_matplotlib()
        options = {name: getattr(self, name) for name in ("model", "output", "words", "config", "cache", "overwrite")}
        if self.seeds is None:
            _, report = fit(task, self.train, self.dev, self.test, **options)
        else:
            seeds = _numbers(self.seeds, "seeds", int)
            _refuse_seed(self.config, task)
            report = fit_seeds(task, self.train, self.dev, self.test, seeds=seeds, **options)
        show(report)
        print(f"{self.output}: the model and its report.json")
        if self.plot:
            print(plot_reports(self.output))


def _numbers(text: str, name: str, kind: type[T]) -> list[T]:
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{name} must be numbers separated by commas, not {text!r}") from None


@dataclass(frozen=True)
class SampleEfficiency(Generic[TaskConfig]):
    """Compare a task model with ELMo to the same model without it, on growing parts of the training set."""

    task: Task
    train: Positional[Path]
    """Examples to train on, in the task's format (plain, .gz or .zst)."""
    dev: Positional[Path]
    """Examples that determine when to stop."""
    output: Path
    """Directory for all models, and report.json."""
    settings: Annotated[TaskConfig, arg(name="")]
    test: Annotated[Path | None, UNSET] = None
    """Examples for the scores; without them, those of the development set are shown."""
    model: Model = None
    words: Annotated[WordsConfig, arg(name="")] = WordsConfig()  # noqa: RUF009 (it is frozen)
    config: Annotated[FitConfig, arg(name="")] = FitConfig()  # noqa: RUF009 (it is frozen)
    cache: Annotated[Path | None, UNSET] = None
    """Directory for the vectors of frozen encoders, shared by all runs (default: elmokit in the user's cache)."""
    fractions: Annotated[str, arg(metavar="N,N,...")] = "0.01,0.1,1"
    """Fractions of the training set to train on."""
    seeds: Annotated[str, arg(metavar="N,N,...")] = "1,2,3"
    """Seeds of the runs on each fraction."""
    plot: Annotated[Path | None, UNSET] = None
    """Picture of the scores (.png, .svg or .pdf; needs matplotlib)."""
    overwrite: Annotated[bool, arg(help="Replace the picture if it exists.")] = False

    def run(self) -> None:
        from elmokit.plots import check_plot
        from elmokit.tasks.efficiency import sample_efficiency
        from elmokit.tasks.plots import plot_sample_efficiency

        task = _configured(self.task, self.settings, "sample-efficiency")
        _refuse_seed(self.config, task)
        check_outputs([self.plot], [self.train, self.dev, self.test], self.overwrite)
        check_plot(self.plot)
        numbers = {
            "fractions": _numbers(self.fractions, "fractions", float),
            "seeds": _numbers(self.seeds, "seeds", int),
        }
        options = {name: getattr(self, name) for name in ("output", "words", "model", "config", "cache")}
        report = sample_efficiency(task, self.train, self.dev, self.test, **numbers, **options)
        show(report)
        if self.plot is not None:
            print(plot_sample_efficiency(report.scores, report.metric, self.plot, self.overwrite))


def _refuse_seed(config: FitConfig, task: Any) -> None:
    """ValueError if --seed was given to a command whose --seeds replace it."""
    if config.seed != task.fit_config.seed:
        raise ValueError("--seed cannot be used with --seeds: omit one of them")


def _configured(name: str, settings: object, verb: str) -> Any:
    """The task called `name`, with its settings. ValueError if they are `NoTask`."""
    from elmokit.tasks.task import find_task

    if isinstance(settings, NoTask):
        raise ValueError(f"name the task first: elmokit {verb} {name} ...")
    return find_task(name)(settings)


def with_settings_of(verb: Any, name: str) -> type[Any]:
    """The verb with the settings of a task, and the task's own defaults for training."""
    from elmokit.tasks.task import find_task

    task = find_task(name)
    state_defaults_in_text(task.Config)

    @dataclass(frozen=True)
    class OfTask(verb[task.Config]):  # pyright: ignore[reportInvalidTypeForm, reportUntypedBaseClass]  (known at run time)
        __doc__ = f"{verb.__doc__}\n\n{task.__doc__}"
        settings: Annotated[task.Config, arg(name="")] = task.Config()  # pyright: ignore[reportInvalidTypeForm]  # noqa: RUF009
        config: Annotated[FitConfig, arg(name="")] = task.fit_config

    return OfTask


@dataclass(frozen=True)
class LayerWeights:
    """Show the weights of ELMo's layers that task models have learned."""

    task_models: Annotated[
        Positional[tuple[Path, ...]], arg(metavar="DIRECTORY [DIRECTORY ...]", help_behavior_hint="(required)")
    ]
    """Directories that fit wrote."""
    plot: Annotated[Path | None, UNSET] = None
    """Picture of the weights (.png, .svg or .pdf; needs matplotlib)."""
    overwrite: Overwrite = False

    def run(self) -> None:
        from elmokit.plots import check_plot
        from elmokit.tasks.plots import mixes_by_name, plot_layer_weights, read_reports

        check_outputs([self.plot], self.task_models, self.overwrite)
        check_plot(self.plot)
        reports = {
            str(directory / name) if (directory / name).is_dir() else str(directory): report
            for directory in self.task_models
            for name, report in read_reports(directory).items()
        }
        if not (mixes := mixes_by_name(reports)):
            raise ValueError("none of these models reads ELMo")
        show({name: str(mix) for name, mix in mixes.items()})
        if self.plot is not None:
            print(plot_layer_weights(mixes, self.plot, self.overwrite))


@dataclass(frozen=True)
class Predict:
    """Predict with a task model that `fit` trained; a file with correct answers is scored."""

    WRITES_STANDARD_OUTPUT: ClassVar[bool] = True
    task_model: Positional[Path]
    """Directory that fit wrote."""
    file: Positional[Path]
    """Examples in the task's format, or raw text with --text (plain, .gz or .zst)."""
    output: Path
    """JSON lines (- is standard output); with a tagger and a suffix other than .jsonl, the words with predicted tags in
    columns."""
    text: bool = False
    """The file is raw text, one input per line."""
    task: Annotated[str | None, UNSET] = None
    """FILE.py:CLASS of a task of your own."""
    device: Device = None
    overwrite: Overwrite = False

    def run(self) -> None:
        from elmokit.tasks.predict import predict_file

        options = {"text": self.text, "device": self.device, "task": self.task, "overwrite": self.overwrite}
        with output_file(self.output) as output:
            print(f"{self.output}: {predict_file(self.task_model, self.file, output, **options)}")


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
