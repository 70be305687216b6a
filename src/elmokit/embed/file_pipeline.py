"""The vectors of a text file, part by part, so that an interrupted run can be resumed.

Every part is computed by itself and written whole or not at all. A later run with the same arguments computes the
parts that are missing, and the result is bit for bit that of an uninterrupted run. An unfinished part is computed again
from its beginning, however long its lines are.

Lines are collected into parts and split into batches; batches are computed ahead, on other threads, while the calling
thread writes vectors. So memory holds the words of a part, but only a few batches of its vectors.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence, Set
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import chain, tee
from pathlib import Path
from typing import NamedTuple, TypeAlias, cast

import numpy as np
from safetensors.torch import load_file, save_file

from elmokit.embed.job import FileJob, FileReport, Progress
from elmokit.embed.outputs import OutputSpec
from elmokit.embed.pipeline import Sizes
from elmokit.fs.atomic import atomic_path
from elmokit.nn.bilm import BiLMState
from elmokit.settings import StatePolicy
from elmokit.storage.store import begin_store, finish_store, write_shard

State: TypeAlias = "StatePolicy | BiLMState"

# --- The state between parts -----------------------------------------------------------------------------------------


def _state_path(directory: Path, number: int) -> Path:
    return directory / f"state-{number:05d}.safetensors"


def _write_state(path: Path, state: BiLMState) -> None:
    with atomic_path(path) as partial_path:
        save_file({"h": state.h.contiguous(), "c": state.c.contiguous()}, partial_path)


def _finished_parts(job: FileJob, directory: Path, readable: Set[int]) -> tuple[set[int], State]:
    """The parts that need not be computed again, and the state that the first of the others starts from."""
    numbers = set(range(job.num_parts))
    kept = numbers.intersection(readable)
    if job.state != "carry" or kept == numbers:
        return kept, job.state
    first_missing = min(numbers - kept)
    path = _state_path(directory, first_missing - 1)
    return (set(range(first_missing)), BiLMState(**load_file(path))) if path.exists() else (set(), job.state)


# --- Plan: words, ahead of their vectors -----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Part:
    """A part to compute, whose words are counted."""

    number: int
    sentences: list[list[str]]
    labels: list[list[str]]  # the words that its vectors are written with
    characters: list[int]  # of each line


@dataclass(frozen=True)
class _Batch:
    """Lines of a part that are run together."""

    part: _Part
    first_line: int
    sentences: Sequence[list[str]]

    @property
    def ends_part(self) -> bool:
        return self.first_line + len(self.sentences) == len(self.part.characters)

    @property
    def characters(self) -> int:
        return sum(self.part.characters[self.first_line : self.first_line + len(self.sentences)])


def _missing_parts(job: FileJob, kept: Set[int], progress: Progress) -> Iterator[_Part]:
    for number, lines in enumerate(job.text.parts()):
        if number in kept:
            progress.skip(lines)
            continue
        characters, sentences = [], []
        for line in lines:
            sentences.append(progress.counted(line))
            characters.append(len(line))
        # With pooling, one vector a line, whose word no one will ask for.
        yield _Part(number, sentences, sentences if job.pooling is None else [[""]] * len(sentences), characters)


def _batches_of(part: _Part, sizes: Sizes) -> Iterator[_Batch]:
    line = 0
    for sentences in sizes.split_evenly(part.sentences):
        yield _Batch(part, line, cast(Sequence[list[str]], sentences))
        line += len(sentences)


# --- Vectors ---------------------------------------------------------------------------------------------------------


class _Computed(NamedTuple):
    """The vectors of a batch, as they are stored, and the state after it."""

    batch: _Batch
    vectors: np.ndarray
    state: State


def _compute(job: FileJob, batches: Iterable[_Batch], state: State) -> Generator[_Computed, None, None]:
    """Yield the vectors of each batch; some batches are computed ahead."""
    carries, pipeline = isinstance(state, BiLMState) or state == "carry", job.embedder.pipeline
    written, computed = tee(batches)
    sentences = (batch.sentences for batch in computed)
    spec = OutputSpec.of(pipeline.model, job.layers, job.pooling, job.storage_dtype)
    with closing(pipeline.embed_all(sentences, spec, state)) as results:
        for result, batch in zip(results, written, strict=False):  # results first: they draw the batches
            yield _Computed(batch, result.vectors[0], result.state if carries else state)


# --- The run ---------------------------------------------------------------------------------------------------------


def write_parts(job: FileJob, directory: Path, output: Path) -> FileReport:
    """Compute and write the parts that a directory lacks, and mark it complete.

    Args:
        job: Everything that determines the vectors.
        directory: The embedding store, which the caller has locked.
        output: The output that the report names.

    Returns:
        Counts of the whole text, including the parts that were there already.

    Raises:
        ValueError: If the directory holds other embeddings, the text was changed since it was first read, or numbers
            are too large for the storage dtype.
        OSError: If the directory cannot be written.
    """
    index = job.index
    kept, state = _finished_parts(job, directory, begin_store(directory, index))
    progress, sizes = Progress(job), job.embedder.sizes
    parts = _missing_parts(job, kept, progress)
    batches = chain.from_iterable(_batches_of(part, sizes) for part in parts)
    with progress.bar, closing(_compute(job, batches, state)) as computed, ExitStack() as open_shard:
        write = None
        for batch, vectors, state in computed:
            number = batch.part.number
            if write is None:
                write = open_shard.enter_context(write_shard(directory, index, number, batch.part.labels))
            write(vectors)
            progress.advance(batch.characters, sum(map(len, batch.sentences)))
            if batch.ends_part:
                if isinstance(state, BiLMState):
                    # Before its part is complete, so that the last finished part always has its state.
                    _write_state(_state_path(directory, number), state)
                open_shard.close()
                write = None
                _state_path(directory, number - 1).unlink(missing_ok=True)
    finish_store(directory, index, job.num_parts)
    for path in directory.glob("state-*.safetensors"):
        path.unlink()
    return progress.report(output, len(kept))
