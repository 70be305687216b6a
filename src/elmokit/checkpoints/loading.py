"""Load, save and describe models, given by a path, the name of a bundled model, or a name on the Hugging Face Hub."""

import errno
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

from torch import Tensor

from elmokit.checkpoints import detect
from elmokit.checkpoints.detect import KNOWN_DIRECTORIES, Detected, Format
from elmokit.checkpoints.errors import CheckpointError, check_finite, non_finite
from elmokit.checkpoints.formats.allennlp import load_allennlp
from elmokit.checkpoints.formats.bilm_hdf5 import load_bilm_hdf5
from elmokit.checkpoints.formats.efml import load_efml
from elmokit.checkpoints.formats.nlpl_zip import load_nlpl_zip
from elmokit.checkpoints.formats.tar_archive import unpacked
from elmokit.checkpoints.formats.tf_checkpoint import load_tf_checkpoint
from elmokit.checkpoints.hub import PREFIX, HubModel, download, hub_model
from elmokit.checkpoints.native import DICTIONARIES, load_native, write_native
from elmokit.checkpoints.overwriting import check_overwritable
from elmokit.checkpoints.pretrained import MixWeights, Pretrained, fingerprint
from elmokit.config import BiLMConfig
from elmokit.fs.atomic import atomic_directory
from elmokit.settings import StorageDtype, conform

__all__ = [
    "CheckpointError",
    "MixWeights",
    "ModelSource",
    "Pretrained",
    "describe",
    "fingerprint",
    "list_models",
    "load",
    "locate",
    "resolve_model",
    "save",
]

DEFAULT_MODEL = "en-small"
BUNDLED_MODELS = Path(__file__).parents[1] / "models"
CARD_LINES = 16


def _load_tar(archive: Path, softmax: bool) -> Pretrained:
    """Load the only model in an archive. CheckpointError if there is none, or more than one."""
    with unpacked(archive) as folder:
        try:
            folders = (folder, *sorted(path for path in folder.rglob("*") if path.is_dir()))
            models = list(filter(None, map(detect.detect, folders)))
            # A SavedModel is found in its directory, and again in that of its variables.
            models = [model for number, model in enumerate(models) if model not in models[:number]]
            if len(models) != 1:
                listed = ", ".join(str(model.path.relative_to(folder)) for model in models) or "none"
                raise CheckpointError(f"it must hold one model, but holds {listed}: unpack it, and name one")
            return LOADERS[models[0].format](models[0].path, softmax)
        except (ValueError, FileNotFoundError) as error:
            # Users know the archive, not the temporary folder.
            raise CheckpointError(f"{archive}: {str(error).replace(f'{folder}/', '')}") from error


# Each takes the path that `detect` found, and whether to read the softmax.
LOADERS: dict[Format, Callable[[Path, bool], Pretrained]] = {
    detect.EFML: load_efml,
    detect.ALLENNLP: load_allennlp,
    detect.NATIVE: load_native,
    detect.HDF5: load_bilm_hdf5,
    detect.NLPL_ZIP: load_nlpl_zip,
    detect.TAR: _load_tar,
    detect.TENSORFLOW: load_tf_checkpoint,
}

# A path, the name of a bundled model, a name on the Hub, or None for the bundled English model; or a loaded model.
ModelSource: TypeAlias = Pretrained | str | Path | None


def list_models() -> list[str]:
    """The names of the models that come with the package, sorted; `load` takes each of them."""
    return sorted(config.parent.name for config in BUNDLED_MODELS.glob("*/config.json"))


def _locate_on_hub(model: HubModel, local_files_only: bool, **options: Any) -> Detected:
    if detected := detect.detect(download(model, local_files_only, **options)):
        return detected
    raise FileNotFoundError(
        f"{model} on the Hugging Face Hub is not a model: looked for a repository with {KNOWN_DIRECTORIES}"
    )


def _not_found(name: str, path: Path) -> str:
    inside = [model for model in (path / "model", *sorted(path.glob("*/model"))) if (model / "config.json").is_file()]
    if inside:
        return f"{path} is not a model, but holds {', '.join(map(str, inside))}: give that path"
    return (
        f"no model {name!r}: looked for a directory with {KNOWN_DIRECTORIES}, for a .zip of the NLPL repository, and "
        f"for a bundled model of that name (there are: {', '.join(list_models()) or 'none'}); for a model on the "
        f"Hugging Face Hub, write {PREFIX}OWNER/NAME"
    )


def locate(
    model: str | Path | None = None,
    *,
    revision: str | None = None,
    local_files_only: bool = False,
    token: str | bool | None = None,
    cache_dir: str | Path | None = None,
    force_download: bool = False,
) -> Detected:
    """Find a model without loading it; one on the Hub is fetched. Arguments and errors are those of `load`.

    Returns:
        Its format, and the path that the format's loader reads, which `load` takes, too.
    """
    if not isinstance(model, str | Path | None):
        raise ValueError(f"a model must be a path, a name, or the result of elmokit.load, not {type(model).__name__}")
    name = DEFAULT_MODEL if model is None else str(model)
    if not name:
        raise ValueError("'' is not the name or path of a model")
    path = Path(name).expanduser()
    detected = None
    try:
        if not name.startswith((PREFIX, "https://", "http://")):
            detected = detect.detect(detect.model_of(path)) or detect.detect(BUNDLED_MODELS / name)
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        raise ValueError(f"{name[:60]!r} is not the name or path of a model") from None
    # If a exists, a/b is a path, possibly mistyped, and not a name on the Hub.
    is_path = detected is not None or path.exists() or Path(*path.parts[:1]).exists()
    on_hub = None if is_path else hub_model(name, revision)
    if revision is not None and on_hub is None:
        raise ValueError(
            f"only models on the Hugging Face Hub have revisions, and {name!r} is not one of them: omit the "
            f"revision, or write {PREFIX}OWNER/NAME"
        )
    if detected is not None:
        return detected
    if on_hub is not None:
        return _locate_on_hub(on_hub, local_files_only, token=token, cache_dir=cache_dir, force_download=force_download)
    raise FileNotFoundError(_not_found(name, path))


def load(
    model: str | Path | None = None,
    *,
    softmax: bool = True,
    revision: str | None = None,
    local_files_only: bool = False,
    token: str | bool | None = None,
    cache_dir: str | Path | None = None,
    force_download: bool = False,
    allow_non_finite: bool = False,
) -> Pretrained:
    """Load a model of any published format, which is detected.

    Formats are elmokit's own directory; an *.hdf5 file of AllenNLP or bilm-tf next to its options, or the directory of
    both; the ELMo in a model that AllenNLP saved (model.tar.gz, or weights.th); a zip archive of the NLPL repository; a
    TensorFlow checkpoint of bilm-tf (its directory or PREFIX), or the module google/elmo as a SavedModel; a directory
    of ELMoForManyLangs; any of them but the zip archive in a tar archive.

    Args:
        model: A path, also of the model's config.json or options.json; the name of a bundled model; or OWNER/NAME on
            the Hugging Face Hub (which needs huggingface_hub), unless a path OWNER exists: hf:OWNER/NAME is always on
            the Hub. None: the bundled English model.
        softmax: Read the output layer of the language model too, where there is one. Vectors do not need it; scoring,
            fine-tuning and saving the whole model do.
        revision: Branch, tag or commit of a model on the Hub.
        local_files_only: Take a model of the Hub from the cache, without a network.
        token: An access token for the Hub; None: that of `hf auth login` or HF_TOKEN, if there is one.
        cache_dir: The cache for models of the Hub; None: that of huggingface_hub.
        force_download: Fetch the files of a model of the Hub again.
        allow_non_finite: Accept weights that are infinite or NaN.

    Returns:
        The model in float32, on the CPU.

    Raises:
        FileNotFoundError: There is no such model.
        CheckpointError: Its files are damaged or do not fit each other, or have weights that are not finite; the
            message names every offending key.
    """
    format, path = locate(
        model,
        revision=revision,
        local_files_only=local_files_only,
        token=token,
        cache_dir=cache_dir,
        force_download=force_download,
    )
    loaded = LOADERS[format](path, softmax)
    if not allow_non_finite:
        check_finite(path, _tensors_of(loaded))
    return loaded


def _tensors_of(model: Pretrained) -> dict[str, Tensor]:
    """All weights of a model by name, shared, not copied."""
    softmax = {} if model.softmax is None else model.softmax.state_dict(prefix="softmax.")
    state = {} if model.warm_state is None else {"state.h": model.warm_state.h, "state.c": model.warm_state.c}
    return {**model.bilm.state_dict(), **softmax, **state}


def resolve_model(model: ModelSource, *, softmax: bool = False) -> Pretrained:
    """The model itself if it is loaded, else `load(model)`; every function with an argument `model` uses this."""
    return model if isinstance(model, Pretrained) else load(model, softmax=softmax)


def save(model: Pretrained, directory: str | Path, *, overwrite: bool = False, storage_dtype: str = "float32") -> None:
    """Write a model as a directory in elmokit's own format, whole or not at all (docs/formats.md).

    Args:
        model: The model; what it lacks (softmax, vocabulary, card, ...) is left out.
        directory: A new or empty directory.
        overwrite: Replace a directory that holds a model in this format, and nothing else.
        storage_dtype: "float32", or "float16", which halves the files; both load as float32.

    Raises:
        FileExistsError: The path is a file, or a directory that is not empty, and `overwrite` is not set or it holds no
            such model, or other files.
        ValueError: `model` is not a `Pretrained`, weights are not finite in `storage_dtype`, the softmax has no
            vocabulary, or the biLM is prepacked.
        OSError: The directory cannot be written.
    """
    if not isinstance(model, Pretrained):
        raise ValueError(
            f"save takes the result of elmokit.load, not {type(model).__name__}: write save(load(...), ...)"
        )
    directory = Path(directory).expanduser()
    conform(StorageDtype, storage_dtype, "storage_dtype")
    if overwrite:
        check_overwritable(directory)
    with atomic_directory(directory, overwrite=overwrite) as partial:
        write_native(model, partial, storage_dtype)


def without_metadata(card: str) -> str:
    """A model card without the Hub's metadata at its beginning, YAML between two lines of dashes."""
    return re.sub(r"\A---\n.*?^---\n\s*", "", card, flags=re.DOTALL | re.MULTILINE)


def _settings(config: BiLMConfig) -> dict[str, Any]:
    """The configuration, with the sizes of dictionaries in place of their entries."""
    settings = config.to_dict()
    if encoder := settings.get("efml"):
        encoder |= {name: len(encoder[name]) for name in DICTIONARIES}
    return settings


def describe(model: str | Path | None = None) -> dict[str, Any]:
    """Describe a model for `elmokit info`: format, bytes of its files, sizes, settings, beginning of the card.

    The whole model is read, so that damaged files are found. `model` and errors are those of `load`, except that
    weights that are not finite are reported, not refused.
    """
    format, path = locate(model)
    loaded = LOADERS[format](path, True)
    config = loaded.config
    return {
        "path": str(path),
        "format": format.name,
        "files": {file.name: file.stat().st_size for file in format.files(path) if file.is_file()},
        "parameters": sum(parameter.numel() for parameter in loaded.bilm.parameters()),
        "non-finite weights": non_finite(_tensors_of(loaded)) or None,
        "input": loaded.bilm.token_encoder.input,
        "representations": config.num_representations,
        "output_dim": config.output_dim,
        "model": _settings(config),
        "vocabulary": None if loaded.vocab is None else len(loaded.vocab),
        "softmax": loaded.softmax is not None,
        "tokenizer": loaded.tokenizer,
        "state": loaded.state_policy,
        "mix": None if loaded.mix is None else asdict(loaded.mix),
        "card": without_metadata(loaded.card).splitlines()[:CARD_LINES],
        "fingerprint": fingerprint(loaded),
    }
