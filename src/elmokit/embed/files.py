"""From a text file to a file of vectors: one for every word (`embed_file`), or one for every line
(`encode_file`).

And from a file of protein sequences, whose words are residues, to arrays by name (`embed_fasta`).

Vectors are collected in an embedding store, part by part. A part is written whole or not at all; a
later run with the same arguments computes the parts that are missing, and the result is bit for bit
that of an uninterrupted run. Batches are computed ahead on other threads while the calling thread
writes vectors, so that memory holds the words of a part, but only a few batches of its vectors.
"""

from __future__ import annotations

import shutil
import time
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence, Set
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from itertools import islice, tee
from pathlib import Path
from typing import Literal, NamedTuple

from safetensors.torch import load_file, save_file

from elmokit.checkpoints import ModelSource
from elmokit.data import file_tokenizers, read_identifiers, read_sequences, read_texts
from elmokit.embed.embedder import Embedder, resolve_embedder
from elmokit.embed.outputs import OutputSpec, Pooling
from elmokit.fs import (
    atomic_path,
    check_output,
    only_one_in,
    publish_directory,
    require_pyarrow,
    suffixes_of,
)
from elmokit.nn import BiLMState
from elmokit.progress import ProgressBar
from elmokit.runtime import MAX_SENTENCE_WORDS, check_length
from elmokit.settings import Count, StatePolicy, StorageDtype, conform
from elmokit.storage import (
    INDEX_NAME,
    OWN_FILES,
    EmbeddingStore,
    StoreIndex,
    begin_store,
    finish_store,
    read_index,
    write_allennlp_hdf5,
    write_named_hdf5,
    write_npy,
    write_npz,
    write_parquet,
    write_shard,
)
from elmokit.text import TOKENIZED, Tokenizer, TruncationWarning, truncation_message

SENTENCES_PER_PART = 1000
HDF5_SUFFIXES = (".hdf5", ".h5")
OTHER_SUFFIXES = (".npy", ".npz", ".pt", ".safetensors", ".txt", ".csv", ".tsv", ".json", ".jsonl")
# A residue is a word. The sequence of a protein is one sentence.
RESIDUES = Tokenizer("residues", list, lambda sequence: [sequence])

Write = Callable[[EmbeddingStore, Path], None]  # the output from a complete store


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
    column: str | None = None,
) -> FileReport:
    """Write the vector of every word of a text file with one sentence per line, or of a table, of
    any size.

    The same call resumes an interrupted run: it repeats the parts that were in progress, one to
    three, or with more cores one per core. After a finished run it leaves a directory as it is.
    Memory holds the text of a part, and the vectors of some sentences.

    Args:
        file: Text, or a table (.csv, .tsv or .jsonl), plain, .gz or .zst; or Parquet. A blank line
            or an empty cell is a sentence of length zero.
        output: A directory, which `EmbeddingStore` reads, an .hdf5 file in AllenNLP's layout, or a
            .parquet file with a row for each line (extra parquet).
        model: An embedder, a loaded model, or whatever `Embedder.load` takes.
        layers: As for `Embedder.embed`.
        state: "zeros", "warm", or "carry" (with one row), as for `Embedder.embed`; None: the
            model's own policy.
        tokenize: Split raw lines as the model's training text was; else, and for text of `elmokit
            prepare`, at white space.
        device: Where to compute, unless `model` is an embedder.
        dtype: The number type to compute in, unless `model` is an embedder; see `Embedder`.
        storage_dtype: The number type of the written vectors, "float32" or "float16"; HDF5 is
            float32.
        sentences_per_part: Lines in each file of a directory.
        overwrite: Replace an output that holds other vectors, once the new ones are complete.
        column: The column of a table with the texts; None: "text".

    Returns:
        The number of sentences and words, and the speed.

    Raises:
        ValueError: Invalid UTF-8 or a line that is too long (before anything is written), an empty
            file, CoNLL-U or another format in place of text, a table without the column, a
            directory that holds other vectors, an output that is the input, or numbers too large
            for float16.
        FileExistsError: A file exists, or a directory without embeddings.
        OSError: The output cannot be written.
    """
    file, output = Path(file).expanduser(), Path(output).expanduser()
    kind, compression = suffixes_of(output)
    if compression or kind in OTHER_SUFFIXES:
        raise ValueError(
            f"{output} would be a directory: name one without {compression or kind}, or a file "
            "with .hdf5 or .parquet (`elmokit encode` writes one vector a line as .npy)"
        )
    write: Write | None = None
    if kind in HDF5_SUFFIXES:
        write = write_allennlp_hdf5
        if storage_dtype != "float32":
            raise ValueError(
                "AllenNLP's HDF5 holds float32: write a directory, or leave storage_dtype out"
            )
    elif kind == ".parquet":
        write = write_parquet
        require_pyarrow()
    _check_output(output, file, write, overwrite)
    embedder = resolve_embedder(model, device, dtype)
    read = partial(read_texts, column=column)
    (tokenizer,) = file_tokenizers([file], embedder.model.tokenizer, tokenize, read=read)
    job = FileJob(
        file, embedder, layers, state, tokenizer, sentences_per_part, storage_dtype, read=read
    )
    return job.write(output, write, overwrite)


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
    column: str | None = None,
) -> FileReport:
    """Write one vector for each line of a text file, or row of a table, as `Embedder.encode`
    computes it.

    Args:
        file: Text, one text a line, or a table, as for `embed_file`.
        output: A NumPy file (.npy) for the vectors (N, 2D) float32; zeros where a line or a cell is
            empty.
        model: An embedder, a loaded model, or whatever `Embedder.load` takes.
        pooling: "mean" or "max" over the words of a line.
        normalize_embeddings: Scale every vector to length one.
        layers, state, tokenize, device, dtype, sentences_per_part, overwrite, column: As for
            `embed_file`; layers="all" is refused, as it is not one vector.

    Returns:
        The number of lines and words, and the speed.

    Raises:
        ValueError, OSError: As `embed_file`.
        FileExistsError: The file exists.
    """
    file, output = Path(file).expanduser(), Path(output).expanduser()
    if suffixes_of(output) != (".npy", ""):
        raise ValueError(
            f"encode writes a NumPy file: name the output {output.with_suffix('.npy').name}, not "
            f"{output.name}"
        )
    pooled = Pooling(pooling, normalize_embeddings)
    _check_output(output, file, write_npy, overwrite)
    embedder = resolve_embedder(model, device, dtype)
    read = partial(read_texts, column=column)
    (tokenizer,) = file_tokenizers([file], embedder.model.tokenizer, tokenize, read=read)
    job = FileJob(
        file, embedder, layers, state, tokenizer, sentences_per_part, pooling=pooled, read=read
    )
    return job.write(output, write_npy, overwrite)


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
    """Write the vectors of protein sequences, as SeqVec's script did: an array for each, by the
    name in its header.

    A residue is a word of one letter, a sequence a sentence. Memory holds the names of all
    sequences, the sequences of a part, and the vectors of several thousand residues. An interrupted
    run is resumed as in `embed_file`.

    Args:
        file: FASTA, plain, .gz or .zst; residues are read in upper case.
        output: An .npz file, or an .h5 or .hdf5 file with a dataset for each sequence; "/" in a
            name makes a group.
        model: An embedder, a loaded model, or whatever `Embedder.load` takes: SeqVec or another
            model of proteins.
        protein: One vector for each sequence (2D,), the mean of its residues, in place of one for
            each residue (T, 2D).
        layers: As for `Embedder.embed`; "all" is (L+1, T, 2D) for each sequence.
        id_field: The field of a header that names the sequence, from 0; -1: the whole header. Field
            1 of UniProt's headers, as in `>sp|P69905|HBA_HUMAN`, is the accession number.
        split_char: The separator of the fields.
        state, device, dtype, overwrite: As for `embed_file`; no state is carried.
        storage_dtype: The number type of the vectors of residues; a vector of a protein is float32.
        sentences_per_part: Sequences between two checkpoints, which are run from the shortest to
            the longest.

    Returns:
        The number of sequences and residues (as sentences and words), and the speed.

    Raises:
        ValueError: No FASTA, a header without the field, two sequences of one name, another suffix
            of `output`; all layers of a protein; and as `embed_file`.
        FileExistsError, OSError: As `embed_file`.
    """
    file, output = Path(file).expanduser(), Path(output).expanduser()
    kind, compression = suffixes_of(output)
    if compression or kind not in (".npz", *HDF5_SUFFIXES):
        raise ValueError(
            f"vectors of sequences are written to one .npz or .h5 file: name the output "
            f"{output.name}.npz"
        )
    # Long sentences are run by length, so that the rows of a batch end together.
    group = conform(Count, sentences_per_part, "sentences_per_part")
    lines = read_identifiers(file, split_char, id_field, group)
    _check_names(lines, output)
    write = partial(
        write_named_hdf5 if kind in HDF5_SUFFIXES else write_npz, lines=lines, pooled=protein
    )
    _check_output(output, file, write, overwrite)
    embedder = resolve_embedder(model, device, dtype)
    pooling, read = Pooling("mean") if protein else None, partial(read_sequences, group=group)
    job = FileJob(
        file, embedder, layers, state, RESIDUES, group, storage_dtype, pooling, read, tuple(lines)
    )
    if job.state == "carry":
        raise ValueError(
            "a protein does not continue the one before it: choose the state zeros or warm"
        )
    return job.write(output, write, overwrite)


def _check_names(names: Collection[str], output: Path) -> None:
    """ValueError for a name that the file cannot hold, or could not tell from another one."""
    # HDF5 reads a name as a path; NumPy drops .npy, and a name in its archive has at most 65,535
    # bytes.
    is_hdf5 = suffixes_of(output).kind in HDF5_SUFFIXES
    parts = ([part for part in name.split("/") if part not in ("", ".")] for name in names)
    places = [*map(tuple, parts)] if is_hdf5 else [(name.removesuffix(".npy"),) for name in names]
    counts = Counter(places)
    for name, place in zip(names, places, strict=True):
        is_long = not is_hdf5 and len(name.encode()) > 65_000
        is_within = any(place[:end] in counts for end in range(1, len(place)))
        if not place or counts[place] > 1 or "\0" in name or is_long or is_within:
            raise ValueError(
                f"{output} cannot have an array {name[:60]!r} beside the others: choose another "
                f"id_field"
            )


def _check_output(output: Path, file: Path, write: Write | None, overwrite: bool) -> None:
    """Check what can be checked of an output before the model and the text are read; `write` is
    None for a store.
    """
    is_store = write is None
    check_output(
        output,
        [file],
        overwrite=overwrite or is_store,  # which may be that of the same job
        directory_of=INDEX_NAME if is_store else None,
        own_files=OWN_FILES if is_store and overwrite else None,
    )


# --- The job --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FileReport:
    """The result of embedding a file: counts of the whole file, `seconds` and `words_per_second` of
    this run.
    """

    output: Path
    sentences: int
    words: int
    truncated_words: int  # too long for the model, which read their first bytes only
    parts: int
    parts_kept: int  # of an earlier, interrupted run
    seconds: float
    words_per_second: float


class _Batch(NamedTuple):
    """Lines that are run together."""

    part: int
    labels: Sequence[
        Sequence[str]
    ]  # of all lines of the part: the words that vectors are written with
    sentences: Sequence[Sequence[str]]
    ends_part: bool


def _state_path(directory: Path, part: int) -> Path:
    """The state after a part."""
    return directory / f"state-{part:05d}.safetensors"


def _holds(directory: Path, index: StoreIndex) -> bool:
    """Whether a store has the vectors of a job, or some of them."""
    with suppress(ValueError):
        return not index.differences(read_index(directory))
    return False


@dataclass
class FileJob:
    """Everything that determines the vectors of a file, and what is counted while they are made."""

    path: Path
    embedder: Embedder
    layers: str | int
    state: StatePolicy | None  # None: the model's policy
    tokenizer: Tokenizer
    lines_per_part: int
    storage_dtype: StorageDtype = "float32"
    pooling: Pooling | None = None  # None: a vector for every word
    read: Callable[[Path], Iterator[str]] = (
        read_texts  # the texts of the file, or the sequences in it
    )
    names: Sequence[str] = ()  # of the lines, where the output has them

    lines: int = field(default=0, init=False)
    words: int = field(default=0, init=False)
    truncated_words: int = field(default=0, init=False)
    first_truncated: str = field(default="", init=False)

    def __post_init__(self) -> None:
        conform(Count, self.lines_per_part, "sentences_per_part")
        self.state = conform(StatePolicy, self.state or self.embedder.model.state_policy, "state")
        self.embedder.pipeline.carried(self.state)  # raises where there is none
        self.spec = OutputSpec.of(
            self.embedder.model, self.layers, self.pooling, self.storage_dtype
        )

    def index(self) -> StoreIndex:
        """Read the text to its end, so that no error in it stops a run halfway: the index of a
        store of this job.
        """
        digest = blake2b(digest_size=16)
        bar = ProgressBar(
            self.read(self.path),
            f"read {self.path.name}",
            leave=False,
            unit=" lines",
            unit_scale=True,
        )
        for self.lines, line in enumerate(bar, start=1):
            digest.update(f"{line}\n".encode())
            if len(line) > MAX_SENTENCE_WORDS:  # no line has more words than characters
                where = "a sequence" if self.names else f"line {self.lines}"
                check_length(len(self.tokenizer.tokenize(line)), f"{self.path}, {where}")
        if not self.lines:
            raise ValueError(f"{self.path} is empty: there is nothing to embed")
        settings = {
            "state": self.state,
            "tokenizer": None
            if self.tokenizer.name == TOKENIZED
            else self.embedder.model.tokenizer,
            "pooling": self.pooling,
            "dtype": str(self.embedder.dtype).removeprefix("torch."),
            "names": blake2b("\n".join(self.names).encode(), digest_size=16).hexdigest()
            if self.names
            else None,
            "text": digest.hexdigest(),
        }
        dim, count = self.embedder.dim, self.spec.layers.count
        return StoreIndex(
            model=self.embedder.fingerprint(),
            layers=str(self.layers),
            vector_shape=(count, dim) if self.spec.layers.keeps_axis else (dim,),
            dtype=self.spec.storage_dtype or "float32",
            sentences_per_part=self.lines_per_part,
            source_bytes=self.path.stat().st_size,
            arguments=", ".join(f"{name} {value}" for name, value in settings.items()),
        )

    def write(self, output: Path, write: Write | None, overwrite: bool) -> FileReport:
        """Write the vectors, or those that an earlier run left to be done.

        They are collected in a store next to the output, `.NAME.parts`, or in the output itself if
        that is a store (`write` is None) without other vectors.
        """
        index = self.index()  # errors in the text are raised here, before anything is written
        target = output.resolve()  # so that its parts are on the same file system
        parts = target.with_name(
            f".{target.name}.parts"
        )  # hidden, so that it is no directory of the user's
        with only_one_in(target if write is None else parts):
            if write is None and (
                not overwrite or not (target / INDEX_NAME).exists() or _holds(target, index)
            ):
                return self._write_parts(target, index, output)
            if (parts / INDEX_NAME).exists() and not _holds(
                parts, index
            ):  # of another job, which was interrupted
                for path in parts.iterdir():
                    path.unlink() if path.is_file() else shutil.rmtree(path)
            report = self._write_parts(parts, index, output)
            store = EmbeddingStore(parts)
            publish_directory(parts, target) if write is None else write(store, target)
        shutil.rmtree(parts, ignore_errors=True)
        return report

    def _batches(self, kept: Set[int]) -> Iterator[_Batch]:
        """The batches of all parts but those that are kept, whose words are only counted."""
        lines, part = self.read(self.path), 0
        while sentences := list(map(self._counted, islice(lines, self.lines_per_part))):
            if part not in kept:
                # With pooling, one vector a line, whose word no one will ask for.
                labels = sentences if self.pooling is None else [[""]] * len(sentences)
                missing = len(sentences)
                for batch in self.embedder.pipeline.sizes.split_evenly(sentences):
                    missing -= len(batch)
                    yield _Batch(part, labels, batch, missing == 0)
            part += 1

    def _counted(self, line: str) -> list[str]:
        """The words of a line, which are counted."""
        count_truncated, words = self.embedder.count_truncated, self.tokenizer.tokenize(line)
        self.words += len(words)
        if truncated := count_truncated(words):
            self.truncated_words += truncated
            self.first_truncated = self.first_truncated or next(
                word for word in words if count_truncated([word])
            )
        return words

    def _write_parts(self, directory: Path, index: StoreIndex, output: Path) -> FileReport:
        """Compute and write the parts that a store lacks, and mark it complete."""
        numbers = set(range(-(-self.lines // self.lines_per_part)))
        kept, state = begin_store(directory, index) & numbers, self.state
        if self.state == "carry" and kept != numbers:
            first_missing = min(numbers - kept)
            path = _state_path(directory, first_missing - 1)
            kept, state = (
                (set(range(first_missing)), BiLMState(**load_file(path)))
                if path.exists()
                else (set(), state)
            )
        start, words = time.perf_counter(), 0
        computed, written = tee(self._batches(kept))
        results = self.embedder.pipeline.embed_all(
            (batch.sentences for batch in computed), self.spec, state
        )
        bar = ProgressBar(
            total=self.lines,
            initial=min(self.lines, len(kept) * self.lines_per_part),
            unit=" lines",
            unit_scale=True,
            desc=self.path.name,
        )
        with bar, closing(results), ExitStack() as open_shard:
            write = None
            for result, batch in zip(
                results, written, strict=False
            ):  # results first: they draw the batches
                if write is None:
                    write = open_shard.enter_context(
                        write_shard(directory, index, batch.part, batch.labels)
                    )
                write(result.vectors[0])
                words += sum(map(len, batch.sentences))
                bar.set_postfix_str(
                    f"{words / (time.perf_counter() - start):,.0f} words/s", refresh=False
                )
                bar.update(len(batch.sentences))
                if batch.ends_part:
                    if (
                        self.state == "carry"
                    ):  # before its part, so that the last finished part always has its state
                        with atomic_path(_state_path(directory, batch.part)) as path:
                            save_file(
                                {
                                    "h": result.state.h.contiguous(),
                                    "c": result.state.c.contiguous(),
                                },
                                path,
                            )
                    open_shard.close()
                    write = None
                    _state_path(directory, batch.part - 1).unlink(missing_ok=True)
        finish_store(directory, index, len(numbers))
        for path in directory.glob("state-*.safetensors"):
            path.unlink()
        if self.truncated_words:
            message = truncation_message(
                self.truncated_words, self.embedder.word_limit, str(self.path), self.first_truncated
            )
            warnings.warn(message, TruncationWarning, stacklevel=4)
        seconds = time.perf_counter() - start
        counts = self.lines, self.words, self.truncated_words, len(numbers), len(kept)
        return FileReport(output, *counts, round(seconds, 3), round(words / seconds, 1))
