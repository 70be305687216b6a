"""A run of `prepare`: decides which documents are kept, deals them to shards, and notes how far it has come."""

import json
import os
import shutil
import sys
import time
import warnings
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path

from tqdm import tqdm

from elmokit.data.documents import Document, read_documents
from elmokit.data.duplicates import EMPTY, Fingerprint, LogSizes, Match, SeenTexts
from elmokit.data.prepare_report import REPORT_NAME, PrepareReport, Reason, json_bytes
from elmokit.data.shuffle import Scatter
from elmokit.data.workers import TokenizedDocument, TokenizedLine, WorkerOptions, tokenize_documents
from elmokit.fs.atomic import atomic_path

SUFFIX_OF = {"zst": ".txt.zst", "gz": ".txt.gz", "none": ".txt"}
# Beside the shards: a JSON line for each document that was left out.
DROPPED_NAME = "dropped.jsonl"

CHECKPOINT_NAME = "checkpoint.json"
# A checkpoint brings the files of all shards to the disk; it may take a twentieth of the time.
CHECKPOINT_SECONDS, CHECKPOINT_SHARE = 30, 0.05

# From so much text on, a share of letters of unknown scripts is worth a warning before the work is done.
DOUBT_CHARACTERS, DOUBT_SHARE = 1_000_000, 0.01


@dataclass
class Checkpoint:
    """How far a run has come. What its files hold behind the sizes noted here is cut off when it goes on."""

    report: PrepareReport
    modified: list[int]  # when each file was, those to exclude first, in ns: other text must not be taken for the same
    file_starts: list[int] = field(default_factory=list)  # the number of the first document of each file begun
    documents: int = 0  # taken, those to exclude too
    excluded: LogSizes = EMPTY
    seen: LogSizes = EMPTY
    shard_bytes: list[int] = field(default_factory=list)
    dropped_bytes: int = 0
    complete: bool = False  # all documents are dealt to the shards

    def write(self, directory: Path) -> None:
        """Write it as JSON, whole or not at all."""
        with atomic_path(directory / CHECKPOINT_NAME) as partial:
            partial.write_bytes(json_bytes(asdict(self)))

    @classmethod
    def read(cls, directory: Path) -> "Checkpoint | None":
        """What `write` wrote; None where there is none of this version."""
        try:
            values = json.loads((directory / CHECKPOINT_NAME).read_text(encoding="utf-8"))
            sizes = {name: LogSizes(*values[name]) for name in ("excluded", "seen")}
            return cls(**{**values, **sizes, "report": PrepareReport.from_json(values["report"])})
        except (FileNotFoundError, AttributeError, KeyError, RecursionError, TypeError, ValueError):
            return None


class PrepareRun:
    """A run in its directory: takes documents in order, those of the files to exclude first."""

    def __init__(self, directory: Path, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint, whose files are in `directory`."""
        self._directory, self._point = directory, checkpoint
        self.report, self._options = checkpoint.report, checkpoint.report.options
        self._paths = [*self._options.exclude_bytes, *self._options.input_bytes]
        self._num_excluded = len(self._options.exclude_bytes)
        num_shards, seed = self._options.num_shards, self._options.seed
        self._scatter = Scatter(directory, num_shards, seed, checkpoint.shard_bytes)
        self._seen = SeenTexts(directory, self._options.similarity, checkpoint.seen)
        self._dropped = (directory / DROPPED_NAME).open("ab")
        self._dropped.truncate(checkpoint.dropped_bytes)
        self._next_save = time.monotonic() + CHECKPOINT_SECONDS
        self._doubted = False

    def close(self) -> None:
        """Close the files."""
        self._seen.close()
        self._dropped.close()

    def save(self) -> None:
        """Note how far the run has come, when everything up to there is on the disk."""
        start = time.monotonic()
        self._point.shard_bytes = self._scatter.sync()
        self._seen.sync()
        self._point.seen = self._seen.sizes
        self._dropped.flush()
        os.fsync(self._dropped.fileno())
        self._point.dropped_bytes = self._dropped.tell()
        self._point.write(self._directory)
        end = time.monotonic()
        self._next_save = end + max(CHECKPOINT_SECONDS, (end - start) / CHECKPOINT_SHARE)

    # --- One document ---

    def take(self, document: TokenizedDocument) -> None:
        """Decide on the next document, and deal it to its shard if it is kept."""
        point, fingerprint = self._point, document.fingerprint
        while len(point.file_starts) <= document.file:
            point.file_starts.append(point.documents)
        if document.file < self._num_excluded:
            assert fingerprint is not None
            self._seen.enter(fingerprint, filter(None, fingerprint.paragraphs))
            point.excluded = self._seen.sizes
        elif not document.words:
            self._drop(document, "empty")
        elif fingerprint is None:
            self._keep(document, document.lines)
        elif (match := self._seen.match(fingerprint)) is not None:
            like: Reason = "exact_duplicate" if match.exact else "near_duplicate"
            self._drop(document, "excluded" if match.number < point.excluded.documents else like, match)
        else:
            self._keep_new_lines(document, fingerprint)
        point.documents += 1
        self.report.characters += document.characters
        self.report.unknown_letters += document.unknown_letters
        if self.report.characters >= DOUBT_CHARACTERS:
            self._doubt_script()
        if time.monotonic() >= self._next_save:
            self.save()

    def _keep_new_lines(self, document: TokenizedDocument, fingerprint: Fingerprint) -> None:
        """Keep the document but for long paragraphs that occurred before, in it too."""
        options, seen = self._options, self._seen.seen_paragraphs(fingerprint)
        kept: list[TokenizedLine] = []
        entered: dict[int, None] = {}  # the keys of its own paragraphs, in order
        left_out: list[tuple[Reason, TokenizedLine]] = []
        for number, (line, key) in enumerate(zip(document.lines, fingerprint.paragraphs, strict=True)):
            if seen.get(number, sys.maxsize) < self._point.excluded.paragraphs:
                left_out.append(("excluded", line))
            elif number in seen or key in entered:
                left_out.append(("repeated_paragraph", line))
            else:
                kept.append(line)
                if key and options.drop_paragraphs:
                    entered[key] = None
        if not any(line.words for line in kept):
            self._drop(document, left_out[0][0])
            return
        for reason, line in left_out:
            self.report.dropped[reason].paragraphs += 1
            self.report.dropped[reason].words += line.words
        if options.drop_duplicates != "near":
            fingerprint = replace(fingerprint, signature=None)
        self._keep(document, kept, None if options.drop_duplicates == "none" else fingerprint, entered)

    def _keep(
        self,
        document: TokenizedDocument,
        lines: Sequence[TokenizedLine],
        fingerprint: Fingerprint | None = None,
        paragraphs: Iterable[int] = (),
    ) -> None:
        """Deal lines of a document to its shard; later ones are compared with the fingerprint and the paragraphs."""
        # Numbers without the documents to exclude: excluding some must not move the others.
        number = self._point.documents - self._point.excluded.documents
        self._scatter.add(number, "".join(line.text for line in lines))
        self._seen.enter(fingerprint, paragraphs)
        words = sum(line.words for line in lines)
        report = self.report
        report.documents += 1
        report.sentences += sum(line.sentences for line in lines)
        report.words += words
        report.long_words += sum(line.long_words for line in lines)
        report.words_per_input[self._paths[document.file]] += words

    def _place(self, number: int) -> dict[str, str | int]:
        """The file that a document is in, and its number there, from 0."""
        file = bisect_right(self._point.file_starts, number) - 1
        return {"file": self._paths[file], "document": number - self._point.file_starts[file]}

    def _drop(self, document: TokenizedDocument, reason: Reason, match: Match | None = None) -> None:
        self._seen.enter(None)
        count = self.report.dropped[reason]
        count.documents += 1
        count.words += document.words
        note = {**self._place(self._point.documents), "reason": reason, "words": document.words}
        if match is not None:
            note.update({"similarity": round(match.similarity, 3), "like": self._place(match.number)})
        self._dropped.write(json_bytes(note, indent=None))

    def _doubt_script(self) -> None:
        """Warn, once, where much of the text is of scripts that the tokenizer has no rules for."""
        share = self.report.unknown_letters / max(1, self.report.characters)
        if share >= DOUBT_SHARE and not self._doubted:
            self._doubted = True
            warnings.warn(
                f"{share:.1%} of the characters so far are letters of scripts that {self._options.tokenizer} has no "
                "rules for: choose a tokenizer for them (`elmokit prepare --help` lists those there are)",
                stacklevel=4,
            )

    # --- All documents ---

    def _worker_options(self) -> WorkerOptions:
        options, compare = self._options, self._num_excluded > 0
        return WorkerOptions(
            tokenizer=options.tokenizer,
            language=options.language,
            num_excluded=self._num_excluded,
            fingerprints=compare or options.drop_duplicates != "none" or options.drop_paragraphs,
            near=compare or options.drop_duplicates == "near",
        )

    def _documents(self) -> Iterator[Document]:
        """Those that were not taken yet."""
        begun, taken = list(self._point.file_starts), self._point.documents
        for file, path in enumerate(self._paths):
            if file >= len(begun) - 1:
                documents = read_documents(path, self._options.text_field, file)
                yield from islice(documents, taken - begun[file] if file < len(begun) else 0, None)

    def deal_all(self, processes: int) -> None:
        """Take all documents that are left.

        Raises:
            ValueError: A file is damaged, or was changed while it was read.
        """
        if self._point.complete:
            return
        words = self.report.words + sum(count.words for count in self.report.dropped.values())
        bar = tqdm(initial=words, unit=" words", unit_scale=True, desc="prepare", dynamic_ncols=True, disable=None)
        tokenized = tokenize_documents(self._documents(), self._worker_options(), processes)
        with bar, closing(tokenized):
            for document in tokenized:
                self.take(document)
                bar.update(document.words)
        for path, modified in zip(self._paths, self._point.modified, strict=True):
            if Path(path).stat().st_mtime_ns != modified:
                raise ValueError(f"{path} was changed while it was read: give the command again, which begins anew")
        self._doubt_script()
        self._point.complete = True
        self.save()

    def write_shards(self, directory: Path) -> None:
        """Write the shards that `directory` lacks, each shuffled, and beside them what was left out and the report."""
        directory.mkdir(exist_ok=True)
        for left_by_kill in directory.glob(".partial-*"):
            left_by_kill.unlink()
        for shard in tqdm(range(self._options.num_shards), unit=" shards", desc="shuffle", disable=None):
            path = directory / f"shard-{shard:05d}{SUFFIX_OF[self._options.compression]}"
            if not path.exists():
                self._scatter.write_shuffled(shard, path)
        shutil.copyfile(self._directory / DROPPED_NAME, directory / DROPPED_NAME)
        (directory / REPORT_NAME).write_bytes(json_bytes(asdict(self.report)))
