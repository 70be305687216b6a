"""A text file to a file of vectors: of every word (`embed_file`), or one of every line (`encode_file`)."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np

from elmokit.embed.embedder import Embedder
from elmokit.embed.file_pipeline import write_parts
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
    device: str | None = None,
    dtype: str | None = None,
    *,
    storage_dtype: str = "float32",
    tokenize: bool = True,
    sentences_per_part: int = SENTENCES_PER_PART,
) -> FileReport:
    """Write the vectors of every word of a text file, one sentence a line, however large it is or long its lines are.

    The same call resumes a run that was stopped: it repeats the parts that were being computed or written, one to
    three of them. Memory holds one line of the text, and the vectors of some sentences or of a window of a long one.

    Args:
        file: Text, plain, .gz or .zst; a blank line is a sentence of length zero.
        output: A directory (docs/formats.md), or a name that ends in .hdf5 for AllenNLP's layout.
        model: An embedder, or what `Embedder.load` takes.
        layers: See `Embedder.embed`.
        state: "zeros", "warm" or "carry" (one row); the model's own when not given.
        device: See `Embedder`; of a model that is loaded here.
        dtype: The number type that is computed in, see `Embedder`; of a model that is loaded here.
        storage_dtype: The number type that is written, float32 or float16; HDF5 is float32.
        tokenize: Split lines as the model's training text was; else at white space.
        sentences_per_part: How many sentences are written as one part.

    Returns:
        Counts of sentences, words and parts, and the speed.

    Raises:
        ValueError: For invalid UTF-8 (before anything is written), an empty file, a directory that holds other
            vectors, and numbers beyond what float16 holds.
        FileExistsError: For an HDF5 file that is there.
        OSError: If the output cannot be written.
    """
    output = Path(output)
    is_hdf5 = output.suffix in HDF5_SUFFIXES
    if is_hdf5 and storage_dtype != "float32":
        raise ValueError(f"AllenNLP's HDF5 holds float32, not {storage_dtype}: write a directory, or leave it out")
    parts, embedder = _parts_beside(output) if is_hdf5 else output, opened(model, device, dtype)
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
    model: Embedder | str | Path | None = None,
    pooling: str = "mean",
    normalize_embeddings: bool = False,
    device: str | None = None,
    dtype: str | None = None,
    *,
    layers: str | int = "mix",
    state: str | None = None,
    tokenize: bool = True,
    sentences_per_part: int = SENTENCES_PER_PART,
) -> FileReport:
    """Write one vector for each line of a text file, those of `Embedder.encode`; resumed as `embed_file` is.

    Args:
        file: Text, plain, .gz or .zst.
        output: A NumPy file (.npy), (N, 2D) float32, zeros where a line is blank.
        model: An embedder, or what `Embedder.load` takes.
        pooling: "mean" or "max" of the words' vectors.
        normalize_embeddings: Scale every vector to length one.
        device, dtype, layers, state, tokenize, sentences_per_part: See `embed_file`.

    Returns:
        Counts of lines, words and parts, and the speed.

    Raises:
        ValueError, FileExistsError, OSError: As `embed_file`.
    """
    output = Path(output)
    if layers == "all":
        raise ValueError('one vector a line needs one representation: layers="all" is not one')
    if output.suffix != ".npy":
        raise ValueError(f"one vector a line is written as a NumPy file: name the output {output.name}.npy")
    pooled, parts, embedder = (
        Pooling(pooling, normalize_embeddings),
        _parts_beside(output),
        opened(model, device, dtype),
    )
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
