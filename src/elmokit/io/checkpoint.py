"""Models on disk: the native directory is saved and loaded, the pair options.json + *.hdf5 of old is loaded."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from elmokit.files import atomic_directory
from elmokit.io.formats.bilm_hdf5 import read_bilm_hdf5
from elmokit.io.native import FORMAT_VERSION, STORED_DTYPES, filled, read_card, read_native, read_vocab, write_native
from elmokit.io.pretrained import MixWeights, Pretrained, fingerprint
from elmokit.io.strict import CheckpointError
from elmokit.nn.bilm import BiLM

__all__ = ["CheckpointError", "MixWeights", "Pretrained", "describe", "fingerprint", "load", "save"]

DEFAULT_MODEL = "en-small"
BUNDLED_MODELS = Path(__file__).parents[1] / "models"
CARD_LINES = 12


def save(model: Pretrained, directory: str | Path, *, overwrite: bool = False, dtype: str = "float32") -> None:
    """Write a model as a directory, whole or not at all. `dtype="float16"` halves it; it loads as float32 all the same.

    An existing directory is a FileExistsError, unless it holds a model and `overwrite` says to replace it.
    """
    directory = Path(directory)
    if dtype not in STORED_DTYPES:
        raise ValueError(f"weights are stored as {' or '.join(STORED_DTYPES)}, not {dtype!r}")
    if overwrite and directory.exists() and any(directory.iterdir()) and not (directory / "config.json").is_file():
        raise FileExistsError(f"{directory} holds no model, so it is not overwritten: choose another name")
    with atomic_directory(directory, overwrite=overwrite) as partial:
        write_native(model, partial, dtype)


def _find(path_or_name: str | Path) -> Path:
    """A native directory, or the file of weights of the old pair."""
    path, bundled = Path(path_or_name), BUNDLED_MODELS / path_or_name
    if path.is_file() and path.suffix in (".hdf5", ".h5"):
        return path
    for directory in (path, bundled):
        if (directory / "config.json").is_file():
            return directory
    weights = sorted(path.glob("*.hdf5"))
    if len(weights) == 1:
        return weights[0]
    if weights:
        raise CheckpointError(
            f"{path} holds several *.hdf5, name the one with the weights: {', '.join(map(str, weights))}"
        )
    names = ", ".join(sorted(found.parent.name for found in BUNDLED_MODELS.glob("*/config.json"))) or "none"
    raise FileNotFoundError(
        f"no model {str(path_or_name)!r}: looked for the directory {path} with config.json, or with options.json and "
        f"one *.hdf5, and for a bundled model of that name (there are: {names})"
    )


def _options_beside(weights: Path) -> Path:
    """options.json, or where weights are published as NAME_weights.hdf5, NAME_options.json."""
    named_alike = weights.with_name(weights.name.removesuffix("weights.hdf5") + "options.json")
    return named_alike if named_alike.is_file() else weights.with_name("options.json")


def _load_hdf5(weights: Path) -> Pretrained:
    config, state_dict = read_bilm_hdf5(_options_beside(weights), weights)
    vocab = read_vocab(weights.parent)
    if config.char_cnn is None and vocab is not None:
        config = replace(config, boundary_words=(vocab.bos, vocab.eos))
    try:
        return Pretrained(filled(lambda: BiLM(config), state_dict), vocab=vocab, card=read_card(weights.parent))
    except ValueError as error:
        raise CheckpointError(f"{weights} does not fit what lies beside it: {error}") from error


def load(path_or_name: str | Path | None = None) -> Pretrained:
    """Load a model: a directory, the path of an *.hdf5 file with its options beside it, or the name of a bundled model.

    Without an argument, the bundled English model. FileNotFoundError where nothing is found, CheckpointError where
    what is found is damaged.
    """
    path = _find(DEFAULT_MODEL if path_or_name is None else path_or_name)
    return read_native(path) if path.is_dir() else _load_hdf5(path)


def describe(path_or_name: str | Path | None = None) -> dict[str, Any]:
    """What `elmokit info` shows of a model: format, bytes of its files, dimensions, settings, the card's beginning."""
    path = _find(DEFAULT_MODEL if path_or_name is None else path_or_name)
    model = load(path)
    config = model.bilm.config
    files = sorted(path.iterdir()) if path.is_dir() else [_options_beside(path), path]
    return {
        "path": str(path),
        "format": f"elmokit {FORMAT_VERSION}" if path.is_dir() else "AllenNLP / bilm-tf HDF5",
        "files": {file.name: file.stat().st_size for file in files if file.is_file()},
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
