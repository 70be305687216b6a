"""A lock on a directory, against other processes that would write into it."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from elmokit.fs.atomic import cannot_write

try:
    import fcntl
except ImportError:  # Windows, where two runs in one directory go undetected
    fcntl = None

# Errors of file systems that cannot lock directories: to NFS they are files that are not open for writing.
UNSUPPORTED = {errno.EBADF, errno.ENOLCK, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}


@contextmanager
def only_one_in(directory: str | Path) -> Iterator[None]:
    """Lock a directory against other processes that would write the same files there.

    The lock ends with the process, however that ends. Where the file system has no such locks, as some over a network,
    nothing is locked.

    Args:
        directory: The directory, which is made if it is missing.

    Raises:
        ValueError: Another process holds the lock.
        OSError: The directory cannot be made.
    """
    directory = Path(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(directory, error) from error
    if fcntl is None:
        yield
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        _lock(descriptor, directory)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, directory: Path) -> None:
    assert fcntl is not None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ValueError(f"another process is writing in {directory}: wait for it, or choose another output") from None
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
