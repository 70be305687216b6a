"""Verbs that train a sequence tagger and tag files with it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from elmokit.cli.options import UNSET, Device, Model, Overwrite
from elmokit.cli.show import show
from elmokit.tasks.config import ColumnsConfig, FitConfig, TaggerConfig


@dataclass(frozen=True)
class Fit:
    """Train a sequence tagger on contextual vectors until the development score stops improving."""

    train: Positional[Path]
    """Tagged sentences, one token per line: CoNLL-U, or columns separated by white space (plain, .gz or .zst)."""
    dev: Positional[Path]
    """Tagged sentences for early stopping: the weights of the best epoch are kept."""
    output: Path
    """Directory for the tagger and report.json."""
    test: Annotated[Path | None, UNSET] = None
    """Tagged sentences for the final score."""
    model: Model = None
    columns: Annotated[ColumnsConfig, arg(name="")] = ColumnsConfig()  # noqa: RUF009 (frozen)
    overwrite: Overwrite = False
    tagger: Annotated[TaggerConfig, arg(name="")] = TaggerConfig()  # noqa: RUF009 (frozen)
    config: Annotated[FitConfig, arg(name="")] = FitConfig()  # noqa: RUF009 (frozen)

    def run(self) -> None:
        from elmokit.tasks.data import TaskFiles
        from elmokit.tasks.fit import fit_files

        files = TaskFiles(self.train, self.dev, self.test, self.columns)
        options = {"model": self.model, "tagger": self.tagger, "config": self.config, "overwrite": self.overwrite}
        show(fit_files(files, self.output, **options))
        print(f"{self.output}: tagger and report.json")


@dataclass(frozen=True)
class Predict:
    """Tag a file with a trained tagger."""

    tagger: Positional[Path]
    """Directory written by `elmokit fit`."""
    file: Positional[Path]
    """Sentences, one token per line: CoNLL-U, or columns separated by white space (plain, .gz or .zst)."""
    output: Path
    """File for the tagged sentences: tags replace the tag column of CoNLL-U, and become a new last column otherwise."""
    model: Annotated[str | None, UNSET] = None
    """Model that the tagger was trained on (default: the path or name that the tagger recorded)."""
    columns: Annotated[ColumnsConfig, arg(name="")] = ColumnsConfig()  # noqa: RUF009 (frozen)
    device: Device = None
    overwrite: Overwrite = False

    def run(self) -> None:
        from elmokit.tasks.fit import predict_files

        sentences, tokens = predict_files(**vars(self))
        print(f"{self.output}: {sentences} sentences, {tokens} tokens")
