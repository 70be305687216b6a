"""The zip archives of the NLPL repository: options.json, weights in HDF5, a vocabulary and meta-data.

Members are copied to a temporary folder under names of our own, so none can lead elsewhere; nothing else is unpacked.
Source: http://vectors.nlpl.eu/repository, and simple_elmo, which reads the same archives.
"""

import errno
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from elmokit.checkpoints.errors import CheckpointError
from elmokit.checkpoints.formats.bilm_hdf5 import load_bilm_hdf5
from elmokit.checkpoints.pretrained import Pretrained

WEIGHTS = "model.hdf5"
NEEDED, OPTIONAL = ("options.json",), ("vocab.txt", "vocab.txt.gz", "meta.json", "README.md")
# Weights shrink by a tenth, words to a third. What claims to shrink this much is damaged or a trap.
MAX_EXPANSION, ALWAYS_ALLOWED = 64, 1 << 20
# Python unpacks the others in pieces of any size.
SAFE_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


def _base_name(member: zipfile.ZipInfo) -> str:
    """What a member is called without its folders; weights may have any name."""
    name = PurePosixPath(member.filename.replace("\\", "/")).name
    return WEIGHTS if name.endswith((".hdf5", ".h5")) else name


def _members(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """The members that make a model, by name; ValueError where they do not."""
    found: dict[str, zipfile.ZipInfo] = {}
    for member in archive.infolist():
        name = _base_name(member)
        if name == "encoder.pkl":
            raise ValueError("it holds a model of ELMoForManyLangs: unpack it, and load the directory")
        if member.is_dir() or name not in (WEIGHTS, *NEEDED, *OPTIONAL):
            continue
        if name in found:
            raise ValueError(f"it holds both {found[name].filename} and {member.filename}: unpack it, and load one")
        if member.compress_type not in SAFE_COMPRESSIONS:
            raise ValueError(f"{member.filename} is compressed in an unusual way")
        if member.file_size > ALWAYS_ALLOWED + MAX_EXPANSION * member.compress_size:
            raise ValueError(f"{member.filename} claims to unpack to {member.file_size} bytes, which cannot be")
        found[name] = member
    if missing := [name for name in (WEIGHTS, *NEEDED) if name not in found]:
        raise ValueError(f"it lacks {' and '.join(missing)}")
    return found


def _unpack(path: Path, folder: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        for name, member in _members(archive).items():
            with archive.open(member) as source, (folder / name).open("wb") as target:
                shutil.copyfileobj(source, target)


# What Python says of an archive that is damaged or encrypted, by where it stumbles.
DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError, OverflowError)


@contextmanager
def unpacked(path: str | Path) -> Iterator[Path]:
    """A folder with the model of an archive: model.hdf5, options.json, and where there are such, words and card.

    It is gone at the end. CheckpointError where the archive is damaged or holds no such model.
    """
    path = Path(path)
    with tempfile.TemporaryDirectory(prefix="elmokit-") as name:
        folder = Path(name)
        try:
            _unpack(path, folder)
        except (*DAMAGED, OSError) as error:
            # A damaged directory may send the reader to before the beginning; other such errors are the disk's.
            if isinstance(error, OSError) and error.errno != errno.EINVAL:
                raise
            raise CheckpointError(f"{path} cannot be read as a model in a zip archive: {error}") from error
        yield folder


def load_nlpl_zip(archive: Path, softmax: bool = True) -> Pretrained:
    """Load the model of an archive; it never has a softmax. CheckpointError where the archive is damaged."""
    with unpacked(archive) as folder:
        try:
            return load_bilm_hdf5(folder / WEIGHTS)
        except ValueError as error:
            # Users know the archive, not the temporary folder.
            raise CheckpointError(f"{archive}: {str(error).replace(f'{folder}/', '')}") from error
