"""A run of `prepare`: selects documents, distributes them to shards, and writes checkpoints."""

import os
import re
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

from elmokit.data.documents import Document, position_name, read_documents
from elmokit.data.duplicates import EMPTY, Fingerprint, LogSizes, Match, SeenTexts, reopen
from elmokit.data.prepare_report import REPORT_NAME, PrepareReport, Reason, json_bytes
from elmokit.data.shuffle import Scatter
from elmokit.data.text_files import SHARD
from elmokit.data.workers import TokenizedDocument, TokenizedLine, WorkerOptions, tokenize_documents
from elmokit.fs.atomic import atomic_path, remove_leftovers
from elmokit.fs.json_files import from_json, read_json
from elmokit.progress import ProgressBar

SUFFIX_OF = {"zst": ".txt.zst", "gz": ".txt.gz", "none": ".txt"}
# A JSON line for each dropped document.
DROPPED_NAME = "dropped.jsonl"
# The files of a corpus besides its report, and what killed runs left.
OWN_FILES = re.compile(rf"{SHARD.pattern}|{re.escape(DROPPED_NAME)}|\.partial-.*")

# The position of each document in its file, in 8 bytes.
POSITIONS_NAME = "positions.bin"
# The number is the version of the directory's format: a run in an older one starts over.
CHECKPOINT_NAME = "checkpoint-2.json"
# A checkpoint syncs the files of all shards to disk: at most every 30 seconds, and at most 5 % of the time.
CHECKPOINT_SECONDS, CHECKPOINT_SHARE = 30, 0.05

# Warn during the run if the text has this share of letters of unknown scripts, once this much text was read.
UNKNOWN_CHARACTERS, UNKNOWN_SHARE = 1_000_000, 0.01


@dataclass
class Checkpoint:
    """The progress of a run. When it resumes, its files are truncated to the sizes recorded here.

    Attributes:
        report: The counts so far.
        modified: Modification time of each file in ns, excluded files first; a run does not resume on changed text.
        file_starts: Number of the first document of each file that was started.
        documents: Number of documents processed, including those of excluded files.
        excluded: Size of the index after the excluded files.
        seen: Size of the index.
        shard_bytes: Size of the file of each shard.
        dropped_bytes: Size of the list of dropped documents.
        complete: Whether all documents are distributed to the shards.
    """

    report: PrepareReport
    modified: list[int]
    file_starts: list[int] = field(default_factory=list)
    documents: int = 0
    excluded: LogSizes = EMPTY
    seen: LogSizes = EMPTY
    shard_bytes: list[int] = field(default_factory=list)
    dropped_bytes: int = 0
    complete: bool = False

    def write(self, directory: Path) -> None:
        """Write the checkpoint atomically as JSON."""
        with atomic_path(directory / CHECKPOINT_NAME) as partial:
            partial.write_bytes(json_bytes(asdict(self)))

    @classmethod
    def read(cls, directory: Path) -> "Checkpoint | None":
        """Read a checkpoint; None if there is none of this version. ValueError if it is damaged."""
        path = directory / CHECKPOINT_NAME
        try:
            return from_json(cls, read_json(path))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise ValueError(f"{path} is damaged ({error})") from error


class PrepareRun:
    """An unfinished run and its directory. Documents are processed in input order, those of excluded files first."""

    def __init__(self, directory: Path, checkpoint: Checkpoint) -> None:
        """Resume from a checkpoint in `directory`."""
        self._directory, self._checkpoint = directory, checkpoint
        self.report, self._options = checkpoint.report, checkpoint.report.options
        self._paths = [*self._options.exclude_bytes, *self._options.input_bytes]
        self._num_excluded = len(self._options.exclude_bytes)
        num_shards, seed = self._options.num_shards, self._options.seed
        self._scatter = Scatter(directory, num_shards, seed, checkpoint.shard_bytes)
        self._seen = SeenTexts(directory, self._options.similarity, checkpoint.seen)
        self._dropped = reopen(directory / DROPPED_NAME, checkpoint.dropped_bytes)
        self._positions = reopen(directory / POSITIONS_NAME, 8 * checkpoint.documents)
        self._next_save = time.monotonic() + CHECKPOINT_SECONDS
        self._warned = False

    def close(self) -> None:
        """Close the files."""
        self._seen.close()
        self._dropped.close()
        self._positions.close()

    def save(self) -> None:
        """Sync all files to disk, then write a checkpoint."""
        start = time.monotonic()
        self._checkpoint.shard_bytes = self._scatter.sync()
        self._seen.sync()
        self._checkpoint.seen = self._seen.sizes
        for file in (self._dropped, self._positions):
            file.flush()
            os.fsync(file.fileno())
        self._checkpoint.dropped_bytes = self._dropped.tell()
        self._checkpoint.write(self._directory)
        end = time.monotonic()
        self._next_save = end + max(CHECKPOINT_SECONDS, (end - start) / CHECKPOINT_SHARE)

    # --- One document --------------------------------------------------------------------------------------------

    def process(self, document: TokenizedDocument) -> None:
        """Keep or drop the next document, and add it to its shard if it is kept."""
        checkpoint, fingerprint = self._checkpoint, document.fingerprint
        while len(checkpoint.file_starts) <= document.file:
            checkpoint.file_starts.append(checkpoint.documents)
        self._positions.seek(8 * checkpoint.documents)  # `_location` may have moved it
        self._positions.write(document.position.to_bytes(8, "little"))
        if document.file < self._num_excluded:
            assert fingerprint is not None
            self._seen.add(fingerprint, filter(None, fingerprint.paragraphs))
            checkpoint.excluded = self._seen.sizes
        elif not document.words:
            self._drop(document, "empty")
        elif fingerprint is None:
            self._keep(document, document.lines)
        elif (match := self._seen.match(fingerprint)) is not None:
            reason: Reason = "exact_duplicate" if match.exact else "near_duplicate"
            self._drop(document, "excluded" if match.number < checkpoint.excluded.documents else reason, match)
        else:
            self._keep_new_paragraphs(document, fingerprint)
        checkpoint.documents += 1
        self.report.characters += document.characters
        self.report.unknown_letters += document.unknown_letters
        if self.report.characters >= UNKNOWN_CHARACTERS:
            self._warn_of_unknown_scripts()
        if time.monotonic() >= self._next_save:
            self.save()

    def _keep_new_paragraphs(self, document: TokenizedDocument, fingerprint: Fingerprint) -> None:
        """Keep the document without its long paragraphs that occurred before, in earlier documents or in this one."""
        options, seen = self._options, self._seen.seen_paragraphs(fingerprint)
        kept: list[TokenizedLine] = []
        added: dict[int, None] = {}  # hashes of its own paragraphs, in order
        dropped: list[tuple[Reason, TokenizedLine]] = []
        for number, (line, key) in enumerate(zip(document.lines, fingerprint.paragraphs, strict=True)):
            if seen.get(number, sys.maxsize) < self._checkpoint.excluded.paragraphs:
                dropped.append(("excluded", line))
            elif number in seen or key in added:
                dropped.append(("repeated_paragraph", line))
            else:
                kept.append(line)
                if key and options.drop_paragraphs:
                    added[key] = None
        if not any(line.words for line in kept):
            self._drop(document, dropped[0][0])
            return
        for reason, line in dropped:
            self.report.dropped[reason].paragraphs += 1
            self.report.dropped[reason].words += line.words
        if options.drop_duplicates != "near":
            fingerprint = replace(fingerprint, signature=None)
        self._keep(document, kept, None if options.drop_duplicates == "none" else fingerprint, added)

    def _keep(
        self,
        document: TokenizedDocument,
        lines: Sequence[TokenizedLine],
        fingerprint: Fingerprint | None = None,
        paragraphs: Iterable[int] = (),
    ) -> None:
        """Add lines of a document to its shard, and its fingerprint and paragraphs to the index."""
        # Without counting excluded documents, so that they do not change the order of the others.
        number = self._checkpoint.documents - self._checkpoint.excluded.documents
        self._scatter.add(number, "".join(line.text for line in lines))
        self._seen.add(fingerprint, paragraphs)
        words = sum(line.words for line in lines)
        report = self.report
        report.documents += 1
        report.sentences += sum(line.sentences for line in lines)
        report.words += words
        report.long_words += sum(line.long_words for line in lines)
        report.words_per_input[self._paths[document.file]] += words

    def _location(self, number: int) -> dict[str, str | int]:
        """The file of a document, and its position in the file."""
        path = self._paths[bisect_right(self._checkpoint.file_starts, number) - 1]
        self._positions.seek(8 * number)
        return {"file": path, position_name(path): int.from_bytes(self._positions.read(8), "little")}

    def _drop(self, document: TokenizedDocument, reason: Reason, match: Match | None = None) -> None:
        self._seen.add(None)
        count = self.report.dropped[reason]
        count.documents += 1
        count.words += document.words
        record = {**self._location(self._checkpoint.documents), "reason": reason, "words": document.words}
        if match is not None:
            record.update({"similarity": round(match.similarity, 3), "like": self._location(match.number)})
        self._dropped.write(json_bytes(record, indent=None))

    def _warn_of_unknown_scripts(self) -> None:
        """Warn once if much of the text is in scripts for which the tokenizer has no rules."""
        share = self.report.unknown_letters / max(1, self.report.characters)
        if share >= UNKNOWN_SHARE and not self._warned:
            self._warned = True
            warnings.warn(
                f"{share:.1%} of the characters so far are letters of scripts for which {self._options.tokenizer} has "
                "no rules: choose another tokenizer (`elmokit prepare --help` lists them)",
                stacklevel=4,
            )

    # --- All documents -------------------------------------------------------------------------------------------

    def _worker_options(self) -> WorkerOptions:
        options, excludes = self._options, self._num_excluded > 0
        return WorkerOptions(
            tokenizer=options.tokenizer,
            language=options.language,
            num_excluded=self._num_excluded,
            fingerprints=excludes or options.drop_duplicates != "none" or options.drop_paragraphs,
            near=excludes or options.drop_duplicates == "near",
        )

    def _documents(self) -> Iterator[Document]:
        """The documents that are not processed yet."""
        starts, done = list(self._checkpoint.file_starts), self._checkpoint.documents
        for file, path in enumerate(self._paths):
            if file >= len(starts) - 1:
                documents = read_documents(path, self._options.text_field, file)
                yield from islice(documents, done - starts[file] if file < len(starts) else 0, None)

    def scatter(self, processes: int) -> None:
        """Process all remaining documents.

        Args:
            processes: Number of worker processes.

        Raises:
            ValueError: A file is damaged, or was changed while it was read.
        """
        if self._checkpoint.complete:
            return
        words = self.report.words + sum(count.words for count in self.report.dropped.values())
        bar = ProgressBar(initial=words, unit=" words", unit_scale=True, desc="prepare")
        tokenized = tokenize_documents(self._documents(), self._worker_options(), processes)
        with bar, closing(tokenized):
            for document in tokenized:
                self.process(document)
                bar.update(document.words)
        for path, modified in zip(self._paths, self._checkpoint.modified, strict=True):
            if Path(path).stat().st_mtime_ns != modified:
                raise ValueError(f"{path} was changed while it was read: run the command again to start over")
        self._warn_of_unknown_scripts()
        self._checkpoint.complete = True
        self.save()

    def write_shards(self, directory: Path) -> None:
        """Write the shuffled shards that `directory` lacks, the list of dropped documents and the report."""
        directory.mkdir(exist_ok=True)
        remove_leftovers(directory)
        for shard in ProgressBar(range(self._options.num_shards), unit=" shards", desc="shuffle"):
            path = directory / f"shard-{shard:05d}{SUFFIX_OF[self._options.compression]}"
            if not path.exists():
                self._scatter.write_shuffled(shard, path)
        shutil.copyfile(self._directory / DROPPED_NAME, directory / DROPPED_NAME)
        (directory / REPORT_NAME).write_bytes(json_bytes(asdict(self.report)))
