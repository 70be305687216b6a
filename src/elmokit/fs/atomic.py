"""Writing files and directories so that nothing half-written bears its final name."""

import errno
import gzip
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, BinaryIO, cast

import zstandard
from safetensors import SafetensorError

# What the user's umask leaves of a new file's mode: some libraries write files that only their owner may read.
_UMASK = os.umask(0)
os.umask(_UMASK)
FILE_MODE = 0o666 & ~_UMASK


def create_bytes(path: str | Path) -> BinaryIO:
    """A new file to write bytes to, compressed where the name ends in .gz or .zst."""
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


# What a full disk, a quota or a file-size limit say; other errors inside the block may come from what it reads.
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def cannot_write(path: Path, error: OSError | SafetensorError) -> OSError:
    reason = getattr(error, "strerror", None) or str(error)
    number = getattr(error, "errno", None) or errno.EIO
    return OSError(number, f"cannot write {path} ({reason}): check free space and permissions; nothing was left there")


@contextmanager
def _partial(path: Path) -> Iterator[Path]:
    """A free name beside `path`; what bears it at the end is removed; a full disk is told of with the final name."""
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
        if error.errno in FULL:
            raise cannot_write(path, error) from error
        raise
    except SafetensorError as error:  # safetensors says so in a way of its own
        raise cannot_write(path, error) from error
    finally:
        if partial.is_dir():
            shutil.rmtree(partial, ignore_errors=True)
        else:
            partial.unlink(missing_ok=True)


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """A temporary path beside `path` that takes its name when the block ends well, and is removed when it does not.

    Its name ends as that of `path` does, so that a suffix which says how to compress still says it.
    OSError, naming `path`, where it cannot be written or the disk is full.
    """
    path = Path(path)
    with _partial(path) as partial:
        yield partial
        partial.chmod(FILE_MODE)
        _sync(partial)
        os.replace(partial, path)
        _sync(path.parent)


def to_disk(file: IO[bytes], begin: int, size: int) -> None:
    """Write an open file to the disk, where the system then holds `size` bytes of it alone, if it can be told so.

    Else its memory fills with what was written, gigabytes of vectors, and new memory is what a virtual machine has
    least of: Linux needed a third of the time for a gigabyte in parts of 96 MB.
    """
    file.flush()
    os.fsync(file.fileno())
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file.fileno(), begin, size, os.POSIX_FADV_DONTNEED)


@contextmanager
def atomic_directory(path: str | Path, overwrite: bool = False) -> Iterator[Path]:
    """A temporary directory beside `path` that takes its name when the block ends well, and is removed otherwise.

    An existing `path` is a FileExistsError, unless it is an empty directory or `overwrite` says to replace it.
    """
    path = Path(path)
    occupied = path.exists() and not (path.is_dir() and not any(path.iterdir()))
    if occupied and not overwrite:
        raise FileExistsError(f"{path} exists: remove it, choose another name, or ask to overwrite it")
    with _partial(path) as partial:
        partial.mkdir()
        yield partial
        for file in [*partial.rglob("*"), partial]:
            if file.is_file():
                file.chmod(FILE_MODE)
            _sync(file)
        _replace_directory(partial, path, occupied)


def _sync(path: Path) -> None:
    if os.name == "nt" and path.is_dir():
        return  # Windows opens no directories
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _replace_directory(new: Path, path: Path, occupied: bool) -> None:
    """Give `new` the name `path`. What stands there goes aside first, and comes back where that fails."""
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
    """Make `target` a directory with the files of `source`, sharing their space on disk where the file system can."""
    with atomic_directory(target) as partial:
        for file in source.iterdir():
            try:
                os.link(file, partial / file.name)
            except OSError:
                shutil.copyfile(file, partial / file.name)


def publish_directory(new: str | Path, path: str | Path) -> None:
    """Give a finished directory its final name, which is free or of an empty directory, once its files are on disk.

    OSError, naming `path`, where that cannot be done.
    """
    new, path = Path(new), Path(path)
    try:
        for file in [*new.rglob("*"), new]:
            if file.is_file():
                file.chmod(FILE_MODE)
            _sync(file)
        if path.is_dir():
            path.rmdir()
        _replace_directory(new, path, occupied=False)
    except OSError as error:
        raise cannot_write(path, error) from error
