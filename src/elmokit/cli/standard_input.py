"""`-` in place of a text file: standard input, which is copied to a temporary file, since text is read twice.

It may be plain text, JSON lines, CoNLL-U or FASTA, compressed or not. A verb with `WRITES_STANDARD_OUTPUT` takes `-` as
its output too (see `standard_output`).
"""

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from elmokit.fs.json_files import is_json_object
from elmokit.fs.reading import read_lines

STANDARD_STREAM = Path("-")
WRITTEN = ("output", "cache")  # beginnings of the names of options that name what is written
LINES_LOOKED_AT = 1_000  # to detect the format of a text
SUFFIX_OF_MAGIC = {b"\x1f\x8b": ".gz", b"\x28\xb5": ".zst"}

Verb = TypeVar("Verb")  # a dataclass of options


def _is_stream(path: Path) -> bool:
    """Whether a path is standard input, or a pipe that the shell opened, as in <(zcat text.gz)."""
    return path == STANDARD_STREAM or (path.is_relative_to("/dev") and path.is_fifo())


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


def _suffix(file: Path) -> str:
    """The suffix for the format of a text, detected from its first lines that are neither blank nor comments."""
    from elmokit.data.fasta import are_fasta
    from elmokit.data.readers import is_conllu_token  # imported here because it loads safetensors

    lines = [line for line in islice(read_lines(file), LINES_LOOKED_AT) if line.strip()]
    if is_json_object(next(iter(lines), "")):
        return ".jsonl"
    if are_fasta(lines):
        return ".fasta"
    first = next((line for line in lines if not line.startswith("#")), "")
    return ".conllu" if is_conllu_token(first) else ".txt"


def _write(path: Path, directory: Path) -> Path:
    """Copy a stream to a file, whose suffixes say its format and compression."""
    name = "standard-input" if path == STANDARD_STREAM else path.name
    if any(directory.glob(f"{name}.*")):
        raise ValueError("standard input can be read only once: write it to a file first")
    with sys.stdin.buffer if path == STANDARD_STREAM else path.open("rb") as stream:
        magic = stream.read(2)
        compression = SUFFIX_OF_MAGIC.get(magic, "")
        file = directory / f"{name}.txt{compression}"
        with file.open("wb") as copy:
            copy.write(magic)
            shutil.copyfileobj(stream, copy)
    return file.rename(directory / f"{name}{_suffix(file)}{compression}")


def _with_files(value: Any, file_of: Callable[[Path], Path]) -> Any:
    """The options with files in place of streams."""
    if isinstance(value, Path) and _is_stream(value):
        return file_of(value)
    if isinstance(value, tuple):
        return tuple(_with_files(each, file_of) for each in value)
    if not is_dataclass(value):
        return value
    options = {field.name: getattr(value, field.name) for field in fields(value)}
    if options.get("output") == STANDARD_STREAM and getattr(value, "WRITES_STANDARD_OUTPUT", False):
        del options["output"]
    for name, path in options.items():
        if name.startswith(WRITTEN) and isinstance(path, Path) and _is_stream(path):
            raise ValueError(f"{name} must be a file, not {path}")
    return replace(value, **{name: _with_files(option, file_of) for name, option in options.items()})  # pyright: ignore[reportArgumentType]


@contextmanager
def spool_standard_input(verb: Verb) -> Iterator[Verb]:
    """The verb with temporary files in place of standard input and pipes, until the `with` block ends.

    Raises:
        ValueError: Standard input is named twice, or as an output.
    """
    with TemporaryDirectory(prefix="elmokit-", ignore_cleanup_errors=True) as directory:
        yield _with_files(verb, lambda path: _write(path, Path(directory)))
