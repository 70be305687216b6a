"""The sentences of a task, and the files with them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from elmokit.data.readers import Layout, TaggedSentence, read_tagged
from elmokit.tasks.config import ColumnsConfig


@dataclass(frozen=True)
class TaskData:
    """The tagged sentences of a task; `tag_column` is the column of the tags in the files they come from, if any."""

    train: Sequence[TaggedSentence]
    dev: Sequence[TaggedSentence]
    test: Sequence[TaggedSentence] | None = None
    tag_column: str | int | None = None


def layout_of(path: str | Path, columns: ColumnsConfig) -> Layout:
    """The layout of a task file."""
    return Layout.of(path, columns.format, columns.word_column, columns.tag_column)


@dataclass(frozen=True)
class TaskFiles:
    """The files of tagged sentences of a task (CoNLL-U or columns), each plain, .gz or .zst."""

    train: str | Path
    dev: str | Path
    test: str | Path | None = None
    columns: ColumnsConfig = ColumnsConfig()  # noqa: RUF009 (frozen)

    def read(self) -> TaskData:
        """Read all sentences into memory."""

        def sentences(file: str | Path) -> list[TaggedSentence]:
            return list(read_tagged(file, layout_of(file, self.columns)))

        test = None if self.test is None else sentences(self.test)
        return TaskData(sentences(self.train), sentences(self.dev), test, self.columns.tag_column)
