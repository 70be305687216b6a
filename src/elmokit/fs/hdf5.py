"""HDF5 files that are written completely or not at all, even if the disk is full."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py

from elmokit.fs.atomic import atomic_path


class _Output(io.RawIOBase):
    """The file that HDF5 writes to.

    HDF5 cannot close a file that it cannot write: h5py would leave it open, and the process would crash at its end. So
    the first failure is raised only if HDF5 is not closing the file, and everything that it writes afterwards is kept
    in memory, from where HDF5 can read it.
    """

    def __init__(self, file: io.FileIO) -> None:
        self._file, self._at = file, 0
        self._unwritten: list[tuple[int, bytes]] = []
        self.failure: OSError | None = None
        self.is_closing = False

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position; the end is that of the file or of the data in memory, whichever is later."""
        if whence == io.SEEK_CUR:
            offset += self._at
        elif whence == io.SEEK_END:
            ends = [begin + len(data) for begin, data in self._unwritten]
            offset += max(self._file.seek(0, io.SEEK_END), *ends, 0)
        self._at = offset
        return self._at

    def tell(self) -> int:
        """The position."""
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Fill a buffer from the position on, with zeros after the end."""
        view, begin = memoryview(buffer).cast("B"), self._at
        self._file.seek(begin)
        read = self._file.readinto(view) or 0
        view[read:] = bytes(len(view) - read)
        for at, data in self._unwritten:
            first, end = max(at, begin), min(at + len(data), begin + len(view))
            if first < end:
                view[first - begin : end - begin] = data[first - at : end - at]
        self._at += len(view)
        return len(view)

    def write(self, data: memoryview) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Write at the position."""
        view = memoryview(data).cast("B")
        try:
            if self.failure is None:
                self._file.seek(self._at)
                written = 0
                while written < len(view):
                    written += self._file.write(view[written:])
        except OSError as error:
            self.failure = error
            if not self.is_closing:
                raise
        if self.failure is not None:
            self._unwritten.append((self._at, view.tobytes()))
        self._at += len(view)
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        """Set the size of the file, unless writing has failed."""
        size = self._at if size is None else size
        if self.failure is None:
            self._file.truncate(size)
        return size


@contextmanager
def atomic_hdf5(path: str | Path, overwrite: bool = True) -> Iterator[h5py.File]:
    """Write an HDF5 file atomically.

    Args:
        path: The file to create.
        overwrite: Replace a file with other content.

    Yields:
        The open file, empty.

    Raises:
        FileExistsError: `path` exists with other content, and is not to be overwritten.
        OSError: `path` cannot be written, or the disk is full; the message names `path`.
    """
    with atomic_path(path, overwrite) as partial, partial.open("w+b", buffering=0) as stream:
        output = _Output(stream)
        file = h5py.File(output, "w")
        try:
            yield file
        finally:
            output.is_closing = True
            file.close()
        if output.failure is not None:
            raise output.failure
