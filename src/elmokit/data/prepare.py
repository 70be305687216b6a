"""Preparation of raw text for pretraining: tokenized, deduplicated, shuffled shards.

Documents are streamed once. Worker processes split them into sentences and tokens and compute their fingerprints; the
main process decides in input order which documents to keep, and distributes them to the shards. At the end, each shard
is shuffled. An unfinished run is kept in a directory next to the output, from which it resumes.
"""

import math
import multiprocessing
import os
import shutil
import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import get_args

from elmokit.data.documents import PARQUET, is_fasta, read_documents
from elmokit.data.duplicates import SIMILARITY
from elmokit.data.prepare_report import (
    REPORT_NAME,
    DropDuplicates,
    PrepareOptions,
    PrepareReport,
    json_bytes,
    read_report,
)
from elmokit.data.prepare_run import OWN_FILES, SUFFIX_OF, Checkpoint, PrepareRun
from elmokit.data.text_checks import english_doubt
from elmokit.data.workers import usable_cores
from elmokit.fs.atomic import OVERWRITE, check_output, publish_directory
from elmokit.fs.lock import only_one_in
from elmokit.fs.reading import suffixes_of
from elmokit.text.tokenizer import Tokenizer
from elmokit.text.tokenizers import TOKENIZED, missing_rules, tokenizer_for

# Size of a shard if the number of shards is not given, and the largest number of shards that is then chosen.
SHARD_BYTES = 16_000_000
COMPRESSION_RATIO = 3
MAX_DEFAULT_SHARDS = 256
FIRST_DOCUMENTS = 20  # of each file, which are checked before the run

# Names, in messages, of the options that record files with their sizes.
NAMED = {"input_bytes": "inputs (their paths, sizes or order)", "exclude_bytes": "excluded files"}
# Subdirectory of an unfinished run that becomes the output.
RESULT_NAME = "result"


def _sizes(paths: Sequence[str | Path], text_field: str, tokenizer: Tokenizer) -> dict[str, int]:
    """The sizes of the files in bytes. ValueError for files that are repeated, empty, or unreadable from the start."""
    names = [str(path) for path in paths]
    doubts = {}
    for name in names:
        if not (first := list(islice(read_documents(name, text_field), FIRST_DOCUMENTS))):
            raise ValueError(f"{name} is empty: omit it, or check how it was created")
        doubts[name] = english_doubt((line for document in first for line in document.lines), tokenizer)
    if doubtful := [f"{name} {doubt}" for name, doubt in doubts.items() if doubt]:
        warnings.warn(doubtful[0], stacklevel=3)
    return {name: Path(name).stat().st_size for name in names}


def _default_num_shards(input_bytes: dict[str, int]) -> int:
    text_bytes = 0
    for path, size in input_bytes.items():
        kind, compression = suffixes_of(path)
        text_bytes += size * (COMPRESSION_RATIO if compression or kind == PARQUET else 1)
    return max(1, min(math.ceil(text_bytes / SHARD_BYTES), MAX_DEFAULT_SHARDS))


def _finished_report(output: Path, options: PrepareOptions, overwrite: bool) -> PrepareReport | None:
    """The report of a finished run with the same options, if any. ValueError if they differ, unless `overwrite`.

    Files are compared by name and size. One of the same size that was written later may have changed, or may only have
    been copied: without `overwrite` there is a warning, with it the run is not taken for finished.
    """
    if not (output / REPORT_NAME).exists():
        return None
    try:
        report = read_report(output)
        old, new = asdict(report.options), asdict(options)
        # As JSON, since the order of files counts: it is that of the documents.
        if different := [NAMED.get(name, name) for name in new if json_bytes(old[name]) != json_bytes(new[name])]:
            raise ValueError(
                f"{output} has a corpus prepared with other {', '.join(different)}: remove it, choose another output, "
                f"or {OVERWRITE}"
            )
        suffix = SUFFIX_OF[options.compression]
        shards = (output / f"shard-{number:05d}{suffix}" for number in range(options.num_shards))
        if missing := [shard for shard in shards if not shard.is_file()]:
            raise ValueError(f"{missing[0]} is missing: remove {output}, or {OVERWRITE}, to prepare the corpus anew")
    except ValueError:
        if overwrite:
            return None
        raise
    written = (output / REPORT_NAME).stat().st_mtime_ns
    inputs = [*options.exclude_bytes, *options.input_bytes]
    if newer := [path for path in inputs if Path(path).stat().st_mtime_ns > written]:
        if overwrite:
            return None
        advice = f"the corpus is left as it is; if the text has changed, {OVERWRITE}"
        warnings.warn(f"{newer[0]} was written after {output} was prepared from it: {advice}", stacklevel=3)
    report.already_done = True
    return report


def _identity(checkpoint: Checkpoint) -> bytes:
    """The values that a run must share with the one that resumes it, as JSON, since the order of files counts."""
    return json_bytes([asdict(checkpoint.report.options), checkpoint.modified])


def _resumed(directory: Path, start: Checkpoint) -> Checkpoint:
    """The last checkpoint of a run with the same options and files; otherwise `start`, in an emptied directory."""
    try:
        last = Checkpoint.read(directory)
    except ValueError as error:
        warnings.warn(f"{error}: starting over", stacklevel=3)
        last = None
    if last is not None and _identity(last) == _identity(start):
        return last
    if last is not None:
        warnings.warn(f"{directory} has an unfinished run with other options or inputs: starting over", stacklevel=3)
    for path in directory.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    start.write(directory)
    return start


@contextmanager
def _unfinished(directory: Path, start: Checkpoint) -> Iterator[PrepareRun]:
    """Lock the directory of a run, and resume it; remove it if its input turns out to be invalid."""
    with only_one_in(directory):
        run = PrepareRun(directory, _resumed(directory, start))
        try:
            with closing(run):
                yield run
        except ValueError:
            shutil.rmtree(directory, ignore_errors=True)
            raise


def _check_arguments(
    inputs: Sequence[str | Path],
    exclude: Sequence[str | Path],
    compression: str,
    drop_duplicates: str,
    similarity: float,
    num_shards: int | None,
    processes: int,
) -> None:
    """ValueError for arguments of `prepare` that are out of range."""
    for name, paths in (("inputs", inputs), ("exclude", exclude)):
        if isinstance(paths, str | Path):
            raise ValueError(f"{name} must be a list of files: [path]")
    if compression not in SUFFIX_OF:
        raise ValueError(f"compression must be one of {', '.join(SUFFIX_OF)}, not {compression!r}")
    if drop_duplicates not in get_args(DropDuplicates):
        raise ValueError(f"drop_duplicates must be near, exact or none, not {drop_duplicates!r}")
    if not 0 < similarity <= 1:
        raise ValueError(f"similarity must be above 0 and at most 1, not {similarity}")
    if drop_duplicates != "near" and similarity != SIMILARITY:
        raise ValueError(f"similarity is for near duplicates, and drop_duplicates is {drop_duplicates!r}: omit one")
    for name, number in (("num_shards", num_shards), ("processes", processes)):
        if number is not None and number < 1:
            raise ValueError(f"{name} must be at least 1, not {number}")
    if not inputs:
        raise ValueError("there is no input: give at least one text file")
    excluded = {os.path.realpath(path) for path in exclude}
    if both := [path for path in inputs if os.path.realpath(path) in excluded]:
        raise ValueError(f"{both[0]} is both an input and excluded: remove it from one of them")


def _tokenizer(files: Sequence[str | Path], name: str | None, language: str | None) -> Tokenizer:
    """The tokenizer: that of `tokenizer_for`, or for protein sequences whitespace-1, as spaces separate their residues.

    ValueError if only some of the files are FASTA, or if another tokenizer or a language is given for them.
    """
    sequences = [path for path in files if is_fasta(path)]
    if not sequences:
        return tokenizer_for(name, language)
    if len(sequences) < len(files):
        raise ValueError(f"{sequences[0]} has protein sequences, and other files have text: prepare the two separately")
    if name not in (None, TOKENIZED) or language is not None:
        raise ValueError(f"the words of {sequences[0]} are residues: omit tokenizer and language")
    return tokenizer_for(TOKENIZED)


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
    overwrite: bool = False,
) -> PrepareReport:
    """Split raw text into sentences and tokens, remove duplicates, and write shuffled shards of one sentence per line.

    A call with the same arguments resumes an interrupted run. As with any function that starts processes, call it below
    `if __name__ == "__main__":` in scripts.

    Args:
        inputs: UTF-8 text files (plain, .gz or .zst) with one paragraph per line and blank lines between documents;
            JSON lines (.jsonl, plain, .gz or .zst) or Parquet files (.parquet) with one document per record; or protein
            sequences (.fasta, .fa or .faa, plain, .gz or .zst), each a sentence whose words are its residues. A
            document of more than 1,000 lines or 250,000 characters is cut into several, at the ends of lines: a file
            that is one line is one document, and must fit in memory.
        output: Directory for shard-NNNNN.txt.zst, corpus.json (the report) and dropped.jsonl: a line for each dropped
            document, with its file and its line in it, from 1 (in a Parquet file its row, from 0), and the same for
            the document that it duplicates. It is created atomically; if it is complete already, nothing is done.
        tokenizer: Name of a tokenizer, which models trained on the shards record; by default the one of the language
            (see `tokenizer_for`), for protein sequences whitespace-1.
        num_shards: Number of shards, each of which must fit in memory; by default one per 16 MB of text, at most 256.
        processes: Number of worker processes; by default one per core that this process may use. The output
            does not depend on it.
        seed: Seed of the shuffling. Documents are shuffled; the sentences of a document stay together and in order.
        compression: "zst", "gz" or "none".
        language: Language code, such as "de", whose rules split the text into sentences; English by default, unless a
            tokenizer is given.
        text_field: Field or column of a record with the text.
        drop_duplicates: Drop documents that equal an earlier one up to white space ("exact"), those and near duplicates
            ("near"), or no documents ("none").
        similarity: Threshold for near duplicates: Jaccard similarity of the sets of five-word shingles.
        drop_paragraphs: Drop paragraphs of at least 100 characters that occurred before.
        exclude: Held-out files. Their documents, near duplicates of these, and their paragraphs of at least 100
            characters are dropped from the inputs, whatever the other options are.
        overwrite: Replace a corpus that was prepared with other options, once the new one is complete.

    Returns:
        The number of documents, sentences and words that were kept, and of those that were dropped for each reason.

    Raises:
        ValueError: An option is invalid, a file is empty, damaged, not UTF-8 or CoNLL-U, the output has a corpus
            prepared with other options, or the call is not below `if __name__ == "__main__":`.
        FileNotFoundError: A file does not exist.
        FileExistsError: The output exists and is not a corpus.
        OSError: The output cannot be written, or a worker process was killed.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):  # while a new process imports the script
        raise ValueError(
            'a worker process has run the script that calls `prepare`: put the call below `if __name__ == "__main__":`'
        )
    processes = usable_cores() if processes is None else processes
    _check_arguments(inputs, exclude, compression, drop_duplicates, similarity, num_shards, processes)
    chosen = _tokenizer([*inputs, *exclude], tokenizer, language)
    warning = missing_rules(chosen, language)
    if warning is not None:
        warnings.warn(warning, stacklevel=2)
    output = Path(os.path.realpath(output))
    input_bytes, exclude_bytes = (_sizes(paths, text_field, chosen) for paths in (inputs, exclude))
    options = PrepareOptions(
        input_bytes=input_bytes,
        exclude_bytes=exclude_bytes,
        text_field=text_field,
        tokenizer=chosen.name,
        language=language,
        drop_duplicates=drop_duplicates,
        similarity=similarity,
        drop_paragraphs=drop_paragraphs,
        num_shards=num_shards or _default_num_shards(input_bytes),
        seed=seed,
        compression=compression,
    )
    directory = output.with_name(f".unfinished-{output.name}")
    finished = _finished_report(output, options, overwrite)
    if finished is not None:
        shutil.rmtree(directory, ignore_errors=True)
        return finished
    sources = [*inputs, *exclude]
    check_output(output, sources, overwrite=overwrite, directory_of=REPORT_NAME, own_files=OWN_FILES)
    start = Checkpoint(
        report=PrepareReport(options, words_per_input=dict.fromkeys(input_bytes, 0)),
        modified=[Path(path).stat().st_mtime_ns for path in [*exclude_bytes, *input_bytes]],
    )
    with _unfinished(directory, start) as run:
        run.scatter(processes)
        run.write_shards(directory / RESULT_NAME)
        run.close()  # Windows removes no open files
        publish_directory(directory / RESULT_NAME, output)
        shutil.rmtree(directory)
    return run.report
