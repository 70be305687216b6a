"""The standard streams of a command: text from `-`, results as lines, messages of one line.

`-` in place of a text file is standard input, which is copied to a temporary file, since text is
read twice. It is plain text, compressed or not. A verb with `WRITES_STANDARD_OUTPUT` takes `-` as
its output too.
"""

import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, fields, is_dataclass, replace
from json import dumps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from elmokit.analysis import as_json

STANDARD_STREAM = Path("-")
SUFFIX_OF_MAGIC = {b"\x1f\x8b": ".gz", b"\x28\xb5": ".zst"}

Verb = TypeVar("Verb")  # a dataclass of options

# --- Input ----------------------------------------------------------------------------------------


def _is_stream(path: Path) -> bool:
    """Whether a path is standard input, or a pipe that the shell opened, as in <(zcat text.gz)."""
    return path == STANDARD_STREAM or (path.is_relative_to("/dev") and path.is_fifo())


def _copy(path: Path, directory: Path) -> Path:
    """Copy a stream to a text file, whose suffix says its compression."""
    name = "standard-input" if path == STANDARD_STREAM else path.name
    with sys.stdin.buffer if path == STANDARD_STREAM else path.open("rb") as stream:
        magic = stream.read(2)
        file = directory / f"{name}.txt{SUFFIX_OF_MAGIC.get(magic, '')}"
        with file.open("wb") as copy:
            copy.write(magic)
            shutil.copyfileobj(stream, copy)
    return file


def _with_files(value: Any, file_of: Callable[[Path], Path]) -> Any:
    """The options with files in place of streams."""
    if isinstance(value, Path) and _is_stream(value):
        return file_of(value)
    if isinstance(value, tuple):
        return tuple(_with_files(item, file_of) for item in value)
    if not is_dataclass(value):
        return value
    options = {field.name: getattr(value, field.name) for field in fields(value)}
    if (output := options.pop("output", None)) == STANDARD_STREAM and not hasattr(
        value, "WRITES_STANDARD_OUTPUT"
    ):
        raise ValueError(f"output must be a file, not {output}")
    changed = {name: _with_files(option, file_of) for name, option in options.items()}
    return replace(value, **changed)  # pyright: ignore[reportArgumentType]  (an instance)


@contextmanager
def spool_standard_input(verb: Verb) -> Iterator[Verb]:
    """The verb with temporary files in place of standard input and pipes.

    Raises:
        ValueError: Standard input is named twice, or as an output.
    """
    with TemporaryDirectory(prefix="elmokit-", ignore_cleanup_errors=True) as directory:
        yield _with_files(verb, lambda path: _copy(path, Path(directory)))


# --- Output ---------------------------------------------------------------------------------------


@contextmanager
def output_file(output: Path, suffix: str = ".jsonl") -> Iterator[Path]:
    """The file for a verb to write to; for `-` one that is copied to standard output at the end.

    For `-`, what the `with` block prints goes to standard error.

    Args:
        output: The option of the verb.
        suffix: That of the temporary file.

    Yields:
        `output`, or the temporary file.
    """
    if output != STANDARD_STREAM:
        yield output
        return
    with TemporaryDirectory(prefix="elmokit-", ignore_cleanup_errors=True) as directory:
        file = Path(directory) / f"standard-output{suffix}"
        with redirect_stdout(sys.stderr):
            yield file
        with file.open("rb") as lines:
            shutil.copyfileobj(lines, sys.stdout.buffer)
        sys.stdout.buffer.flush()


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_text(inner)}" for name, inner in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(
            f"({_text(item)})" if isinstance(item, list | tuple) else _text(item) for item in value
        )
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _lines(values: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield f"{indent}{name}:"
            yield from _lines(value, indent + "  ")
        elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
            yield f"{indent}{name}:"
            yield from (f"{indent}  {_text(item)}" for item in value)
        else:
            yield f"{indent}{name}: {_text(value)}".rstrip()


def show(result: Any, json: bool = False) -> None:
    """Print a result.

    Args:
        result: A mapping, or a dataclass without a `__str__`, is printed as lines `name: value`, a
            sequence as a line per item, anything else as `str` of it.
        json: Print one line of JSON instead.
    """
    if json:
        result = dumps(as_json(result), ensure_ascii=False)
    elif isinstance(result, Sequence) and not isinstance(result, str):
        result = "\n".join(map(str, result))
    elif is_dataclass(result) and type(result).__str__ is object.__str__:
        result = asdict(result)  # pyright: ignore[reportArgumentType]  (an instance, not a class)
    print("\n".join(_lines(result)) if isinstance(result, Mapping) else result, flush=True)


# --- Messages -------------------------------------------------------------------------------------


def one_line(message: Warning | Exception | str) -> str:
    """The message on a single line, with standard input in place of its copy."""
    lines = (line.strip() for line in str(message).splitlines())
    text = "; ".join(filter(None, lines)).replace(":; ", ": ") or type(message).__name__
    return re.sub(r"\S*/elmokit-\w+/standard-input[.\w]*\w", "standard input", text)


def show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Print a warning as `elmokit: warning: TEXT`, above a running progress bar."""
    from tqdm import tqdm

    tqdm.write(f"elmokit: warning: {one_line(message)}", file=sys.stderr)
