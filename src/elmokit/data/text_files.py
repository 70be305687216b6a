"""Opens text files, and reports how files are interpreted: which tokenizer splits the lines, and
which column of a table is text.

A file is raw text unless `elmokit prepare` wrote it or the caller says that it is tokenized.
"""

from __future__ import annotations

import os
import re
import sys
import unicodedata
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

from elmokit.data.tables import is_table, read_column
from elmokit.fs import read_blocks, read_json, read_lines, suffixes_of, write_lines
from elmokit.progress import ProgressBar
from elmokit.text import TOKENIZED, Tokenizer, get_tokenizer

REPORT_NAME = "corpus.json"  # beside the shards of `elmokit prepare`
SHARD = re.compile(r"shard-\d{5}\.txt(?:\.gz|\.zst)?")
COLUMN = "text"  # default column of a table
SHOWN_FILES = 3  # files shown, of many
LOOKED_AT = 1000  # lines at the beginning of a file
# Words of corpora that are published tokenized: WikiText, PTB, the Billion Word Benchmark, ELMo's.
PLACEHOLDER = re.compile(r"(?:^| )(?:<unk>|<UNK>|@[-,.]@|-[LR][RCS]B-|</?S>)(?: |$)")
SHOWN_CHARACTERS = 10_000  # characters read of the first line, which may be a book
SHOWN_WORDS, SHOWN_WORD_CHARACTERS = 12, 40


@lru_cache(maxsize=1024)  # a line that was printed before is not repeated
def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def show_reading(
    path: str | Path, words: Sequence[str], parts: Mapping[str, object] = MappingProxyType({})
) -> None:
    """Print on stderr how the beginning of a file is understood.

    Such as `reading notes.txt: The | dog | sleeps | .`, or with a part, here the column of a
    table, `reading notes.csv: The | dog | sleeps | . (column: text)`.

    Args:
        path: The file.
        words: The words of its first text.
        parts: What else is read, by name; None is left out.
    """
    if not words:
        return
    shown = [word[:SHOWN_WORD_CHARACTERS] for word in words[:SHOWN_WORDS]]
    if len(words) > len(shown):
        shown.append(f"... ({len(words):,} words)")
    about = ", ".join(
        f"{name}: {str(value)[:SHOWN_WORD_CHARACTERS]}"
        for name, value in parts.items()
        if value is not None
    )
    line = f"reading {Path(path).name}: {' | '.join(shown)}{about and f' ({about})'}"
    # Shown as escapes: control characters, of which terminals take commands, and accents apart
    # from their letters (NFD).
    is_apart = not unicodedata.is_normalized("NFC", line)
    _print(
        "".join(
            char
            if char.isprintable() and not (is_apart and unicodedata.combining(char))
            else ascii(char)[1:-1]
            for char in line
        )
    )


def _shard_options(path: Path) -> dict[str, Any]:
    """The options by which `elmokit prepare` made a shard; none for other files."""
    report = path.parent / REPORT_NAME
    if not (SHARD.fullmatch(path.name) and report.is_file()):
        return {}
    return read_json(report)["options"]


def show_text(
    path: Path, lines: Iterable[str], tokenizer: Tokenizer, parts: Mapping[str, object]
) -> None:
    """Show how the first line of a text is read, and warn if the text is already tokenized."""
    beginning = list(islice(filter(str.strip, lines), LOOKED_AT))
    mark = next(filter(None, map(PLACEHOLDER.search, beginning)), None)
    if mark and tokenizer.name != TOKENIZED:
        warnings.warn(
            f"{path} has {mark[0].strip()}, a mark of tokenized text, and is split again: read it "
            f"as it is (--no-tokenize; in prepare, --tokenizer {TOKENIZED})",
            stacklevel=3,
        )
    first = next(iter(beginning), "")[:SHOWN_CHARACTERS]
    show_reading(path, tokenizer.tokenize(first), parts)


@dataclass(frozen=True)
class TextFile:
    """Text (plain, .gz or .zst) or a table of texts, and how it is read.

    Attributes:
        path: The file.
        tokenizer: Splits a line into sentences, and these into words.
        column: The column of a table; None: "text". If it is given, a file with another suffix than
            a table's is TSV.
    """

    path: Path
    tokenizer: Tokenizer
    column: str | None = None

    def lines(self) -> Iterator[str]:
        """Stream the lines, or the cells of the column; an empty one for a blank line or cell."""
        return (line for line, _ in self.rows(others=False))

    def rows(self, others: bool = True) -> Iterator[tuple[str, dict[str, Any]]]:
        """Stream the lines with the other columns of their rows (none for plain text)."""
        if self.column is None and not is_table(self.path):
            yield from ((line, {}) for line in read_lines(self.path))
            return
        for _, text, columns in read_column(self.path, self.column or COLUMN, others):
            yield text.replace("\n", " "), columns

    def sentences(self) -> Iterator[list[str]]:
        """Stream the words of each sentence; none is empty."""
        for line in self.lines():
            yield from self.tokenizer.split_paragraph(line)

    def tokenized(self, directory: Path, whole_lines: bool = False) -> Path:
        """The path of the text with one sentence per line, or with the lines that it has
        (`whole_lines`): itself, or if it is raw, a copy.

        A copy in the directory is reused.
        """
        if self.tokenizer.name == TOKENIZED:
            return self.path
        way = f"{self.tokenizer.name} {self.tokenizer.language} {'lines' if whole_lines else ''}"
        digest = blake2b(way.rstrip().encode(), digest_size=8)
        for block in read_blocks(self.path):
            digest.update(block)
        copy = directory / f"{digest.hexdigest()}.txt.zst"
        if not copy.exists():
            texts = map(self.tokenizer.tokenize, self.lines()) if whole_lines else self.sentences()
            bar = ProgressBar(texts, f"tokenize {self.path.name}", unit=" sentences")
            write_lines(copy, map(" ".join, bar))
        return copy

    @staticmethod
    def find(paths: Sequence[str | Path]) -> list[Path]:
        """Expand directories to the text files in them, sorted by name.

        Args:
            paths: Files and directories.

        Returns:
            The files.

        Raises:
            FileNotFoundError: A path does not exist, or a directory has no text files.
            ValueError: `paths` is a single path.
        """
        if isinstance(paths, str | Path):
            raise ValueError("give a list of files: [path]")
        files: list[Path] = []
        for path in [Path(os.path.expanduser(given)) for given in paths]:
            if path.is_dir():
                # Hidden files are left out: unfinished ones, and macOS's attributes of others.
                named = (
                    file
                    for file in path.iterdir()
                    if suffixes_of(file).kind == ".txt" and file.name[0] != "."
                )
                inside = sorted(filter(Path.is_file, named))
                if not inside:
                    raise FileNotFoundError(f"{path} has no text files (.txt, .txt.gz, .txt.zst)")
                files += inside
            elif path.is_file():
                files.append(path)
            else:
                raise FileNotFoundError(f"{path} is neither a file nor a directory: check the path")
        return files

    @staticmethod
    def prepared(paths: Sequence[str | Path]) -> dict[str, Any]:
        """The options by which `elmokit prepare` made the first shard among files and directories;
        none without one.
        """
        return next(filter(None, map(_shard_options, TextFile.find(paths))), {})

    @staticmethod
    def open(
        paths: Sequence[str | Path],
        tokenizer: str | None,
        tokenize: bool = True,
        language: str | None = None,
        *,
        model_language: str | None = None,
        column: str | None = None,
    ) -> list[TextFile]:
        """Open text files, and show how the first ones are read.

        Args:
            paths: The files.
            tokenizer: The tokenizer that the model records; None if it records none: then text is
                split at white space.
            tokenize: Whether the text is raw; text of `elmokit prepare` never is.
            language: Code of the language whose rules split raw text into sentences; None: that
                of the model, or the tokenizer's own rules.
            model_language: The language that the model records.
            column: The column of a table.

        Returns:
            A file for each path.

        Raises:
            FileNotFoundError: A file is missing.
            ValueError: A language is given, but no text that its rules could split; a tokenizer's
                library is not installed; or a file is not UTF-8.

        Warns:
            UserWarning: A shard was split by another tokenizer than the model's, or raw text has
                marks of tokenized text.
        """
        paths = [Path(path).expanduser() for path in paths]
        shards = [_shard_options(path).get("tokenizer") for path in paths]
        raw = tokenized = get_tokenizer(TOKENIZED)
        is_split = all(shards) or not tokenize
        if language is not None and (is_split or tokenizer is None):
            raise ValueError(
                f"language {language!r} is for raw text that a tokenizer splits into sentences: "
                f"omit it, or split the text first, with `elmokit prepare --language {language}`"
            )
        # Of text that is split already, the tokenizer's library need not be installed.
        if tokenizer is not None and not is_split:
            rules = language or (None if tokenizer == TOKENIZED else model_language)
            raw = get_tokenizer(tokenizer, rules)
        for path, shard in zip(paths, shards, strict=True):
            if tokenize and shard and tokenizer not in (None, shard):
                warnings.warn(
                    f"{path} was tokenized with {shard}, the model's training text with "
                    f"{tokenizer}",
                    stacklevel=1,
                )
                break
        files = [
            TextFile(path, tokenized if shard else raw, column)
            for path, shard in zip(paths, shards, strict=True)
        ]
        for file in files[:SHOWN_FILES]:
            column = (column or COLUMN) if is_table(file.path) or column else None
            show_text(file.path, file.lines(), file.tokenizer, {"column": column})
        return files
