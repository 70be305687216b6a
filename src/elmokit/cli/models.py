"""Verbs that convert and describe models."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional

from elmokit.cli.options import UNSET, Model, Overwrite
from elmokit.cli.show import show


@dataclass(frozen=True)
class Convert:
    """Convert a model to another format: elmokit's own, or the HDF5 files of AllenNLP and bilm-tf."""

    input: Positional[str]
    """Model to convert, in any format that `elmokit.load` reads."""
    output: Path
    """Directory for the model, or HDF5 file for token-embeddings."""
    to: Literal["native", "hdf5", "token-embeddings"] = "native"
    """elmokit's directory, options.json and weights.hdf5, or bilm-tf's file of context-independent vectors."""
    vocab: Annotated[Path | None, UNSET] = None
    """Words for token-embeddings, one per line (default: the model's vocabulary)."""
    overwrite: Overwrite = False

    def run(self) -> None:
        from elmokit.checkpoints.convert import convert

        show(convert(**vars(self)))


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
