"""Models on the Hugging Face Hub: from OWNER/NAME, or the URL of its page, to a local directory.

huggingface_hub (elmokit's extra `hub`) fetches the files into its cache, where they are read like any others.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

# The files that loaders read: no code, and no pickles but those of ELMoForManyLangs and AllenNLP, from which nothing is
# executed.
FILES = (
    "*.json", "README.md", "vocab.txt", "vocab.txt.gz", "*.dic",
    "model.safetensors", "softmax.safetensors", "state.safetensors",
    "*.hdf5", "*weights*.h5", "weights_file", "weight_file", "weights", "options_file", "options",
    "checkpoint", "*.index", "*.data-?????-of-?????",
    "token_embedder.pkl", "encoder.pkl",
    "best.th", "weights.th", "fta/*options_file",
)  # fmt: skip
# A star matches slashes, too. Weights in a subdirectory belong to another model.
IGNORED = ("*/*.hdf5", "*/*.h5")

NAME = r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*"
ADDRESS = re.compile(rf"https?://(?:www\.)?(?:huggingface\.co|hf\.co)/({NAME})(?:/tree/([^/?#]+))?/?", re.ASCII)
PREFIX = "hf:"
# Names of missing local files rather than of models on the Hub.
FILE = re.compile(r".*\.(?:hdf5|h5|json|safetensors|th|zip|tar|tar\.gz|tgz|index)")


@dataclass(frozen=True)
class HubModel:
    """A repository on the Hub, at a branch, tag or commit (None: its main branch)."""

    name: str
    revision: str | None = None

    def __str__(self) -> str:
        return self.name if self.revision is None else f"{self.name} (revision {self.revision})"


def hub_model(name: str, revision: str | None = None) -> HubModel | None:
    """Parse the name of a model on the Hub.

    Args:
        name: OWNER/NAME, hf:OWNER/NAME, or https://huggingface.co/OWNER/NAME, also with /tree/REVISION.
        revision: Branch, tag or commit; it overrides the one in a URL.

    Returns:
        The repository; None if `name` cannot be one.

    Raises:
        ValueError: It is a URL of another site, or hf: without a name.
    """
    if name.startswith(PREFIX):
        if not re.fullmatch(NAME, name.removeprefix(PREFIX), re.ASCII):
            raise ValueError(f"{name!r} is not the name of a model on the Hugging Face Hub: write {PREFIX}OWNER/NAME")
        return HubModel(name.removeprefix(PREFIX), revision)
    if address := ADDRESS.fullmatch(name):
        return HubModel(address[1], revision or (address[2] and unquote(address[2])))
    if "://" in name:
        raise ValueError(f"{name}: models are fetched from https://huggingface.co/OWNER/NAME only; fetch it yourself")
    is_name = re.fullmatch(NAME, name, re.ASCII) and not FILE.fullmatch(name)
    return HubModel(name, revision) if is_name else None


def _failure(model: HubModel, error: Exception) -> OSError:
    """Translate an error of huggingface_hub into one that says what to do."""
    from huggingface_hub import errors

    if isinstance(error, errors.RevisionNotFoundError):
        return FileNotFoundError(f"{model.name} on the Hugging Face Hub has no revision {model.revision}")
    if isinstance(error, errors.GatedRepoError):
        page = f"https://huggingface.co/{model.name}"
        return PermissionError(f"{model} has terms to accept: accept them on {page}, and log in with `hf auth login`")
    if isinstance(error, errors.RepositoryNotFoundError | errors.HFValidationError):
        return FileNotFoundError(
            f"no model {model}, neither on this disk nor publicly on the Hugging Face Hub: check the name, or log in "
            "with `hf auth login` if it is private"
        )
    if isinstance(error, errors.LocalEntryNotFoundError):
        reason = f" ({error.__cause__})" if error.__cause__ else ""
        return FileNotFoundError(
            f"no model {model} on this disk, and the cache of the Hugging Face Hub, which was not reached{reason}, "
            "does not hold all of it: check the path, or load it once with a network, without local_files_only and "
            "HF_HUB_OFFLINE"
        )
    return OSError(f"{model} cannot be fetched from the Hugging Face Hub ({error}): try again later")


def download(
    model: HubModel,
    local_files_only: bool = False,
    *,
    token: str | bool | None = None,
    cache_dir: str | Path | None = None,
    force_download: bool = False,
) -> Path:
    """Fetch the files of a model that the cache lacks.

    Args:
        model: The repository.
        local_files_only: Fetch nothing, as with HF_HUB_OFFLINE=1 in the environment.
        token: An access token; None: that of `hf auth login` or HF_TOKEN, if there is one.
        cache_dir: The cache; None: that of huggingface_hub.
        force_download: Fetch also the files that the cache has.

    Returns:
        The directory with its files, in the cache.

    Raises:
        FileNotFoundError: There is no such model, the cache lacks files that may not be fetched, or huggingface_hub is
            not installed.
        OSError: The network or the Hub fails.
    """
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise FileNotFoundError(
            f"no model {model} on this disk, and huggingface_hub, which searches the Hugging Face Hub, is not "
            "installed: check the path, or pip install huggingface_hub (elmokit's extra hub)"
        ) from error
    try:
        directory = snapshot_download(
            model.name,
            revision=model.revision,
            allow_patterns=list(FILES),
            ignore_patterns=list(IGNORED),
            local_files_only=local_files_only,
            token=token,
            cache_dir=cache_dir,
            force_download=force_download,
        )
    # Connections fail with errors of the HTTP library, which differs between versions.
    except Exception as error:
        raise _failure(model, error) from error
    return Path(directory)
