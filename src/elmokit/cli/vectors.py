"""Verbs that compute vectors."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from elmokit.cli.console import show
from elmokit.cli.options import (
    LAYERS,
    UNSET,
    Column,
    ComputeDtype,
    Device,
    Layers,
    Model,
    OneLayer,
    OptionalState,
    Overwrite,
    StorageDtype,
    Tokenize,
)

EMBED_OUTPUT = (
    "Directory for the vectors, or a file name ending in .hdf5 or .h5 for AllenNLP's layout, or in "
    ".parquet for a table."
)
POOLING = (
    "Vector of a line: the mean or the max over its words, or text, the map that the model learned "
    "from another model's vectors of texts (default: text where there is a map and no layers are "
    "chosen, else mean)."
)


@dataclass(frozen=True)
class Embed:
    """Write the contextual vectors of every word of a file. Rerun to resume an interrupted run.

    Examples, in a checkout of elmokit:
        elmokit embed examples/data/sentences.txt --output runs/vectors
        elmokit embed examples/data/sentences.txt --output runs/layers.hdf5 --layers all
    """

    file: Positional[Path]
    """Text, one sentence per line, a table (.csv, .tsv, .jsonl or .parquet), or FASTA, whose words
    are residues. Plain, .gz or .zst.
    """
    output: Annotated[Path, arg(help=EMBED_OUTPUT)]
    model: Model = None
    layers: Annotated[Layers, arg(help=f"{LAYERS}.")] = "mix"
    state: OptionalState = None
    dtype: ComputeDtype = "float32"
    storage_dtype: StorageDtype = "float32"
    device: Device = None
    tokenize: Tokenize = True
    column: Column = None
    sentences_per_part: int = 1000
    """Sentences in a file of the output directory; an interrupted run recomputes the unfinished
    ones.
    """
    overwrite: Overwrite = False

    def run(self) -> None:
        from elmokit.embed import embed_file

        show(embed_file(**vars(self)))


@dataclass(frozen=True)
class Encode:
    """Write one pooled vector for each line or row of a file. Rerun to resume an interrupted run.

    Examples, in a checkout of elmokit:
        elmokit encode examples/data/sentences.txt --output runs/sentences.npy
    """

    file: Positional[Path]
    """Text, one text per line, or a table (.csv, .tsv, .jsonl or .parquet). Plain, .gz or .zst."""
    output: Path
    """NumPy file (.npy) for the vectors, one row per text; or Parquet (.parquet) for the vectors
    beside the texts and the other columns of a table.
    """
    model: Model = None
    pooling: Annotated[Literal["text", "mean", "max"] | None, arg(help=POOLING), UNSET] = None
    normalize_embeddings: bool = False
    """Scale every vector to unit length."""
    layers: Annotated[OneLayer | None, UNSET] = None
    state: OptionalState = None
    dtype: ComputeDtype = "float32"
    device: Device = None
    tokenize: Tokenize = True
    column: Column = None
    sentences_per_part: int = 1000
    """Lines computed between two checkpoints; an interrupted run recomputes the unfinished ones."""
    overwrite: Overwrite = False

    def run(self) -> None:
        from elmokit.embed import encode_file

        show(encode_file(**vars(self)))
