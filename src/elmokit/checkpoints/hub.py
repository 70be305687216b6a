"""Models on the Hugging Face Hub: from OWNER/NAME, or the URL of its page, to a local directory.

huggingface_hub (elmokit's extra `hub`) fetches the files into its cache, where they are read like
any others.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

# The files that loaders read, the last ones in the modules of a SentenceTransformer: no code, and
# the only pickles are of ELMoForManyLangs and AllenNLP, which are read without executing them.
FILES = (
    "*.json", "README.md", "*vocab*.txt", "vocab.txt.gz", "*.dic",
    "model.safetensors", "softmax.safetensors", "state.safetensors",
    "*.hdf5", "*weights*.h5", "weights_file", "weight_file", "weights", "options_file", "options",
    "checkpoint", "*.index", "*.data-?????-of-?????",
    "token_embedder.pkl", "encoder.pkl",
    "best.th", "weights.th", "fta/*options_file",
    "[0-9]_*/*.safetensors", "[0-9]_*/vocab.txt", "[0-9]_*/README.md",
)  # fmt: skip
# A star matches slashes, too. Weights in a subdirectory belong to another model.
IGNORED = ("*/*.hdf5", "*/*.h5")

NAME = r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*"
ADDRESS = re.compile(
    rf"https?://(?:www\.)?(?:huggingface\.co|hf\.co)/({NAME})(?:/tree/([^/?#]+))?/?", re.ASCII
)
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
        name: OWNER/NAME, hf:OWNER/NAME, or https://huggingface.co/OWNER/NAME, also with
            /tree/REVISION.
        revision: Branch, tag or commit; it overrides the one in a URL.

    Returns:
        The repository; None if `name` cannot be one.

    Raises:
        ValueError: It is a URL of another site, or hf: without a name.
    """
    if address := ADDRESS.fullmatch(name):
        return HubModel(address[1], revision or (address[2] and unquote(address[2])))
    is_explicit, plain = name.startswith(PREFIX), name.removeprefix(PREFIX)
    if re.fullmatch(NAME, plain, re.ASCII) and (is_explicit or not FILE.fullmatch(plain)):
        return HubModel(plain, revision)
    if is_explicit or "://" in name:
        raise ValueError(
            f"{name!r} is neither {PREFIX}OWNER/NAME nor https://huggingface.co/OWNER/NAME"
        )
    return None


def download(model: HubModel, **options: Any) -> Path:
    """Fetch the files of a model that the cache lacks.

    Args:
        model: The repository.
        options: local_files_only, token, cache_dir and force_download, as for `elmokit.load`.

    Returns:
        The directory with its files, in the cache.

    Raises:
        FileNotFoundError: There is no such model, the cache lacks files that may not be fetched, or
            huggingface_hub is not installed.
        OSError: The network or the Hub fails, or wants another token.
    """
    try:
        from huggingface_hub import errors, snapshot_download
    except ImportError as error:
        raise FileNotFoundError(
            f"no model {model} on this disk, and huggingface_hub, which searches the Hugging Face "
            "Hub, is not installed: check the path, or pip install huggingface_hub (elmokit's "
            "extra hub)"
        ) from error
    files = {"allow_patterns": list(FILES), "ignore_patterns": list(IGNORED)}
    try:
        return Path(snapshot_download(model.name, revision=model.revision, **files, **options))
    # Connections fail with errors of the HTTP library, which differs between versions.
    except Exception as error:
        absent = (
            errors.RepositoryNotFoundError,
            errors.RevisionNotFoundError,
            errors.LocalEntryNotFoundError,
        )
        is_absent = isinstance(error, absent) and not isinstance(error, errors.GatedRepoError)
        raise (FileNotFoundError if is_absent else OSError)(
            f"no model {model} on this disk, and it was not fetched from the Hugging Face Hub "
            f"({reason_of(error)}): check the name, and log in with `hf auth login` if it is "
            "private"
        ) from error


def reason_of(error: Exception) -> str:
    """The message of an error of huggingface_hub in one line."""
    return " ".join(str(error).split()) or type(error).__name__
