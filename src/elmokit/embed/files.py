"""A text file to a file of vectors: of every word (`embed_file`), or one of every line (`encode_file`)."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np

from elmokit.embed.embedder import Embedder
from elmokit.embed.file_pipeline import make_parts
from elmokit.embed.job import FileJob, FileReport, TextFile
from elmokit.embed.outputs import Pooling
from elmokit.fs.atomic import atomic_path
from elmokit.storage.hdf5 import write_allennlp_hdf5
from elmokit.storage.store import EmbeddingStore

SENTENCES_PER_PART = 1000
HDF5_SUFFIXES = (".hdf5", ".h5")


def opened(model: Embedder | str | Path | None, device: str | None = None, dtype: str | None = None) -> Embedder:
    """The embedder itself, or that of a model."""
    return model if isinstance(model, Embedder) else Embedder.load(model, device, dtype)


def embed_file(
    file: str | Path,
    output: str | Path,
    model: Embedder | str | Path | None = None,
    layers: str | int = "mix",
    state: str | None = None,
    storage_dtype: str = "float32",
    device: str | None = None,
    *,
    tokenize: bool = True,
    sentences_per_part: int = SENTENCES_PER_PART,
    dtype: str | None = None,
) -> FileReport:
    """Write the vectors of every word of a text file, one sentence a line, however large it is or long its lines are.

    `file` is plain text, .gz or .zst; a blank line is a sentence of length zero. Lines are split as the model's
    training text was, or with tokenize=False at white space. `output` is a directory (elmokit.storage.store has
    its layout), or ends in .hdf5 for AllenNLP's layout, which is float32 in any case. `layers` and `state` are those
    of `Embedder.embed`, with one row for state="carry"; `dtype` is that of the computation where `model` is none yet
    (`Embedder.load`'s), `storage_dtype` that of the written vectors, float32 or float16.

    The same call takes up a run that was stopped: it repeats the parts, of `sentences_per_part` lines each, that were
    being made or on their way to the disk: one to three, or where there are more cores one for each. Memory holds one
    line of the text, and the vectors of some sentences or of a window of a long one. ValueError for invalid UTF-8
    (before anything is written), an empty file, a directory that holds other vectors, and numbers beyond what float16
    holds; FileExistsError for an HDF5 file that is there; OSError where the output cannot be written.
    """
    output = Path(output)
    is_hdf5 = output.suffix in HDF5_SUFFIXES
    if is_hdf5 and storage_dtype != "float32":
        raise ValueError(
            f"AllenNLP's HDF5 holds float32, not {storage_dtype}: write a directory, or leave storage_dtype out"
        )
    parts = _parts_beside(output) if is_hdf5 else output
    embedder = opened(model, device, dtype)
    job = FileJob(
        text=TextFile.read(file),
        embedder=embedder,
        layers=layers,
        state=state or embedder.model.state_policy,
        dtype=storage_dtype,
        sentences_per_part=sentences_per_part,
        tokenize=tokenize,
    )
    report = make_parts(job, parts, output)
    if is_hdf5:
        write_allennlp_hdf5(EmbeddingStore(parts), output)
        _discard(parts)
    return report


def encode_file(
    file: str | Path,
    output: str | Path,
    model: Embedder | str | Path | None = None,
    pooling: str = "mean",
    normalize_embeddings: bool = False,
    device: str | None = None,
    *,
    layers: str | int = "mix",
    state: str | None = None,
    tokenize: bool = True,
    sentences_per_part: int = SENTENCES_PER_PART,
    dtype: str | None = None,
) -> FileReport:
    """Write one vector for each line of a text file: (N, 2D) float32 in a .npy file, zeros where a line is blank.

    The vectors are those of `Embedder.encode`: the mean or max of the words' vectors, of length one with
    `normalize_embeddings`. Everything else is as with `embed_file`.
    """
    output = Path(output)
    if layers == "all":
        raise ValueError('one vector a line needs one representation: layers="all" is not one')
    if output.suffix != ".npy":
        raise ValueError(f"one vector a line is written as a NumPy file: name the output {output.name}.npy")
    pooled, parts = Pooling(pooling, normalize_embeddings), _parts_beside(output)
    embedder = opened(model, device, dtype)
    job = FileJob(
        text=TextFile.read(file),
        embedder=embedder,
        layers=layers,
        state=state or embedder.model.state_policy,
        dtype="float32",
        sentences_per_part=sentences_per_part,
        tokenize=tokenize,
        pooling=pooled,
    )
    report = make_parts(job, parts, output)
    _write_npy(EmbeddingStore(parts), output)
    _discard(parts)
    return report


def _aside(parts: Path) -> Path:
    return parts.with_name(f".partial-{parts.name}")


def _parts_beside(output: Path) -> Path:
    """Where the parts of a single file grow. An output without them is finished, and of what is not known."""
    parts = output.with_name(output.name + ".parts")
    shutil.rmtree(_aside(parts), ignore_errors=True)  # which a kill may have left
    if output.exists() and not parts.exists():
        raise FileExistsError(f"{output} exists: remove it or choose another name")
    return parts


def _write_npy(store: EmbeddingStore, output: Path) -> None:
    header = {"descr": "<f4", "fortran_order": False, "shape": (len(store), *store.index.vector_shape)}
    with atomic_path(output) as partial, partial.open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, header)
        for line in range(len(store)):
            stream.write(store.vectors(line).astype("<f4").tobytes())


def _discard(parts: Path) -> None:
    """Remove a directory; a kill in between leaves it with another name, not half of it with its own."""
    os.replace(parts, _aside(parts))
    shutil.rmtree(_aside(parts), ignore_errors=True)
