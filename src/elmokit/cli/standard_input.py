"""`-` in the place of a text file: standard input, which is written to a temporary file, since text is read twice.

It may be plain text or JSON lines, compressed or not.
"""

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from elmokit.fs.reading import read_lines

STANDARD_INPUT = Path("-")
WRITTEN = ("output", "plot", "cache")  # how the names of options begin that name what is written
SUFFIX_OF_MAGIC = {b"\x1f\x8b": ".gz", b"\x28\xb5": ".zst"}

Verb = TypeVar("Verb")  # a dataclass of options


def _is_stream(path: Path) -> bool:
    """Whether a path is standard input, or a pipe that the shell opened, as in <(zcat text.gz)."""
    return path == STANDARD_INPUT or (path.is_relative_to("/dev") and path.is_fifo())


def _paths(value: Any) -> Iterator[Path]:
    """All paths among the options."""
    if isinstance(value, Path):
        yield value
    elif isinstance(value, tuple):
        yield from chain.from_iterable(map(_paths, value))
    elif is_dataclass(value):
        yield from chain.from_iterable(_paths(getattr(value, field.name)) for field in fields(value))


def reads_stream(verb: Any) -> bool:
    """Whether one of its options is a stream, which another run of the same command cannot read again."""
    return any(map(_is_stream, _paths(verb)))


def _is_json_lines(file: Path) -> bool:
    """Whether the first line of a text that is not blank is a JSON object with fields."""
    first = next((line for line in read_lines(file) if line.strip()), "")
    try:
        return first.lstrip().startswith("{") and bool(json.loads(first))
    except (ValueError, RecursionError):
        return False


def _write(path: Path, directory: Path) -> Path:
    """Copy a stream to a file, whose name says what it holds and how it is compressed."""
    name = "standard-input" if path == STANDARD_INPUT else path.name
    if any(directory.glob(f"{name}.*")):
        raise ValueError("standard input can be read only once: write it to a file first")
    with sys.stdin.buffer if path == STANDARD_INPUT else path.open("rb") as stream:
        magic = stream.read(2)
        compression = SUFFIX_OF_MAGIC.get(magic, "")
        file = directory / f"{name}.txt{compression}"
        with file.open("wb") as copy:
            copy.write(magic)
            shutil.copyfileobj(stream, copy)
    return file.rename(directory / f"{name}.jsonl{compression}") if _is_json_lines(file) else file


def _with_files(value: Any, file_of: Callable[[Path], Path]) -> Any:
    """The options with files in the place of streams."""
    if isinstance(value, Path) and _is_stream(value):
        return file_of(value)
    if isinstance(value, tuple):
        return tuple(_with_files(each, file_of) for each in value)
    if not is_dataclass(value):
        return value
    options = {field.name: getattr(value, field.name) for field in fields(value)}
    for name, path in options.items():
        if name.startswith(WRITTEN) and isinstance(path, Path) and _is_stream(path):
            raise ValueError(
                f"{name} is written to a file, which may be read only when it is complete: name one, not {path}"
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
