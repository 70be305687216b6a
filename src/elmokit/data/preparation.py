"""Preparation of raw text for pretraining: tokenized, deduplicated, shuffled shards.

Documents are streamed once. Worker processes split them into sentences and tokens and compute their
fingerprints; the main process decides in input order which documents to keep, and distributes them
to the shards. At the end, each shard is shuffled. A run that was killed leaves nothing that counts,
and starts over.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from itertools import chain, count
from pathlib import Path
from typing import IO, Literal, get_args

import zstandard

from elmokit.data.documents import Document, Work, read_documents, tokenize_documents
from elmokit.data.duplicates import Fingerprint, SeenDocuments
from elmokit.data.tables import FASTA, is_table
from elmokit.data.text_files import REPORT_NAME, SHARD, SHOWN_FILES, show_text
from elmokit.fs import (
    atomic_directory,
    check_output,
    read_blocks,
    read_json,
    suffixes_of,
    write_lines,
)
from elmokit.progress import ProgressBar
from elmokit.settings import Count, check, conform
from elmokit.text import TOKENIZED, get_tokenizer

SHARD_BYTES, MAX_DEFAULT_SHARDS = 16_000_000, 256  # if the number of shards is not given
BUFFER_BYTES = 1 << 26  # buffer of all shards together
KEY_DIGITS = 16  # hexadecimal digits of a sort key

DROPPED_NAME = "dropped.jsonl"  # a JSON line for each dropped document
OWN_FILES = re.compile(
    rf"{SHARD.pattern}|{re.escape(DROPPED_NAME)}|\.partial-.*"
)  # besides the report

DropDuplicates = Literal["near", "exact", "none"]
Lines = Literal["paragraphs", "wrapped"]
Reason = Literal["excluded", "exact_duplicate", "near_duplicate", "repeated_paragraph", "empty"]


@dataclass(frozen=True)
class PrepareOptions:
    """The options that determine the shards: equal options give equal bytes."""

    input_bytes: dict[str, int]  # path -> size on disk
    exclude_bytes: dict[str, int]
    column: str
    lines: Lines
    tokenizer: str
    language: str | None  # whose rules split sentences; None: the tokenizer's own
    drop_duplicates: DropDuplicates
    drop_paragraphs: bool
    num_shards: Count
    seed: int

    def __post_init__(self) -> None:
        check(self)


@dataclass
class DropCount:
    """Counts for one reason: dropped documents, paragraphs dropped from kept documents, and the
    words of both.
    """

    documents: int = 0
    paragraphs: int = 0
    words: int = 0


@dataclass
class PrepareReport:
    """The result of `prepare`, stored as corpus.json with the shards.

    Attributes:
        options: The options.
        documents: Number of documents kept.
        sentences: Number of sentences kept.
        words: Number of words kept.
        words_per_input: Number of words kept from each input file.
        dropped: Counts of what was dropped, by reason.
        already_done: Whether the output existed, so that this call did nothing.
    """

    options: PrepareOptions
    documents: int = 0
    sentences: int = 0
    words: int = 0
    words_per_input: dict[str, int] = field(default_factory=dict)
    dropped: dict[Reason, DropCount] = field(
        default_factory=lambda: {reason: DropCount() for reason in get_args(Reason)}
    )
    already_done: bool = False

    def __str__(self) -> str:
        """The counts, a line each; the options are in corpus.json."""
        lines = [
            f"kept: {self.documents:,} documents, {self.sentences:,} sentences, {self.words:,} "
            f"words"
        ]
        lines += [f"  from {path}: {words:,} words" for path, words in self.words_per_input.items()]
        for reason, drop in self.dropped.items():
            if drop.documents or drop.paragraphs:
                dropped = (
                    f"{drop.documents:,} documents, {drop.paragraphs:,} paragraphs, "
                    f"{drop.words:,} words"
                )
                lines.append(f"dropped ({reason.replace('_', ' ')}): {dropped}")
        lines.append(f"tokenizer: {self.options.tokenizer}")
        if self.already_done:
            lines.append("these shards were there already; nothing was done")
        return "\n".join(lines)


def read_report(directory: str | Path) -> PrepareReport:
    """Read the report of a corpus directory. ValueError if it is not one."""
    return conform(PrepareReport, read_json(Path(directory) / REPORT_NAME), REPORT_NAME)


def _words(lines: Sequence[str]) -> int:
    """Number of words in tokenized lines."""
    return sum(line.count(" ") + line.count("\n") for line in lines)


def _select(
    documents: Iterable[tuple[Document, Fingerprint]], report: PrepareReport, notes: IO[str]
) -> Iterator[tuple[int, str]]:
    """Yield the number and the text of each document to keep, in the order of the input, excluded
    files first.

    Excluded documents have no numbers, so that they do not change the order of the others. A JSON
    line for each other document that is dropped is written to `notes`.
    """
    options, numbers = report.options, count()
    paths, num_excluded = [*options.exclude_bytes, *options.input_bytes], len(options.exclude_bytes)
    seen, paragraphs, excluded = (
        SeenDocuments(),
        set[bytes | None](),
        set[bytes | None](),
    )
    for document, fingerprint in documents:
        place, lines, keys = document.place, document.lines, fingerprint.paragraphs
        if place.file < num_excluded:
            seen.add(fingerprint, place)
            excluded.update(filter(None, keys))
            continue
        # A document is dropped as a whole, or some of its lines are:
        #
        #   reasons   ["near_duplicate", "near_duplicate"]     no line is kept
        #   reasons   [None, "repeated_paragraph"]             the first line is
        number = next(numbers)
        reasons: list[Reason | None] = []  # why each line is dropped
        match = seen.match(fingerprint)
        if not any(lines):
            reasons = ["empty"] * len(lines)
        elif match:
            reason: Reason = "exact_duplicate" if match.exact else "near_duplicate"
            reasons = ["excluded" if match.place.file < num_excluded else reason] * len(lines)
        else:
            for key in keys:
                is_repeated = key in paragraphs
                reasons.append(
                    "excluded" if key in excluded else "repeated_paragraph" if is_repeated else None
                )
                if key is not None and options.drop_paragraphs:
                    paragraphs.add(key)
        kept = [line for line, why in zip(lines, reasons, strict=True) if why is None]
        for line, why in zip(lines, reasons, strict=True):
            if why is not None:
                report.dropped[why].words += _words([line])
                report.dropped[why].paragraphs += any(kept)
        if any(kept):
            if options.drop_duplicates != "none":
                seen.add(fingerprint, place, near=options.drop_duplicates == "near")
            report.documents += 1
            report.sentences += sum(line.count("\n") for line in kept)
            report.words += _words(kept)
            report.words_per_input[paths[place.file]] += _words(kept)
            yield number, "".join(kept)
        else:
            first = next(filter(None, reasons))
            report.dropped[first].documents += 1
            note = {
                "file": paths[place.file],
                "line": place.line,
                "reason": first,
                "words": _words(lines),
            }
            if match:
                like = {"file": paths[match.place.file], "line": match.place.line}
                note |= {"similarity": round(match.similarity, 3), "like": like}
            notes.write(json.dumps(note, ensure_ascii=False) + "\n")


# --- Shuffling into shards ------------------------------------------------------------------------


def sort_key(number: int, seed: int) -> int:
    """A 64-bit hash of a document's number, which determines its shard and its position there."""
    return int.from_bytes(blake2b(f"{seed}:{number}".encode(), digest_size=8).digest(), "big")


class ShuffledShards:
    """Writes documents to shard-NNNNN.txt.zst in shuffled order; the lines of a document stay
    together.

    It needs the memory of one shard and two passes over the disk: documents are appended to the
    file of their shard in order of arrival, each with its sort key, and afterwards each file is
    sorted in memory.
    """

    def __init__(self, directory: Path, num_shards: int, seed: int) -> None:
        self._directory, self._seed = directory, seed
        self._buffers: list[list[bytes]] = [[] for _ in range(num_shards)]
        self._buffered = 0

    def add(self, number: int, text: str) -> None:
        """Add a document; `text` is lines that are not blank, each with a newline."""
        # Two shards, and documents whose keys are 9, 4 and 7:
        #
        #   unsorted-00000   4 ...            shard-00000   document 1
        #   unsorted-00001   9 ... 7 ...      shard-00001   document 2, document 0
        #
        # Keys have a fixed number of digits, so that records sort as their keys do. A blank line
        # ends each record, as no line of a document is blank.
        key = sort_key(number, self._seed)
        record = f"{key:0{KEY_DIGITS}x}\n{text}\n".encode()
        self._buffers[key % len(self._buffers)].append(record)
        self._buffered += len(record)
        if self._buffered >= BUFFER_BYTES:
            self._flush()

    def _unsorted(self, shard: int) -> Path:
        return self._directory / f"unsorted-{shard:05d}.zst"

    def _flush(self) -> None:
        for shard, buffer in enumerate(self._buffers):
            with self._unsorted(shard).open(
                "ab"
            ) as file:  # opened anew, as there may be more shards than open files
                file.write(zstandard.ZstdCompressor(level=1).compress(b"".join(buffer)))
            buffer.clear()
        self._buffered = 0

    def finish(self) -> None:
        """Write the shards, after the last document."""
        self._flush()
        for shard in ProgressBar(range(len(self._buffers)), unit=" shards", desc="shuffle"):
            records = b"".join(read_blocks(self._unsorted(shard))).split(b"\n\n")
            self._unsorted(shard).unlink()
            texts = (record[KEY_DIGITS + 1 :].decode() for record in sorted(records) if record)
            write_lines(self._directory / f"shard-{shard:05d}.txt.zst", texts)


# --- The run --------------------------------------------------------------------------------------


def _sizes(paths: Sequence[str | Path]) -> dict[str, int]:
    return {str(path): os.stat(os.path.expanduser(path)).st_size for path in paths}


def _usable_cores() -> int:
    """The number of cores that this process may run on, often fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def prepare(
    inputs: Sequence[str | Path],
    output: str | Path,
    tokenizer: str | None = None,
    num_shards: int | None = None,
    processes: int | None = None,
    seed: int = 0,
    *,
    language: str | None = None,
    column: str = "text",
    lines: Lines = "paragraphs",
    drop_duplicates: DropDuplicates = "near",
    drop_paragraphs: bool = True,
    exclude: Sequence[str | Path] = (),
    overwrite: bool = False,
) -> PrepareReport:
    """Split raw text into sentences and tokens, drop duplicates, and write shuffled shards of one
    sentence a line.

    Letters whose accents are characters of their own are composed (Unicode's NFC).

    As with any function that starts processes, call it below `if __name__ == "__main__":` in
    scripts. The index of duplicates is in memory: about 2.6 KB for each document that is kept, or
    0.2 KB where `drop_duplicates` is not "near", and 0.1 KB for each paragraph of at least 100
    characters.

    Args:
        inputs: UTF-8 text files (plain, .gz or .zst) with one paragraph per line and blank lines
            between documents; tables (.csv, .tsv, .jsonl, plain, .gz or .zst, or .parquet) with one
            document per row; or protein sequences (.fasta, .fa or .faa, plain, .gz or .zst), each a
            sentence whose words are its residues. A document of more than 1,000 lines or 250,000
            characters is cut into several, at the ends of lines: a file that is one line is one
            document, and must fit in memory.
        output: Directory for shard-NNNNN.txt.zst, corpus.json (the report) and dropped.jsonl: a
            line for each dropped document, with its file and its line (in Parquet its row), from 1,
            and the same for the document that it duplicates. It is created atomically; if it is
            there already, prepared with the same options from files of the same names and sizes,
            nothing is done.
        tokenizer: Name of a tokenizer, which models trained on the shards record; by default the
            one of the language (see `get_tokenizer`), for protein sequences whitespace-1.
        num_shards: Number of shards, each of which must fit in memory; by default one per 16 MB of
            input, at most 256.
        processes: Number of worker processes; by default one per core that this process may use.
            The output does not depend on it.
        seed: Seed of the shuffling. Documents are shuffled; the sentences of a document stay
            together and in order.
        language: Language code, such as "de", whose rules split the text into sentences; English by
            default, unless a tokenizer is given.
        column: The column of a table with the text.
        lines: What a line of a text file is: "paragraphs", one on each line, with blank lines
            between documents; or "wrapped", a part of a paragraph, with blank lines between
            paragraphs, as in files of Project Gutenberg; a document is then a file.
        drop_duplicates: Drop documents that equal an earlier one up to white space ("exact"), those
            and near duplicates ("near"), or no documents ("none").
        drop_paragraphs: Drop paragraphs of at least 100 characters that occurred before.
        exclude: Held-out files. Their documents, near duplicates of these, and their paragraphs of
            at least 100 characters are dropped from the inputs, whatever the other options are.
        overwrite: Replace a corpus that was prepared before, once the new one is complete.

    Returns:
        The number of documents, sentences and words that were kept, and of those that were dropped
        for each reason.

    Raises:
        ValueError: An option is invalid, or a file is damaged, or not UTF-8.
        FileNotFoundError: A file does not exist.
        FileExistsError: The output is there, and must not be replaced.
        OSError: The output cannot be written.
    """
    if isinstance(inputs, str | Path) or isinstance(exclude, str | Path) or not inputs:
        raise ValueError("give a list of files: [path]")
    if tokenizer == "words-1" and language is None:
        raise ValueError("words-1 needs a language, such as de, to split sentences by: give one")
    # Spaces separate the residues of proteins.
    if all(suffixes_of(path).kind in FASTA for path in inputs):
        tokenizer = tokenizer or TOKENIZED
    chosen = get_tokenizer(tokenizer, language)
    output, input_bytes = Path(os.path.expanduser(output)), _sizes(inputs)
    if num_shards is None:
        num_shards = min(1 + sum(input_bytes.values()) // SHARD_BYTES, MAX_DEFAULT_SHARDS)
    options = PrepareOptions(
        input_bytes,
        _sizes(exclude),
        column,
        lines,
        chosen.name,
        language,
        drop_duplicates,
        drop_paragraphs,
        num_shards,
        seed,
    )
    if (output / REPORT_NAME).is_file() and not overwrite:
        report = read_report(output)
        if json.dumps(asdict(report.options)) != json.dumps(
            asdict(options)
        ):  # as text: the order of files counts
            raise FileExistsError(
                f"{output} was prepared with other options or files: remove it, or ask to "
                "overwrite it (--overwrite)"
            )
        report.already_done = True
        return report
    files = [*options.exclude_bytes, *options.input_bytes]
    check_output(output, files, overwrite=overwrite, directory_of=REPORT_NAME, own_files=OWN_FILES)
    for path in list(input_bytes)[:SHOWN_FILES]:
        documents = read_documents(path, column, 0, lines == "wrapped")
        texts = chain.from_iterable(document.lines for document in documents)
        parts = {"column": column} if is_table(path) else {"lines": lines}
        show_text(Path(path), texts, chosen, parts)

    near = bool(exclude) or drop_duplicates == "near"
    work = Work(chosen.name, language, len(exclude), near)
    documents = chain.from_iterable(
        read_documents(path, column, number, lines == "wrapped")
        for number, path in enumerate(files)
    )
    tokenized = tokenize_documents(documents, work, processes or _usable_cores())
    report = PrepareReport(options, words_per_input=dict.fromkeys(input_bytes, 0))
    with atomic_directory(output, overwrite) as partial:
        shards = ShuffledShards(partial, num_shards, seed)
        with closing(tokenized), (partial / DROPPED_NAME).open("w", encoding="utf-8") as notes:
            for number, text in _select(
                ProgressBar(tokenized, "prepare", unit=" documents"), report, notes
            ):
                shards.add(number, text)
        shards.finish()
        write_lines(partial / REPORT_NAME, [json.dumps(asdict(report), indent=1)])
        check_output(
            output, files, overwrite=overwrite, directory_of=REPORT_NAME, own_files=OWN_FILES
        )  # hours later
    return report
