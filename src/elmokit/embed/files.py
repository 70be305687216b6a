"""From a text file to a file of vectors: one for every word (`embed_file`), or one for every line (`encode_file`).

And from a file of protein sequences, whose words are residues, to arrays by name (`embed_fasta`).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from elmokit.checkpoints.loading import ModelSource
from elmokit.data.fasta import read_identifiers, read_sequences
from elmokit.data.text_files import file_tokenizers
from elmokit.embed.embedder import Embedder, resolve_embedder
from elmokit.embed.file_pipeline import write_parts
from elmokit.embed.job import FileJob, FileReport, TextFile
from elmokit.embed.outputs import Pooling
from elmokit.fs.arrow import require_pyarrow
from elmokit.fs.atomic import check_output, publish_directory
from elmokit.fs.lock import only_one_in
from elmokit.fs.reading import suffixes_of
from elmokit.settings import Count, StatePolicy, StorageDtype, conform
from elmokit.storage.hdf5 import write_allennlp_hdf5, write_named_hdf5
from elmokit.storage.npy import write_npy, write_npz
from elmokit.storage.parquet import write_parquet
from elmokit.storage.store import INDEX_NAME, OWN_FILES, EmbeddingStore, StoreIndex, read_index
from elmokit.text.tokenizer import Tokenizer

SENTENCES_PER_PART = 1000
HDF5_SUFFIXES = (".hdf5", ".h5")
OTHER_SUFFIXES = (
    ".npy", ".npz", ".pt", ".pth", ".pkl", ".safetensors", ".txt", ".csv", ".tsv", ".json", ".jsonl",
)  # fmt: skip
# A residue is a word. The sequence of a protein is one sentence.
RESIDUES = Tokenizer("residues", list, lambda sequence: [sequence])


class _Format(NamedTuple):
    """A format of the output, and how it is written from a complete store."""

    write: Callable[[EmbeddingStore, Path], None]
    is_directory: bool = False


def _publish_store(store: EmbeddingStore, output: Path) -> None:
    publish_directory(store.directory, output)


DIRECTORY = _Format(_publish_store, is_directory=True)
HDF5, NPY, PARQUET = _Format(write_allennlp_hdf5), _Format(write_npy), _Format(write_parquet)


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
    storage_dtype: StorageDtype = "float32",
    sentences_per_part: int = SENTENCES_PER_PART,
    overwrite: bool = False,
) -> FileReport:
    """Write the vector of every word of a text file with one sentence per line, of any size and lines of any length.

    The same call resumes an interrupted run: it repeats the parts that were in progress, one to three, or with more
    cores one per core. After a finished run it leaves a directory as it is. Memory holds the text of a part, and the
    vectors of some sentences or of a window of a long one.

    Args:
        file: Text, plain, .gz or .zst. A blank line is a sentence of length zero.
        output: A directory, which `EmbeddingStore` reads, an .hdf5 file in AllenNLP's layout, or a .parquet file with
            a row for each line (extra parquet).
        model: An embedder, a loaded model, or whatever `Embedder.load` takes.
        layers: As for `Embedder.embed`.
        state: "zeros", "warm", or "carry" (with one row), as for `Embedder.embed`; None: the model's own policy.
        tokenize: Split raw lines as the model's training text was; else, and for text of `elmokit prepare`, at white
            space.
        device: Where to compute, unless `model` is an embedder.
        dtype: The number type to compute in, unless `model` is an embedder; see `Embedder`.
        storage_dtype: The number type of the written vectors, "float32" or "float16"; HDF5 is float32.
        sentences_per_part: Lines in each file of a directory.
        overwrite: Replace an output that holds other vectors, once the new ones are complete.

    Returns:
        The number of sentences and words, and the speed.

    Raises:
        ValueError: Invalid UTF-8 or a line that is too long for a model that carries no state (before anything is
            written), an empty file or one that is changed meanwhile, CoNLL-U or another format in place of text, a
            directory that holds other vectors, an output that is the input, or numbers too large for float16.
        FileExistsError: A file exists, or a directory without embeddings.
        OSError: The output cannot be written.
    """
    file, output = Path(file).expanduser(), Path(output).expanduser()
    kind, compression = suffixes_of(output)
    if compression or kind in OTHER_SUFFIXES:
        raise ValueError(
            f"{output} would be a directory: name one without {compression or kind}, or a file with .hdf5 or .parquet "
            "(`elmokit encode` writes one vector a line as .npy)"
        )
    is_hdf5 = kind in HDF5_SUFFIXES
    if is_hdf5 and storage_dtype != "float32":
        raise ValueError(
            f"AllenNLP's HDF5 holds float32, not {storage_dtype}: write a directory, or leave storage_dtype out"
        )
    format = HDF5 if is_hdf5 else PARQUET if kind == ".parquet" else DIRECTORY
    if format is PARQUET:
        require_pyarrow()
    _check(output, file, format, overwrite)
    embedder = resolve_embedder(model, device, dtype)
    state, text = _policy(state, embedder), TextFile.read(file, sentences_per_part)
    (tokenizer,) = file_tokenizers([text.path], embedder.model.tokenizer, tokenize)
    job = FileJob(text, embedder, layers, state, storage_dtype, tokenizer)
    return _write(job, output, format, overwrite)


def encode_file(
    file: str | Path,
    output: str | Path,
    model: Embedder | ModelSource = None,
    *,
    pooling: Literal["mean", "max"] = "mean",
    normalize_embeddings: bool = False,
    layers: str | int = "mix",
    state: StatePolicy | None = None,
    tokenize: bool = True,
    device: str | None = None,
    dtype: str | None = None,
    sentences_per_part: int = SENTENCES_PER_PART,
    overwrite: bool = False,
) -> FileReport:
    """Write one vector for each line of a text file, as `Embedder.encode` computes it.

    Args:
        file: Text, plain, .gz or .zst, one text a line.
        output: A NumPy file (.npy) for the vectors (N, 2D) float32; zeros where a line is blank.
        model: An embedder, a loaded model, or whatever `Embedder.load` takes.
        pooling: "mean" or "max" over the words of a line.
        normalize_embeddings: Scale every vector to length one.
        layers, state, tokenize, device, dtype, sentences_per_part, overwrite: As for `embed_file`; layers="all" is
            refused, as it is not one vector.

    Returns:
        The number of lines and words, and the speed.

    Raises:
        ValueError, OSError: As `embed_file`.
        FileExistsError: The file exists.
    """
    file, output = Path(file).expanduser(), Path(output).expanduser()
    if layers == "all":
        raise ValueError('one vector per line needs one representation: choose layers other than "all"')
    if suffixes_of(output) != (".npy", ""):
        raise ValueError(f"one vector a line is written as a NumPy file: name the output {output.name}.npy")
    pooled = Pooling(pooling, normalize_embeddings)
    _check(output, file, NPY, overwrite)
    embedder = resolve_embedder(model, device, dtype)
    state, text = _policy(state, embedder), TextFile.read(file, sentences_per_part)
    (tokenizer,) = file_tokenizers([text.path], embedder.model.tokenizer, tokenize)
    job = FileJob(text, embedder, layers, state, "float32", tokenizer, pooled)
    return _write(job, output, NPY, overwrite)


def embed_fasta(
    file: str | Path,
    output: str | Path,
    model: Embedder | ModelSource = None,
    *,
    protein: bool = False,
    layers: str | int = "sum",
    id_field: int = 1,
    split_char: str = "|",
    state: StatePolicy | None = None,
    device: str | None = None,
    dtype: str | None = None,
    storage_dtype: StorageDtype = "float32",
    sentences_per_part: int = SENTENCES_PER_PART,
    overwrite: bool = False,
) -> FileReport:
    """Write the vectors of protein sequences, as SeqVec's script did: an array for each, by the name in its header.

    A residue is a word of one letter, a sequence a sentence. Memory holds the names of all sequences, the sequences of
    a part, and the vectors of several thousand residues. An interrupted run is resumed as in `embed_file`.

    Args:
        file: FASTA, plain, .gz or .zst; residues are read in upper case.
        output: An .npz file, or an .h5 or .hdf5 file with a dataset for each sequence; "/" in a name makes a group.
        model: An embedder, a loaded model, or whatever `Embedder.load` takes: SeqVec or another model of proteins.
        protein: One vector for each sequence (2D,), the mean of its residues, in place of one for each residue
            (T, 2D).
        layers: As for `Embedder.embed`; "all" is (L+1, T, 2D) for each sequence.
        id_field: The field of a header that names the sequence, from 0; -1: the whole header. Field 1 of UniProt's
            headers, as in `>sp|P69905|HBA_HUMAN`, is the accession number.
        split_char: The separator of the fields.
        state, device, dtype, overwrite: As for `embed_file`; no state is carried.
        storage_dtype: The number type of the vectors of residues; a vector of a protein is float32.
        sentences_per_part: Sequences between two checkpoints, which are run from the shortest to the longest.

    Returns:
        The number of sequences and residues (as sentences and words), and the speed.

    Raises:
        ValueError: No FASTA, a header without the field, two sequences of one name, another suffix of `output`; all
            layers of a protein; and as `embed_file`.
        FileExistsError, OSError: As `embed_file`.
    """
    file, output = Path(file).expanduser(), Path(output).expanduser()
    conform(Count, sentences_per_part, "sentences_per_part")
    kind, compression = suffixes_of(output)
    if compression or kind not in (".npz", *HDF5_SUFFIXES):
        raise ValueError(f"vectors of sequences are written to one .npz or .h5 file: name the output {output.name}.npz")
    if protein and (layers == "all" or storage_dtype != "float32"):
        raise ValueError(
            'vectors of proteins are float32, from one layer or one mix of layers: choose layers other than "all", '
            "and omit storage_dtype"
        )
    # Long sentences are run by length, so that the rows of a batch end together: see `running_order`.
    lines = read_identifiers(file, split_char, id_field, sentences_per_part)
    write = write_named_hdf5 if kind in HDF5_SUFFIXES else write_npz
    format = _Format(partial(write, lines=lines, pooled=protein))
    _check(output, file, format, overwrite)
    embedder = resolve_embedder(model, device, dtype)
    if (state := _policy(state, embedder)) == "carry":
        raise ValueError("a protein does not continue the one before it: choose the state zeros or warm")
    text = TextFile.read(file, sentences_per_part, partial(read_sequences, group=sentences_per_part))
    pooling = Pooling("mean") if protein else None
    job = FileJob(text, embedder, layers, state, storage_dtype, RESIDUES, pooling, tuple(lines))
    return _write(job, output, format, overwrite)


def _policy(state: StatePolicy | None, embedder: Embedder) -> StatePolicy:
    """The given policy, or else the model's. ValueError for a `BiLMState`, which a resumed run could not compare."""
    if state is not None and not isinstance(state, str):
        raise ValueError(f"the state for a file must be zeros, warm or carry, not a {type(state).__name__}")
    return state or embedder.model.state_policy


# --- The output ------------------------------------------------------------------------------------------------------


def _check(output: Path, file: str | Path, format: _Format, overwrite: bool) -> None:
    """Check what can be checked of an output before the model and the text are read."""
    check_output(
        output,
        [file],
        overwrite=overwrite or format.is_directory,  # which may be that of the same job
        directory_of=INDEX_NAME if format.is_directory else None,
        own_files=OWN_FILES if format.is_directory and overwrite else None,
    )


def _write(job: FileJob, output: Path, format: _Format, overwrite: bool) -> FileReport:
    """Write the vectors of a job, or those that an earlier run left to be done.

    They are collected in a store next to the output, `.NAME.parts`, or in the output itself if that is a directory
    without other vectors.
    """
    index = job.index  # errors in the job are raised here, before anything is written
    job.check_lengths()
    target = output.resolve()  # so that its parts are on the same file system
    parts = target.with_name(f".{target.name}.parts")  # hidden, so that it is no directory of the user's
    if format.is_directory and (not overwrite or not (target / INDEX_NAME).exists() or _holds(target, index)):
        with only_one_in(target):
            return write_parts(job, target, output)
    with only_one_in(parts), only_one_in(target) if format.is_directory else nullcontext():
        if (parts / INDEX_NAME).exists() and not _holds(parts, index):  # of another job, which was interrupted
            for path in parts.iterdir():
                path.unlink() if path.is_file() else shutil.rmtree(path)
        report = write_parts(job, parts, output)
        format.write(EmbeddingStore(parts), target)
    shutil.rmtree(parts, ignore_errors=True)
    return report


def _holds(directory: Path, index: StoreIndex) -> bool:
    """Whether a store has the vectors of a job, or some of them."""
    with suppress(ValueError):
        return not index.differences(read_index(directory))
    return False
