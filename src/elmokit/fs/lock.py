"""Locks on directories, which are released when the process that holds them ends, for whatever reason."""

import errno
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from elmokit.fs.disk import cannot_write, new_directories

try:
    import fcntl
except ImportError:  # Windows, where two runs in one directory go undetected
    fcntl = None

# Errors of file systems that cannot lock directories; NFS, for one, locks only what is open for writing.
UNSUPPORTED = {errno.EBADF, errno.ENOLCK, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}


@contextmanager
def locked(directory: Path) -> Iterator[bool]:
    """Hold an exclusive advisory lock on a directory, against this process and others.

    Yields:
        Whether the directory is locked; False if the system or the file system has no such locks.

    Raises:
        BlockingIOError: The directory is locked already.
        FileNotFoundError: It does not exist, or was replaced meanwhile.
    """
    if fcntl is None:
        yield False
        return
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        is_locked = True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                raise
            is_locked = False
        if not os.path.samestat(os.fstat(descriptor), os.stat(directory)):
            raise FileNotFoundError(errno.ENOENT, "it was replaced", str(directory))
        yield is_locked
    finally:
        os.close(descriptor)


@contextmanager
def only_one_in(directory: str | Path) -> Iterator[None]:
    """Lock a directory against other processes that would write the same files there.

    If the file system has no such locks, like some network file systems, nothing is locked.

    Args:
        directory: The directory, created if it is missing, and then removed again if nothing was written to it.

    Raises:
        ValueError: Another process holds the lock.
        OSError: The directory cannot be created.
    """
    directory = Path(directory)
    with ExitStack() as stack:
        try:
            stack.enter_context(new_directories(directory))
            stack.enter_context(locked(directory))
        except (BlockingIOError, FileNotFoundError):
            raise ValueError(
                f"another process is writing in {directory}: wait for it, or choose another output"
            ) from None
        except OSError as error:
            raise cannot_write(directory, error) from error
        yield
