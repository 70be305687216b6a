"""Models on disk: the native directory is saved and loaded, the formats of older systems are loaded."""

import json
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from elmokit.config import BiLMConfig
from elmokit.files import atomic_directory
from elmokit.io.formats.bilm_hdf5 import read_bilm_hdf5
from elmokit.io.formats.efml import ENCODER, TOKEN_ENCODER, read_efml
from elmokit.io.formats.nlpl_zip import unpacked
from elmokit.io.formats.tf_checkpoint import find_beside, find_prefix, read_tf_checkpoint
from elmokit.io.hub import HubModel, download, hub_model
from elmokit.io.native import (
    DICTIONARIES,
    FORMAT_VERSION,
    STORED_DTYPES,
    filled,
    read_card,
    read_native,
    write_native,
)
from elmokit.io.pretrained import MixWeights, Pretrained, fingerprint
from elmokit.io.strict import CheckpointError
from elmokit.nn.bilm import BiLM
from elmokit.text.vocab import Vocab

__all__ = ["CheckpointError", "MixWeights", "Pretrained", "describe", "fingerprint", "load", "save"]

DEFAULT_MODEL = "en-small"
BUNDLED_MODELS = Path(__file__).parents[1] / "models"
CARD_LINES = 12
VOCABULARIES = ("vocab.txt", "vocab.txt.gz")


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


# --- What all the older formats share ----------------------------------------------------------------------------


def _read_words(path: Path | None, config: BiLMConfig) -> Vocab | None:
    """The words beside a model, where there are such.

    A model that reads characters needs them for its softmax only: a vocabulary without <UNK>, say, is left out with a
    warning.
    """
    if path is None:
        return None
    try:
        return Vocab.read(path)
    except ValueError as error:
        if config.char_cnn is None:
            raise
        reason = str(error).replace(f"{path.parent}/", "")
        warnings.warn(f"{reason}; the model is loaded without words, which only its softmax needs", stacklevel=4)
        return None


def _read_text(folder: Path) -> str:
    """The card beside a model: README.md, or the meta-data that the NLPL repository gives its models."""
    meta = folder / "meta.json"
    if (folder / "README.md").is_file() or not meta.is_file():
        return read_card(folder)
    try:
        text = json.dumps(json.loads(meta.read_text(encoding="utf-8")), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{meta} is damaged ({error}): remove it or fetch it again") from error
    return f"```json\n{text}\n```\n"


def _with_boundaries(config: BiLMConfig, vocab: Vocab | None) -> BiLMConfig:
    """For models of word ids: the vocabulary knows where <S> and </S> stand."""
    if config.char_cnn is not None or vocab is None:
        return config
    return replace(config, boundary_words=(vocab.bos, vocab.eos))


# --- HDF5, also in a zip archive ---------------------------------------------------------------------------------


def _find_hdf5(path: Path) -> Path | None:
    """The file of weights: the path itself, or the only one of the directory."""
    if path.is_file() and path.suffix in (".hdf5", ".h5"):
        return path
    weights = sorted(path.glob("*.hdf5"))
    if len(weights) > 1:
        raise CheckpointError(
            f"{path} holds several *.hdf5, name the one with the weights: {', '.join(map(str, weights))}"
        )
    return weights[0] if weights else None


def _options_beside(weights: Path) -> Path:
    """options.json, or where weights are published as NAME_weights.hdf5, NAME_options.json."""
    named_alike = weights.with_name(weights.name.removesuffix("weights.hdf5") + "options.json")
    return named_alike if named_alike.is_file() else weights.with_name("options.json")


def _load_hdf5(weights: Path) -> Pretrained:
    config, state_dict = read_bilm_hdf5(_options_beside(weights), weights)
    words = (weights.with_name(name) for name in VOCABULARIES)
    vocab = _read_words(next(filter(Path.is_file, words), None), config)
    config = _with_boundaries(config, vocab)
    try:
        return Pretrained(filled(lambda: BiLM(config), state_dict), vocab=vocab, card=_read_text(weights.parent))
    except ValueError as error:
        raise CheckpointError(f"{weights} does not fit what lies beside it: {error}") from error


def _find_zip(path: Path) -> Path | None:
    return path if path.is_file() and path.suffix == ".zip" else None


def _load_zip(archive: Path) -> Pretrained:
    with unpacked(archive) as folder:
        try:
            return _load_hdf5(folder / "model.hdf5")
        except ValueError as error:
            # Whoever reads this knows the archive, not the folder that is gone by then.
            raise CheckpointError(f"{archive}: {str(error).replace(f'{folder}/', '')}") from error


# --- TensorFlow --------------------------------------------------------------------------------------------------


def _load_tensorflow(prefix: Path) -> Pretrained:
    found = read_tf_checkpoint(prefix)
    words = next(filter(None, (find_beside(prefix, name) for name in VOCABULARIES)), None)
    vocab = _read_words(words, found.config)
    num_words = found.num_softmax_words
    if vocab is not None and num_words not in (None, len(vocab)):
        raise CheckpointError(f"{prefix} has a softmax over {num_words} words, {words} has {len(vocab)}")
    config = _with_boundaries(found.config, vocab)
    try:
        bilm = filled(lambda: BiLM(config), found.state_dict)
        return Pretrained(bilm, softmax=found.softmax, vocab=vocab, card=read_card(prefix.parent), mix=found.mix)
    except ValueError as error:
        raise CheckpointError(f"{prefix} does not fit what lies beside it: {error}") from error


def _files_of_tensorflow(prefix: Path) -> list[Path]:
    options = find_beside(prefix, "options.json")
    return [*sorted(prefix.parent.glob(f"{prefix.name}.*")), *([options] if options else [])]


# --- ELMoForManyLangs --------------------------------------------------------------------------------------------


def _find_efml(path: Path) -> Path | None:
    return path if any((path / name).is_file() for name in (ENCODER, TOKEN_ENCODER)) else None


def _load_efml(directory: Path) -> Pretrained:
    config, state_dict = read_efml(directory)
    return Pretrained(filled(lambda: BiLM(config), state_dict), card=read_card(directory))


# --- All of them -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Format:
    """How one format is recognised (`find`: a path -> what to read, or None), read, and told of."""

    name: str
    find: Callable[[Path], Path | None]
    read: Callable[[Path], Pretrained]
    files: Callable[[Path], list[Path]]


# In this order: what a directory is, is settled by the first that recognises it.
FORMATS = (
    _Format(
        "ELMoForManyLangs",
        _find_efml,
        _load_efml,
        lambda directory: sorted(directory.iterdir()),
    ),
    _Format(
        f"elmokit {FORMAT_VERSION}",
        lambda path: path if (path / "config.json").is_file() else None,
        read_native,
        lambda directory: sorted(directory.iterdir()),
    ),
    _Format(
        "AllenNLP / bilm-tf HDF5",
        _find_hdf5,
        _load_hdf5,
        lambda weights: [_options_beside(weights), weights],
    ),
    _Format("NLPL zip", _find_zip, _load_zip, lambda archive: [archive]),
    _Format("TensorFlow variables", find_prefix, _load_tensorflow, _files_of_tensorflow),
)


def _recognised(path: Path) -> tuple[_Format, Path] | None:
    """The format of what lies at a path, and what its reader is to read; None where no format fits."""
    for format in FORMATS:
        if (found := format.find(path)) is not None:
            return format, found
    return None


KNOWN = (
    "config.json, with options.json and one *.hdf5, with encoder.pkl of ELMoForManyLangs, or with a TensorFlow "
    "checkpoint or SavedModel"
)


def _find_on_hub(model: HubModel, local_files_only: bool) -> tuple[_Format, Path]:
    if found := _recognised(download(model, local_files_only)):
        return found
    raise FileNotFoundError(f"{model} on the Hugging Face Hub is no model: looked for a repository with {KNOWN}")


def _find(name: str, revision: str | None = None, local_files_only: bool = False) -> tuple[_Format, Path]:
    """The format of a model, and what its reader is to read: on this disk, bundled, or on the Hub."""
    found = _recognised(Path(name)) or _recognised(BUNDLED_MODELS / name)
    on_hub = None if found or Path(name).exists() else hub_model(name, revision)
    if revision is not None and on_hub is None:
        raise ValueError(f"only models on the Hugging Face Hub have revisions, and {name!r} is none: leave it out")
    if found is not None:
        return found
    if on_hub is not None:
        return _find_on_hub(on_hub, local_files_only)
    names = ", ".join(sorted(found.parent.name for found in BUNDLED_MODELS.glob("*/config.json"))) or "none"
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
    model.read_again = lambda: format.read(path).bilm
    return model


def _input(config: BiLMConfig) -> str:
    """What the token encoder reads."""
    encoder = config.words_and_characters
    if encoder is None:
        return "words" if config.char_cnn is None else "characters"
    return " and ".join(name for name in ("words", "characters") if getattr(encoder, name))


def _settings(config: BiLMConfig) -> dict[str, Any]:
    """The configuration, where dictionaries are told of by their sizes."""
    settings = config.to_dict()
    if encoder := settings.get("words_and_characters"):
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
        "input": _input(config),
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
