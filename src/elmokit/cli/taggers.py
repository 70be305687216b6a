"""Verbs that fit a tagger on the vectors, and that use it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from elmokit.cli.options import UNSET, Device, Model, Overwrite
from elmokit.cli.show import show
from elmokit.tasks.config import Columns, FitConfig, TaggerConfig


@dataclass(frozen=True)
class Fit:
    """Fit a sequence tagger on contextual vectors, until the development score stops rising."""

    train: Positional[Path]
    """Tagged sentences, one token a line: CoNLL-U, or columns at white space (plain, .gz or .zst)."""
    dev: Positional[Path]
    """Tagged sentences that decide when to stop, and which epoch's weights are kept."""
    output: Path
    """Directory for the tagger and report.json."""
    test: Annotated[Path | None, UNSET] = None
    """Tagged sentences for the final score."""
    model: Model = None
    columns: Annotated[Columns, arg(name="")] = Columns()  # noqa: RUF009 (it is frozen)
    overwrite: Overwrite = False
    tagger: Annotated[TaggerConfig, arg(name="")] = TaggerConfig()  # noqa: RUF009 (it is frozen)
    config: Annotated[FitConfig, arg(name="")] = FitConfig()  # noqa: RUF009 (it is frozen)

    def run(self) -> None:
        from elmokit.tasks.data import TaskFiles
        from elmokit.tasks.fit import fit_files

        files = TaskFiles(self.train, self.dev, self.test, self.columns)
        options = {"model": self.model, "tagger": self.tagger, "config": self.config, "overwrite": self.overwrite}
        show(fit_files(files, self.output, **options))
        print(f"{self.output}: the tagger and its report.json")


@dataclass(frozen=True)
class Predict:
    """Tag a file with a tagger that was fitted."""

    tagger: Positional[Path]
    """Directory that fit wrote."""
    file: Positional[Path]
    """Sentences, one token a line: CoNLL-U, or columns at white space (plain, .gz or .zst)."""
    output: Path
    """File for the sentences with their tags: CoNLL-U in the tag column, others in a new last column."""
    model: Annotated[str | None, UNSET] = None
    """Where the model lies that the tagger was fitted on, if it was moved."""
    columns: Annotated[Columns, arg(name="")] = Columns()  # noqa: RUF009 (it is frozen)
    device: Device = None
    overwrite: Overwrite = False

    def run(self) -> None:
        from elmokit.tasks.fit import predict_files

        sentences, tokens = predict_files(**vars(self))
        print(f"{self.output}: {sentences} sentences, {tokens} tokens")
