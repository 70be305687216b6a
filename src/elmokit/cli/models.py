"""Verbs that convert, publish, describe and serve models."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import arg

from elmokit.cli.console import show
from elmokit.cli.options import (
    ComputeDtype,
    Device,
    Model,
    Overwrite,
    state_defaults_in_text,
)
from elmokit.serve.config import ServeConfig

state_defaults_in_text(ServeConfig)


@dataclass(frozen=True)
class Convert:
    """Convert a model to another format: elmokit's own, the HDF5 files of AllenNLP and bilm-tf, or
    ONNX.

    The function `elmokit.push_to_hub` publishes a model on the Hugging Face Hub.

    Examples, in a checkout of elmokit:
        elmokit convert --model en-small --to hdf5 --output runs/hdf5
    """

    model: str
    """Model to convert, in any format that `elmokit.load` reads."""
    output: Path
    """Directory for the model, or file for onnx."""
    to: Literal["native", "hdf5", "onnx"] = "native"
    """elmokit's directory, options.json and weights.hdf5, or an ONNX file."""
    overwrite: Overwrite = False

    def run(self) -> None:
        from elmokit.checkpoints import convert

        show(convert(self.model, self.output, self.to, overwrite=self.overwrite))


@dataclass(frozen=True)
class Info:
    """Describe a model (format, sizes, vocabulary, language, tokenizer) and available backends.

    Examples, in a checkout of elmokit:
        elmokit info
    """

    model: Model = None
    full: bool = False
    """Add the files, all settings, and the card, which says what the model was trained on and how
    good it is.
    """

    def run(self) -> None:
        from elmokit.checkpoints import describe
        from elmokit.ops import describe_backends

        facts = describe(self.model)
        card = facts.pop("card", [])
        if not self.full:
            details = {"files", "input", "model", "state", "mix", "fingerprint"}
            facts = {
                name: value
                for name, value in facts.items()
                if name not in details and value is not None
            }
            card = ["elmokit info --full prints all settings, and the card"]
        show({**facts, **describe_backends()})
        if card:
            print("", *card, sep="\n")


@dataclass(frozen=True)
class Serve:
    """Serve a model over HTTP, with a web page to explore it, until the process is stopped.

    It serves vectors in the formats of OpenAI's API and of text-embeddings-inference; neighbors,
    senses, scores and substitutes of words; and predictions of a task model.
    docs/tutorials/serve.md describes the requests.

    Examples, in a checkout of elmokit:
        elmokit serve --corpus examples/data/sentences.txt
        elmokit serve --model en-small --task-model runs/tagger --port 8080
    """

    model: Model = None
    config: Annotated[ServeConfig, arg(name="")] = ServeConfig()  # noqa: RUF009
    dtype: ComputeDtype = "float32"
    device: Device = None

    def run(self) -> None:
        try:
            from elmokit.serve.server import serve
        except ModuleNotFoundError as error:
            libraries = "fastapi uvicorn prometheus-client"
            raise ValueError(f"{error}: pip install {libraries} (elmokit's extra serve)") from error
        serve(self.model, self.config, self.device, self.dtype)
