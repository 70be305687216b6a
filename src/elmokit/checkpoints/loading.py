"""Load, save and describe models, given by a path, the name of a bundled model, or a name on the
Hugging Face Hub.
"""

import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from elmokit.checkpoints.allennlp import find_allennlp, load_allennlp
from elmokit.checkpoints.archives import find_archive, unpacked
from elmokit.checkpoints.bilm_hdf5 import find_hdf5, find_options, load_bilm_hdf5
from elmokit.checkpoints.efml import find_efml, load_efml
from elmokit.checkpoints.hub import PREFIX, download, hub_model
from elmokit.checkpoints.native import DICTIONARIES, LAYOUT, load_native, write_native
from elmokit.checkpoints.pretrained import (
    CheckpointError,
    Pretrained,
    check_finite,
    errors_naming,
)
from elmokit.checkpoints.tf_checkpoint import find_prefix, load_tf_checkpoint
from elmokit.fs import atomic_directory, check_output
from elmokit.settings import StorageDtype, conform

DEFAULT_MODEL = "en-small"
BUNDLED_MODELS = Path(__file__).parents[1] / "models"
CARD_LINES = 16
ELMO_MODULE = "0_ElmoModule"  # the first module of a SentenceTransformer, with a model of ours

# A path, the name of a bundled model, a name on the Hub, or None for the bundled English model; or
# a loaded model.
ModelSource: TypeAlias = Pretrained | str | Path | None


# --- Formats --------------------------------------------------------------------------------------


class Format(NamedTuple):
    """A format of models on disk.

    Attributes:
        name: Its name, for users.
        find: Maps a path to the path that the loader reads; None if it is not of this format. It
            opens no weights, but reads the first bytes of files without a suffix.
        load: Loads the model from that path, with its softmax if that is asked for.
    """

    name: str
    find: Callable[[Path], Path | None]
    load: Callable[[Path, bool], Pretrained]


def _find_native(path: Path) -> Path | None:
    """A directory with config.json, unless its weights show that this is of another program."""
    if (path / ELMO_MODULE).is_dir():
        path = path / ELMO_MODULE
    if not (path / "config.json").is_file():
        return None
    if (path / "model.safetensors").is_file():
        return path
    weights = find_hdf5(path)
    is_other = find_prefix(path) if weights is None else find_options(weights).is_file()
    return None if is_other else path


def _load_archive(archive: Path, softmax: bool) -> Pretrained:
    """Load the only model in an archive. ValueError if there is none, or more than one."""
    with unpacked(archive) as folder:
        try:
            folders = (folder, *sorted(path for path in folder.rglob("*") if path.is_dir()))
            models = list(dict.fromkeys(filter(None, map(_detect, folders))))
            if len(models) != 1:
                names = ", ".join(str(path.relative_to(folder)) for _, path in models) or "none"
                raise ValueError(
                    f"it must hold one model, but holds {names}: unpack it, and name one"
                )
            return _load(*models[0], softmax)
        except (ValueError, FileNotFoundError) as error:
            # Users know the archive, not the temporary folder.
            raise CheckpointError(f"{archive}: {str(error).replace(f'{folder}/', '')}") from error


# The first match counts. Directories of ELMoForManyLangs and AllenNLP hold a config.json, as native
# ones do.
FORMATS = (
    Format("ELMoForManyLangs", find_efml, lambda path, softmax: load_efml(path)),
    Format("AllenNLP model", find_allennlp, lambda path, softmax: load_allennlp(path)),
    Format("elmokit 1", _find_native, load_native),
    Format("AllenNLP / bilm-tf HDF5", find_hdf5, lambda path, softmax: load_bilm_hdf5(path)),
    Format("archive", find_archive, _load_archive),
    Format("TensorFlow variables", find_prefix, load_tf_checkpoint),
)


def _detect(path: Path) -> tuple[Format, Path] | None:
    """The format of the model at a path, and the path that its loader reads; None if there is none.

    Raises:
        CheckpointError: The path is a directory with several HDF5 files.
    """
    for format in FORMATS:
        if (readable := format.find(path)) is not None:
            return format, readable
    return None


def _load(format: Format, path: Path, softmax: bool) -> Pretrained:
    with errors_naming(path):
        for file in (path, *(path.iterdir() if path.is_dir() else ())):
            if file.exists() and not (file.is_file() or file.is_dir()):
                raise FileNotFoundError(f"{file} is not a regular file")  # a pipe would block
        model = format.load(path, softmax)
    check_finite(path, model.tensors())
    return model


# --- Loading --------------------------------------------------------------------------------------


def list_models() -> list[str]:
    """The names of the models that come with the package, sorted; `load` takes each of them."""
    return sorted(config.parent.name for config in BUNDLED_MODELS.glob("*/config.json"))


def _locate(
    model: str | Path | None, revision: str | None = None, **options: Any
) -> tuple[Format, Path]:
    """The format of a model, and the path that its loader reads; one on the Hub is fetched."""
    if not isinstance(model, str | Path | None):
        raise ValueError(
            f"a model must be a path, a name, or the result of elmokit.load, not "
            f"{type(model).__name__}"
        )
    name = str(BUNDLED_MODELS / DEFAULT_MODEL if model is None else model)
    path, found = Path(name).expanduser(), None
    if not name.startswith((PREFIX, "https://", "http://")):
        # A file of a model, such as config.json, stands for its directory.
        of_file = path.parent if path.is_file() else path
        found = _detect(path) or _detect(of_file) or _detect(BUNDLED_MODELS / name)
    #   en-small             the bundled model, unless a directory of this name is here
    #   owner/name           a path; on the Hub where there is no directory `owner`
    #   hf:owner/name        on the Hub
    #
    # If a exists, a/b is a path, possibly mistyped, and not a name on the Hub.
    is_path = found is not None or path.exists() or Path(*path.parts[:1]).exists()
    on_hub = None if is_path else hub_model(name, revision)
    if revision is not None and on_hub is None:
        raise ValueError(
            f"only models on the Hugging Face Hub have revisions: write {PREFIX}OWNER/NAME, not "
            f"{name!r}"
        )
    if on_hub is not None:
        found = _detect(download(on_hub, **options))
    if found is None and (path / "checkpoints").is_dir():
        raise FileNotFoundError(
            f"{path} is a run: name its model, {path / 'model'}, or if it has none, repeat its "
            "command, which resumes it"
        )
    if found is None:
        raise FileNotFoundError(
            f"no model {name!r}: looked for a directory or repository with config.json, with "
            "options.json and one *.hdf5, with encoder.pkl of ELMoForManyLangs, with weights.th of "
            "AllenNLP, or with a TensorFlow checkpoint or SavedModel; for an archive; and for a "
            f"bundled model of that name (there are: {', '.join(list_models()) or 'none'}); for a "
            f"model on the Hugging Face Hub, write {PREFIX}OWNER/NAME"
        )
    return found


def load(
    model: ModelSource = None,
    *,
    softmax: bool = True,
    revision: str | None = None,
    local_files_only: bool = False,
    token: str | bool | None = None,
    cache_dir: str | Path | None = None,
    force_download: bool = False,
    options: str | Path | None = None,
    vocab: str | Path | None = None,
) -> Pretrained:
    """Load a model of any published format, which is detected.

    Formats are elmokit's own directory; an *.hdf5 file of AllenNLP or bilm-tf next to its options,
    or the directory of both; the ELMo in a model that AllenNLP saved (model.tar.gz, or weights.th);
    a TensorFlow checkpoint of bilm-tf (its directory or PREFIX), or the module google/elmo as a
    SavedModel; a directory of ELMoForManyLangs; a saved SentenceTransformer that begins with
    elmokit's module; any of them in a tar archive, or in a zip archive, such as those of the NLPL
    repository.

    Args:
        model: A path, also of the model's config.json or options.json; the name of a bundled model;
            or OWNER/NAME on the Hugging Face Hub (which needs huggingface_hub), unless a path OWNER
            exists: hf:OWNER/NAME is always on the Hub. None: the bundled English model. A loaded
            model is returned itself.
        softmax: Read the output layer of the language model too, where there is one. Vectors do not
            need it; scoring, fine-tuning and saving the whole model do.
        revision: Branch, tag or commit of a model on the Hub.
        local_files_only: Take a model of the Hub from the cache, without a network.
        token: An access token for the Hub; None: that of `hf auth login` or HF_TOKEN, if there is
            one.
        cache_dir: The cache for models of the Hub; None: that of huggingface_hub.
        force_download: Fetch the files of a model of the Hub again.
        options: For an *.hdf5 file, the path of its options, if they are elsewhere.
        vocab: With `options`, the path of its vocabulary, if that is elsewhere.

    Returns:
        The model in float32, on the CPU.

    Raises:
        FileNotFoundError: There is no such model, or a file of it is missing.
        CheckpointError: Its files are damaged or do not fit each other, or have weights that are
            not finite; the message names every offending key.
    """
    model = getattr(model, "model", model)  # an Embedder has a model
    if isinstance(model, Pretrained):
        return model
    if options is not None:
        files = [None if path is None else Path(path).expanduser() for path in (options, vocab)]
        load_pair = Format("", Path.absolute, lambda path, softmax: load_bilm_hdf5(path, *files))
        return _load(load_pair, Path(str(model)).expanduser(), softmax)
    of_hub = {"token": token, "cache_dir": cache_dir, "force_download": force_download}
    found = _locate(model, revision, local_files_only=local_files_only, **of_hub)
    return _load(*found, softmax)


def describe(model: str | Path | None = None) -> dict[str, Any]:
    """Describe a model for `elmokit info`: format, bytes of its files, sizes, settings, beginning
    of the card.

    The whole model is read, so that damaged files are found. `model` and errors are those of
    `load`.
    """
    format, path = _locate(model)
    loaded = _load(format, path, softmax=True)
    config, settings = loaded.config, loaded.config.to_dict()
    # Without the Hub's metadata, YAML between two lines of dashes.
    card = re.sub(r"\A---\n.*?^---\n\s*", "", loaded.card, flags=re.DOTALL | re.MULTILINE)
    if encoder := settings.get("efml"):
        encoder |= {name: len(encoder[name]) for name in DICTIONARIES}
    files = path.iterdir() if path.is_dir() else path.parent.glob(f"{path.name}*")
    return {
        "path": str(path),
        "format": format.name,
        "files": {file.name: file.stat().st_size for file in sorted(files) if file.is_file()},
        "parameters": sum(parameter.numel() for parameter in loaded.bilm.parameters()),
        "input": loaded.bilm.token_encoder.input,
        "layers": config.num_representations,
        "dimensions": config.output_dim,
        "model": settings,
        "vocabulary": None if loaded.vocab is None else len(loaded.vocab),
        "softmax": loaded.softmax is not None,
        "tokenizer": loaded.tokenizer,
        "language": loaded.language,
        "state": loaded.state_policy,
        "mix": None if loaded.mix is None else asdict(loaded.mix),
        "card": card.splitlines()[:CARD_LINES],
        "fingerprint": loaded.fingerprint(),
    }


# --- Saving ---------------------------------------------------------------------------------------


def save(
    model: Pretrained,
    directory: str | Path,
    *,
    overwrite: bool = False,
    storage_dtype: str = "float32",
) -> None:
    """Write a model as a directory in elmokit's own format, whole or not at all (docs/formats.md).

    Args:
        model: The model; what it lacks (softmax, vocabulary, card, ...) is left out.
        directory: A new or empty directory.
        overwrite: Replace a directory that holds a model in this format, and nothing else.
        storage_dtype: "float32", or "float16", which halves the files; both load as float32.

    Raises:
        FileExistsError: The path is a file, or a directory that is not empty, and `overwrite` is
            not set or it holds no such model, or other files.
        ValueError: `model` is not a `Pretrained`, weights are not finite in `storage_dtype`, the
            softmax has no vocabulary, or the biLM is prepacked.
        OSError: The directory cannot be written.
    """
    if not isinstance(model, Pretrained):
        raise ValueError(f"save takes the result of elmokit.load, not {type(model).__name__}")
    conform(StorageDtype, storage_dtype, "storage_dtype")
    if overwrite:
        check_output(directory, [], overwrite=True, **LAYOUT)
    with atomic_directory(directory, overwrite=overwrite) as partial:
        write_native(model, partial, storage_dtype)
