"""Verbs that train a model for a downstream task on the vectors, and that use it."""

from dataclasses import dataclass
from inspect import cleandoc
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, TypeVar

from tyro.conf import Positional, arg

from elmokit.cli.console import output_file, show
from elmokit.cli.options import UNSET, Device, Model, Overwrite, state_defaults_in_text
from elmokit.tasks import DEFAULT_FIT, TASKS, FitConfig, WordsConfig

TaskConfig = TypeVar("TaskConfig")
state_defaults_in_text(FitConfig)
state_defaults_in_text(WordsConfig)

Task = Annotated[
    Positional[str],
    arg(
        help=f"{', '.join(TASKS)}; or FILE.py:CLASS for a task of your own. "
        "`elmokit fit TASK --help` shows the options of a task."
    ),
]


@dataclass(frozen=True)
class NoTask:
    """The settings if no task is named."""


@dataclass(frozen=True)
class Fit(Generic[TaskConfig]):
    """Train a task model on contextual vectors until the development score stops improving.

    Examples, in a checkout of elmokit:
        elmokit fit tagging examples/data/train.conllu examples/data/dev.conllu --batch-size 4 --output runs/tagger
    """  # noqa: E501

    task: Task
    train: Positional[Path]
    """Examples to train on, in the task's format, or for classification, tagging and pairs a table
    (.csv, .tsv, .jsonl, .parquet); plain, .gz or .zst.
    """
    dev: Positional[Path]
    """Examples that determine when to stop, and which weights are kept."""
    output: Path
    """Directory for the model and report.json."""
    settings: Annotated[TaskConfig, arg(name="")]
    test: Annotated[Path | None, UNSET] = None
    """Examples for the final score."""
    model: Model = None
    words: Annotated[WordsConfig, arg(name="")] = WordsConfig()  # noqa: RUF009
    config: Annotated[FitConfig, arg(name="")] = DEFAULT_FIT
    cache: Annotated[Path | None, UNSET] = None
    """Directory for the layers of frozen biLMs, shared by all runs (default: elmokit in the user's
    cache).
    """
    overwrite: Overwrite = False

    def run(self) -> None:
        from elmokit.tasks.fitting import fit
        from elmokit.tasks.fitting.task import find_task

        if isinstance(self.settings, NoTask):
            raise ValueError(f"name the task first: elmokit fit {self.task} ...")
        task = find_task(self.task)(self.settings)
        options = {
            name: getattr(self, name)
            for name in ("model", "output", "words", "config", "cache", "overwrite")
        }
        _, report = fit(task, self.train, self.dev, self.test, **options)
        show(report)
        print(f"{self.output}: the model and its report.json")


def with_settings_of(verb: Any, name: str) -> type[Any]:
    """The verb with the settings of a task, and the task's own defaults for training."""
    from elmokit.tasks.fitting.task import find_task

    task = find_task(name)
    state_defaults_in_text(task.Config)

    summary, examples = cleandoc(verb.__doc__).split("\n\n")

    @dataclass(frozen=True)
    class OfTask(verb[task.Config]):  # pyright: ignore[reportInvalidTypeForm, reportUntypedBaseClass]  (known at run time)
        __doc__ = f"{summary}\n\n{cleandoc(task.__doc__ or '')}\n\n{examples}"
        settings: Annotated[task.Config, arg(name="")] = task.Config()  # pyright: ignore[reportInvalidTypeForm]  # noqa: RUF009
        config: Annotated[FitConfig, arg(name="")] = task.fit_config

    return OfTask


@dataclass(frozen=True)
class Predict:
    """Predict with a task model that `fit` trained; a file with correct answers is scored.

    Examples, in a checkout of elmokit:
        elmokit predict examples/data/test.conllu --model runs/tagger --output runs/tagged.conllu
        elmokit predict examples/data/sentences.txt --model runs/tagger --text --output runs/tagged.jsonl
    """  # noqa: E501

    WRITES_STANDARD_OUTPUT: ClassVar[bool] = True
    file: Positional[Path]
    """Examples in the task's format or a table as for fit, or with --text raw text or a table;
    plain, .gz or .zst.
    """
    model: Path
    """Directory that fit wrote."""
    output: Path
    """Table (.csv, .tsv, .jsonl or .parquet) with a row per example, beside the row that it had in
    a table; of a tagger .conllu, .conll, .iob2, .bio, .txt or .tsv for words and tags in columns,
    .csv or .parquet for a row per word. - is standard output, as JSON lines.
    """
    text: bool = False
    """The file is raw text, one input per line."""
    column: Annotated[str | None, UNSET] = None
    """Column of the inputs if the file is a table (default: that of the training; with --text,
    text).
    """
    task: Annotated[str | None, UNSET] = None
    """FILE.py:CLASS of a task of your own."""
    device: Device = None
    overwrite: Overwrite = False

    def run(self) -> None:
        from elmokit.tasks.fitting.model import predict_file

        with output_file(self.output) as output:
            print(f"{self.output}: {predict_file(**{**vars(self), 'output': output})}")
