"""Atomic writing: a file or directory has its final name only when it is complete.

Until then it is in a temporary directory `.partial-XXXXXXXX-NAME` next to it, which is locked as long as it is in use.
One that is not locked was left by a killed process, and is removed when the same output is written again.
"""

import ctypes
import filecmp
import glob
import gzip
import json
import os
import re
import shutil
import stat
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, cast

import zstandard
from safetensors import SafetensorError

from elmokit.fs.disk import DISK_FULL, cannot_write, new_directories, sync
from elmokit.fs.lock import locked
from elmokit.fs.reading import suffixes_of

OVERWRITE = "ask to overwrite it (--overwrite; overwrite=True in Python)"  # the end of messages about an output
NAME_CHARACTERS = 50  # of the output's name are used for its temporary directory, whose name has a limited length


def create_bytes(path: str | Path) -> BinaryIO:
    """Create a file to write bytes to, compressed if its name ends in .gz or .zst."""
    path = Path(path)
    compression = suffixes_of(path).compression
    if compression == ".gz":
        # Without time and name in the header, so that equal content gives equal files.
        file = path.open("wb")  # buffered: gzip does not notice if only a part of what it writes is accepted
        stream = gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0)
        stream.myfileobj = cast(Any, file)  # closed with the stream
        return cast(BinaryIO, stream)
    if compression == ".zst":
        return zstandard.ZstdCompressor(level=3).stream_writer(path.open("wb"))
    return path.open("wb")


def resolve_link(path: str | Path) -> Path:
    """Follow a symbolic link, so that its target is written and the link is kept."""
    path = Path(path)
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def check_name(output: Path) -> None:
    """ValueError for a path such as "." or "a/..", which does not end in a name, or for a link to itself."""
    if output.name in ("", ".."):
        raise ValueError(f"{output} does not name an output: give the name of the file or directory itself")
    if resolve_link(output).is_symlink():
        raise ValueError(f"{output} is a link that leads to itself: choose another output")


def check_replaceable(directory: Path) -> None:
    """ValueError for a mount point, such as a container's volume, since no other directory can take its place."""
    check_name(directory)
    if os.path.ismount(directory):
        raise ValueError(f"{directory} is a mount point, which cannot be replaced: name a directory inside it")


# --- Temporary directories -----------------------------------------------------------------------------------------


def remove_leftovers(directory: Path, name: str | None = None) -> None:
    """Remove the temporary directories that killed processes left in a directory.

    Args:
        directory: Where to look.
        name: Name of the output whose temporary directories are removed; None: those of all outputs.
    """
    marker = "*" if name is None else glob.escape(name[:NAME_CHARACTERS])
    for folder in directory.glob(f".partial-????????-{marker}"):
        with suppress(OSError), locked(folder) as is_locked:
            if is_locked:
                for replaced in folder.glob("*.replaced"):  # see `_replace`
                    output = directory / replaced.name.removesuffix(".replaced")
                    # The new one is next to it: this is no output whose own name ends in ".replaced".
                    if not output.exists() and (folder / output.name).exists():
                        replaced.rename(output)
                shutil.rmtree(folder)


def _temporary_directory(path: Path, stack: ExitStack) -> Path:
    """A new directory next to `path`, locked until the stack is closed, and then removed."""
    while True:
        folder = path.with_name(f".partial-{uuid.uuid4().hex[:8]}-{path.name[:NAME_CHARACTERS]}")
        folder.mkdir()
        try:
            stack.enter_context(locked(folder))
        except (BlockingIOError, FileNotFoundError):
            continue  # another process took it for a leftover in the moment before it was locked
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        return folder


@contextmanager
def _partial(path: Path, clean: bool = True) -> Iterator[Path]:
    """A path with the name of `path` in a temporary directory next to it; errors of a full disk name `path`."""
    check_name(path)
    with ExitStack() as stack:
        try:
            stack.enter_context(new_directories(path.parent))
            if clean:
                remove_leftovers(path.parent, path.name)
            folder = _temporary_directory(path, stack)
        except OSError as error:
            raise cannot_write(path, error) from error
        try:
            yield folder / path.name
        except OSError as error:
            if error.errno in DISK_FULL:
                raise cannot_write(path, error) from error
            raise  # it may be an error of reading, within the block
        except SafetensorError as error:  # safetensors' own error for a full disk
            raise cannot_write(path, error) from error


def _set_default_mode(folder: Path, files: Sequence[Path]) -> None:
    """Give files the mode of a newly created one: some libraries write files that only their owner may read.

    Links are left alone, since their mode is that of a file elsewhere. The umask is read from a new file in `folder`,
    since the system call that returns it also sets it, for the whole process.
    """
    probe = folder / f"mode-{uuid.uuid4().hex[:8]}"
    descriptor = os.open(probe, os.O_CREAT | os.O_EXCL, 0o666)
    try:
        mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
    finally:
        os.close(descriptor)
        probe.unlink()
    for file in files:
        status = file.lstat()
        if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
            file.chmod(mode)


# --- Files -----------------------------------------------------------------------------------------------------------


@contextmanager
def atomic_path(path: str | Path, overwrite: bool = True, clean: bool = True) -> Iterator[Path]:
    """Write a file atomically; if it replaces another file, it takes over that file's mode.

    Args:
        path: The file to create, or a symbolic link to it; missing directories are created.
        overwrite: Replace a file with other content.
        clean: Remove what killed runs left of this file; False if the caller has already cleaned the directory.

    Yields:
        A temporary path with the name of `path` in another directory, renamed to it when the block succeeds, and
        removed when it raises.

    Raises:
        FileExistsError: `path` exists with other content, and is not to be overwritten.
        ValueError: `path` does not end in a name, or is a link to itself.
        OSError: `path` is a directory or cannot be written, or the disk is full; the message names `path`.
    """
    path = resolve_link(path)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a directory: name a file")
    with _partial(path, clean) as partial:
        yield partial
        if path.exists() and not overwrite:
            _check_same(partial, path)
            return
        if path.is_file():
            partial.chmod(stat.S_IMODE(path.stat().st_mode))
        else:
            _set_default_mode(partial.parent, [partial])
        sync(partial)
        os.replace(partial, path)
        sync(path.parent)


def write_json(path: str | Path, values: Any, overwrite: bool = True) -> None:
    """Write values as a file of indented JSON, atomically; arguments and errors are those of `atomic_path`."""
    text = json.dumps(values, indent=1, ensure_ascii=False) + "\n"
    with atomic_path(path, overwrite) as partial:
        partial.write_bytes(text.encode("utf-8", "backslashreplace"))  # names of files need not be valid UTF-8


# --- Directories -----------------------------------------------------------------------------------------------------


@contextmanager
def atomic_directory(path: str | Path, overwrite: bool = False) -> Iterator[Path]:
    """Write a directory atomically.

    Args:
        path: The directory to create, or a symbolic link to it; an empty one is replaced.
        overwrite: Replace whatever `path` is.

    Yields:
        A temporary directory, renamed to `path` when the block succeeds, and removed when it raises.

    Raises:
        FileExistsError: `path` exists with other content, and is not to be overwritten.
        ValueError: `path` is a mount point, does not end in a name, or is a link to itself.
        OSError: `path` cannot be written, or the disk is full; the message names `path`.
    """
    path = resolve_link(path)
    check_replaceable(path)
    with _partial(path) as partial:
        partial.mkdir()
        yield partial
        if _is_occupied(path) and not overwrite:
            _check_same(partial, path)
            return
        publish_directory(partial, path)


def _is_occupied(path: Path) -> bool:
    return path.exists() and not (path.is_dir() and not any(path.iterdir()))


def _exists(path: Path) -> FileExistsError:
    return FileExistsError(f"{path} exists: remove it, choose another name, or {OVERWRITE}")


def _check_same(new: Path, path: Path) -> None:
    """FileExistsError unless `path` already has the content of `new`, as after a kill just before the end."""
    names = {file.relative_to(new) for file in new.rglob("*")}
    is_same = new.is_dir() == path.is_dir() and names == {file.relative_to(path) for file in path.rglob("*")}
    files = [name for name in names or {Path()} if (new / name).is_file()]
    if not is_same or not all(filecmp.cmp(new / name, path / name, shallow=False) for name in files):
        raise _exists(path)


def _finish(directory: Path) -> None:
    """Give all files of a directory the default mode, and flush everything to the disk."""
    paths = list(directory.rglob("*"))
    _set_default_mode(directory.parent, paths)
    for path in [*paths, directory]:
        if not path.is_symlink():
            sync(path)


def _replace(new: Path, path: Path) -> None:
    """Rename `new` to `path`; if that exists, exchange the two, so that one of them is always there."""
    if not _is_occupied(path):
        os.replace(new, path)
    elif not _exchange(new, path):
        # A kill between the two leaves nothing under the name, until `remove_leftovers` puts the old one back.
        old = new.with_name(f"{new.name}.replaced")
        os.rename(path, old)
        try:
            os.rename(new, path)
        except BaseException:
            os.rename(old, path)
            raise
    sync(path.parent)


def _exchange(left: Path, right: Path) -> bool:
    """Exchange two paths atomically; False if the system or the file system cannot."""
    if sys.platform != "linux":
        return False
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return rename is not None and rename(here, os.fsencode(left), here, os.fsencode(right), exchange) == 0


def link_or_copy_directory(source: Path, target: Path) -> None:
    """Copy a directory of files atomically, as hard links if the file system has them."""
    with atomic_directory(target) as partial:
        for file in source.iterdir():
            try:
                os.link(file, partial / file.name)
            except OSError:
                shutil.copyfile(file, partial / file.name)


def publish_directory(new: str | Path, path: str | Path) -> None:
    """Flush a complete directory to the disk, and rename it.

    Args:
        new: The directory.
        path: Its final name. A directory of that name is exchanged with the new one.

    Raises:
        OSError: Flushing or renaming failed; the message names `path`.
    """
    new, path = Path(new), Path(path)
    try:
        _finish(new)
        _replace(new, path)
    except OSError as error:
        raise cannot_write(path, error) from error


def remove_directory(path: Path) -> None:
    """Remove a directory; if the process is killed meanwhile, nothing of it is left under its name."""
    with _partial(path) as partial:
        os.rename(path, partial)


# --- Before the work -------------------------------------------------------------------------------------------------


def check_output(
    output: str | Path,
    inputs: Sequence[str | Path] = (),
    *,
    overwrite: bool = False,
    directory_of: str | None = None,
    own_files: re.Pattern[str] | None = None,
    is_written: bool = True,
) -> None:
    """Check that an output can be written, before the work of computing it begins.

    Args:
        output: The file or directory to write.
        inputs: The files and directories that are read.
        overwrite: The output may replace an existing one.
        directory_of: For an output directory, the name of a file that an existing one must hold to be replaced; None:
            the output is a file.
        own_files: The names of all other files that a directory to be replaced may hold; None: any.
        is_written: Try to write next to the output; False if it may be complete already.

    Raises:
        FileExistsError: The output exists, and must not be replaced.
        ValueError: The output is, or contains, one of the inputs, or does not end in a name; or it exists as a file
            instead of a directory, or the reverse.
        OSError: The output cannot be written.
    """
    output = Path(output)
    check_name(output)
    for file in filter(Path.exists, map(Path, inputs)):
        is_same = output.exists() and output.samefile(file)
        if is_same or file.resolve().is_relative_to(output.resolve()):
            raise ValueError(f"{output} {'is' if is_same else 'holds'} the input {file}: choose another output")
    kind, is_kind = ("directory", output.is_dir()) if directory_of else ("file", output.is_file())
    if output.exists() and not is_kind:
        raise ValueError(f"{output} exists and is not a {kind}: choose another output")
    if output.is_dir():
        remove_leftovers(output)  # of a run that was killed before it wrote anything else
    if _is_occupied(output) and not overwrite:
        raise _exists(output)
    if _is_occupied(output) and directory_of and not (output / directory_of).is_file():
        raise FileExistsError(f"{output} has no {directory_of}, so it is not overwritten: choose another output")
    if _is_occupied(output) and own_files is not None:
        names = sorted(path.name for path in output.iterdir() if path.name != directory_of)
        if foreign := [name for name in names if not own_files.fullmatch(name)]:
            raise FileExistsError(
                f"{output} also holds {', '.join(foreign[:9])}, so it is not overwritten: choose another output, or "
                "move that away"
            )
    target = resolve_link(output)
    remove_leftovers(target.parent, target.name)
    if is_written:
        with _partial(target, clean=False):
            pass
