"""The verb that serves a model."""

from dataclasses import dataclass
from typing import Annotated

from tyro.conf import Positional, arg

from elmokit.cli.options import ComputeDtype, Device, Model, state_defaults_in_text
from elmokit.serve.config import ServeConfig

state_defaults_in_text(ServeConfig)


@dataclass(frozen=True)
class Serve:
    """Serve a model over HTTP, with a web page to explore it, until the process is stopped.

    It serves vectors in the formats of OpenAI's API and of text-embeddings-inference; neighbors, senses, scores and
    substitutes of words; and predictions of a task model. docs/tutorials/serve.md describes the requests.
    """

    model: Positional[Model] = None
    config: Annotated[ServeConfig, arg(name="")] = ServeConfig()  # noqa: RUF009 (frozen)
    dtype: ComputeDtype = "float32"
    device: Device = None

    def run(self) -> None:
        from elmokit.serve.server import serve

        serve(self.model, self.config, self.device, self.dtype)
