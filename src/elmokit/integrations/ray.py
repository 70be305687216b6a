"""Vectors of tables too large for one machine, by Ray Data (elmokit's extra ray).

`EmbedWords` is a plain callable on batches of rows, which Spark and `datasets.map` take as well: the module needs Ray
where `embed_parquet` is called, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from elmokit.checkpoints.loading import ModelSource
from elmokit.integrations.lazy_embedder import LazyEmbedder
from elmokit.storage.parquet import embedding_columns

STORAGE_DTYPES = ("float32", "float16")


class EmbedWords:
    """Batches of rows with texts -> the same rows with the words of each text, and a vector for each word.

    The model is loaded at the first batch; a copy that is sent to another process holds its name alone. No vector
    depends on how rows are batched.
    """

    def __init__(
        self,
        column: str = "text",
        model: ModelSource = None,
        *,
        layers: str | int = "mix",
        storage_dtype: str = "float32",
        tokenize: bool = True,
        device: str | None = None,
        dtype: str | None = None,
    ) -> None:
        """Set what is embedded, and how.

        Args:
            column: The column of texts: strings, or lists of words.
            model: Whatever `elmokit.load` takes, and every process finds; or a loaded model, which is sent along.
            layers: See `Embedder.embed`.
            storage_dtype: The number type of the vectors, "float32" or "float16".
            tokenize: Split strings as the model's training text was; else at white space.
            device: "cpu", "cuda" or "cuda:N"; the best there is when not given.
            dtype: The number type to compute in, see `Embedder`.

        Raises:
            ValueError: `storage_dtype` is another one.
        """
        if storage_dtype not in STORAGE_DTYPES:
            raise ValueError(f"storage_dtype must be {' or '.join(STORAGE_DTYPES)}, not {storage_dtype!r}")
        self.column, self.layers, self.storage_dtype, self.tokenize = column, layers, storage_dtype, tokenize
        self._embedder = LazyEmbedder(model, device, dtype)

    def __call__(self, batch: Any) -> Any:
        """Embed a batch.

        Args:
            batch: A table of pyarrow, or a mapping of names to columns.

        Returns:
            The same kind with two more columns: `tokens`, lists of words, and `vectors`, for each text (T, 2D), or
            (T, L+1, 2D) for all layers. Words that are longer than the model reads are truncated without a warning.

        Raises:
            ValueError: There is no such column, a row of it is no text, or numbers are too large for float16.
        """
        is_mapping = isinstance(batch, Mapping)
        names = list(batch) if is_mapping else batch.column_names
        if self.column not in names:
            raise ValueError(f"there is no column {self.column!r}: name one of {', '.join(map(repr, names))}")
        column = batch[self.column]
        tokens, vectors = self._embed(list(column) if is_mapping else column.to_pylist())
        if is_mapping:
            return {**batch, "tokens": tokens, "vectors": vectors}
        for name, values in embedding_columns([*tokens, []], [*vectors, self._nothing()]).items():
            batch = batch.append_column(name, values[: len(tokens)])
        return batch

    def _embed(self, texts: Sequence[Any]) -> tuple[list[list[str]], list[np.ndarray]]:
        texts = [text if text is None or isinstance(text, str) else list(text) for text in texts]
        if None in texts:
            raise ValueError(f"row {texts.index(None)} of {self.column!r} has no text: fill it, or leave the row out")
        tokens: list[list[str]] = []
        vectors: list[np.ndarray] = []
        for part in self._embedder.get().embed_stream(texts, self.layers, tokenize=self.tokenize):
            tokens += part.tokens
            vectors += map(self._stored, part)
        return tokens, vectors

    def _stored(self, vectors: np.ndarray) -> np.ndarray:
        """(T, 2D), or (L+1, T, 2D) as (T, L+1, 2D), in the number type of the output."""
        stored = np.moveaxis(vectors, 0, 1) if vectors.ndim == 3 else vectors
        with np.errstate(over="ignore"):
            stored = stored.astype(self.storage_dtype)
        if not np.isfinite(stored).all():
            raise ValueError(f"a vector has numbers that are too large for {self.storage_dtype}: write float32")
        return stored

    def _nothing(self) -> np.ndarray:
        """The vectors of no words, whose shape gives a batch without rows its types."""
        return self._stored(self._embedder.get().embed([[]], self.layers)[0])


def embed_parquet(
    source: str | Path,
    target: str | Path,
    embed: EmbedWords | None = None,
    *,
    id_column: str = "id",
    num_actors: int | None = None,
    batch_size: int = 256,
    **actor_settings: Any,
) -> None:
    """Embed the texts of Parquet files on all machines of a Ray cluster, into Parquet files.

    Rows come in any order; `id_column` says which is which. Batches of an actor that dies are computed again.

    Args:
        source: A Parquet file, or a directory of them, where every machine finds it.
        target: A new or empty directory for the output, likewise.
        embed: What is embedded, and how; `EmbedWords()` by default.
        id_column: A column of `source` whose values differ from row to row.
        num_actors: How many processes embed, each with its own copy of the model; by default one for each processor
            but one, which reads and writes.
        batch_size: Rows that an actor embeds at a time.
        actor_settings: Further arguments of `Dataset.map_batches`, such as `num_gpus=1`.

    Raises:
        ValueError: Ray is not installed, has no processor for each actor and one more, or there is no column
            `id_column`.
        FileExistsError: The directory of the output is not empty.
    """
    try:
        import ray
        from ray.data import ActorPoolStrategy
    except ImportError as error:
        raise ValueError("embed_parquet needs Ray: pip install 'ray[data]' (elmokit's extra ray)") from error

    if Path(target).is_dir() and any(Path(target).iterdir()):
        raise FileExistsError(f"{target} is not empty, and files would be added to it: name another directory")
    if not ray.is_initialized():
        ray.init()
    processors = int(ray.cluster_resources().get("CPU", 0))
    count = num_actors or max(1, processors - 1)
    if count >= processors and "num_cpus" not in actor_settings:  # Ray would wait for ever for one that reads
        raise ValueError(f"{count} actors need {count + 1} processors, and Ray has {processors}: give it more")
    rows = ray.data.read_parquet(str(source))
    if id_column not in (names := rows.columns() or []):
        raise ValueError(f"{source} has no column {id_column!r}: name one of {', '.join(map(repr, names))}")
    embedded = rows.map_batches(
        _Actor,
        fn_constructor_args=(embed or EmbedWords(),),
        batch_size=batch_size,
        batch_format="pyarrow",
        compute=ActorPoolStrategy(size=count),
        zero_copy_batch=True,
        **actor_settings,
    )
    embedded.write_parquet(str(target))


class _Actor:
    """Ray makes one in each process of the pool."""

    def __init__(self, embed: EmbedWords) -> None:
        self._embed = embed

    def __call__(self, batch: Any) -> Any:
        return self._embed(batch)
