"""Reading text files line by line, and writing files so that nothing half-written bears its final name."""

import errno
import gzip
import os
import shutil
import uuid
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, BinaryIO, cast

import zstandard
from safetensors import SafetensorError

try:
    import fcntl
except ImportError:  # Windows, where two runs in one directory are not caught
    fcntl = None

READ_SIZE = 1 << 18

# What the user's umask leaves of a new file's mode: some libraries write files that only their owner may read.
_UMASK = os.umask(0)
os.umask(_UMASK)
FILE_MODE = 0o666 & ~_UMASK


def _zstd_blocks(path: Path) -> Iterator[bytes]:
    # Frame by frame, since zstandard's own reader takes a file that was cut off for a whole one.
    frame = None
    with path.open("rb") as stream:
        while block := stream.read(READ_SIZE):
            while block:
                if frame is None or frame.eof:
                    frame = zstandard.ZstdDecompressor().decompressobj()
                yield frame.decompress(block)
                block = frame.unused_data
    if frame is not None and not frame.eof:
        raise EOFError("it is cut off")


def _plain_or_gzip_blocks(path: Path) -> Iterator[bytes]:
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as stream:
        while block := stream.read(READ_SIZE):
            yield block


def refuse_pipe(path: Path) -> None:
    """ValueError for a pipe. It can be read only once, while text is counted or checked before it is used."""
    if path.is_fifo():
        raise ValueError(f"{path} is a pipe: write it to a file first (.gz and .zst are read as they are)")


def read_blocks(path: str | Path) -> Iterator[bytes]:
    """The bytes of a file in blocks, decompressed where the name ends in .gz or .zst.

    FileNotFoundError where it is missing, ValueError for a pipe, or where it cannot be decompressed to its end.
    """
    path = Path(path)
    refuse_pipe(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not a file: check the path")
    try:
        yield from _zstd_blocks(path) if path.suffix == ".zst" else _plain_or_gzip_blocks(path)
    except (EOFError, gzip.BadGzipFile, zlib.error, zstandard.ZstdError) as error:
        raise ValueError(f"{path} cannot be decompressed ({error}): it is damaged or misnamed") from error


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


def read_line_blocks(path: str | Path) -> Iterator[list[bytes]]:
    """The undecoded lines of a file, a block of them at a time."""
    begun: list[bytes] = []  # of a line that has not ended; joined once, as a line may be a book
    for block in read_blocks(path):
        *lines, rest = block.split(b"\n")
        if lines:
            lines[0] = b"".join([*begun, lines[0]])
            begun.clear()
            yield lines
        begun.append(rest)
    if last := b"".join(begun):
        yield [last]


def decode_line(line: bytes, path: str | Path, number: int) -> str:
    """One line as text, without its line end. ValueError naming file and line (from 1) where it is not UTF-8."""
    try:
        return line.decode("utf-8").rstrip("\r")
    except UnicodeDecodeError as error:
        reason = f"byte 0x{line[error.start]:02x} at column {error.start + 1} is not UTF-8"
        raise ValueError(f"{path}, line {number}: {reason}; convert the file, e.g. with `iconv -t UTF-8`") from None


def read_lines(path: str | Path) -> Iterator[str]:
    r"""The lines of a UTF-8 text file (plain, .gz or .zst), streamed, without their line ends.

    Only "\n" (or "\r\n") ends a line. A missing file is a FileNotFoundError, invalid UTF-8 a ValueError
    that names the file and the line. A byte order mark at the start is dropped.
    """
    number = 0
    for block in read_line_blocks(path):
        for line in block:
            number += 1
            text = decode_line(line, path, number)
            yield text.removeprefix("\ufeff") if number == 1 else text


# What a full disk, a quota or a file-size limit say; other errors inside the block may come from what it reads.
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# What file systems say that lock no directories: NFS takes them for files that are not open for writing.
NO_LOCKS = {errno.EBADF, errno.ENOLCK, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}


def _cannot_write(path: Path, error: OSError | SafetensorError) -> OSError:
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
        raise _cannot_write(path, error) from error
    try:
        yield partial
    except OSError as error:
        if error.errno in FULL:
            raise _cannot_write(path, error) from error
        raise
    except SafetensorError as error:  # safetensors says so in a way of its own
        raise _cannot_write(path, error) from error
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
        raise _cannot_write(directory, error) from error
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
