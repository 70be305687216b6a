"""Verbs that convert and describe models."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from elmokit.cli.options import UNSET, Model, Overwrite, StorageDtype
from elmokit.cli.show import show


@dataclass(frozen=True)
class Convert:
    """Convert a model to another format: elmokit's own, the HDF5 files of AllenNLP and bilm-tf, or ONNX."""

    input: Positional[str]
    """Model to convert, in any format that `elmokit.load` reads."""
    output: Path
    """Directory for the model, or file for onnx and token-embeddings."""
    to: Literal["native", "hdf5", "onnx", "token-embeddings"] = "native"
    """elmokit's directory, options.json and weights.hdf5, an ONNX file, or bilm-tf's context-independent vectors."""
    vocab: Annotated[Path | None, UNSET] = None
    """Words for token-embeddings, one per line (default: the model's vocabulary)."""
    overwrite: Overwrite = False

    def run(self) -> None:
        from elmokit.checkpoints.convert import convert

        show(convert(**vars(self)))


@dataclass(frozen=True)
class Push:
    """Put a model on the Hugging Face Hub. Needs huggingface_hub, and a token: log in with `hf auth login`."""

    model: Positional[str]
    """Model, in any format that `elmokit.load` reads."""
    repo_id: Annotated[Positional[str], arg(metavar="OWNER/NAME")]
    """Repository, created if it does not exist. Its model is replaced in one commit; other files stay."""
    private: Annotated[bool | None, UNSET] = None
    """Create the repository as private (default: the Hub's default for its owner)."""
    revision: Annotated[str | None, UNSET] = None
    """Branch to commit to, created if it does not exist (default: main)."""
    commit_message: str = "Upload a model of elmokit"
    """Subject of the commit."""
    create_pr: bool = False
    """Open a pull request instead of committing to the branch."""
    license: Annotated[str | None, UNSET] = None
    """License for the card, by the Hub's identifier, such as cc-by-sa-4.0 (default: what the card says)."""
    language: Annotated[str | None, UNSET] = None
    """Language code for the card (default: what the card says)."""
    storage_dtype: StorageDtype = "float32"

    def run(self) -> None:
        from elmokit.checkpoints.push import push_to_hub

        print(push_to_hub(**vars(self)))


@dataclass(frozen=True)
class Info:
    """Describe a model (format, sizes, vocabulary, tokenizer, card) and the available backends."""

    model: Positional[Model] = None

    def run(self) -> None:
        from elmokit.checkpoints.loading import describe
        from elmokit.ops.dispatch import available_backends, get_backend
        from elmokit.ops.native.library import describe_target

        description = describe(self.model)
        card = description.pop("card", [])
        backends = {"backend": get_backend(), "available backends": list(available_backends())}
        show({**description, **backends, "instruction set": describe_target()})
        if card:
            print("", *card, sep="\n")
