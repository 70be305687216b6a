"""The vectors of a text file, part by part, so that a run that was stopped goes on where it was.

Every part is computed by itself and written whole or not at all. A later run with the same arguments makes the parts
that are missing, and the result is bit for bit that of a run that was never stopped. A part that was stopped is made
again from its beginning, however long its lines are.

A part's words wait in a spool until they are counted, and its vectors go to their place in its file while the next ones
are being made, be they of the next part. So memory holds one line of text and some blocks of vectors or windows of a
long sentence, five of them on two cores and one or two more for each further core, never a part.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby, islice
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple, TypeAlias, cast

import numpy as np
from safetensors.torch import load_file, save_file

from elmokit.embed.behind import used_behind
from elmokit.embed.embedder import TruncationWarning
from elmokit.embed.groups import in_even_groups, words_at_once
from elmokit.embed.job import FileJob, FileReport, Progress
from elmokit.embed.long import Put
from elmokit.embed.pooling import RunningPool
from elmokit.embed.stored import as_stored
from elmokit.fs.atomic import atomic_path
from elmokit.fs.lock import only_one_in
from elmokit.nn.bilm import BiLMState
from elmokit.storage.shard import PartWriter
from elmokit.storage.store import begin_store, finish_store, new_part
from elmokit.storage.token_spool import SpooledSentence, TokenSpool, read_together


def _state_path(directory: Path, number: int) -> Path:
    return directory / f"state-{number:05d}.safetensors"


def _write_state(path: Path, state: BiLMState) -> None:
    with atomic_path(path) as partial:
        save_file({"h": state.h.contiguous(), "c": state.c.contiguous()}, partial)


def _taken_up(job: FileJob, directory: Path, readable: Sequence[int]) -> tuple[set[int], str | BiLMState]:
    """The parts that need not be made again, and what the first of the others starts from."""
    numbers = set(range(job.num_parts))
    kept = numbers.intersection(readable)
    if job.state != "carry" or kept == numbers:
        return kept, job.state
    first_missing = min(numbers - kept)
    path = _state_path(directory, first_missing - 1)
    return (set(range(first_missing)), BiLMState(**load_file(path))) if path.is_file() else (set(), job.state)


# --- Writing, in a thread of its own -------------------------------------------------------------------------------


class _Begun(NamedTuple):
    """A part, of which vectors will come for these words."""

    number: int
    words: TokenSpool


class _Made(NamedTuple):
    """The end of a part, and what the next one starts from."""

    state: str | BiLMState


# What the writing thread is given: of each part its beginning, what to do with its writer, and its end.
Step: TypeAlias = "_Begun | _Made | Callable[[PartWriter], None]"


def _write_parts(job: FileJob, directory: Path, steps: Iterator[Step]) -> None:
    for begun in steps:
        assert isinstance(begun, _Begun)
        with new_part(directory, job.index, begun.number, begun.words) as writer:
            while not isinstance(step := next(steps), _Made):
                assert not isinstance(step, _Begun)
                step(writer)
            if isinstance(step.state, BiLMState):
                # Before its part is there, so that the last finished part always has its state beside it.
                _write_state(_state_path(directory, begun.number), step.state)
        _state_path(directory, begun.number - 1).unlink(missing_ok=True)


# --- The words, ahead of the making --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Part:
    """A part to be made, whose words are counted and wait."""

    number: int
    words: TokenSpool
    named: TokenSpool  # what its vectors will be written beside
    characters: list[int]  # of each line


class _Group(NamedTuple):
    """Sentences of a part that are computed together, or a long one alone."""

    part: _Part
    sentences: list[SpooledSentence]
    characters: int
    is_long: bool


def _spooled(job: FileJob, directory: Path, number: int, lines: Iterable[str], progress: Progress) -> _Part:
    characters, words, unnamed = [], TokenSpool(directory), TokenSpool(directory)
    for line in lines:
        words.add_sentence(progress.counted(job, line))
        characters.append(len(line))
        if job.pooling is not None:
            unnamed.add_sentence([[""]])  # one vector a line, which no one will ask for words
    return _Part(number, words, words if job.pooling is None else unnamed, characters)


def _parts_to_make(job: FileJob, directory: Path, kept: Set[int], progress: Progress) -> Iterator[_Part]:
    """Those that are not `kept`, each when it is asked for."""
    for number, lines in enumerate(job.parts()):
        if number not in kept:
            yield _spooled(job, directory, number, lines, progress)
            continue
        for line in lines:
            for _ in progress.counted(job, line):
                pass
            progress.made(len(line), words=0)


def _groups_of(part: _Part, most_words: int) -> Iterator[_Group]:
    characters = iter(part.characters)
    for sentences, is_long in in_even_groups(part.words.sentences(), most_words):
        yield _Group(part, cast(list[SpooledSentence], sentences), sum(islice(characters, len(sentences))), is_long)


# --- Making --------------------------------------------------------------------------------------------------------


class _Maker:
    """Makes the vectors of parts, group by group, which are written behind it."""

    def __init__(
        self, job: FileJob, state: str | BiLMState, progress: Progress, hand_over: Callable[[Step], None]
    ) -> None:
        self._job, self._progress, self._hand_over = job, progress, hand_over
        self._state = state  # what comes next starts from
        self._row = self._lines = 0  # of the part that is being made: where its next vector goes, and how many are made

    def make(self, groups: Iterable[_Group]) -> None:
        """All groups, those of a part after those of another; some are taken ahead of what is being made."""
        for is_long, together in groupby(groups, key=attrgetter("is_long")):
            if is_long:
                for group in together:
                    with self._in_its_part(group):
                        self._make_long(group)
                continue
            for group, vectors, state in self._embedded(together):
                with self._in_its_part(group):
                    self._state = state
                    self._write(vectors)
                    self._progress.made(group.characters, sum(map(len, group.sentences)))

    @contextmanager
    def _in_its_part(self, group: _Group) -> Iterator[None]:
        if not self._lines:
            self._row = 0
            self._hand_over(_Begun(group.part.number, group.part.named))
        yield
        self._lines += len(group.sentences)
        if self._lines == len(group.part.characters):
            self._lines = 0
            self._hand_over(_Made(self._state))

    def _embedded(self, groups: Iterable[_Group]) -> Iterator[tuple[_Group, np.ndarray, str | BiLMState]]:
        """Each group, its vectors as they are stored, and what the next one starts from."""
        embedder, layers = self._job.embedder, self._job.layers
        if isinstance(self._state, str) and self._state != "carry":
            taken: deque[_Group] = deque()

            def words_of(group: _Group) -> list[list[str]]:
                taken.append(group)
                return read_together(group.sentences)

            dtype = self._job.dtype
            for vectors in embedder.embed_end_to_end(map(words_of, groups), layers, self._state, dtype):
                group = taken.popleft()
                yield group, self._pooled(group, vectors), self._state
            return
        for group in groups:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", TruncationWarning)  # the report counts them
                found = embedder.embed(read_together(group.sentences), layers, self._state)
            assert found.state is not None
            pooled = found if self._job.pooling is None else list(map(self._job.pooling, found))
            yield group, self._stored(pooled), found.state

    def _pooled(self, group: _Group, vectors: np.ndarray) -> np.ndarray:
        if self._job.pooling is None:
            return vectors
        ends = np.cumsum(list(map(len, group.sentences)))
        return np.concatenate(list(map(self._job.pooling, np.split(vectors, ends[:-1]))))

    def _stored(self, sentences: Sequence[np.ndarray]) -> np.ndarray:
        return as_stored(sentences, self._job.index.vector_shape, self._job.dtype)

    def _make_long(self, group: _Group) -> None:
        (words,) = group.sentences
        if self._job.pooling is None:
            begin = self._row
            self._embed_long(group, lambda rows, *half: self._fill(_moved(rows, begin), *half))
            self._row += len(words)
        else:
            pool = RunningPool(self._job.pooling, self._job.embedder.dim)
            self._embed_long(group, pool.put)
            self._write(self._stored([pool.vectors()]))

    def _embed_long(self, group: _Group, put: Put) -> None:
        (words,) = group.sentences

        def put_and_tell(rows: slice, columns: slice, vectors: np.ndarray) -> None:
            put(rows, columns, vectors)
            if columns.start == 0:  # once for both directions
                begin, end = (group.characters * word // len(words) for word in (rows.start, rows.stop))
                self._progress.made(end - begin, rows.stop - rows.start)

        self._state = self._job.embedder.embed_long(words, put_and_tell, self._job.layers, self._state) or self._state

    def _write(self, vectors: np.ndarray) -> None:
        begin = self._row
        self._row += len(vectors)
        self._hand_over(lambda writer: writer.write(begin, vectors))

    def _fill(self, rows: slice, columns: slice, vectors: np.ndarray) -> None:
        self._hand_over(lambda writer: writer.fill(rows, columns, vectors))


def _moved(rows: slice, by: int) -> slice:
    return slice(rows.start + by, rows.stop + by)


def make_parts(job: FileJob, directory: Path, output: Path) -> FileReport:
    """Make the parts that `directory` lacks and mark it complete; `output` is what the report calls the result."""
    index = job.index  # what is wrong with the job shows here, before anything is made
    with only_one_in(directory):
        kept, state = _taken_up(job, directory, begin_store(directory, index))
        progress = Progress(job.text)
        with progress.bar, used_behind(partial(_write_parts, job, directory)) as hand_over:
            parts = _parts_to_make(job, directory, kept, progress)
            most_words = words_at_once(job.embedder.model.config, job.embedder.device)
            groups = chain.from_iterable(_groups_of(part, most_words) for part in parts)
            _Maker(job, state, progress, hand_over).make(groups)
        finish_store(directory, job.index, job.num_parts)
        left_by_kills = directory.glob(".partial-*")
        for path in (*directory.glob("state-*.safetensors"), *left_by_kills):
            path.unlink()
    return progress.report(output, job, len(kept))
