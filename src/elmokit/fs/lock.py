"""Locks on directories, which end with the process that holds them, however that ends."""

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

# Errors of file systems that cannot lock directories: to NFS they are files that are not open for writing.
UNSUPPORTED = {errno.EBADF, errno.ENOLCK, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}


@contextmanager
def locked(directory: Path) -> Iterator[bool]:
    """Lock a directory against all who lock it, in this process and in others.

    Yields:
        Whether it is locked; False where the system has no such locks.

    Raises:
        BlockingIOError: It is locked already.
        FileNotFoundError: It is not there, or was removed meanwhile.
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

    Where the file system has no such locks, as some over a network, nothing is locked.

    Args:
        directory: The directory, which is made if it is missing, and removed if nothing was written into it.

    Raises:
        ValueError: Another process holds the lock.
        OSError: The directory cannot be made.
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
