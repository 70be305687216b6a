"""The job of embedding a file: its text, its settings, its progress and its report."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import islice
from pathlib import Path

from elmokit.embed.embedder import Embedder
from elmokit.embed.outputs import Pooling
from elmokit.fs.reading import read_lines
from elmokit.progress import ProgressBar
from elmokit.runtime import MAX_SENTENCE_WORDS, check_length
from elmokit.settings import Count, StatePolicy, StorageDtype, conform
from elmokit.storage.store import StoreIndex
from elmokit.text.characters import TruncationWarning, truncation_message
from elmokit.text.tokenizer import Tokenizer
from elmokit.text.tokenizers import TOKENIZED


def _add_line(digest: blake2b, line: str) -> None:
    digest.update(f"{line}\n".encode())


@dataclass(frozen=True)
class TextFile:
    """A text file that was read to its end once, so that no error in it stops a run halfway.

    Its lines are those that `reader` yields: the lines of the file, or the sequences in it.
    """

    path: Path
    size: int  # in bytes, on disk
    lines: int
    characters: int
    longest_line: int  # in characters
    lines_per_part: int
    digests: tuple[str, ...]  # of its lines up to the end of each part
    reader: Callable[[str | Path], Iterator[str]] = read_lines

    @staticmethod
    def read(
        path: str | Path, lines_per_part: int, reader: Callable[[str | Path], Iterator[str]] = read_lines
    ) -> TextFile:
        """Read a file to its end. ValueError for invalid UTF-8, naming the line, and for an empty file."""
        conform(Count, lines_per_part, "sentences_per_part")
        lines = characters = longest = 0
        digest, digests = blake2b(digest_size=16), []
        for line in ProgressBar(reader(path), f"read {Path(path).name}", leave=False, unit=" lines", unit_scale=True):
            lines, characters, longest = lines + 1, characters + len(line), max(longest, len(line))
            _add_line(digest, line)
            if lines % lines_per_part == 0:
                digests.append(digest.hexdigest())
        if not lines:
            raise ValueError(f"{path} is empty: there is nothing to embed")
        if lines % lines_per_part:
            digests.append(digest.hexdigest())
        size = Path(path).stat().st_size
        return TextFile(Path(path), size, lines, characters, longest, lines_per_part, tuple(digests), reader)

    def parts(self) -> Iterator[Iterator[str]]:
        """The lines of each part, which must be read to its end; ValueError at the end of one that has changed."""
        lines, digest = self.reader(self.path), blake2b(digest_size=16)

        def part(expected: str) -> Iterator[str]:
            for line in islice(lines, self.lines_per_part):
                _add_line(digest, line)
                yield line
            if digest.hexdigest() != expected:
                raise ValueError(f"{self.path} was changed while it was read: start again, with another output")

        yield from map(part, self.digests)
        if next(lines, None) is not None:
            raise ValueError(f"{self.path} has grown while it was read: start again, with another output")


@dataclass(frozen=True)
class FileJob:
    """Everything that determines the vectors of a file."""

    text: TextFile
    embedder: Embedder
    layers: str | int
    state: StatePolicy
    storage_dtype: StorageDtype
    tokenizer: Tokenizer
    pooling: Pooling | None = None  # None: a vector for every word
    names: Sequence[str] | None = None  # of the lines, where the output has them

    @property
    def num_parts(self) -> int:
        return len(self.text.digests)

    def check_lengths(self) -> None:
        """ValueError that names the first line with more words than are computed at once."""
        if self.text.longest_line <= MAX_SENTENCE_WORDS:  # no line has more words than characters
            return
        for number, line in enumerate(self.text.reader(self.text.path), start=1):
            if len(line) > MAX_SENTENCE_WORDS:
                name = f"line {number}" if self.names is None else "a sequence"
                words = len(self.tokenizer.tokenize(line))
                check_length(words, f"{self.text.path}, {name}")

    @cached_property
    def index(self) -> StoreIndex:
        """The index of a store, which identifies it as that of this job."""
        shape = self.embedder.embed([[]], self.layers, self.state)[0].shape  # (0, 2D) or (L+1, 0, 2D)
        settings = {
            "state": self.state,
            "tokenizer": None if self.tokenizer.name == TOKENIZED else self.embedder.model.tokenizer,
            "pooling": self.pooling,
            "products": str(self.embedder.dtype).removeprefix("torch."),  # its key in stores of older versions
            "text": self.text.digests[-1],
        }
        if self.names is not None:
            settings["names"] = blake2b("\n".join(self.names).encode("utf-8"), digest_size=16).hexdigest()
        return StoreIndex(
            model=self.embedder.fingerprint(),
            layers=str(self.layers),
            vector_shape=(*shape[:-2], shape[-1]),
            dtype=self.storage_dtype,
            sentences_per_part=self.text.lines_per_part,
            source_bytes=self.text.size,
            arguments=", ".join(f"{name} {value}" for name, value in settings.items()),
        )


@dataclass(frozen=True)
class FileReport:
    """The result of embedding a file: counts of the whole file, `seconds` and `words_per_second` of this run."""

    output: Path
    sentences: int
    words: int
    truncated_words: int  # too long for the model, which read their first bytes only
    parts: int
    parts_kept: int  # of an earlier, interrupted run
    seconds: float
    words_per_second: float


class Progress:
    """A bar over the characters of the text, with words per second and time left, and the counts for the report."""

    def __init__(self, job: FileJob) -> None:
        self._job, text = job, job.text
        self.bar = ProgressBar(total=text.characters, unit=" characters", unit_scale=True, desc=text.path.name)
        self.words = self.truncated_words = self._words_done = 0
        self._truncated = ""  # the first truncated word
        self._start = time.perf_counter()

    def counted(self, line: str) -> list[str]:
        """The words of a line, which are counted."""
        count_truncated, words = self._job.embedder.count_truncated, self._job.tokenizer.tokenize(line)
        self.words += len(words)
        if truncated := count_truncated(words):
            self.truncated_words += truncated
            self._truncated = self._truncated or next(word for word in words if count_truncated([word]))
        return words

    def skip(self, lines: Iterable[str]) -> None:
        """Count lines that need not be embedded again."""
        for line in lines:
            self.counted(line)
            self.advance(len(line), words=0)

    def advance(self, characters: int, words: int) -> None:
        self._words_done += words
        self.bar.set_postfix_str(f"{self.speed:,.0f} words/s", refresh=False)
        self.bar.update(characters)

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._start

    @property
    def speed(self) -> float:
        return self._words_done / max(self.seconds, 1e-9)

    def report(self, output: Path, parts_kept: int) -> FileReport:
        job = self._job
        if count := self.truncated_words:
            message = truncation_message(count, job.embedder.word_limit, str(job.text.path), self._truncated)
            warnings.warn(message, TruncationWarning, stacklevel=4)
        counts = job.text.lines, self.words, self.truncated_words, job.num_parts, parts_kept
        return FileReport(output, *counts, round(self.seconds, 3), round(self.speed, 1))
