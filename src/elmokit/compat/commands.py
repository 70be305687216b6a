"""The commands of older libraries, with their original flags: for `elmokit compat`, and under their own names."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import (
    DisallowNone,
    Positional,
    PositionalMetavarFromFieldName,
    UseAppendAction,
    arg,
    create_mutex_group,
)

TYRO_CONFIG = (DisallowNone, PositionalMetavarFromFieldName)  # of all command lines of elmokit
UNSET = arg(help_behavior_hint="")  # no "(default: None)": the help text itself states the default
ONE_OF_LAYERS = create_mutex_group(required=True, title="layers")


@dataclass(frozen=True)
class AllenNLPElmo:
    """AllenNLP's command `allennlp elmo`: write the layers of tokenized text to an HDF5 file."""

    input_file: Positional[Path]
    """Tokenized text (plain, .gz or .zst), one sentence per line, no blank lines."""
    output_file: Positional[Path]
    """HDF5 file for the vectors, one dataset per line."""
    all: Annotated[bool, ONE_OF_LAYERS] = False
    """Write all layers."""
    top: Annotated[bool, ONE_OF_LAYERS] = False
    """Write the top layer."""
    average: Annotated[bool, ONE_OF_LAYERS] = False
    """Write the average of the layers."""
    options_file: Annotated[str | None, UNSET] = None
    """options.json of the model (default: AllenNLP's default model, from its cache)."""
    weight_file: Annotated[str | None, UNSET] = None
    """HDF5 weights of the model (default: AllenNLP's default model, from its cache)."""
    batch_size: int = 64
    """Sentences per batch: sentence i starts from the final state of sentence i - batch size."""
    cuda_device: int = -1
    """Index of the GPU; -1 for the CPU."""
    forget_sentences: bool = False
    """Omit the mapping from sentences to line numbers."""
    use_sentence_keys: bool = False
    """Name the datasets after the sentences instead of the line numbers."""
    vocab_path: Annotated[str | None, UNSET] = None
    """Ignored, as in AllenNLP."""
    file_friendly_logging: bool = False
    """Ignored."""
    include_package: Annotated[UseAppendAction[tuple[str, ...]], UNSET] = ()
    """Ignored."""

    def run(self) -> None:
        from elmokit.compat.allennlp import allennlp_elmo

        allennlp_elmo(**{name: value for name, value in vars(self).items() if value is not None})


@dataclass(frozen=True)
class ELMoForManyLangsTest:
    """ELMoForManyLangs' `python -m elmoformanylangs test`: write layers of tokenized text to HDF5 or text files."""

    command: Positional[Literal["test"]]
    """Subcommand; only test, which embeds text, is supported."""
    model: str
    """Directory of the model, or any other model that `elmokit.load` reads."""
    input: Path
    """Text (plain, .gz or .zst)."""
    output_prefix: str
    """Prefix of the output files, OUTPUT_PREFIX.ly{layer}.{format}."""
    output_layer: str
    """Comma-separated layers: 0 for the tokens, 1 and 2 for the LSTM layers, -1 for the average of all."""
    output_format: str = "hdf5"
    """hdf5 (one dataset per sentence), txt (one line per word), or both, separated by a comma."""
    input_format: Literal["plain", "conll", "conll_char", "conll_char_vi"] = "plain"
    """Words separated by tabs; CoNLL-U; CoNLL-U split into characters, or with words split at spaces."""
    batch_size: Annotated[int, arg(aliases=("--batch",))] = 1
    """Sentences per batch: sentence i starts from the final state of sentence i - batch size."""
    gpu: int = -1
    """Index of the GPU; -1 for the CPU."""

    def run(self) -> None:
        from elmokit.compat.elmoformanylangs import elmoformanylangs_test

        elmoformanylangs_test(**{name: value for name, value in vars(self).items() if name != "command"})
