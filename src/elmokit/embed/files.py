"""A text file to a file of vectors: of every word (`embed_file`), or one of every line (`encode_file`)."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np

from elmokit.checkpoints.loading import ModelSource
from elmokit.config import StatePolicy
from elmokit.embed.embedder import Embedder, resolve_embedder
from elmokit.embed.file_pipeline import write_parts
from elmokit.embed.job import FileJob, FileReport, TextFile
from elmokit.embed.outputs import Pooling
from elmokit.fs.atomic import atomic_path
from elmokit.storage.hdf5 import write_allennlp_hdf5
from elmokit.storage.store import EmbeddingStore

SENTENCES_PER_PART = 1000
HDF5_SUFFIXES = (".hdf5", ".h5")
OTHER_SUFFIXES = (
    ".npy", ".npz", ".pt", ".pth", ".pkl", ".safetensors", ".parquet", ".txt", ".csv", ".tsv", ".json", ".jsonl",
)  # fmt: skip


def embed_file(
    file: str | Path,
    output: str | Path,
    model: Embedder | ModelSource = None,
    *,
    layers: str | int = "mix",
    state: StatePolicy | None = None,
    tokenize: bool = True,
    device: str | None = None,
    dtype: str | None = None,
    storage_dtype: str = "float32",
    sentences_per_part: int = SENTENCES_PER_PART,
) -> FileReport:
    """Write the vectors of every word of a text file, one sentence a line, however large it is or long its lines are.

    The same call resumes a run that was stopped: it repeats the parts that were being computed or written, one to
    three, or where there are more cores one for each. Memory holds one line of the text, and the vectors of some
    sentences or of a window of a long one.

    Args:
        file: Text, plain, .gz or .zst. A blank line is a sentence of length zero.
        output: A directory, which `EmbeddingStore` reads, or an .hdf5 file in AllenNLP's layout.
        model: An embedder, a loaded model, or whatever `Embedder.load` takes.
        layers: As for `Embedder.embed`.
        state: As for `Embedder.embed`, with one row for "carry"; None: the model's own policy.
        tokenize: Split raw lines as the model's training text was; else, and for text of `elmokit prepare`, at white
            space.
        device: Where to compute, unless `model` is an embedder.
        dtype: The number type to compute in, unless `model` is an embedder; see `Embedder`.
        storage_dtype: The number type of the written vectors, "float32" or "float16"; HDF5 is float32.
        sentences_per_part: Lines in each file of a directory.

    Returns:
        The number of sentences and words, and the speed.

    Raises:
        ValueError: Invalid UTF-8 (before anything is written), an empty file, a directory that holds other vectors, or
            numbers too large for float16.
        FileExistsError: An HDF5 file exists.
        OSError: The output cannot be written.
    """
    output = Path(output)
    if output.suffix in OTHER_SUFFIXES:
        raise ValueError(
            f"{output} would be a directory: name one without {output.suffix}, or a file with .hdf5 (`elmokit encode` "
            "writes one vector a line as .npy)"
        )
    is_hdf5 = output.suffix in HDF5_SUFFIXES
    if is_hdf5 and storage_dtype != "float32":
        raise ValueError(
            f"AllenNLP's HDF5 holds float32, not {storage_dtype}: write a directory, or leave storage_dtype out"
        )
    parts = _parts_beside(output) if is_hdf5 else output
    embedder = resolve_embedder(model, device, dtype)
    state = state or embedder.model.state_policy
    job = FileJob(TextFile.read(file), embedder, layers, state, storage_dtype, sentences_per_part, tokenize)
    report = write_parts(job, parts, output)
    if is_hdf5:
        write_allennlp_hdf5(EmbeddingStore(parts), output)
        _discard(parts)
    return report


def encode_file(
    file: str | Path,
    output: str | Path,
    model: Embedder | ModelSource = None,
    *,
    pooling: str = "mean",
    normalize_embeddings: bool = False,
    layers: str | int = "mix",
    state: StatePolicy | None = None,
    tokenize: bool = True,
    device: str | None = None,
    dtype: str | None = None,
    sentences_per_part: int = SENTENCES_PER_PART,
) -> FileReport:
    """Write one vector for each line of a text file, as `Embedder.encode` gives it.

    Args:
        file: Text, plain, .gz or .zst, one text a line.
        output: A NumPy file (.npy) for the vectors (N, 2D) float32; zeros where a line is blank.
        model: An embedder, a loaded model, or whatever `Embedder.load` takes.
        pooling: "mean" or "max" over the words of a line.
        normalize_embeddings: Scale every vector to length one.
        layers, state, tokenize, device, dtype, sentences_per_part: As for `embed_file`; "all" layers are no vector.

    Returns:
        The number of lines and words, and the speed.

    Raises:
        ValueError, OSError: As `embed_file`.
        FileExistsError: The output exists.
    """
    output = Path(output)
    if layers == "all":
        raise ValueError('one vector a line needs one representation: layers="all" is not one')
    if output.suffix != ".npy":
        raise ValueError(f"one vector a line is written as a NumPy file: name the output {output.name}.npy")
    pooled, parts = Pooling(pooling, normalize_embeddings), _parts_beside(output)
    embedder = resolve_embedder(model, device, dtype)
    state = state or embedder.model.state_policy
    job = FileJob(TextFile.read(file), embedder, layers, state, "float32", sentences_per_part, tokenize, pooled)
    report = write_parts(job, parts, output)
    _write_npy(EmbeddingStore(parts), output)
    _discard(parts)
    return report


def _aside(parts: Path) -> Path:
    return parts.with_name(f".partial-{parts.name}")


def _parts_beside(output: Path) -> Path:
    """The store of a single file while it is computed; FileExistsError for an output without one."""
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
