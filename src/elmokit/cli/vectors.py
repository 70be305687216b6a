"""Verbs that compute vectors."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

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
RAY = (
    "The file is a Parquet file, or a directory of them; its texts are embedded on the Ray cluster "
    "that RAY_ADDRESS names, or else on all cores of this machine, into a directory of Parquet "
    "files; such a run does not resume. With --device cuda each process has a GPU."
)


@dataclass(frozen=True)
class RayOptions:
    """Options for a table on a cluster, in place of text on this machine."""

    ray: Annotated[bool, arg(help=RAY)] = False
    num_actors: Annotated[int | None, UNSET] = None
    """Processes that embed (default: as many as the cluster has processors)."""


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
    cluster: Annotated[RayOptions, arg(name="")] = RayOptions()

    def run(self) -> None:
        from elmokit.embed import embed_file

        options = dict(vars(self))
        if options.pop("cluster").ray:
            self._run_on_cluster()
        else:
            show(embed_file(**options))

    def _run_on_cluster(self) -> None:
        from elmokit.integrations.tables import EmbedWords, embed_parquet

        unsupported = {
            "--state": self.state is not None,
            "--overwrite": self.overwrite,
        }
        if names := [name for name, is_given in unsupported.items() if is_given]:
            raise ValueError(f"{names[0]} cannot be used with --ray: omit one of them")
        options: Any = {
            "storage_dtype": self.storage_dtype,
            "tokenize": self.tokenize,
            "device": self.device,
            "dtype": self.dtype,
            "layers": self.layers,
        }
        embed = EmbedWords(self.column or "text", self.model, **options)
        options = {
            "num_actors": self.cluster.num_actors,
            "sentences_per_part": self.sentences_per_part,
        }
        num_gpus = int(self.device == "cuda")  # Ray hides GPUs from processes that ask for none
        show(embed_parquet(self.file, self.output, embed, num_gpus=num_gpus, **options))


@dataclass(frozen=True)
class Encode:
    """Write one pooled vector for each line or row of a file. Rerun to resume an interrupted run.

    Examples, in a checkout of elmokit:
        elmokit encode examples/data/sentences.txt --output runs/sentences.npy
    """

    file: Positional[Path]
    """Text, one text per line, or a table (.csv, .tsv, .jsonl or .parquet). Plain, .gz or .zst."""
    output: Path
    """NumPy file (.npy) for the vectors, one row per text."""
    model: Model = None
    pooling: Literal["mean", "max"] = "mean"
    """Pooling over the words of a line."""
    normalize_embeddings: bool = False
    """Scale every vector to unit length."""
    layers: OneLayer = "mix"
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
