"""From a text file to a file of vectors: one for every word (`embed_file`), or one for every line
(`encode_file`).

Vectors are collected in an embedding store, part by part, which gets its name, or is exported to a
file, when it is complete. A part is written whole or not at all; a later run with the same
arguments computes the parts that are missing, and the result is bit for bit that of an
uninterrupted run. Batches are computed ahead on other threads while the calling thread writes
vectors, so that memory holds the words of some parts, but only a few batches of vectors.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import closing
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from itertools import chain, islice, tee
from pathlib import Path
from typing import NamedTuple

from safetensors.torch import load_file, save_file

from elmokit.checkpoints import ModelSource
from elmokit.data import TextFile, write_table
from elmokit.embed.embedder import Embedder
from elmokit.embed.outputs import OutputSpec, Pooling, PoolingName
from elmokit.extras import import_extra
from elmokit.fs import (
    atomic_path,
    check_output,
    directory_lock,
    remove_directory,
    suffixes_of,
)
from elmokit.nn import BiLMState
from elmokit.progress import ProgressBar
from elmokit.runtime import MAX_SENTENCE_WORDS, check_length
from elmokit.settings import Count, StatePolicy, StorageDtype, conform
from elmokit.storage import EXPORTS, EmbeddingStore, StoreIndex, StoreWriter
from elmokit.text import TOKENIZED, TruncationWarning

Export = Callable[[EmbeddingStore, Path], None]  # writes the output from a complete store

WORD_FORMATS = (".hdf5", ".h5", ".parquet")  # files of the vectors of words


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
    sentences_per_part: int = 1000,
    overwrite: bool = False,
    column: str | None = None,
) -> FileReport:
    """Write the vector of every word of a text file with one sentence per line, or of a table, of
    any size.

    The same call resumes an interrupted run: it repeats the parts that were in progress, one to
    three, or with more cores one per core. After a finished run it leaves a directory as it is.
    Memory holds the text of a part, and the vectors of some sentences.

    Args:
        file: Text, a table (.csv, .tsv or .jsonl) or FASTA, whose words are residues, plain, .gz or
            .zst; or Parquet. A blank line or an empty cell is a sentence of length zero.
        output: A directory, which `EmbeddingStore` reads, an .hdf5 file in AllenNLP's layout, or a
            .parquet file with a row for each line (extra parquet).
        model: An embedder, a loaded model, or whatever `Embedder` takes.
        layers: As for `Embedder.embed`.
        state: "zeros", "warm", or "carry" (with one row), as for `Embedder.embed`; None: the
            model's own policy.
        tokenize: Split raw lines as the model's training text was; else, and for text of `elmokit
            prepare`, at white space.
        device: Where to compute, unless `model` is an embedder.
        dtype: The number type to compute in, unless `model` is an embedder; see `Embedder`.
        storage_dtype: The number type of the vectors, "float32" or "float16"; in HDF5 those of
            float16 are written as float32.
        sentences_per_part: Lines in each file of a directory.
        overwrite: Replace an output that holds other vectors, once the new ones are complete.
        column: The column of a table with the texts; None: "text".

    Returns:
        The number of sentences and words, and the speed.

    Raises:
        ValueError: Invalid UTF-8 or a line that is too long (before anything is written), an empty
            file, a table without the column, an output that is the input, or numbers too large for
            float16.
        FileExistsError: A file exists, or a directory that holds other vectors, or other files.
        OSError: The output cannot be written.
    """
    output = Path(output).expanduser()
    suffix = suffixes_of(output).kind
    if suffix == ".parquet":
        import_extra("pyarrow", "parquet")
    is_store = suffix not in WORD_FORMATS
    check_output(
        output,
        [file, model],
        suffixes=() if is_store else WORD_FORMATS,
        overwrite=overwrite or is_store,  # a store may belong to the same job
        directory_of=EmbeddingStore.INDEX_NAME if is_store else None,
        own_files=EmbeddingStore.OTHER_FILES if is_store and overwrite else None,
    )
    embedder = Embedder.of(model, device, dtype)
    (text,) = TextFile.open([file], embedder.model.tokenizer, tokenize, column=column)
    job = FileJob(
        text,
        embedder,
        layers=layers,
        state=state,
        lines_per_part=sentences_per_part,
        storage_dtype=storage_dtype,
    )
    return job.write(output, None if is_store else EXPORTS[suffix], overwrite)


def encode_file(
    file: str | Path,
    output: str | Path,
    model: Embedder | ModelSource = None,
    *,
    pooling: PoolingName | None = None,
    normalize_embeddings: bool = False,
    layers: str | int | None = None,
    state: StatePolicy | None = None,
    tokenize: bool = True,
    device: str | None = None,
    dtype: str | None = None,
    sentences_per_part: int = 1000,
    overwrite: bool = False,
    column: str | None = None,
) -> FileReport:
    """Write one vector for each line of a text file, or row of a table, as `Embedder.encode`
    computes it.

    Args:
        file: Text, one text a line, or a table, as for `embed_file`.
        output: A NumPy file (.npy) for the vectors (N, D') float32, zeros where a line or a cell is
            empty; or Parquet (.parquet) with the vectors beside the texts and the other columns of
            a table.
        model: An embedder, a loaded model, or whatever `Embedder` takes.
        pooling, normalize_embeddings, layers: As for `Embedder.encode`.
        state, tokenize, device, dtype, sentences_per_part, overwrite, column: As for `embed_file`.

    Returns:
        The number of lines and words, and the speed.

    Raises:
        ValueError, OSError: As `embed_file`.
        FileExistsError: The file exists.
    """
    output = Path(output).expanduser()
    check_output(output, [file, model], overwrite=overwrite, suffixes=(".npy", ".parquet"))
    embedder = Embedder.of(model, device, dtype)
    (text,) = TextFile.open([file], embedder.model.tokenizer, tokenize, column=column)
    job = FileJob(
        text,
        embedder,
        layers=layers,
        state=state,
        lines_per_part=sentences_per_part,
        pooling=Pooling(pooling, normalize_embeddings),
    )
    if suffixes_of(output).kind == ".npy":
        return job.write(output, EXPORTS[".npy"], overwrite)
    import_extra("pyarrow", "parquet")

    def write_rows(store: EmbeddingStore, path: Path) -> None:
        rows = enumerate(job.text.rows())
        table = (
            {**others, column or "text": text, "vector": store.vectors(line)[0].tolist()}
            for line, (text, others) in rows
        )
        write_table(path, table)

    return job.write(output, write_rows, overwrite)


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
    parts_kept: int  # parts of an earlier, interrupted run
    seconds: float
    words_per_second: float


class _Part(NamedTuple):
    """Lines of the text that become one shard."""

    number: int
    labels: Sequence[Sequence[str]]  # the words that are stored with the vectors of each line
    batches: Sequence[Sequence[Sequence[str]]]  # sentences that are run together


def _state_path(directory: Path, part: int) -> Path:
    """The state after a part."""
    return directory / f"state-{part:05d}.safetensors"


@dataclass(kw_only=True)
class FileJob:
    """Everything that determines the vectors of a file, and the counts of the current run."""

    text: TextFile = field(kw_only=False)
    embedder: Embedder = field(kw_only=False)
    layers: str | int | None  # None: the default of a pooling
    state: StatePolicy | None  # None: the model's policy
    lines_per_part: int
    storage_dtype: StorageDtype = "float32"
    pooling: Pooling | None = None  # None: a vector for every word

    lines: int = field(default=0, init=False)
    words: int = field(default=0, init=False)
    truncated_words: int = field(default=0, init=False)
    first_truncated: str = field(default="", init=False)

    def __post_init__(self) -> None:
        conform(Count, self.lines_per_part, "sentences_per_part")
        self.state = conform(StatePolicy, self.state or self.embedder.model.state_policy, "state")
        self.embedder.pipeline.start(self.state)  # raises where there is none
        model, layers = self.embedder.model, self.layers
        self.spec = OutputSpec.of(model, layers, self.pooling, self.storage_dtype)

    def index(self) -> StoreIndex:
        """The index of a store of this job. The text is read to its end, so that no error in it
        stops a run halfway.
        """
        digest = blake2b(digest_size=16)
        texts, title = self.text.lines(), f"read {self.text.path.name}"
        bar = ProgressBar(texts, title, leave=False, unit=" lines", unit_scale=True)
        for self.lines, line in enumerate(bar, start=1):
            digest.update(f"{line}\n".encode())
            if len(line) > MAX_SENTENCE_WORDS:  # no line has more words than characters
                words = self._split(line)
                check_length(len(words), f"{self.text.path}, line {self.lines}")
        if not self.lines:
            raise ValueError(f"{self.text.path} is empty: there is nothing to embed")
        settings = {
            "model": self.embedder.fingerprint(),
            "text": digest.hexdigest(),
            "tokenizer": self.text.tokenizer.name,
            "layers": self.layers,
            "state": self.state,
            "pooling": self.pooling and asdict(self.pooling),
            "dtype": str(self.embedder.dtype).removeprefix("torch."),
        }
        return StoreIndex(
            settings=settings,
            vector_shape=(*self.spec.shape, self.spec.dim),
            dtype=self.spec.storage_dtype or "float32",
            sentences_per_part=self.lines_per_part,
        )

    def write(self, output: Path, export: Export | None, overwrite: bool) -> FileReport:
        """Write the vectors that earlier runs have not written.

        They are collected in a store next to the output, `.NAME.parts`. If the output is a store
        of this job already (`export` is None), only what it has lost is computed.
        """
        #   NAME absent             .NAME.parts, then renamed to NAME, or exported
        #   NAME of this job        NAME
        #   NAME of another one     refused; with `overwrite` as if it were absent
        index = self.index()  # errors in the text are raised here, before anything is written
        target = output.resolve()  # so that its parts are on the same file system
        parts = target.with_name(f".{target.name}.parts")  # hidden: no directory of the user's
        if export is None and index.is_at(target):
            with directory_lock(target):
                return self._write_parts(target, index, output)
        if export is None and (target / EmbeddingStore.INDEX_NAME).exists() and not overwrite:
            raise FileExistsError(
                f"{output} holds other embeddings: remove it, name another, or ask to overwrite it "
                "(--overwrite)"
            )
        with directory_lock(parts):
            report = self._write_parts(parts, index, output)
            if export is None:
                if target.exists():
                    remove_directory(target)
                parts.rename(target)
            else:
                export(EmbeddingStore(parts), target)
                remove_directory(parts)
        return report

    def _parts(self, kept: Set[int]) -> Iterator[_Part]:
        """Yield the parts to compute; count words of kept parts."""
        # Five lines, two in each part, of which part 1 is kept from an earlier run:
        #
        #   part 0   a, b   yielded       part 1   c, d   counted       part 2   e   yielded
        lines, number = self.text.lines(), 0
        while sentences := list(map(self._counted, islice(lines, self.lines_per_part))):
            if number not in kept:
                # With pooling, one vector a line, whose word no one will ask for.
                labels = sentences if self.pooling is None else [[""]] * len(sentences)
                batches = self.embedder.pipeline.split_evenly(sentences)
                yield _Part(number, labels, list(batches))
            number += 1

    def _split(self, line: str) -> list[str]:
        return self.embedder.model.split(line, self.text.tokenizer.name != TOKENIZED)

    def _counted(self, line: str) -> list[str]:
        """Tokenize a line and update the counts."""
        count_truncated, words = self.embedder.count_truncated, self._split(line)
        self.words += len(words)
        if truncated := count_truncated(words):
            self.truncated_words += truncated
            is_truncated = (word for word in words if count_truncated([word]))
            self.first_truncated = self.first_truncated or next(is_truncated)
        return words

    def _write_parts(self, directory: Path, index: StoreIndex, output: Path) -> FileReport:
        """Compute and write the parts that a store lacks, and mark it complete."""
        pipeline, writer = self.embedder.pipeline, StoreWriter(directory, index)
        numbers = set(range(-(-self.lines // self.lines_per_part)))
        # With carried state a part needs the state after the part before, which is kept in a file
        # of its own for the last part that is complete:
        #
        #   part 0   part 1   (part 2 missing)   part 3     kept: 0, 1, if state-00001 is there
        kept, start = writer.read_shards().keys() & numbers, pipeline.start(self.state)
        if start.is_carried and kept != numbers:  # all parts after the first missing one, too
            kept = set(range(min(numbers - kept)))
            path = _state_path(directory, len(kept) - 1)
            if path.exists():
                start = pipeline.start(BiLMState(**load_file(path)))
            else:
                kept = set()
        # `computed` is ahead of `written` by the batches that are in progress, so that memory holds
        # the words of the parts between them.
        began, words = time.perf_counter(), 0
        computed, written = tee(self._parts(kept))
        results = pipeline.embed_all(
            chain.from_iterable(part.batches for part in computed), self.spec, start
        )
        bar = ProgressBar(
            total=self.lines,
            initial=min(self.lines, len(kept) * self.lines_per_part),
            unit=" lines",
            unit_scale=True,
            desc=self.text.path.name,
        )
        with bar, closing(results):
            for part in written:
                with writer.shard(part.number, part.labels) as write:
                    for batch in part.batches:
                        result = next(results)
                        write(result.vectors[0])
                        words += sum(map(len, batch))
                        speed = words / (time.perf_counter() - began)
                        bar.set_postfix_str(f"{speed:,.0f} words/s", refresh=False)
                        bar.update(len(batch))
                    if start.is_carried:  # before its part, so that the last part has its state
                        state = {"h": result.state.h.contiguous(), "c": result.state.c.contiguous()}
                        with atomic_path(_state_path(directory, part.number)) as path:
                            save_file(state, path)
                _state_path(directory, part.number - 1).unlink(missing_ok=True)
        writer.finish(len(numbers))
        for path in directory.glob("state-*.safetensors"):
            path.unlink()
        if self.truncated_words:
            limit, first = self.embedder.word_limit, self.first_truncated
            warning = TruncationWarning.of(self.truncated_words, limit, str(self.text.path), first)
            warnings.warn(warning, stacklevel=4)
        seconds = time.perf_counter() - began
        return FileReport(
            output,
            self.lines,
            self.words,
            self.truncated_words,
            parts=len(numbers),
            parts_kept=len(kept),
            seconds=round(seconds, 3),
            words_per_second=round(words / seconds, 1),
        )
