"""Models on disk: the native directory is saved and loaded, the formats of older systems are loaded."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from elmokit.config import BiLMConfig
from elmokit.files import atomic_directory
from elmokit.io.formats.bilm_hdf5 import read_bilm_hdf5
from elmokit.io.formats.nlpl_zip import unpacked
from elmokit.io.formats.tf_checkpoint import find_beside, find_prefix, read_tf_checkpoint
from elmokit.io.native import FORMAT_VERSION, STORED_DTYPES, filled, read_card, read_native, write_native
from elmokit.io.pretrained import MixWeights, Pretrained, fingerprint
from elmokit.io.strict import CheckpointError
from elmokit.nn.bilm import BiLM
from elmokit.text.vocab import Vocab

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


# --- What all the older formats share ----------------------------------------------------------------------------


def _read_words(folder: Path) -> Vocab | None:
    """The words beside a model, where there are such."""
    for path in (folder / "vocab.txt", folder / "vocab.txt.gz"):
        if path.is_file():
            return Vocab.read(path)
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
    vocab = _read_words(weights.parent)
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
    words = find_beside(prefix, "vocab.txt") or find_beside(prefix, "vocab.txt.gz")
    vocab = None if words is None else Vocab.read(words)
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


def _find(path_or_name: str | Path | None) -> tuple[_Format, Path]:
    """The format of a model, and what its reader is to read."""
    path = Path(DEFAULT_MODEL if path_or_name is None else path_or_name)
    for candidate in (path, BUNDLED_MODELS / path):
        for format in FORMATS:
            if (found := format.find(candidate)) is not None:
                return format, found
    names = ", ".join(sorted(found.parent.name for found in BUNDLED_MODELS.glob("*/config.json"))) or "none"
    raise FileNotFoundError(
        f"no model {str(path)!r}: looked for a directory with config.json, with options.json and one *.hdf5, or with "
        f"a TensorFlow checkpoint or SavedModel, for a .zip of the NLPL repository, and for a bundled model of that "
        f"name (there are: {names})"
    )


def load(path_or_name: str | Path | None = None) -> Pretrained:
    """Load a model, in whatever format it is: a directory or file, or the name of a bundled model.

    Known are elmokit's own directory; an *.hdf5 file with its options beside it, or the directory of both; a zip
    archive of the NLPL repository; a TensorFlow checkpoint of bilm-tf (its directory or PREFIX), and the module
    google/elmo as a SavedModel. Without an argument, the bundled English model. FileNotFoundError where nothing is
    found, CheckpointError where what is found is damaged.
    """
    format, path = _find(path_or_name)
    return format.read(path)


def describe(path_or_name: str | Path | None = None) -> dict[str, Any]:
    """What `elmokit info` shows of a model: format, bytes of its files, sizes, settings, the card's beginning."""
    format, path = _find(path_or_name)
    model = format.read(path)
    config = model.bilm.config
    return {
        "path": str(path),
        "format": format.name,
        "files": {file.name: file.stat().st_size for file in format.files(path) if file.is_file()},
        "parameters": sum(parameter.numel() for parameter in model.bilm.parameters()),
        "input": "words" if config.char_cnn is None else "characters",
        "representations": config.num_representations,
        "output_dim": config.output_dim,
        "model": config.to_dict(),
        "vocabulary": None if model.vocab is None else len(model.vocab),
        "softmax": model.has_softmax,
        "tokenizer": model.tokenizer,
        "state": model.state_policy,
        "mix": None if model.mix is None else asdict(model.mix),
        "card": model.card.splitlines()[:CARD_LINES],
        "fingerprint": fingerprint(model),
    }
