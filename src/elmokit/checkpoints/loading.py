"""Models on disk: the native directory is saved and loaded, the formats of older systems are loaded."""

import functools
from dataclasses import asdict
from pathlib import Path
from typing import Any

from elmokit.checkpoints.detect import KNOWN, Format, recognised
from elmokit.checkpoints.errors import CheckpointError
from elmokit.checkpoints.hub import HubModel, download, hub_model
from elmokit.checkpoints.native import DICTIONARIES, EFML, STORED_DTYPES, write_native
from elmokit.checkpoints.pretrained import MixWeights, Pretrained, fingerprint
from elmokit.config import BiLMConfig
from elmokit.fs.atomic import atomic_directory
from elmokit.nn.bilm import BiLM

__all__ = ["CheckpointError", "MixWeights", "Pretrained", "describe", "fingerprint", "load", "save"]

DEFAULT_MODEL = "en-small"
BUNDLED_MODELS = Path(__file__).parents[1] / "models"
CARD_LINES = 12


def save(model: Pretrained, directory: str | Path, *, overwrite: bool = False, dtype: str = "float32") -> None:
    """Write a model as a directory, whole or not at all. `dtype="float16"` halves it; it loads as float32 again.

    An existing directory is a FileExistsError, unless it holds a model and `overwrite` says to replace it.
    """
    directory = Path(directory)
    if dtype not in STORED_DTYPES:
        raise ValueError(f"weights are stored as {' or '.join(STORED_DTYPES)}, not {dtype!r}")
    if overwrite and directory.exists() and any(directory.iterdir()) and not (directory / "config.json").is_file():
        raise FileExistsError(f"{directory} holds no model, so it is not overwritten: choose another name")
    with atomic_directory(directory, overwrite=overwrite) as partial:
        write_native(model, partial, dtype)


def _find_on_hub(model: HubModel, local_files_only: bool) -> tuple[Format, Path]:
    if found := recognised(download(model, local_files_only)):
        return found
    raise FileNotFoundError(f"{model} on the Hugging Face Hub is no model: looked for a repository with {KNOWN}")


def _find(name: str, revision: str | None = None, local_files_only: bool = False) -> tuple[Format, Path]:
    """The format of a model, and what its reader is to read: on this disk, bundled, or on the Hub."""
    found = recognised(Path(name)) or recognised(BUNDLED_MODELS / name)
    on_hub = None if found or Path(name).exists() else hub_model(name, revision)
    if revision is not None and on_hub is None:
        raise ValueError(f"only models on the Hugging Face Hub have revisions, and {name!r} is none: leave it out")
    if found is not None:
        return found
    if on_hub is not None:
        return _find_on_hub(on_hub, local_files_only)
    names = ", ".join(sorted(config.parent.name for config in BUNDLED_MODELS.glob("*/config.json"))) or "none"
    raise FileNotFoundError(
        f"no model {name!r}: looked for a directory with {KNOWN}, for a .zip of the NLPL repository, and for a "
        f"bundled model of that name (there are: {names}); on the Hugging Face Hub, models are called OWNER/NAME"
    )


def load(
    path_or_name: str | Path | None = None, *, revision: str | None = None, local_files_only: bool = False
) -> Pretrained:
    """Load a model, in whatever format it is: a directory or file, the name of a bundled model, or one of the Hub.

    Known are elmokit's own directory; an *.hdf5 file with its options beside it, or the directory of both; a zip
    archive of the NLPL repository; a TensorFlow checkpoint of bilm-tf (its directory or PREFIX), and the module
    google/elmo as a SavedModel; a directory of ELMoForManyLangs. Without an argument, the bundled English model.
    A name OWNER/NAME that is neither here nor bundled is that of a repository with such files on the Hugging Face Hub
    (which needs the extra `hub`): `revision` is its branch, tag or commit, and `local_files_only` takes what is in
    the cache, without a network.
    FileNotFoundError where nothing is found, CheckpointError where what is found is damaged.
    """
    name = DEFAULT_MODEL if path_or_name is None else str(path_or_name)
    format, path = _find(name, revision, local_files_only)
    model = format.read(path)
    model.read_again = functools.partial(_read_bilm, path.absolute())
    return model


def _read_bilm(path: Path) -> BiLM:
    """The biLM of a model that was found before."""
    if (found := recognised(path)) is None:
        raise FileNotFoundError(f"{path} is no model any more: load it from where it is now")
    format, path = found
    return format.read(path).bilm


def _settings(config: BiLMConfig) -> dict[str, Any]:
    """The configuration, where dictionaries are told of by their sizes."""
    settings = config.to_dict()
    if encoder := settings.get(EFML):
        encoder |= {name: len(encoder[name]) for name in DICTIONARIES}
    return settings


def describe(path_or_name: str | Path | None = None) -> dict[str, Any]:
    """What `elmokit info` shows of a model: format, bytes of its files, sizes, settings, the card's beginning."""
    format, path = _find(DEFAULT_MODEL if path_or_name is None else str(path_or_name))
    model = format.read(path)
    config = model.config
    return {
        "path": str(path),
        "format": format.name,
        "files": {file.name: file.stat().st_size for file in format.files(path) if file.is_file()},
        "parameters": sum(parameter.numel() for parameter in model.bilm.parameters()),
        "input": model.bilm.token_encoder.input,
        "representations": config.num_representations,
        "output_dim": config.output_dim,
        "model": _settings(config),
        "vocabulary": None if model.vocab is None else len(model.vocab),
        "softmax": model.has_softmax,
        "tokenizer": model.tokenizer,
        "state": model.state_policy,
        "mix": None if model.mix is None else asdict(model.mix),
        "card": model.card.splitlines()[:CARD_LINES],
        "fingerprint": fingerprint(model),
    }
