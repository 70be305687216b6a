"""The vectors of a text file, part by part, so that a run that was stopped goes on where it was.

Every part is computed by itself and written whole or not at all. A later run with the same arguments makes the parts
that are missing, and the result is bit for bit that of a run that was never stopped.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import islice
from pathlib import Path

import numpy as np
from safetensors.torch import load_file, save_file
from tqdm import tqdm

from elmokit.data.streams import blocks_of
from elmokit.embed.embedder import WORDS_AT_ONCE, Embedder, Pooling, TruncationWarning
from elmokit.files import atomic_path, only_one_in, read_lines
from elmokit.io.pretrained import fingerprint
from elmokit.io.store import StoreIndex, begin_store, finish_store, write_part
from elmokit.nn.bilm import BiLMState
from elmokit.text.characters import count_truncated

Sentences = Sequence[Sequence[str]]

# --- What goes in --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TextFile:
    """A text file that was read to its end once, so that nothing in it stops a run halfway."""

    path: Path
    lines: int
    characters: int
    digest: str  # of its lines

    @staticmethod
    def read(path: str | Path) -> TextFile:
        """ValueError for invalid UTF-8, naming the line, and for an empty file; FileNotFoundError."""
        lines = characters = 0
        digest = blake2b(digest_size=16)
        for line in read_lines(path):
            lines, characters = lines + 1, characters + len(line)
            digest.update(line.encode() + b"\n")
        if not lines:
            raise ValueError(f"{path} is empty: there is nothing to embed")
        return TextFile(Path(path), lines, characters, digest.hexdigest())


@dataclass(frozen=True, kw_only=True)
class FileJob:
    """All that decides the vectors of a file. ValueError for layers or a state that the model has not."""

    text: TextFile
    embedder: Embedder
    layers: str | int
    state: str
    dtype: str
    sentences_per_part: int
    tokenize: bool
    pooling: Pooling | None = None  # None: a vector for every word

    @property
    def num_parts(self) -> int:
        return -(-self.text.lines // self.sentences_per_part)

    def parts(self) -> Iterator[list[str]]:
        """The lines of each part."""
        lines = read_lines(self.text.path)
        for _ in range(self.num_parts):
            yield list(islice(lines, self.sentences_per_part))

    def split(self, line: str) -> list[str]:
        return self.embedder.tokenize(line) if self.tokenize else line.split()

    def count_truncated(self, sentences: Sentences) -> int:
        char_cnn = self.embedder.model.bilm.config.char_cnn
        return 0 if char_cnn is None else sum(count_truncated(words, char_cnn.max_characters) for words in sentences)

    @cached_property
    def index(self) -> StoreIndex:
        """What marks a directory as that of this job."""
        shape = self.embedder.embed([[]], self.layers, self.state)[0].shape  # (0, 2D) or (L+1, 0, 2D)
        settings = {
            "state": self.state,
            "tokenizer": self.embedder.model.tokenizer if self.tokenize else None,
            "pooling": self.pooling,
            "products": str(self.embedder.dtype).removeprefix("torch."),
            "text": self.text.digest,
        }
        return StoreIndex(
            model=fingerprint(self.embedder.model),
            layers=str(self.layers),
            vector_shape=(*shape[:-2], shape[-1]),
            dtype=self.dtype,
            sentences_per_part=self.sentences_per_part,
            source_bytes=self.text.path.stat().st_size,
            arguments=", ".join(f"{name} {value}" for name, value in settings.items()),
        )


# --- What is told of it --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FileReport:
    """What was written. The counts are of the whole file, `seconds` and `words_per_second` of this run."""

    output: Path
    sentences: int
    words: int
    truncated_words: int  # too long for the model, which read their first bytes only
    parts: int
    parts_kept: int  # made by an earlier run that was stopped
    seconds: float
    words_per_second: float


class _Progress:
    """A bar over the characters of the text, with words per second and time left, and the counts for the report."""

    def __init__(self, text: TextFile) -> None:
        self.bar = tqdm(total=text.characters, unit="B", unit_scale=True, desc=text.path.name, disable=None)
        self.words = self.truncated_words = self._words_made = 0
        self._start = time.perf_counter()

    def made(self, lines: Sequence[str], words: int) -> None:
        self._words_made += words
        self.bar.set_postfix_str(f"{self.speed:,.0f} words/s", refresh=False)
        self.bar.update(sum(map(len, lines)))

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._start

    @property
    def speed(self) -> float:
        return self._words_made / max(self.seconds, 1e-9)

    def report(self, output: Path, job: FileJob, parts_kept: int) -> FileReport:
        counts = job.text.lines, self.words, self.truncated_words, job.num_parts, parts_kept
        return FileReport(output, *counts, round(self.seconds, 3), round(self.speed, 1))


# --- Part by part --------------------------------------------------------------------------------------------------


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


def _make_part(
    job: FileJob, directory: Path, number: int, lines: list[str], sentences: Sentences, state: str | BiLMState,
    progress: _Progress,
) -> str | BiLMState:  # fmt: skip
    """Write one part; returns what the next one starts from."""

    def vectors() -> Iterator[np.ndarray]:
        nonlocal state
        done = 0
        for group in blocks_of(sentences, WORDS_AT_ONCE):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", TruncationWarning)  # the report counts them
                found = job.embedder.embed(group, job.layers, state)
            yield from found if job.pooling is None else map(job.pooling, found)
            progress.made(lines[done : done + len(group)], words=sum(map(len, group)))
            done, state = done + len(group), found.state or state
        if isinstance(state, BiLMState):
            # Before its part is there, so that the last finished part always has its state beside it.
            _write_state(_state_path(directory, number), state)

    words = sentences if job.pooling is None else [[" ".join(sentence)] for sentence in sentences]
    write_part(directory, job.index, number, words, vectors())
    _state_path(directory, number - 1).unlink(missing_ok=True)
    return state


def make_parts(job: FileJob, directory: Path, output: Path) -> FileReport:
    """Make the parts that `directory` lacks and mark it complete; `output` is what the report calls the result."""
    index = job.index  # what is wrong with the job shows here, before anything is made
    with only_one_in(directory):
        kept, state = _taken_up(job, directory, begin_store(directory, index))
        progress = _Progress(job.text)
        with progress.bar:
            for number, lines in enumerate(job.parts()):
                sentences = [job.split(line) for line in lines]
                progress.words += sum(map(len, sentences))
                progress.truncated_words += job.count_truncated(sentences)
                if number in kept:
                    progress.made(lines, words=0)
                else:
                    state = _make_part(job, directory, number, lines, sentences, state, progress)
        finish_store(directory, job.index, job.num_parts)
        left_by_kills = directory.glob(".partial-*")
        for path in (*directory.glob("state-*.safetensors"), *left_by_kills):
            path.unlink()
    return progress.report(output, job, len(kept))
