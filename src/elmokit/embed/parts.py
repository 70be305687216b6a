"""The vectors of a text file, part by part, so that a run that was stopped goes on where it was.

Every part is computed by itself and written whole or not at all. A later run with the same arguments makes the parts
that are missing, and the result is bit for bit that of a run that was never stopped. A part that was stopped is made
again from its beginning, however long its lines are.

A part's words wait in a spool until they are counted, and its vectors go to their place in its file while the next ones
are being made. So memory holds one line of text, five blocks of vectors or windows of a long sentence, never a part.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple, TypeAlias, cast

import numpy as np
from safetensors.torch import load_file, save_file

from elmokit.embed.behind import used_behind
from elmokit.embed.embedder import Embeddings, TruncationWarning
from elmokit.embed.groups import WORDS_AT_ONCE
from elmokit.embed.job import FileJob, FileReport, Progress
from elmokit.embed.long import Put, long_apart
from elmokit.embed.pooling import RunningPool
from elmokit.embed.stored import as_stored
from elmokit.files import atomic_path, only_one_in
from elmokit.io.part import PartWriter
from elmokit.io.store import begin_store, finish_store, new_part
from elmokit.io.token_spool import SpooledSentence, TokenSpool, read_together
from elmokit.nn.bilm import BiLMState


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


# --- Making --------------------------------------------------------------------------------------------------------


class _PartInTheMaking:
    """The vectors of one part's sentences, group by group, each from the state that the one before it left."""

    def __init__(
        self, job: FileJob, state: str | BiLMState, progress: Progress, hand_over: Callable[[Step], None]
    ) -> None:
        self.state = state
        self._job, self._progress, self._hand_over = job, progress, hand_over
        self._row = 0  # where the next vector goes

    def make(self, sentences: Sequence[SpooledSentence], characters: Iterable[int]) -> None:
        """`characters` are those of each sentence's line, for the bar."""
        remaining = iter(characters)
        for is_long, together in groupby(long_apart(sentences, WORDS_AT_ONCE), key=itemgetter(1)):
            groups = (group for group, _ in together)
            if is_long:
                for (sentence,) in groups:
                    self._make_long(sentence, next(remaining))
            else:
                self._make_groups(map(read_together, cast(Iterator[list[SpooledSentence]], groups)), remaining)

    def _make_groups(self, groups: Iterable[list[list[str]]], characters: Iterator[int]) -> None:
        for found in self._embedded(groups):
            self._write(found if self._job.pooling is None else list(map(self._job.pooling, found)))
            self._progress.made(sum(islice(characters, len(found))), sum(vectors.shape[-2] for vectors in found))

    def _embedded(self, groups: Iterable[list[list[str]]]) -> Iterator[Embeddings]:
        embedder, layers = self._job.embedder, self._job.layers
        if isinstance(self.state, str) and self.state != "carry":
            yield from embedder.embed_groups(chain.from_iterable(groups), layers, self.state)
            return
        for group in groups:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", TruncationWarning)  # the report counts them
                found = embedder.embed(group, layers, self.state)
            assert found.state is not None
            self.state = found.state
            yield found

    def _make_long(self, words: Sequence[str], characters: int) -> None:
        if self._job.pooling is None:
            begin = self._row
            self._embed_long(words, characters, lambda rows, *half: self._fill(_moved(rows, begin), *half))
            self._row += len(words)
        else:
            pool = RunningPool(self._job.pooling, self._job.embedder.dim)
            self._embed_long(words, characters, pool.put)
            self._write([pool.vectors()])

    def _embed_long(self, words: Sequence[str], characters: int, put: Put) -> None:
        def put_and_tell(rows: slice, columns: slice, vectors: np.ndarray) -> None:
            put(rows, columns, vectors)
            if columns.start == 0:  # once for both directions
                begin, end = (characters * word // len(words) for word in (rows.start, rows.stop))
                self._progress.made(end - begin, rows.stop - rows.start)

        self.state = self._job.embedder.embed_long(words, put_and_tell, self._job.layers, self.state) or self.state

    def _write(self, sentences: Sequence[np.ndarray]) -> None:
        begin, vectors = self._row, as_stored(sentences, self._job.index.vector_shape, self._job.dtype)
        self._row += len(vectors)
        self._hand_over(lambda writer: writer.write(begin, vectors))

    def _fill(self, rows: slice, columns: slice, vectors: np.ndarray) -> None:
        self._hand_over(lambda writer: writer.fill(rows, columns, vectors))


def _moved(rows: slice, by: int) -> slice:
    return slice(rows.start + by, rows.stop + by)


def _make_part(
    job: FileJob,
    directory: Path,
    number: int,
    lines: Iterable[str],
    state: str | BiLMState,
    progress: Progress,
    hand_over: Callable[[Step], None],
) -> str | BiLMState:
    """Make one part, which is written behind this; returns what the next one starts from."""
    characters, words, unnamed = [], TokenSpool(directory), TokenSpool(directory)
    for line in lines:
        words.add_sentence(progress.counted(job, line))
        characters.append(len(line))
        if job.pooling is not None:
            unnamed.add_sentence([[""]])  # one vector a line, which no one will ask for words
    hand_over(_Begun(number, words if job.pooling is None else unnamed))
    part = _PartInTheMaking(job, state, progress, hand_over)
    part.make(words.sentences(), characters)
    hand_over(_Made(part.state))
    return part.state


def make_parts(job: FileJob, directory: Path, output: Path) -> FileReport:
    """Make the parts that `directory` lacks and mark it complete; `output` is what the report calls the result."""
    index = job.index  # what is wrong with the job shows here, before anything is made
    with only_one_in(directory):
        kept, state = _taken_up(job, directory, begin_store(directory, index))
        progress = Progress(job.text)
        with progress.bar, used_behind(partial(_write_parts, job, directory)) as hand_over:
            for number, lines in enumerate(job.parts()):
                if number not in kept:
                    state = _make_part(job, directory, number, lines, state, progress, hand_over)
                    continue
                for line in lines:
                    for _ in progress.counted(job, line):
                        pass
                    progress.made(len(line), words=0)
        finish_store(directory, job.index, job.num_parts)
        left_by_kills = directory.glob(".partial-*")
        for path in (*directory.glob("state-*.safetensors"), *left_by_kills):
            path.unlink()
    return progress.report(output, job, len(kept))
