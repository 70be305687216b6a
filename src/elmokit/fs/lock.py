"""A directory held against other processes that would write into it."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from elmokit.fs.atomic import cannot_write

try:
    import fcntl
except ImportError:  # Windows, where two runs in one directory are not caught
    fcntl = None

# What file systems say that lock no directories: NFS takes them for files that are not open for writing.
NO_LOCKS = {errno.EBADF, errno.ENOLCK, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}


@contextmanager
def only_one_in(directory: str | Path) -> Iterator[None]:
    """Holds a directory, made where it is missing, against other processes that would write the same files there.

    ValueError where one holds it. The hold ends with the process, however that ends. Where the file system holds no
    directories, as some over a network do not, nothing is caught.
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
        _hold(descriptor, directory)
        yield
    finally:
        os.close(descriptor)


def _hold(descriptor: int, directory: Path) -> None:
    assert fcntl is not None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ValueError(f"another process is writing in {directory}: wait for it, or choose another output") from None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
