"""The formats that a model may have on disk: how each is recognised, and read into a `Pretrained`."""

import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from elmokit.checkpoints.errors import CheckpointError
from elmokit.checkpoints.formats.bilm_hdf5 import read_bilm_hdf5
from elmokit.checkpoints.formats.efml import ENCODER, TOKEN_ENCODER, read_efml
from elmokit.checkpoints.formats.nlpl_zip import unpacked
from elmokit.checkpoints.formats.tf_checkpoint import find_beside, find_prefix, read_tf_checkpoint
from elmokit.checkpoints.native import FORMAT_VERSION, filled, read_card, read_native
from elmokit.checkpoints.pretrained import Pretrained
from elmokit.config import BiLMConfig
from elmokit.nn.bilm import BiLM
from elmokit.text.vocab import Vocab

VOCABULARIES = ("vocab.txt", "vocab.txt.gz")


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
    try:
        config = _with_boundaries(config, vocab)
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
    try:
        config = _with_boundaries(found.config, vocab)
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
class Format:
    """How one format is recognised (`find`: a path -> what to read, or None), read, and told of."""

    name: str
    find: Callable[[Path], Path | None]
    read: Callable[[Path], Pretrained]
    files: Callable[[Path], list[Path]]


# In this order: what a directory is, is settled by the first that recognises it. Those of ELMoForManyLangs come first,
# since they have a config.json too.
FORMATS = (
    Format(
        "ELMoForManyLangs",
        _find_efml,
        _load_efml,
        lambda directory: sorted(directory.iterdir()),
    ),
    Format(
        f"elmokit {FORMAT_VERSION}",
        lambda path: path if (path / "config.json").is_file() else None,
        read_native,
        lambda directory: sorted(directory.iterdir()),
    ),
    Format(
        "AllenNLP / bilm-tf HDF5",
        _find_hdf5,
        _load_hdf5,
        lambda weights: [_options_beside(weights), weights],
    ),
    Format("NLPL zip", _find_zip, _load_zip, lambda archive: [archive]),
    Format("TensorFlow variables", find_prefix, _load_tensorflow, _files_of_tensorflow),
)

KNOWN = (
    "config.json, with options.json and one *.hdf5, with encoder.pkl of ELMoForManyLangs, or with a TensorFlow "
    "checkpoint or SavedModel"
)


def recognised(path: Path) -> tuple[Format, Path] | None:
    """The format of what lies at a path, and what its reader is to read; None where no format fits."""
    for format in FORMATS:
        if (found := format.find(path)) is not None:
            return format, found
    return None
