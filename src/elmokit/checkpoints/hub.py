"""Models on the Hugging Face Hub: from OWNER/NAME, or the address of its page, to a directory on this disk.

huggingface_hub (the extra `hub`) fetches the files and keeps them in its cache, where they are read like any others.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

# What the formats read, and no more: never code, and of pickles only the two of ELMoForManyLangs, which are not run.
FILES = (
    "*.json", "README.md", "vocab.txt", "vocab.txt.gz", "*.dic",
    "model.safetensors", "softmax.safetensors", "state.safetensors",
    "*.hdf5",
    "checkpoint", "*.index", "*.data-?????-of-?????",
    "token_embedder.pkl", "encoder.pkl",
)  # fmt: skip
# A star takes folders too. Weights in a folder are those of another model, which nobody asked for.
OTHERS = ("*/*.hdf5",)

NAME = r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*"
ADDRESS = re.compile(rf"https?://(?:www\.)?(?:huggingface\.co|hf\.co)/({NAME})(?:/tree/([^/?#]+))?/?", re.ASCII)
# What ends so is a file that is missing on this disk.
FILE = re.compile(r".*\.(?:hdf5|h5|zip|index)")


@dataclass(frozen=True)
class HubModel:
    """A repository of the Hub, and the branch, tag or commit that is meant (None: its main branch)."""

    name: str
    revision: str | None = None

    def __str__(self) -> str:
        return self.name if self.revision is None else f"{self.name} (revision {self.revision})"


def hub_model(name: str, revision: str | None = None) -> HubModel | None:
    """What a name means on the Hub: OWNER/NAME, or https://huggingface.co/OWNER/NAME, also with /tree/REVISION.

    None where it can be nothing there, ValueError for the address of another place.
    """
    if address := ADDRESS.fullmatch(name):
        return HubModel(address[1], revision or (address[2] and unquote(address[2])))
    if "://" in name:
        raise ValueError(f"{name}: models are fetched from https://huggingface.co/OWNER/NAME only; fetch it yourself")
    is_name = re.fullmatch(NAME, name, re.ASCII) and not FILE.fullmatch(name)
    return HubModel(name, revision) if is_name else None


def _failure(model: HubModel, error: Exception) -> OSError:
    """What huggingface_hub ran into, in one sentence that says what to do."""
    from huggingface_hub import errors

    if isinstance(error, errors.RevisionNotFoundError):
        return FileNotFoundError(f"{model.name} on the Hugging Face Hub has no revision {model.revision}")
    if isinstance(error, errors.GatedRepoError):
        page = f"https://huggingface.co/{model.name}"
        return PermissionError(f"{model} has terms to agree to: do so on {page}, and log in with `hf auth login`")
    if isinstance(error, errors.RepositoryNotFoundError | errors.HFValidationError):
        return FileNotFoundError(
            f"no model {model}, neither on this disk nor for everyone on the Hugging Face Hub: check the name, or "
            "log in with `hf auth login` where it is private"
        )
    if isinstance(error, errors.LocalEntryNotFoundError):
        reason = f" ({error.__cause__})" if error.__cause__ else ""
        return FileNotFoundError(
            f"no model {model} on this disk, nor all of it in the cache of the Hugging Face Hub, which was not "
            f"reached{reason}: check the path, or load it once with a network, without local_files_only and "
            "HF_HUB_OFFLINE"
        )
    return OSError(f"{model} cannot be fetched from the Hugging Face Hub ({error}): try again later")


def download(model: HubModel, local_files_only: bool = False) -> Path:
    """The directory of a model's files, of which those that the cache lacks are fetched now.

    With `local_files_only`, or HF_HUB_OFFLINE=1 in the environment, none is. FileNotFoundError where there is no such
    model, where it is not to be fetched, and where huggingface_hub is missing; OSError for other trouble on the way.
    """
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise FileNotFoundError(
            f"no model {model} on this disk, and huggingface_hub, which would look on the Hugging Face Hub, is not "
            "installed: check the path, or pip install huggingface_hub (elmokit's extra hub)"
        ) from error
    try:
        directory = snapshot_download(
            model.name,
            revision=model.revision,
            allow_patterns=list(FILES),
            ignore_patterns=list(OTHERS),
            local_files_only=local_files_only,
        )
    # Connections fail with errors of the library beneath, which is another in other versions.
    except Exception as error:
        raise _failure(model, error) from error
    return Path(directory)
