"""The formats of models on disk, and how each is detected by the names of its files.

Detection opens no weights, but reads the first bytes of files without a suffix. `elmokit.checkpoints.loading` has the
loader of each format.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from elmokit.checkpoints.errors import CheckpointError
from elmokit.checkpoints.overwriting import NATIVE_FILES

MACOS_PREFIX = "._"  # of files such as ._model.hdf5, in which macOS keeps the attributes of model.hdf5
EFML_WEIGHTS = ("token_embedder.pkl", "encoder.pkl")

# For messages: the directories that are recognised.
KNOWN_DIRECTORIES = (
    "config.json, with options.json and one *.hdf5, with encoder.pkl of ELMoForManyLangs, with weights.th of AllenNLP, "
    "or with a TensorFlow checkpoint or SavedModel"
)


def _matching(directory: Path, pattern: str) -> list[Path]:
    """The files of a directory whose names match a pattern, sorted, without those of macOS's attributes."""
    return sorted(path for path in directory.glob(pattern) if not path.name.startswith(MACOS_PREFIX))


# --- HDF5 --------------------------------------------------------------------------------------------------------

HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"
OPTIONS = ("options.json", "options_file", "options")  # bio_embeddings and others name files after their arguments


def _is_hdf5(path: Path) -> bool:
    """Whether a file is HDF5 by its suffix, or without one by its first bytes."""
    if not path.is_file():
        return False
    if path.suffix:
        return path.suffix in (".hdf5", ".h5")
    with path.open("rb") as file:
        return file.read(len(HDF5_SIGNATURE)) == HDF5_SIGNATURE


def _find_hdf5(path: Path) -> Path | None:
    """The file of weights: the path itself, or the only such file in the directory. CheckpointError for several."""
    if not path.is_dir():
        return path if _is_hdf5(path) else None
    weights = _matching(path, "*.hdf5") or list(filter(_is_hdf5, _matching(path, "*")))
    if len(weights) > 1:
        listed = ", ".join(map(str, weights))
        raise CheckpointError(f"{path} holds several HDF5 files: give the path of the one with the weights ({listed})")
    return weights[0] if weights else None


def options_of(weights: Path) -> Path:
    """The path of the options for a file of weights, which need not exist.

    They have its name with "options" for "weights", or are called options.json, or options_file or options without a
    suffix, or are the only *options*.json in the directory.

    Raises:
        CheckpointError: There are several of the last kind.
    """
    same_name = weights.with_name(weights.name.removesuffix("weights.hdf5") + "options.json")
    candidates = [same_name, *(weights.with_name(name) for name in OPTIONS)]
    if options := next(filter(Path.is_file, candidates), None):
        return options
    others = _matching(weights.parent, "*options*.json")
    if len(others) > 1:
        listed = ", ".join(map(str, others))
        name = same_name.name if weights.name.endswith("weights.hdf5") else OPTIONS[0]
        raise CheckpointError(
            f"{weights} has several options files next to it ({listed}): rename the right one to {name}"
        )
    return others[0] if others else weights.with_name("options.json")


# --- AllenNLP ----------------------------------------------------------------------------------------------------


def _find_allennlp(path: Path) -> Path | None:
    """The weights of a model that AllenNLP saved: the path itself, or best.th or weights.th in the directory."""
    if path.suffix == ".th" and path.is_file():
        return path
    return next(filter(Path.is_file, (path / "best.th", path / "weights.th")), None)


def _allennlp_files(weights: Path) -> list[Path]:
    return [weights, *filter(Path.is_file, [weights.with_name("config.json")])]


# --- Archives ----------------------------------------------------------------------------------------------------


def _is_tar(path: Path) -> bool:
    return path.name.endswith((".tar", ".tar.gz", ".tgz")) and path.is_file()


# --- TensorFlow --------------------------------------------------------------------------------------------------


def _step(index: Path) -> tuple[int, str]:
    """The training step in the name of an index, for sorting."""
    return int((re.findall(r"-(\d+)$", index.stem) or ["-1"])[0]), index.name


def find_prefix(path: str | Path) -> Path | None:
    """Find the prefix of a TensorFlow checkpoint, the common beginning of the paths of its files.

    Args:
        path: The prefix itself, its index, a SavedModel, or a directory of checkpoints, of which the latest is taken.

    Returns:
        The prefix; None if there is no checkpoint.
    """
    path = Path(path)
    if path.suffix == ".index" and path.is_file():
        return path.with_suffix("")
    if Path(f"{path}.index").is_file():
        return path
    if (path / "variables" / "variables.index").is_file():
        return path / "variables" / "variables"
    record = path / "checkpoint"
    if record.is_file():
        # The record may name the directory where training ran, so only the last part of its path is used.
        with record.open("rb") as file:
            beginning = file.read(4096)  # other programs give this name to files of any size
        latest = re.match(rb'model_checkpoint_path: "(?:[^"\n]*[/\\])?([^"\n]+)"', beginning)
        if latest and (path / f"{latest[1].decode(errors='replace')}.index").is_file():
            return path / latest[1].decode()
    indices = _matching(path, "*.index")
    return max(indices, key=_step).with_suffix("") if indices else None


def find_companion(prefix: Path, names: Iterable[str]) -> Path | None:
    """The first of these files in the directory of a checkpoint, or in its parent; None if there is none."""
    paths = (folder / name for name in names for folder in (prefix.parent, prefix.parent.parent))
    return next(filter(Path.is_file, paths), None)


def _tensorflow_files(prefix: Path) -> list[Path]:
    options = find_companion(prefix, ["options.json"])
    return [*sorted(prefix.parent.glob(f"{prefix.name}.*")), *([options] if options else [])]


# --- elmokit -----------------------------------------------------------------------------------------------------


def _find_native(path: Path) -> Path | None:
    """A directory with config.json, unless its weights have another format: then config.json is of another program,
    as often in repositories on the Hub."""
    if not (path / "config.json").is_file():
        return None
    if (path / "model.safetensors").is_file():
        return path
    weights = _find_hdf5(path)
    is_other = find_prefix(path) is not None if weights is None else options_of(weights).is_file()
    return None if is_other else path


# --- All formats -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Format:
    """A format of models on disk.

    Attributes:
        name: Its name, for users.
        find: Maps a path to the path that the format's loader reads; None if it is not of this format.
        files: Maps the path that the loader reads to all files of the model.
    """

    name: str
    find: Callable[[Path], Path | None]
    files: Callable[[Path], list[Path]]


def _efml_files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.iterdir() if path.suffix in (".dic", ".json", ".pkl"))


def _native_files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.iterdir() if path.name in ("config.json", "README.md", *NATIVE_FILES))


EFML = Format(
    "ELMoForManyLangs",
    lambda path: path if any((path / name).is_file() for name in EFML_WEIGHTS) else None,
    _efml_files,
)
NATIVE = Format("elmokit 1", _find_native, _native_files)
ALLENNLP = Format("AllenNLP model", _find_allennlp, _allennlp_files)
HDF5 = Format("AllenNLP / bilm-tf HDF5", _find_hdf5, lambda weights: [options_of(weights), weights])
NLPL_ZIP = Format(
    "NLPL zip", lambda path: path if path.is_file() and path.suffix == ".zip" else None, lambda archive: [archive]
)
TAR = Format("tar archive", lambda path: path if _is_tar(path) else None, lambda archive: [archive])
TENSORFLOW = Format("TensorFlow variables", find_prefix, _tensorflow_files)

# The first match counts. Directories of ELMoForManyLangs and AllenNLP hold a config.json, as native ones do.
FORMATS = (EFML, ALLENNLP, NATIVE, HDF5, NLPL_ZIP, TAR, TENSORFLOW)


# Files of a model; the path of one stands for the model.
MEMBERS = ("config.json", *OPTIONS, "model.safetensors", "checkpoint", *EFML_WEIGHTS)


def model_of(path: Path) -> Path:
    """The model that a file belongs to: its directory, or the weights that options are for; else the path itself."""
    if not path.is_file():
        return path
    weights = path.with_name(path.name.removesuffix("options.json") + "weights.hdf5")
    if path.name.endswith("options.json") and weights.is_file():
        return weights
    return path.parent if path.name in MEMBERS else path


class Detected(NamedTuple):
    """The format of a model, and the path that the format's loader reads."""

    format: Format
    path: Path

    def absolute(self) -> "Detected":
        """The same with an absolute path, which stays valid when the process changes its directory."""
        return Detected(self.format, self.path.absolute())

    def file_states(self) -> list[tuple[str, int, int]]:
        """The name, size and modification time of each file, which change when a file is written."""
        states = [(file.name, file.stat()) for file in self.format.files(self.path) if file.is_file()]
        return [(name, state.st_size, state.st_mtime_ns) for name, state in states]


def detect(path: Path) -> Detected | None:
    """The format of the model at a path; None if it has none.

    Raises:
        CheckpointError: The path is a directory with several HDF5 files.
    """
    for format in FORMATS:
        if (readable := format.find(path)) is not None:
            return Detected(format, readable)
    return None
