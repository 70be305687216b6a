"""The commands of older libraries, with their flags."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg, subcommand

from elmokit.cli.options import UNSET


@dataclass(frozen=True)
class AllenNLPElmo:
    """AllenNLP's command `allennlp elmo`: all layers, or one, of tokenized text to an HDF5 file."""

    input_file: Positional[Path]
    """Tokenized text (plain, .gz or .zst), one sentence a line, no blank lines."""
    output_file: Positional[Path]
    """HDF5 file for the vectors, a dataset a line."""
    all: bool = False
    """Write all layers of every word: exactly one of all, top and average."""
    top: bool = False
    """Write the top layer."""
    average: bool = False
    """Write the mean of the layers."""
    options_file: Annotated[str | None, UNSET] = None
    """options.json; AllenNLP's default, from its cache, when not given."""
    weight_file: Annotated[str | None, UNSET] = None
    """The weights in HDF5; AllenNLP's default, from its cache, when not given."""
    batch_size: int = 64
    """Sentences side by side: sentence i goes on from the state of sentence i - batch size."""
    cuda_device: int = -1
    """Number of the GPU; -1 for the CPU."""
    forget_sentences: bool = False
    """Leave out the table from sentences to lines."""
    use_sentence_keys: bool = False
    """Name the datasets by the sentences, not by the lines' numbers."""
    vocab_path: Annotated[str | None, UNSET] = None
    """Changes nothing, nor did it."""
    file_friendly_logging: bool = False
    """Changes nothing."""
    include_package: tuple[str, ...] = ()
    """Changes nothing."""

    def run(self) -> None:
        from elmokit.compat.allennlp import allennlp_elmo

        allennlp_elmo(**{name: value for name, value in vars(self).items() if value is not None})


@dataclass(frozen=True)
class ELMoForManyLangsTest:
    """ELMoForManyLangs' command `python -m elmoformanylangs test`: layers of tokenized text to HDF5 or text files."""

    command: Positional[Literal["test"]]
    """test, the one that embeds."""
    model: str
    """Directory of the model, or any other model that can be loaded."""
    input: Path
    """The text (plain, .gz or .zst)."""
    output_prefix: str
    """Beginning of the files' names: OUTPUT_PREFIX.ly{layer}.{format}."""
    output_layer: str
    """Layers with commas between them: 0 for the tokens, 1 and 2 for the LSTMs, -1 for the average of all."""
    output_format: str = "hdf5"
    """hdf5 (a dataset a sentence), txt (a line a word), or both with a comma between them."""
    input_format: Literal["plain", "conll", "conll_char", "conll_char_vi"] = "plain"
    """A sentence a line, words between tabs; CoNLL-U; CoNLL-U by characters, or by the parts of each word."""
    batch_size: Annotated[int, arg(aliases=("--batch",))] = 1
    """Sentences side by side: sentence i goes on from the state of sentence i - batch size."""
    gpu: int = -1
    """Number of the GPU; -1 for the CPU."""

    def run(self) -> None:
        from elmokit.compat.elmoformanylangs import elmoformanylangs_test

        elmoformanylangs_test(**{name: value for name, value in vars(self).items() if name != "command"})


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
