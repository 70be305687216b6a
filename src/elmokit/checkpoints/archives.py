"""Models in archives: AllenNLP's model.tar.gz, the zip archives of the NLPL repository, modules of
TensorFlow Hub.

Only plain files are unpacked, into a temporary directory; links, and names that lead out of it, are
ignored. A tar archive is compressed by gzip, or not at all.
"""

import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO

from elmokit.checkpoints.pretrained import errors_naming

# Weights compress by a tenth. An archive that expands beyond this is damaged or malicious.
MAX_EXPANSION, ALWAYS_ALLOWED = 64, 1 << 26
MAX_MEMBERS = 10_000
# Other methods decompress in chunks of unbounded size.
SAFE_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)

Member = tuple[str, int, Callable[[], IO[bytes] | None]]


def find_archive(path: Path) -> Path | None:
    """The path itself, if it is a file with the suffix of an archive."""
    is_archive = path.name.endswith((".zip", ".tar", ".tar.gz", ".tgz")) and path.is_file()
    return path if is_archive else None


def _members(path: Path) -> Iterator[Member]:
    """Name, size and opener of each plain file."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                if member.compress_type not in SAFE_COMPRESSIONS:
                    raise ValueError(f"{member.filename} is compressed by an unusual method")
                if not member.is_dir():
                    open_member = partial(archive.open, member)
                    yield member.filename, member.file_size, open_member
        return
    with path.open("rb") as file:
        is_gzip = file.read(2) == b"\x1f\x8b"
    with tarfile.open(path, "r:gz" if is_gzip else "r:") as archive:
        for member in archive:
            if member.isreg():
                yield member.name, member.size, partial(archive.extractfile, member)


@contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """Unpack an archive.

    Yields:
        A temporary directory, which is removed at the end.

    Raises:
        CheckpointError: The archive is damaged, or there is no space for it.
    """
    with tempfile.TemporaryDirectory(prefix="elmokit-") as name:
        folder, allowed = Path(name), ALWAYS_ALLOWED + MAX_EXPANSION * path.stat().st_size
        with errors_naming(path):
            for number, (member, size, open_member) in enumerate(_members(path)):
                allowed -= size
                if number >= MAX_MEMBERS or allowed < 0:
                    raise ValueError("it claims to unpack to more than a model of its size can be")
                path_inside = PurePosixPath(member.replace("\\", "/"))
                parts = [part for part in path_inside.parts if part not in ("/", ".")]
                # ._NAME has the attributes that macOS keeps of NAME.
                if not parts or ".." in parts or parts[-1].startswith("._"):
                    continue
                target = folder.joinpath(*parts)
                target.parent.mkdir(parents=True, exist_ok=True)
                source = open_member()
                assert source is not None
                with source, target.open("wb") as file:
                    shutil.copyfileobj(source, file)
        yield folder
