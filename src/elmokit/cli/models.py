"""Verbs about the files of a model."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional

from elmokit.cli.options import UNSET, Model
from elmokit.cli.show import show


@dataclass(frozen=True)
class Convert:
    """Write a model in another format: elmokit's own, or HDF5 as AllenNLP and bilm-tf read it."""

    input: Positional[str]
    """Model in any format that can be loaded."""
    output: Path
    """Directory for the model, or the HDF5 file for token-embeddings. It must not exist."""
    to: Literal["native", "hdf5", "token-embeddings"] = "native"
    """elmokit's directory, options.json with weights.hdf5, or bilm-tf's file of the vectors of single words."""
    vocab: Annotated[Path | None, UNSET] = None
    """Words for token-embeddings, one a line; the model's own when not given."""

    def run(self) -> None:
        from elmokit.checkpoints.convert import convert

        show(convert(**vars(self)))


@dataclass(frozen=True)
class Info:
    """Print what a model is: format, sizes, vocabulary, tokenizer and card; and whether there are compiled kernels."""

    model: Positional[Model] = None

    def run(self) -> None:
        from elmokit.checkpoints.loading import describe
        from elmokit.ops.dispatch import available_backends, get_backend

        found = describe(self.model)
        card = found.pop("card", [])
        show({**found, "backend": get_backend(), "available backends": list(available_backends())})
        if card:
            print("", *card, sep="\n")
