"""Raw text to the tokenized shards that pretraining reads.

Documents walk through once. Worker processes split them into sentences and tokens and take their fingerprints; this
process decides in the order of the input which are kept, and deals them to the shards. At the end each shard is
shuffled. All of it happens in a directory beside the output, from which a run that was stopped goes on.
"""

import math
import os
import shutil
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from multiprocessing import cpu_count
from pathlib import Path
from typing import get_args

from elmokit.data.documents import COMPRESSED, read_documents
from elmokit.data.duplicates import SIMILARITY
from elmokit.data.prepare_report import REPORT_NAME, DropDuplicates, PrepareOptions, PrepareReport, read_report
from elmokit.data.prepare_run import SUFFIX_OF, Checkpoint, PrepareRun
from elmokit.fs.atomic import DISK_FULL, publish_directory
from elmokit.fs.lock import only_one_in
from elmokit.text.tokenizers import doubt_about, tokenizer_for

# A shard holds about this much text where the number of shards is left open; more, where there would be too many.
SHARD_BYTES = 16_000_000
COMPRESSION_RATIO = 3
DEFAULT_MOST_SHARDS = 256

# In the directory of a run: what becomes the output.
RESULT_NAME = "result"


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
        if error.errno in DISK_FULL:
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

    A call that was stopped goes on when it is made again. In a script, make it below `if __name__ == "__main__":`, as
    for any function that starts processes.

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
        OSError: The output cannot be written, or a worker process was killed.
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
        with closing(PrepareRun(directory, _resumed(directory, start))) as run:
            run.deal_all(processes)
            run.write_shards(directory / RESULT_NAME)
        publish_directory(directory / RESULT_NAME, output)
        shutil.rmtree(directory)
    return run.report
