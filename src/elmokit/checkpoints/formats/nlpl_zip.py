"""The zip archives of the NLPL repository: options.json, weights in HDF5, a vocabulary and metadata.

Members are copied to a temporary directory under fixed names, so that none can be written elsewhere; members with other
names are ignored.
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

from elmokit.checkpoints.detect import OPTIONS
from elmokit.checkpoints.errors import CheckpointError
from elmokit.checkpoints.formats.bilm_hdf5 import load_bilm_hdf5
from elmokit.checkpoints.formats.tar_archive import MACOS_PREFIX
from elmokit.checkpoints.pretrained import Pretrained

WEIGHTS = "model.hdf5"
NEEDED, OPTIONAL = ("options.json",), ("vocab.txt", "vocab.txt.gz", "meta.json", "README.md")
# Weights compress by a tenth, words to a third. A member that claims to expand beyond this is damaged or malicious.
MAX_EXPANSION, ALWAYS_ALLOWED = 64, 1 << 20
# Other methods decompress in chunks of unbounded size.
SAFE_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


def _base_name(member: zipfile.ZipInfo) -> str:
    """The fixed name of a member that is weights or options, which archives name in many ways; else its base name."""
    name = PurePosixPath(member.filename.replace("\\", "/")).name
    if name.startswith(MACOS_PREFIX):
        return name
    if name.endswith((".hdf5", ".h5")) or name in ("weights_file", "weight_file", "weights"):
        return WEIGHTS
    return "options.json" if name.endswith("options.json") or name in OPTIONS else name


def _members(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """The members that make a model, by their fixed names. ValueError if some are missing, duplicate or malicious."""
    members: dict[str, zipfile.ZipInfo] = {}
    for member in archive.infolist():
        name = _base_name(member)
        if name == "encoder.pkl":
            raise ValueError("it holds a model of ELMoForManyLangs: unpack it, and load the directory")
        # The name comes first: zipfile cannot tell whether a member without a name is a directory.
        if name not in (WEIGHTS, *NEEDED, *OPTIONAL) or member.is_dir():
            continue
        if name in members:
            raise ValueError(f"it holds both {members[name].filename} and {member.filename}: unpack it, and load one")
        if member.compress_type not in SAFE_COMPRESSIONS:
            raise ValueError(f"{member.filename} is compressed by an unusual method")
        if member.file_size > ALWAYS_ALLOWED + MAX_EXPANSION * member.compress_size:
            raise ValueError(f"{member.filename} claims to unpack to {member.file_size} bytes, which is impossible")
        members[name] = member
    if missing := [name for name in (WEIGHTS, *NEEDED) if name not in members]:
        raise ValueError(f"it lacks {' and '.join(missing)}")
    return members


def _unpack(path: Path, folder: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        for name, member in _members(archive).items():
            with archive.open(member) as source, (folder / name).open("wb") as target:
                shutil.copyfileobj(source, target)


# zipfile raises any of these for an archive that is damaged or encrypted.
DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError, OverflowError)


@contextmanager
def unpacked(path: str | Path) -> Iterator[Path]:
    """Unpack the model in an archive: model.hdf5, options.json, and vocabulary and card if it has them.

    Args:
        path: The zip archive.

    Yields:
        A temporary directory, which is removed at the end.

    Raises:
        CheckpointError: The archive is damaged or holds no such model.
    """
    path = Path(path)
    with tempfile.TemporaryDirectory(prefix="elmokit-") as name:
        folder = Path(name)
        try:
            _unpack(path, folder)
        except (*DAMAGED, OSError) as error:
            # A damaged directory may make zipfile seek before the beginning; other OSErrors are the disk's.
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
