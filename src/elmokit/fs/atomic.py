"""Atomic writing: a file or directory has its final name only when it is complete."""

import errno
import gzip
import os
import shutil
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, BinaryIO, cast

import zstandard
from safetensors import SafetensorError

# Errors of a full disk, a quota or a limit of file sizes; others inside a block may come from what it reads.
DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def create_bytes(path: str | Path) -> BinaryIO:
    """Create a file to write bytes to, compressed if its name ends in .gz or .zst."""
    path = Path(path)
    if path.suffix == ".gz":
        # No time and no name inside, so that equal content makes equal files.
        file = path.open("wb", buffering=0)
        stream = gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0)
        stream.myfileobj = file  # closed with the stream
        return cast(BinaryIO, stream)
    if path.suffix == ".zst":
        return zstandard.ZstdCompressor(level=3).stream_writer(path.open("wb"))
    return path.open("wb")


def cannot_write(path: Path, error: OSError | SafetensorError) -> OSError:
    """The error of a failed write of `path`, with what to do."""
    reason = getattr(error, "strerror", None) or str(error)
    number = getattr(error, "errno", None) or errno.EIO
    return OSError(number, f"cannot write {path} ({reason}): check free space and permissions; nothing was left there")


def _set_default_mode(*files: Path) -> None:
    """Give files the mode of a newly created one: some libraries write files that only their owner may read.

    The umask is read from a new file, since the system call that returns it sets it for the whole process.
    """
    if not files:
        return
    probe = files[0].with_name(f".partial-{uuid.uuid4().hex[:8]}")
    descriptor = os.open(probe, os.O_CREAT | os.O_EXCL, 0o666)
    try:
        mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
    finally:
        os.close(descriptor)
        probe.unlink()
    for file in files:
        file.chmod(mode)


@contextmanager
def _partial(path: Path) -> Iterator[Path]:
    """A temporary name beside `path`, removed at the end; errors of a full disk name `path`."""
    partial = path.with_name(f".partial-{uuid.uuid4().hex[:8]}-{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(path.parent, os.W_OK | os.X_OK):
            raise OSError(errno.EACCES, f"no permission to write in {path.parent}")
    except OSError as error:
        raise cannot_write(path, error) from error
    try:
        yield partial
    except OSError as error:
        if error.errno in DISK_FULL:
            raise cannot_write(path, error) from error
        raise
    except SafetensorError as error:  # safetensors has its own error of a full disk
        raise cannot_write(path, error) from error
    finally:
        if partial.is_dir():
            shutil.rmtree(partial, ignore_errors=True)
        else:
            partial.unlink(missing_ok=True)


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Write a file atomically.

    Args:
        path: The file to create or replace; missing directories are made.

    Yields:
        A temporary path with the suffix of `path`, renamed to it when the block succeeds, and removed when it raises.

    Raises:
        OSError: `path`, which is named, cannot be written, or the disk is full.
    """
    path = Path(path)
    with _partial(path) as partial:
        yield partial
        _set_default_mode(partial)
        _sync(partial)
        os.replace(partial, path)
        _sync(path.parent)


def to_disk(file: IO[bytes], begin: int, size: int) -> None:
    """Flush an open file to the disk, and drop `size` bytes of it from the page cache where the system can.

    Otherwise gigabytes of vectors fill the memory, and a virtual machine is slow to get more: with this, Linux wrote a
    gigabyte in shards of 96 MB in a third of the time.
    """
    file.flush()
    os.fsync(file.fileno())
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file.fileno(), begin, size, os.POSIX_FADV_DONTNEED)


@contextmanager
def atomic_directory(path: str | Path, overwrite: bool = False) -> Iterator[Path]:
    """Write a directory atomically.

    Args:
        path: The directory to create; an empty one is replaced.
        overwrite: Replace whatever `path` is.

    Yields:
        A temporary directory, renamed to `path` when the block succeeds, and removed when it raises.

    Raises:
        FileExistsError: `path` exists.
        OSError: `path`, which is named, cannot be written, or the disk is full.
    """
    path = Path(path)
    occupied = path.exists() and not (path.is_dir() and not any(path.iterdir()))
    if occupied and not overwrite:
        raise FileExistsError(f"{path} exists: remove it, choose another name, or ask to overwrite it")
    with _partial(path) as partial:
        partial.mkdir()
        yield partial
        _finish(partial)
        _replace_directory(partial, path, occupied)


def _finish(directory: Path) -> None:
    """Give all files of a directory the default mode, and write everything to the disk."""
    files = [file for file in directory.rglob("*") if file.is_file()]
    _set_default_mode(*files)
    for path in [*directory.rglob("*"), directory]:
        _sync(path)


def _sync(path: Path) -> None:
    if os.name == "nt" and path.is_dir():
        return  # Windows cannot open directories
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _replace_directory(new: Path, path: Path, occupied: bool) -> None:
    """Rename `new` to `path`; what is there is renamed first, and back if that fails."""
    if not occupied:
        os.replace(new, path)
        _sync(path.parent)
        return
    old = path.with_name(f".old-{uuid.uuid4().hex[:8]}-{path.name}")
    os.rename(path, old)
    try:
        os.rename(new, path)
    except BaseException:
        os.rename(old, path)
        raise
    _sync(path.parent)
    shutil.rmtree(old, ignore_errors=True)


def link_or_copy_directory(source: Path, target: Path) -> None:
    """Copy a directory of files, as hard links where the file system has them."""
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
        path: Its final name, not in use but by an empty directory.

    Raises:
        OSError: That failed; `path` is named.
    """
    new, path = Path(new), Path(path)
    try:
        _finish(new)
        if path.is_dir():
            path.rmdir()
        _replace_directory(new, path, occupied=False)
    except OSError as error:
        raise cannot_write(path, error) from error
