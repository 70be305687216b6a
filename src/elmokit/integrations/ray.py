"""Vectors for tables that are too large for one machine, on a Ray cluster (elmokit's extra ray).

A job is cut into parts, ranges of rows of its source files, each of which becomes a file of the output. One process
reads, embeds and writes a part, so that no vector travels between machines. A file gets its name only when it is
complete: a job resumes by skipping the parts whose files exist.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from importlib import import_module
from pathlib import Path
from typing import Any

from elmokit.embed.files import SENTENCES_PER_PART
from elmokit.fs.arrow import require_pyarrow
from elmokit.fs.atomic import atomic_path, check_output, remove_leftovers
from elmokit.fs.json_files import from_json, read_json
from elmokit.fs.lock import only_one_in
from elmokit.integrations.tables import EmbedWords
from elmokit.progress import ProgressBar
from elmokit.storage.parquet import column_names, num_rows, read_rows, write_tables

__all__ = ["EmbedWords", "TablesReport", "embed_parquet"]

JOB_NAME = "_elmokit.json"  # readers of Parquet directories skip names that begin with "_"
RETRIES = 3  # for a part whose process was killed


# --- A job ------------------------------------------------------------------------------------------------------------


def _tables_in(directory: Path) -> Iterator[Path]:
    """The Parquet files in a directory and below, without hidden ones, which are unfinished."""
    for path in directory.rglob("*.parquet"):
        if path.is_file() and not any(part.startswith((".", "_")) for part in path.relative_to(directory).parts):
            yield path


@dataclass(frozen=True)
class _Job:
    """The contents of `JOB_NAME` in an output directory: everything that determines the bytes of its files."""

    model: str  # its fingerprint
    dtype: str
    column: str
    layers: str
    storage_dtype: str
    tokenize: bool
    sentences_per_part: int
    source: str  # digest of the names, sizes, modification times and numbers of rows of the source files

    def claim(self, target: Path) -> None:
        """Write the job to its directory; FileExistsError if that has files of another job."""
        file = target / JOB_NAME
        if next(_tables_in(target), None) is None:
            with atomic_path(file) as partial:
                partial.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")
            return
        try:
            before, now = asdict(from_json(_Job, read_json(file))), asdict(self)
        except ValueError as error:
            raise ValueError(
                f"{file} does not describe a job of `embed_parquet` ({error}): name another directory"
            ) from error
        differences = [f"{name} is {before[name]!r}, now {now[name]!r}" for name in now if before[name] != now[name]]
        if differences:
            raise FileExistsError(f"{target} holds another job ({'; '.join(differences)}): name another directory")


@dataclass(frozen=True)
class _Part:
    """A range of rows of a source file, and the file of its vectors."""

    source: Path
    first: int
    rows: int
    output: Path


def _source_files(source: Path) -> dict[str, Path]:
    """The Parquet files in a directory and below, or a single file, by path without suffix."""
    if source.is_file():
        return {source.stem: source}
    if not source.exists():
        raise FileNotFoundError(f"there is no {source}: name a Parquet file, or a directory of them")
    files = {path.relative_to(source).with_suffix("").as_posix(): path for path in sorted(_tables_in(source))}
    if not files:
        raise FileNotFoundError(f"{source} has no files that end in .parquet: name a directory with some")
    return files


def _plan(source: Path, target: Path, embed: EmbedWords, sentences_per_part: int) -> tuple[_Job, list[_Part]]:
    """Check the source files, and cut them into parts; a file without rows becomes one part."""
    digest, parts = blake2b(digest_size=16), []
    for name, path in _source_files(source).items():
        rows = num_rows(path)
        try:
            embed.check_columns(column_names(path))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        status = path.stat()
        digest.update(f"{name} {status.st_size} {status.st_mtime_ns} {rows}\n".encode())
        for number in range(max(1, -(-rows // sentences_per_part))):
            first = number * sentences_per_part
            output = target / f"{name}-{number:05d}.parquet"
            parts.append(_Part(path, first, min(sentences_per_part, rows - first), output))
    return _Job(**embed.settings(), sentences_per_part=sentences_per_part, source=digest.hexdigest()), parts


# --- A cluster --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Written:
    """A part whose file has been written."""

    part: _Part
    words: int
    truncated_words: int


class _Worker:
    """A Ray actor that embeds parts."""

    def __init__(self, embed: EmbedWords, batch_size: int) -> None:
        self._embed, self._batch_size = embed, batch_size

    def write(self, part: _Part) -> _Written:
        """Write the file of a part, unless it exists: an earlier attempt may have been killed just after it."""
        words, truncated = self._embed.words, self._embed.truncated_words

        def tables() -> Iterator[Any]:
            first = part.first
            for rows in read_rows(part.source, part.first, part.rows, self._batch_size):
                try:
                    yield self._embed(rows)
                except ValueError as error:
                    raise ValueError(f"{part.source}, from row {first} on: {error}") from error
                first += len(rows)

        if not part.output.exists():
            write_tables(tables(), part.output)
        return _Written(part, self._embed.words - words, self._embed.truncated_words - truncated)


def _write_parts(
    parts: Sequence[_Part], embed: EmbedWords, batch_size: int, num_actors: int | None, options: Mapping[str, Any]
) -> Iterator[_Written]:
    """Have a pool of Ray actors write the files of parts; yields each part when it is written."""
    try:
        ray: Any = import_module("ray")  # without Ray, pyright would take `import ray` for this file
        from ray.exceptions import OutOfMemoryError, RayActorError, RayTaskError  # pyright: ignore[reportMissingImports]
        from ray.util import ActorPool  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ValueError("a cluster needs Ray: pip install 'ray[data]' (elmokit's extra ray)") from error

    if not ray.is_initialized():
        ray.init()
    options = {"num_cpus": 1, "max_restarts": -1, "max_task_retries": RETRIES, **options}
    count = _pool_size(num_actors, options, ray.cluster_resources())
    worker = ray.remote(**options)(_Worker)
    actors = [worker.remote(embed, batch_size) for _ in range(min(count, len(parts)))]
    try:
        pool: Any = ActorPool(actors)  # Ray's own annotations are too narrow
        yield from pool.map_unordered(lambda actor, part: actor.write.remote(part), parts)
    except RayTaskError as error:
        raise error.cause from error  # the error that the worker raised
    except (RayActorError, OutOfMemoryError) as error:
        raise ValueError(
            f"a process died {RETRIES + 1} times at the same rows; if it lacked memory, lower batch_size or num_actors "
            f"({str(error).strip().splitlines()[-1]})"
        ) from error
    finally:
        for actor in actors:
            ray.kill(actor)


def _pool_size(num_actors: int | None, options: Mapping[str, Any], resources: Mapping[str, float]) -> int:
    """How many actors run at the same time; ValueError if that is none, or fewer than `num_actors`."""
    needs = {"processors": ("CPU", options["num_cpus"]), "GPUs": ("GPU", options.get("num_gpus", 0))}
    if num_actors is None and not any(each for _, each in needs.values()):
        raise ValueError("actors that need no processor and no GPU may be of any number: give num_actors")
    for unit, (name, each) in needs.items():
        need, available = each * (num_actors or 1), resources.get(name, 0.0)
        if need > available:  # Ray would wait for more machines forever
            raise ValueError(
                f"{num_actors or 1} actors need {need:g} {unit}, and Ray has {available:g}: ask for fewer actors, or "
                "give it more"
            )
    return num_actors or int(min(resources[name] // each for name, each in needs.values() if each))


@dataclass(frozen=True)
class TablesReport:
    """The result of embedding tables; `words`, `truncated_words` and `seconds` are those of this run alone."""

    output: Path
    rows: int
    files: int
    files_kept: int  # files that an earlier run had written
    words: int
    truncated_words: int  # words that were longer than the model can read, so that it saw only their beginnings
    seconds: float
    words_per_second: float


def embed_parquet(
    source: str | Path,
    target: str | Path,
    embed: EmbedWords | None = None,
    *,
    num_actors: int | None = None,
    sentences_per_part: int = SENTENCES_PER_PART,
    batch_size: int = 256,
    **actor_options: Any,
) -> TablesReport:
    """Embed the texts of Parquet files on all machines of a Ray cluster, into Parquet files.

    The files of the output are named after those of the source, `NAME-00000.parquet` and so on, and have their rows in
    the same order with all columns. If a process dies, its part is computed again. The same call resumes a job that was
    stopped: it computes the files that are missing.

    Args:
        source: A Parquet file, or a directory of them, at a path that exists on every machine.
        target: The directory of the output, on a file system that all machines share: new, empty, or that of the same
            job.
        embed: The column to embed, and how; `EmbedWords()` by default.
        num_actors: Number of processes, each with its own copy of the model; by default as many as the cluster has
            processors for (or GPUs, with `num_gpus`).
        sentences_per_part: Rows in each file of the output.
        batch_size: Rows that a process holds in memory at a time.
        actor_options: Further options of Ray's actors, such as `num_gpus=1`; or `num_cpus=4`, for four threads in each
            process instead of one.

    Returns:
        The number of rows, files and words, and the speed.

    Raises:
        ValueError: A number is below 1, Ray or pyarrow is not installed, the cluster is too small for `num_actors`, a
            source file is damaged or has no usable texts, `embed` computes in dtype "auto", which differs between
            machines, another process writes the same output, or processes die repeatedly.
        FileNotFoundError: The source does not exist, or has no Parquet files.
        FileExistsError: The directory of the output holds another job, or other files.
        OSError: The output cannot be written.
    """
    require_pyarrow()
    if min(sentences_per_part, batch_size, 1 if num_actors is None else num_actors) < 1:
        raise ValueError("sentences_per_part, batch_size and num_actors must be at least 1")
    embed, start = embed or EmbedWords(), time.perf_counter()
    output = Path(target)
    # Processes on other machines may run in other directories.
    source, target = (Path(path).expanduser().absolute() for path in (source, target))
    if source.is_dir() and target.resolve().is_relative_to(source.resolve()):
        raise ValueError(f"{target} is inside {source}, and would become part of it: name another directory")
    job, parts = _plan(source, target, embed, sentences_per_part)
    check_output(target, [source], overwrite=True, directory_of=JOB_NAME)
    with only_one_in(target):
        job.claim(target)
        missing = [part for part in parts if not part.output.exists()]
        rows, words, truncated = sum(part.rows for part in parts), 0, 0
        with ProgressBar(total=rows, initial=rows - sum(part.rows for part in missing), unit=" rows") as bar:
            for written in _write_parts(missing, embed, batch_size, num_actors, actor_options) if missing else ():
                words, truncated = words + written.words, truncated + written.truncated_words
                bar.update(written.part.rows)
        for folder in {part.output.parent for part in parts}:  # of killed processes, in this run or an earlier one
            remove_leftovers(folder)
    seconds = time.perf_counter() - start
    kept, speed = len(parts) - len(missing), round(words / seconds, 1)
    return TablesReport(output, rows, len(parts), kept, words, truncated, round(seconds, 3), speed)
