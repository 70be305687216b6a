"""Atomic writing: a file or directory has its final name only when it is complete.

Until then it is in a temporary directory `.partial-XXXXXXXX-NAME` next to it, which is locked as
long as it is in use. One that is not locked was left by a killed process.
"""

import errno
import glob
import gzip
import os
import re
import shutil
import uuid
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import zstandard

from elmokit.fs.reading import read_json, suffixes_of

try:
    import fcntl
except ImportError:  # Windows, where two runs in one directory go undetected
    fcntl = None

TABLES = (".csv", ".tsv", ".jsonl", ".parquet")  # formats of tables that are written
COLUMNS = (".conllu", ".conll", ".iob2", ".bio", ".txt")  # formats with a word on each line
OTHER_FORMATS = (".npy", ".npz", ".hdf5", ".h5", ".json", ".html", ".xlsx")
OTHER_FORMATS += (".svg", ".png", ".pdf")
# Errors of file systems that do not flush, or have no modes.
UNSUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EPERM)


@contextmanager
def _where_supported() -> Iterator[None]:
    """Ignore errors for operations the file system does not support."""
    try:
        yield
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise


def sync(path: Path) -> None:
    """Flush a file or directory to the disk, where the file system can."""
    if os.name == "nt" and path.is_dir():
        return  # Windows cannot open directories
    # Windows flushes only what is open for writing, and Linux directories only what is not.
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        with _where_supported():
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def directory_lock(directory: str | Path) -> Iterator[bool]:
    """Lock a directory exclusively, and clean up after killed writers.

    Args:
        directory: The directory, created if it is missing.

    Yields:
        Whether it is locked; not where the system or the file system has no such locks, such as
        some network ones.

    Raises:
        ValueError: Another process holds the lock.
        OSError: The directory cannot be created.
    """
    Path(directory).mkdir(parents=True, exist_ok=True)
    if fcntl is None:
        yield False
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        is_locked = True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            message = (
                f"another process is writing in {directory}: wait for it, or choose another output"
            )
            raise ValueError(message) from None
        except OSError:
            is_locked = False
        if is_locked:
            _remove_leftovers(Path(directory))
        yield is_locked
    finally:
        os.close(descriptor)


def _remove_leftovers(directory: Path, name: str = "*") -> None:
    """Clean up after killed writers of the output `name`, or of any output, in a directory."""
    for folder in directory.glob(f".partial-????????-{name if name == '*' else glob.escape(name)}"):
        # That of a process that lives is locked, or may go away meanwhile.
        with suppress(ValueError, OSError), directory_lock(folder) as is_locked:
            if is_locked:
                shutil.rmtree(folder)


@contextmanager
def _aside(path: Path) -> Iterator[Path]:
    """A path with the name of `path` in a new directory next to it, which is removed at the end."""
    with ExitStack() as locks:
        while True:
            folder = path.with_name(f".partial-{uuid.uuid4().hex[:8]}-{path.name}")
            # Another process may take it for a leftover before it is locked.
            with suppress(FileNotFoundError, ValueError):
                locks.enter_context(directory_lock(folder))
                if folder.exists():
                    break
        try:
            yield folder / path.name
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _finish(partial: Path) -> None:
    """Give files the mode of new ones, as some libraries write what only its owner may read, and
    flush everything.
    """
    mode = partial.parent.stat().st_mode & 0o666
    for path in [*partial.rglob("*"), partial]:
        if path.is_file():
            with _where_supported():
                path.chmod(mode)
        sync(path)


@contextmanager
def atomic_path(path: str | Path, overwrite: bool = True) -> Iterator[Path]:
    """Write a file atomically.

    Args:
        path: The file to create, or a link to it; missing directories are created.
        overwrite: Replace a file.

    Yields:
        A temporary path with the name of `path` in another directory, renamed to it when the block
        succeeds, and removed when it raises.

    Raises:
        FileExistsError: `path` exists, and is not to be overwritten.
        OSError: `path` is a directory or cannot be written.
    """
    path = Path(os.path.realpath(os.path.expanduser(path)))
    if not overwrite:
        _check_free(path)
    with _aside(path) as partial:
        yield partial
        _finish(partial)
        os.replace(partial, path)
        sync(path.parent)


def write_lines(path: str | Path, lines: Iterable[str], overwrite: bool = True) -> None:
    """Write lines of text, atomically, compressed if the file's name ends in .gz or .zst; arguments
    and errors are those of `atomic_path`.
    """
    compression = suffixes_of(path).compression
    with atomic_path(path, overwrite) as partial:
        if compression == ".gz":
            stream: Any = gzip.GzipFile(partial, "wb", mtime=0)  # else no two files would be equal
        else:
            stream = partial.open("wb")
        if compression == ".zst":
            stream = zstandard.ZstdCompressor(level=3).stream_writer(stream)
        with stream:
            for line in lines:
                stream.write(f"{line}\n".encode())


@contextmanager
def atomic_directory(path: str | Path, overwrite: bool = False) -> Iterator[Path]:
    """Write a directory atomically.

    Args:
        path: The directory to create, or a link to it; an empty one is replaced.
        overwrite: Replace a directory with all that it holds.

    Yields:
        A temporary directory, renamed to `path` when the block succeeds, and removed when it
        raises.

    Raises:
        FileExistsError: `path` exists, and is not to be overwritten.
        OSError: `path` cannot be written.
    """
    path = Path(os.path.realpath(os.path.expanduser(path)))
    _remove_leftovers(path.parent, path.name)
    if not overwrite:
        _check_free(path)
    with _aside(path) as partial:
        partial.mkdir()
        yield partial
        _finish(partial)
        former = path.with_name(f".replaced-{path.name}")
        if path.exists():  # else the former may be the only one, after a kill between two renames
            shutil.rmtree(former, ignore_errors=True)
            os.rename(path, former)
        os.rename(partial, path)
        sync(path.parent)
        shutil.rmtree(former, ignore_errors=True)


def remove_directory(path: Path) -> None:
    """Remove a directory; if the process is killed meanwhile, nothing of it is left under its
    name.
    """
    with _aside(path) as aside:
        os.rename(path, aside)


def _is_occupied(path: Path) -> bool:
    return path.exists() and not (path.is_dir() and not any(path.iterdir()))


def _check_free(path: Path) -> None:
    if _is_occupied(path):
        raise FileExistsError(
            f"{path} exists: remove it, choose another name, or ask to overwrite it (--overwrite)"
        )


def _has_keys(file: Path, keys: Set[str]) -> bool:
    """Whether a file is there and, unless there are no keys, is a JSON object that has them."""
    try:
        return file.is_file() and (not keys or keys <= read_json(file).keys())
    except (OSError, ValueError, AttributeError):
        return False


def check_output(
    output: str | Path,
    inputs: Sequence[object],
    *,
    overwrite: bool = False,
    directory_of: str | None = None,
    keys: Set[str] = frozenset(),
    own_files: re.Pattern[str] | None = None,
    suffixes: Sequence[str] = (),
) -> None:
    """Check that an output can be written, before the work of computing it begins.

    Args:
        output: The file or directory to write.
        inputs: All that is read: paths, also of models, which may be names; others are ignored.
        overwrite: The output may replace an existing one.
        directory_of: For an output directory, the name of a file that an existing one must hold to
            be replaced; None: the output is a file.
        keys: The keys that this file, of JSON, must have.
        own_files: The names of all other files that a directory to be replaced may hold; None: any.
        suffixes: The suffixes of the formats that an output file can have; (): whatever its name.
            A directory has none of a file's.

    Raises:
        FileExistsError: The output exists, and must not be replaced.
        ValueError: The output is, or contains, one of the inputs; it exists as a file instead of a
            directory, or the reverse; or it has the suffix of another format.
        OSError: The output cannot be written.
    """
    output = Path(os.path.realpath(os.path.expanduser(output)))
    for source in inputs:
        path = Path(os.path.expanduser(source)) if isinstance(source, str | Path) else None
        if path is not None and path.exists() and path.resolve().is_relative_to(output):
            raise ValueError(f"{output} is the input {source}, or holds it: choose another output")
    kind, compression = suffixes_of(output)
    if suffixes and (
        kind not in suffixes or (compression and kind not in (*TABLES[:-1], *COLUMNS))
    ):
        raise ValueError(f"{output} must end in {', '.join(suffixes)}, the formats there are")
    if directory_of and (compression or kind in (*TABLES, *COLUMNS, *OTHER_FORMATS)):
        raise ValueError(f"{output} would be a directory: name one without {compression or kind}")
    if output.exists() and not (output.is_dir() if directory_of else output.is_file()):
        raise ValueError(f"{output} exists and is not a {'directory' if directory_of else 'file'}")
    if output.is_dir():
        _remove_leftovers(output)  # a run may have been killed before it wrote anything else
    if not overwrite:
        _check_free(output)
    elif _is_occupied(output) and directory_of:
        names = sorted(set(os.listdir(output)) - {directory_of})
        foreign = ", ".join(
            [name for name in names if own_files and not own_files.fullmatch(name)][:9]
        )
        is_such = _has_keys(output / directory_of, keys)
        if foreign or not is_such:
            reason = (
                f"also holds {foreign}" if is_such else f"has no {directory_of} of such an output"
            )
            raise FileExistsError(
                f"{output} {reason}, so it is not overwritten: choose another name"
            )
    _remove_leftovers(output.parent, output.name)
    if not output.exists():
        with _aside(output):  # raises the system's error where it cannot be written
            pass
