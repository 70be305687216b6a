"""The commands of older libraries."""

from dataclasses import dataclass
from typing import Annotated

from tyro.conf import arg, subcommand

from elmokit.compat.commands import AllenNLPElmo, ELMoForManyLangsTest


@dataclass(frozen=True)
class Compat:
    """Run a command of an older library with its flags."""

    library: Annotated[
        Annotated[AllenNLPElmo, subcommand("allennlp-elmo")]
        | Annotated[ELMoForManyLangsTest, subcommand("elmoformanylangs")],
        arg(name=""),
    ]

    def run(self) -> None:
        self.library.run()
