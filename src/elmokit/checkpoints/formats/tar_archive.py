"""Tar archives: AllenNLP's `model.tar.gz`, the module of TensorFlow Hub, or archives of users.

Only plain files are unpacked, into a temporary directory; links, and names that lead out of it, are ignored. Archives
are compressed by gzip, or not at all.
"""

import errno
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Literal

from elmokit.checkpoints.detect import MACOS_PREFIX
from elmokit.checkpoints.errors import CheckpointError

# Weights compress by a tenth. An archive that expands beyond this is damaged or malicious.
MAX_EXPANSION, ALWAYS_ALLOWED = 64, 1 << 26
MAX_MEMBERS = 10_000
GZIP = b"\x1f\x8b"
DAMAGED = (tarfile.TarError, zlib.error, EOFError, ValueError, OverflowError, OSError)


def _target(folder: Path, name: str) -> Path | None:
    """Where to unpack a member; None if that were outside of `folder`, or for macOS's attributes of another file."""
    parts = [part for part in PurePosixPath(name).parts if part not in ("/", ".")]
    is_ignored = not parts or ".." in parts or parts[-1].startswith(MACOS_PREFIX)
    return None if is_ignored else folder.joinpath(*parts)


def _mode(path: Path) -> Literal["r:gz", "r:"]:
    with path.open("rb") as file:
        return "r:gz" if file.read(len(GZIP)) == GZIP else "r:"


def _unpack(path: Path, folder: Path) -> None:
    allowed = ALWAYS_ALLOWED + MAX_EXPANSION * path.stat().st_size
    with tarfile.open(path, _mode(path)) as archive:
        for number, member in enumerate(archive):
            allowed -= member.size if member.isreg() else 0
            if number >= MAX_MEMBERS or allowed < 0:
                raise ValueError("it claims to unpack to more than a model of its size can be")
            target, source = _target(folder, member.name), archive.extractfile(member) if member.isreg() else None
            if target is None or source is None:
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            with source, target.open("wb") as file:
                shutil.copyfileobj(source, file)


@contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """Unpack an archive.

    Yields:
        A temporary directory, which is removed at the end.

    Raises:
        CheckpointError: The archive is damaged.
        OSError: There is no space for it.
    """
    with tempfile.TemporaryDirectory(prefix="elmokit-") as name:
        try:
            _unpack(path, Path(name))
        except DAMAGED as error:
            if isinstance(error, OSError) and error.errno == errno.ENOSPC:
                raise
            raise CheckpointError(f"{path} cannot be read as an archive of a model: {error}") from error
        yield Path(name)
