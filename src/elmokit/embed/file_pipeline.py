"""The vectors of a text file, part by part, so that a run that was stopped goes on where it was.

Every part is computed by itself and written whole or not at all. A later run with the same arguments makes the parts
that are missing, and the result is bit for bit that of a run that was never stopped. A part that was stopped is made
again from its beginning, however long its lines are.

Records walk one way: lines -> spooled parts -> batches -> vectors -> a background consumer that writes them to their
places. So memory holds one line of text and a few batches of vectors or windows of a long sentence, never a part.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple, TypeAlias, cast

import numpy as np
from safetensors.torch import load_file, save_file

from elmokit.config import StatePolicy
from elmokit.embed.background import background_consumer
from elmokit.embed.embedder import TruncationWarning
from elmokit.embed.job import FileJob, FileReport, Progress
from elmokit.embed.outputs import HalfVectors, RunningPool
from elmokit.embed.pipeline import split_evenly
from elmokit.fs.atomic import atomic_path
from elmokit.fs.lock import only_one_in
from elmokit.nn.bilm import BiLMState
from elmokit.storage.shard import join_sentences
from elmokit.storage.store import begin_store, finish_store, new_part
from elmokit.storage.token_spool import SpooledSentence, TokenSpool, read_together

# --- The state between parts -----------------------------------------------------------------------------------------


def _state_path(directory: Path, number: int) -> Path:
    return directory / f"state-{number:05d}.safetensors"


def _write_state(path: Path, state: BiLMState) -> None:
    with atomic_path(path) as partial_path:
        save_file({"h": state.h.contiguous(), "c": state.c.contiguous()}, partial_path)


def _finished_parts(job: FileJob, directory: Path, readable: Sequence[int]) -> tuple[set[int], StatePolicy | BiLMState]:
    """The parts that need not be made again, and what the first of the others starts from."""
    numbers = set(range(job.num_parts))
    kept = numbers.intersection(readable)
    if job.state != "carry" or kept == numbers:
        return kept, job.state
    first_missing = min(numbers - kept)
    path = _state_path(directory, first_missing - 1)
    return (set(range(first_missing)), BiLMState(**load_file(path))) if path.is_file() else (set(), job.state)


# --- Plan: words, ahead of their vectors -----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Part:
    """A part to be made, whose words are counted and wait."""

    number: int
    words: TokenSpool
    named: TokenSpool  # what its vectors will be written beside
    characters: list[int]  # of each line


@dataclass(frozen=True)
class _Batch:
    """Lines of a part that are run together, or a long one alone."""

    part: _Part
    first_line: int
    sentences: list[SpooledSentence]
    is_long: bool

    @property
    def ends_part(self) -> bool:
        return self.first_line + len(self.sentences) == len(self.part.characters)

    @property
    def characters(self) -> int:
        return sum(self.part.characters[self.first_line : self.first_line + len(self.sentences)])


def _spooled(job: FileJob, directory: Path, number: int, lines: Iterable[str], progress: Progress) -> _Part:
    characters, words, unnamed = [], TokenSpool(directory), TokenSpool(directory)
    for line in lines:
        words.add_sentence(progress.counted(job, line))
        characters.append(len(line))
        if job.pooling is not None:
            unnamed.add_sentence([[""]])  # one vector a line, which no one will ask for words
    return _Part(number, words, words if job.pooling is None else unnamed, characters)


def _missing_parts(job: FileJob, directory: Path, kept: Set[int], progress: Progress) -> Iterator[_Part]:
    """Those that are not `kept`, each when it is asked for."""
    for number, lines in enumerate(job.parts()):
        if number not in kept:
            yield _spooled(job, directory, number, lines, progress)
            continue
        for line in lines:
            for _ in progress.counted(job, line):
                pass
            progress.made(len(line), words=0)


def _batches_of(part: _Part, longest: int) -> Iterator[_Batch]:
    line = 0
    for sentences, is_long in split_evenly(part.words.sentences(), longest):
        yield _Batch(part, line, cast(list[SpooledSentence], sentences), is_long)
        line += len(sentences)


# --- Vectors ---------------------------------------------------------------------------------------------------------


class PartBegin(NamedTuple):
    """Vectors will come for these words."""

    number: int
    words: TokenSpool


class Vectors(NamedTuple):
    """Of the words of the part from `row` on, as they are stored."""

    row: int
    vectors: np.ndarray


class PartEnd(NamedTuple):
    """The part has all its vectors; what the next one starts from."""

    state: StatePolicy | BiLMState


Record: TypeAlias = "PartBegin | Vectors | HalfVectors | PartEnd"


def _embedded(
    job: FileJob, batches: Iterable[_Batch], state: StatePolicy | BiLMState
) -> Iterator[tuple[_Batch, np.ndarray, StatePolicy | BiLMState]]:
    """Each batch of short lines, its vectors as they are stored, and the state after it."""
    if isinstance(state, BiLMState) or state == "carry":
        yield from _embedded_carrying(job, batches, state)
        return
    taken: deque[_Batch] = deque()

    def sentences_of(batch: _Batch) -> list[list[str]]:
        taken.append(batch)
        return read_together(batch.sentences)

    found = job.embedder.embed_end_to_end(map(sentences_of, batches), job.layers, state, job.dtype)
    with closing(found):  # type: ignore[type-var]
        for vectors in found:
            batch = taken.popleft()
            if job.pooling is not None:
                ends = np.cumsum(list(map(len, batch.sentences)))
                vectors = np.concatenate(list(map(job.pooling, np.split(vectors, ends[:-1]))))
            yield batch, vectors, state


def _embedded_carrying(
    job: FileJob, batches: Iterable[_Batch], state: StatePolicy | BiLMState
) -> Iterator[tuple[_Batch, np.ndarray, StatePolicy | BiLMState]]:
    for batch in batches:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TruncationWarning)  # the report counts them
            found = job.embedder.embed(read_together(batch.sentences), job.layers, state)
        assert found.state is not None
        state, vectors = found.state, found if job.pooling is None else list(map(job.pooling, found))
        yield batch, _as_stored(job, vectors), state


def _as_stored(job: FileJob, sentences: Sequence[np.ndarray]) -> np.ndarray:
    return join_sentences(sentences, job.index.vector_shape, job.dtype)


def _long_line(
    job: FileJob, batch: _Batch, state: StatePolicy | BiLMState, progress: Progress
) -> Iterator[Record | BiLMState]:
    """The vectors of a long line, window by window, each followed by the state after it."""
    (words,), characters = batch.sentences, batch.characters
    pool = None if job.pooling is None else RunningPool(job.pooling, job.embedder.dim)
    for result in job.embedder.embed_windows(words, job.layers, state):
        for half in result.halves:
            if pool is not None:
                pool.add(half)
                continue
            rows = slice(words.begin + half.rows.start, words.begin + half.rows.stop)
            yield HalfVectors(rows, half.columns, half.vectors)
        done = result.halves[0].rows
        progress.made(
            *(part * done.stop // len(words) - part * done.start // len(words) for part in (characters, len(words)))
        )
        yield result.state
    if pool is not None:
        yield Vectors(batch.first_line, _as_stored(job, [pool.vectors()]))


def _records(
    job: FileJob, batches: Iterable[_Batch], state: StatePolicy | BiLMState, progress: Progress
) -> Iterator[Record]:
    """All that the writer is to do, part after part; some batches are taken ahead of what comes out."""
    carries = isinstance(state, BiLMState) or state == "carry"
    for is_long, together in groupby(batches, key=attrgetter("is_long")):
        if not is_long:
            for batch, vectors, after in _embedded(job, together, state):
                state = after
                if batch.first_line == 0:
                    yield PartBegin(batch.part.number, batch.part.named)
                row = batch.sentences[0].begin if job.pooling is None else batch.first_line
                yield Vectors(row, vectors)
                progress.made(batch.characters, sum(map(len, batch.sentences)))
                if batch.ends_part:
                    yield PartEnd(state)
            continue
        for batch in together:
            if batch.first_line == 0:
                yield PartBegin(batch.part.number, batch.part.named)
            for record in _long_line(job, batch, state, progress):
                if not isinstance(record, BiLMState):
                    yield record
                elif carries:
                    state = record
            if batch.ends_part:
                yield PartEnd(state)


# --- Writing ---------------------------------------------------------------------------------------------------------


def _write_parts(job: FileJob, directory: Path, records: Iterator[Record]) -> None:
    for begin in records:
        assert isinstance(begin, PartBegin)
        with new_part(directory, job.index, begin.number, begin.words) as writer:
            while not isinstance(record := next(records), PartEnd):
                if isinstance(record, Vectors):
                    writer.write(record.row, record.vectors)
                else:
                    assert isinstance(record, HalfVectors)
                    writer.fill(record.rows, record.columns, record.vectors)
            if isinstance(record.state, BiLMState):
                # Before its part is there, so that the last finished part always has its state beside it.
                _write_state(_state_path(directory, begin.number), record.state)
        _state_path(directory, begin.number - 1).unlink(missing_ok=True)


def make_parts(job: FileJob, directory: Path, output: Path) -> FileReport:
    """Make the parts that `directory` lacks and mark it complete; `output` is what the report calls the result."""
    index = job.index  # what is wrong with the job shows here, before anything is made
    with only_one_in(directory):
        kept, state = _finished_parts(job, directory, begin_store(directory, index))
        progress = Progress(job.text)
        longest = job.embedder.sizes.batch_words
        parts = _missing_parts(job, directory, kept, progress)
        batches = chain.from_iterable(_batches_of(part, longest) for part in parts)
        records = closing(_records(job, batches, state, progress))  # type: ignore[type-var]
        with progress.bar, background_consumer(partial(_write_parts, job, directory)) as put, records as each:
            for record in each:
                put(record)
        finish_store(directory, job.index, job.num_parts)
        left_by_kills = directory.glob(".partial-*")
        for path in (*directory.glob("state-*.safetensors"), *left_by_kills):
            path.unlink()
    return progress.report(output, job, len(kept))
