"""Raw text to the tokenized shards that pretraining reads.

Documents walk through once. Worker processes split them into sentences and tokens and take their fingerprints; this
process decides in the order of the input which are kept, and deals them to the shards. At the end each shard is
shuffled. All of it happens in a directory beside the output, from which a run that was stopped goes on.
"""

import json
import math
import os
import shutil
import sys
import time
import warnings
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from multiprocessing import cpu_count
from pathlib import Path
from typing import get_args

from tqdm import tqdm

from elmokit.data.documents import COMPRESSED, Document, read_documents
from elmokit.data.duplicates import EMPTY, SIMILARITY, Fingerprint, LogSizes, Match, SeenTexts
from elmokit.data.prepare_report import (
    REPORT_NAME,
    DropDuplicates,
    PrepareOptions,
    PrepareReport,
    Reason,
    json_bytes,
    read_report,
)
from elmokit.data.shuffle import Scatter
from elmokit.data.workers import TokenizedDocument, TokenizedLine, WorkerOptions, tokenize_documents
from elmokit.fs.atomic import FULL, atomic_path, publish_directory
from elmokit.fs.lock import only_one_in
from elmokit.text.tokenizers import doubt_about, tokenizer_for

SUFFIX_OF = {"zst": ".txt.zst", "gz": ".txt.gz", "none": ".txt"}
# Beside the shards: a JSON line for each document that was left out.
DROPPED_NAME = "dropped.jsonl"

# A shard holds about this much text where the number of shards is left open; more, where there would be too many.
SHARD_BYTES = 16_000_000
COMPRESSION_RATIO = 3
DEFAULT_MOST_SHARDS = 256

# From so much text on, a share of letters of unknown scripts is worth a warning before the work is done.
DOUBT_CHARACTERS, DOUBT_SHARE = 1_000_000, 0.01

# In the directory of a run that is not finished.
CHECKPOINT_NAME = "checkpoint.json"
RESULT_NAME = "result"
CHECKPOINT_SECONDS = 30


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


class _Run:
    """A run in its directory: takes documents in order, and notes from time to time how far it has come."""

    def __init__(self, directory: Path, checkpoint: Checkpoint) -> None:
        self._directory, self._point = directory, checkpoint
        self.report, self._options = checkpoint.report, checkpoint.report.options
        self._excluded, self._inputs = list(self._options.exclude_bytes), list(self._options.input_bytes)
        num_shards, seed = self._options.num_shards, self._options.seed
        self._scatter = Scatter(directory, num_shards, seed, checkpoint.shard_bytes)
        self._seen = SeenTexts(directory, self._options.similarity, checkpoint.seen)
        self._dropped = (directory / DROPPED_NAME).open("ab")
        self._dropped.truncate(checkpoint.dropped_bytes)
        self._saved = time.monotonic()
        self._doubted = False

    def worker_options(self) -> WorkerOptions:
        """What the workers have to do."""
        options, compare = self._options, bool(self._excluded)
        return WorkerOptions(
            tokenizer=options.tokenizer,
            language=options.language,
            num_excluded=len(self._excluded),
            fingerprints=compare or options.drop_duplicates != "none" or options.drop_paragraphs,
            near=compare or options.drop_duplicates == "near",
        )

    def documents(self) -> Iterator[Document]:
        """Those that were not taken yet."""
        begun, taken = list(self._point.file_starts), self._point.documents
        for file, path in enumerate([*self._excluded, *self._inputs]):
            if file >= len(begun) - 1:
                documents = read_documents(path, self._options.text_field, file)
                yield from islice(documents, taken - begun[file] if file < len(begun) else 0, None)

    def take(self, document: TokenizedDocument) -> None:
        """Decide on the next document, and deal it to its shard if it is kept."""
        point, number, fingerprint = self._point, self._point.documents, document.fingerprint
        while len(point.file_starts) <= document.file:
            point.file_starts.append(number)
        if document.file < len(self._excluded):
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
        if time.monotonic() - self._saved >= CHECKPOINT_SECONDS:
            self.save()

    def _keep_new_lines(self, document: TokenizedDocument, fingerprint: Fingerprint) -> None:
        """Keep the document but for long paragraphs that occurred before, in it too."""
        options, seen = self._options, self._seen.seen_paragraphs(fingerprint)
        kept: list[TokenizedLine] = []
        own: dict[int, None] = {}
        left_out: list[tuple[Reason, TokenizedLine]] = []
        for number, (line, key) in enumerate(zip(document.lines, fingerprint.paragraphs, strict=True)):
            if seen.get(number, sys.maxsize) < self._point.excluded.paragraphs:
                left_out.append(("excluded", line))
            elif number in seen or key in own:
                left_out.append(("repeated_paragraph", line))
            else:
                kept.append(line)
                if key and options.drop_paragraphs:
                    own[key] = None
        if not any(line.words for line in kept):
            self._drop(document, left_out[0][0])
            return
        for reason, line in left_out:
            self.report.dropped[reason].paragraphs += 1
            self.report.dropped[reason].words += line.words
        if options.drop_duplicates != "near":
            fingerprint = replace(fingerprint, signature=None)
        self._keep(document, kept, None if options.drop_duplicates == "none" else fingerprint, own)

    def _keep(
        self,
        document: TokenizedDocument,
        lines: Sequence[TokenizedLine],
        fingerprint: Fingerprint | None = None,
        paragraphs: Iterable[int] = (),
    ) -> None:
        """Deal lines of a document to its shard; what is handed over as fingerprint is compared with from now on."""
        # Numbers without the documents to exclude: an option to exclude more must not move the others.
        number = self._point.documents - self._point.excluded.documents
        self._scatter.add(number, "".join(line.text for line in lines))
        self._seen.enter(fingerprint, paragraphs)
        words = sum(line.words for line in lines)
        report, path = self.report, self._inputs[document.file - len(self._excluded)]
        report.documents += 1
        report.sentences += sum(line.sentences for line in lines)
        report.words += words
        report.long_words += sum(line.long_words for line in lines)
        report.words_per_input[path] += words

    def _place(self, number: int) -> dict[str, str | int]:
        """The file that a document is in, and its number there, from 0."""
        file = bisect_right(self._point.file_starts, number) - 1
        return {
            "file": [*self._excluded, *self._inputs][file],
            "document": number - self._point.file_starts[file],
        }

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

    def save(self) -> None:
        """Note how far the run has come, when everything up to there is on the disk."""
        self._point.shard_bytes = self._scatter.sync()
        self._seen.sync()
        self._point.seen = self._seen.sizes
        self._dropped.flush()
        os.fsync(self._dropped.fileno())
        self._point.dropped_bytes = self._dropped.tell()
        self._point.write(self._directory)
        self._saved = time.monotonic()

    def close(self) -> None:
        """Close the files."""
        self._seen.close()
        self._dropped.close()

    def deal_all(self, processes: int) -> None:
        """Take all documents that are left."""
        if self._point.complete:
            return
        with tqdm(
            initial=self.report.words, unit=" words", unit_scale=True, desc="prepare", dynamic_ncols=True, disable=None
        ) as bar:
            for document in tokenize_documents(self.documents(), self.worker_options(), processes):
                self.take(document)
                bar.update(document.words)
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


# --- The whole of it ---


def _sizes(paths: Sequence[str | Path], text_field: str) -> dict[str, int]:
    """Sizes of the files; what can be known to be wrong with them before the work starts is said now."""
    names = [str(path) for path in paths]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ValueError(f"{twice[0]} is given more than once: name each file once")
    for name in names:
        if next(read_documents(name, text_field), None) is None:
            raise ValueError(f"{name} is empty: leave it out, or check how it was made")
    return {name: Path(name).stat().st_size for name in names}


def _default_num_shards(input_bytes: dict[str, int]) -> int:
    text_bytes = sum(
        size * (COMPRESSION_RATIO if path.endswith(COMPRESSED) else 1) for path, size in input_bytes.items()
    )
    return max(1, min(math.ceil(text_bytes / SHARD_BYTES), DEFAULT_MOST_SHARDS))


def _finished_report(output: Path, options: PrepareOptions) -> PrepareReport | None:
    """The report of an earlier run with the same options; None where there was none; ValueError where they differ."""
    if not (output / REPORT_NAME).exists():
        return None
    report = read_report(output)
    old, new = asdict(report.options), asdict(options)
    different = [name for name in new if old[name] != new[name]]
    if different:
        raise ValueError(
            f"{output} holds a corpus made with other {', '.join(different)}: remove it or choose another output"
        )
    report.already_done = True
    return report


def _resumed(directory: Path, start: Checkpoint) -> Checkpoint:
    """The last checkpoint of a run of the same options and files; else `start`, in an empty directory."""
    last = Checkpoint.read(directory)
    if last is not None and (last.report.options, last.modified) == (start.report.options, start.modified):
        return last
    if last is not None:
        warnings.warn(f"{directory} holds an unfinished run of other options or inputs: it is begun anew", stacklevel=3)
    for path in directory.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    start.write(directory)
    return start


@contextmanager
def _unfinished(directory: Path) -> Iterator[None]:
    """Holds the directory of a run; it goes where the input was wrong, and stays where the run can go on."""
    try:
        with only_one_in(directory):
            try:
                yield
            except ValueError:
                shutil.rmtree(directory, ignore_errors=True)
                raise
    except OSError as error:
        if error.errno in FULL:
            advice = "free some space and give the same command, which goes on"
            raise OSError(error.errno, f"cannot write {directory} ({os.strerror(error.errno)}): {advice}") from error
        raise


def prepare(
    inputs: Sequence[str | Path],
    output: str | Path,
    tokenizer: str | None = None,
    num_shards: int | None = None,
    processes: int | None = None,
    seed: int = 0,
    compression: str = "zst",
    *,
    language: str | None = None,
    text_field: str = "text",
    drop_duplicates: DropDuplicates = "near",
    similarity: float = SIMILARITY,
    drop_paragraphs: bool = True,
    exclude: Sequence[str | Path] = (),
) -> PrepareReport:
    """Split raw text into tokenized, shuffled shards without duplicates, one sentence a line.

    Args:
        inputs: UTF-8 text (.txt, plain or .gz or .zst) of one paragraph a line with blank lines between documents;
            JSON lines (.jsonl, plain or .gz or .zst) or Parquet files (.parquet) of one document a record.
        output: Directory for shard-NNNNN.txt.zst, corpus.json (the report) and dropped.jsonl (each document that was
            left out). It appears when complete; where it is complete already, nothing is done.
        tokenizer: Name of a tokenizer, which models that are trained on the shards keep; when None, that for the
            language: `tokenizer_for` says which.
        num_shards: How many shards; one for each 16 MB of text, 256 at most, when None. A shard is shuffled in memory.
        processes: Worker processes, one for each core when None. The bytes written do not depend on it.
        seed: Decides which shard a document goes to and its place there. Its sentences stay together and in order.
        compression: "zst", "gz" or "none".
        language: Code of the language, such as "de", by whose rules sentences are found; English when both it and the
            tokenizer are None.
        text_field: The field or column that holds a record's text.
        drop_duplicates: "near" leaves out documents that equal an earlier one but for white space, or are like one;
            "exact" only the former; "none" keeps all.
        similarity: Jaccard similarity, of sets of five consecutive words, from which on documents are near duplicates.
        drop_paragraphs: Leave out paragraphs of at least 100 characters that occurred before.
        exclude: Files of held-out text: documents that equal one of theirs or are like one, and paragraphs of at
            least 100 characters that occur there, are left out, whatever the other options are.

    Returns:
        What was kept, and what was left out for which reason.

    Raises:
        ValueError: A file is empty, damaged or not UTF-8, or the output holds a corpus of other options.
        OSError: The output cannot be written.
    """
    if compression not in SUFFIX_OF:
        raise ValueError(f"compression is {compression!r}: choose one of {', '.join(SUFFIX_OF)}")
    if drop_duplicates not in get_args(DropDuplicates):
        raise ValueError(f"drop_duplicates is {drop_duplicates!r}: choose near, exact or none")
    if not 0 < similarity <= 1:
        raise ValueError(f"similarity is {similarity}: it is above 0 and at most 1")
    if num_shards is not None and num_shards < 1:
        raise ValueError(f"num_shards is {num_shards}: at least 1 is needed")
    processes = processes or cpu_count()
    if processes < 1:
        raise ValueError(f"processes is {processes}: at least 1 is needed")
    if not inputs:
        raise ValueError("there is no input: name at least one text file")
    for path in set(map(str, inputs)) & set(map(str, exclude)):
        raise ValueError(f"{path} is both an input and to be excluded: leave it out of one")
    found = tokenizer_for(tokenizer, language)  # an unknown one is told of now
    doubt = doubt_about(found, language)
    if doubt is not None:
        warnings.warn(doubt, stacklevel=2)
    output = Path(output)
    input_bytes, exclude_bytes = _sizes(inputs, text_field), _sizes(exclude, text_field)
    options = PrepareOptions(
        input_bytes=input_bytes,
        exclude_bytes=exclude_bytes,
        text_field=text_field,
        tokenizer=found.name,
        language=language,
        drop_duplicates=drop_duplicates,
        similarity=similarity,
        drop_paragraphs=drop_paragraphs,
        num_shards=num_shards or _default_num_shards(input_bytes),
        seed=seed,
        compression=compression,
    )
    directory = output.with_name(f".unfinished-{output.name}")
    finished = _finished_report(output, options)
    if finished is not None:
        shutil.rmtree(directory, ignore_errors=True)
        return finished
    if output.exists() and not (output.is_dir() and not any(output.iterdir())):
        raise FileExistsError(f"{output} exists: remove it or choose another output")

    start = Checkpoint(
        report=PrepareReport(options, words_per_input=dict.fromkeys(input_bytes, 0)),
        modified=[Path(path).stat().st_mtime_ns for path in [*exclude_bytes, *input_bytes]],
    )
    with _unfinished(directory):
        run = _Run(directory, _resumed(directory, start))
        try:
            run.deal_all(processes)
            run.write_shards(directory / RESULT_NAME)
        finally:
            run.close()
        publish_directory(directory / RESULT_NAME, output)
        shutil.rmtree(directory)
    return run.report
