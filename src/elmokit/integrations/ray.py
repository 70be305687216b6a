"""Vectors for tables that are too large for one machine, by Ray Data (elmokit's extra ray)."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from elmokit.fs import atomic_directory
from elmokit.integrations.tables import EmbedTexts, EmbedWords

__all__ = ["EmbedTexts", "EmbedWords", "TablesReport", "embed_parquet"]


@dataclass(frozen=True)
class TablesReport:
    """The result of embedding tables."""

    output: Path
    rows: int
    seconds: float


class _Actor:
    """`EmbedWords` or `EmbedTexts` in a process of the cluster; Ray calls instances of classes."""

    def __init__(self, embed: EmbedWords | EmbedTexts) -> None:
        self._embed = embed

    def __call__(self, batch: Any) -> Any:
        return self._embed(batch)


def embed_parquet(
    source: str | Path,
    target: str | Path,
    embed: EmbedWords | EmbedTexts | None = None,
    *,
    num_actors: int | None = None,
    sentences_per_part: int = 1000,
    batch_size: int = 256,
    **actor_options: Any,
) -> TablesReport:
    """Embed the texts of Parquet files on a Ray cluster, into a directory of Parquet files.

    The rows keep their order and all columns. If a process dies, its rows are computed again.

    Args:
        source: A Parquet file, or a directory of them, at a path that exists on every machine.
        target: The directory to write, on a file system that all machines share.
        embed: The column to embed, and how; `EmbedWords()` by default, or `EmbedTexts` for a vector
            for each text.
        num_actors: Number of processes, each with its own copy of the model; by default Ray chooses
            it.
        sentences_per_part: Rows in each file of the output, at most; the files are named in the
            order of the rows.
        batch_size: Rows that a process holds in memory at a time.
        actor_options: Further options of Ray Data's `map_batches`, such as `num_gpus=1`; or
            `num_cpus=4`, for four threads in each process instead of one.

    Returns:
        The number of rows, and the time.

    Raises:
        ValueError: Ray is not installed.
        FileNotFoundError: The source does not exist.
        FileExistsError: The target exists.
        RayError: A process failed, for example as a row has no text; Ray prints its error.
    """
    try:
        data: Any = import_module(
            "ray.data"
        )  # without Ray, pyright would take `import ray` for this file
    except ImportError as error:
        raise ValueError(
            "a cluster needs Ray: pip install 'ray[data]' (elmokit's extra ray)"
        ) from error
    import pyarrow as pa
    from pyarrow import parquet

    class Parts(data.Datasink):
        """Writes the rows in order, unlike Ray's `write_parquet`, which may swap them."""

        def __init__(self, directory: Path) -> None:
            self._directory = directory

        def write(self, blocks: Iterable[pa.Table], ctx: Any) -> None:
            rows = pa.concat_tables(blocks, promote_options="default")
            for part, first in enumerate(range(0, len(rows), sentences_per_part)):
                file = self._directory / f"{ctx.task_idx:06}-{part:06}.parquet"
                parquet.write_table(rows.slice(first, sentences_per_part), file)

    start = time.perf_counter()
    # Processes on other machines may run in other directories.
    source = Path(source).expanduser().absolute()
    with atomic_directory(Path(target).expanduser().absolute()) as partial:
        rows = data.read_parquet(str(source))
        rows.context.execution_options.preserve_order = True
        embedded = rows.map_batches(
            _Actor,
            fn_constructor_args=(embed or EmbedWords(),),
            batch_format="pyarrow",
            batch_size=batch_size,
            compute=data.ActorPoolStrategy(size=num_actors),
            **actor_options,
        )
        embedded.write_datasink(Parts(partial))
    return TablesReport(Path(target), rows.count(), round(time.perf_counter() - start, 3))
