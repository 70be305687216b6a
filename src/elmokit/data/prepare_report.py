"""The options and the report of `prepare`, stored as corpus.json with the shards."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from elmokit.fs.json_files import from_json, read_json

REPORT_NAME = "corpus.json"

DropDuplicates = Literal["near", "exact", "none"]
Reason = Literal["excluded", "exact_duplicate", "near_duplicate", "repeated_paragraph", "empty"]


@dataclass(frozen=True)
class PrepareOptions:
    """The options that determine the shards: equal options give equal bytes."""

    input_bytes: dict[str, int]  # path -> size on disk
    exclude_bytes: dict[str, int]
    text_field: str
    tokenizer: str
    language: str | None  # whose rules split sentences; None: the tokenizer's own
    drop_duplicates: DropDuplicates
    similarity: float
    drop_paragraphs: bool
    num_shards: int
    seed: int
    compression: str


@dataclass
class DropCount:
    """Counts for one reason: dropped documents, paragraphs dropped from kept documents, and the words of both."""

    documents: int = 0
    paragraphs: int = 0
    words: int = 0


def no_drops() -> dict[Reason, DropCount]:
    """Zero counts for every reason."""
    return {reason: DropCount() for reason in get_args(Reason)}


@dataclass
class PrepareReport:
    """The result of `prepare`.

    Attributes:
        options: The options.
        documents: Number of documents kept.
        sentences: Number of sentences kept.
        words: Number of words kept.
        long_words: Number of kept words with more bytes than a character CNN reads.
        characters: Number of characters of all documents, kept or dropped.
        unknown_letters: Number of these characters that are letters of scripts without rules in the tokenizer.
        words_per_input: Number of words kept from each input file.
        dropped: Counts of what was dropped, by reason.
        already_done: Whether the output existed, so that this call did nothing.
    """

    options: PrepareOptions
    documents: int = 0
    sentences: int = 0
    words: int = 0
    long_words: int = 0
    characters: int = 0
    unknown_letters: int = 0
    words_per_input: dict[str, int] = field(default_factory=dict)
    dropped: dict[Reason, DropCount] = field(default_factory=no_drops)
    already_done: bool = False

    def __str__(self) -> str:
        """The counts, a line each; the options are in corpus.json."""
        lines = [f"kept: {self.documents:,} documents, {self.sentences:,} sentences, {self.words:,} words"]
        lines += [f"  from {path}: {words:,} words" for path, words in self.words_per_input.items()]
        for reason, count in self.dropped.items():
            if count.documents or count.paragraphs:
                dropped = f"{count.documents:,} documents, {count.paragraphs:,} paragraphs, {count.words:,} words"
                lines.append(f"dropped ({reason.replace('_', ' ')}): {dropped}")
        if self.long_words:
            lines.append(f"words of more than 48 bytes, of which a model reads the first 48: {self.long_words:,}")
        lines.append(f"tokenizer: {self.options.tokenizer}")
        if self.already_done:
            lines.append("these shards were there already; nothing was done")
        return "\n".join(lines)


def json_bytes(values: Any, indent: int | None = 2) -> bytes:
    """JSON in UTF-8, with a newline. Surrogates, as in paths that are not UTF-8, become JSON escapes."""
    return (json.dumps(values, indent=indent, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")


def read_report(directory: str | Path) -> PrepareReport:
    """Read the report of a corpus directory. ValueError if it is damaged or of another version."""
    path = Path(directory) / REPORT_NAME
    try:
        return from_json(PrepareReport, read_json(path), "the report")
    except ValueError as error:
        raise ValueError(
            f"{path} is not a report of this version of elmokit ({error}): prepare the corpus again, with another "
            "output or after removing this one"
        ) from None
