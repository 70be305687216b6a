"""Disk errors with advice, creation of directories, and flushing."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from safetensors import SafetensorError

# Errors of a full disk, a quota or a limit of file sizes.
DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def cannot_write(path: Path, error: OSError | SafetensorError) -> OSError:
    """The error for a failed write of `path`, with advice."""
    number = getattr(error, "errno", None) or errno.EIO
    # The text of a disk-full error may already be ours, for a file inside a directory that is written atomically.
    reason = os.strerror(number) if number in DISK_FULL else getattr(error, "strerror", None) or str(error)
    advice = "check free space and permissions; what was there before is unchanged"
    if number in (errno.EEXIST, errno.ENOTDIR):
        advice = "there is a file where a directory is needed, so choose another name"
    return OSError(number, f"cannot write {path} ({reason}): {advice}")


@contextmanager
def new_directories(path: Path) -> Iterator[None]:
    """Create a directory with its parents, and at the end remove those of the new ones that are still empty."""
    missing = [directory for directory in (path, *path.parents) if not directory.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
        yield
    finally:
        with suppress(OSError):  # raised by the first one that is not empty
            for directory in missing:
                directory.rmdir()


def sync(path: Path) -> None:
    """Flush a file or directory to the disk."""
    if os.name == "nt" and path.is_dir():
        return  # Windows cannot open directories
    # Windows flushes only what is open for writing, and Linux directories only what is not.
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_and_drop_pages(file: IO[bytes], begin: int, size: int) -> None:
    """Flush an open file to the disk, and drop `size` bytes from `begin` on from the page cache if the system can.

    Otherwise gigabytes of vectors fill the page cache, and a virtual machine is slow to get more memory: with this,
    Linux wrote a gigabyte in shards of 96 MB in a third of the time.
    """
    file.flush()
    os.fsync(file.fileno())
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file.fileno(), begin, size, os.POSIX_FADV_DONTNEED)
