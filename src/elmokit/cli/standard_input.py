"""`-` in the place of a text file: standard input, which is written to a temporary file, since text is read twice."""

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

STANDARD_INPUT = Path("-")
WRITTEN = ("output", "plot", "cache")  # how the names of options begin that name what is written
SUFFIX_OF_MAGIC = {b"\x1f\x8b": ".gz", b"\x28\xb5": ".zst"}

Verb = TypeVar("Verb")  # a dataclass of options


def _is_stream(path: Path) -> bool:
    """Whether a path is standard input, or a pipe that the shell opened, as in <(zcat text.gz)."""
    return path == STANDARD_INPUT or (path.is_relative_to("/dev") and path.is_fifo())


def _write(path: Path, directory: Path) -> Path:
    """Copy a stream to a file, whose name says how it is compressed."""
    name = "standard-input" if path == STANDARD_INPUT else path.name
    if any(directory.glob(f"{name}.*")):
        raise ValueError("standard input can be read only once: write it to a file first")
    with sys.stdin.buffer if path == STANDARD_INPUT else path.open("rb") as stream:
        magic = stream.read(2)
        file = directory / f"{name}.txt{SUFFIX_OF_MAGIC.get(magic, '')}"
        with file.open("wb") as copy:
            copy.write(magic)
            shutil.copyfileobj(stream, copy)
    return file


def _with_files(value: Any, file_of: Callable[[Path], Path]) -> Any:
    """The options with files in the place of streams."""
    if isinstance(value, Path) and _is_stream(value):
        return file_of(value)
    if isinstance(value, tuple):
        return tuple(_with_files(each, file_of) for each in value)
    if not is_dataclass(value):
        return value
    options = {field.name: getattr(value, field.name) for field in fields(value)}
    if written := [name for name, path in options.items() if path == STANDARD_INPUT and name.startswith(WRITTEN)]:
        raise ValueError(
            f"{written[0]} is written to a file, which may be read only when it is complete: name one, not -"
        )
    return replace(value, **{name: _with_files(option, file_of) for name, option in options.items()})  # pyright: ignore[reportArgumentType]


@contextmanager
def spool_standard_input(verb: Verb) -> Iterator[Verb]:
    """The verb with temporary files in the place of standard input and pipes, until the `with` block ends.

    Raises:
        ValueError: Standard input is named twice, or as what is written.
    """
    with TemporaryDirectory(prefix="elmokit-", ignore_cleanup_errors=True) as directory:
        yield _with_files(verb, lambda path: _write(path, Path(directory)))
