"""A lock on a directory, which is released when the process that holds it ends, for whatever
reason.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows, where two runs in one directory go undetected
    fcntl = None


@contextmanager
def directory_lock(directory: str | Path) -> Iterator[bool]:
    """Lock a directory against other processes that would write the same files there.

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
        yield is_locked
    finally:
        os.close(descriptor)
