"""Vectors for the texts in a table: callables on batches of rows, for any engine that maps batches.

Ray Data, Spark, pandas and `datasets.map` take them unchanged. They need none of these libraries
themselves; pyarrow's tables need pyarrow (elmokit's extra parquet).
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any, Literal

import numpy as np

from elmokit.checkpoints import ModelSource
from elmokit.embed import Pooling
from elmokit.extras import import_extra
from elmokit.integrations.lazy_embedder import LazyEmbedder
from elmokit.settings import StorageDtype, conform
from elmokit.storage import embedding_columns


class _EmbedColumn:
    """Batches of rows with texts -> the same rows with the columns of `_columns`."""

    def __init__(
        self,
        column: str,
        model: ModelSource,
        layers: str | int | None,
        storage_dtype: str,
        tokenize: bool,
        device: str | None,
        dtype: str | None,
    ) -> None:
        conform(StorageDtype, storage_dtype, "storage_dtype")
        self.column, self.layers, self.storage_dtype, self.tokenize = (
            column,
            layers,
            storage_dtype,
            tokenize,
        )
        self._embedder = LazyEmbedder(model, device, dtype)

    def _columns(self, rows: Sequence[Any], arrow: bool) -> dict[str, Any]:
        """The new columns by name, as lists with an entry for each row, or as Arrow arrays."""
        raise NotImplementedError

    def __call__(self, batch: Any) -> Any:
        """Embed a batch.

        Args:
            batch: A pyarrow table, a data frame of pandas, or a mapping from names to columns.

        Returns:
            A copy with the new columns. Words that are longer than the model can read are truncated
            without a warning.

        Raises:
            KeyError: There is no such column.
            ValueError: The batch is a single row, or has a column of the new name, a row has no
                text, or numbers are too large for float16.
        """
        column, arrow = batch[self.column], hasattr(batch, "append_column")
        if isinstance(column, str):
            raise ValueError(
                f"{self.column!r} has one text, not those of several rows: map batches, with "
                f"batched=True"
            )
        columns = self._columns(column.to_pylist() if arrow else list(column), arrow)
        if taken := set(columns).intersection(batch.column_names if arrow else batch):
            raise ValueError(
                f"there is a column {taken.pop()!r} already: choose other names for the new ones"
            )
        batch = (
            batch if arrow else copy(batch)
        )  # `datasets` knows its own mapping, and leaves columns out of it
        for name, values in columns.items():
            if arrow:
                batch = batch.append_column(name, values)
            else:
                batch[name] = values
        return batch


class EmbedWords(_EmbedColumn):
    """Batches of rows with texts -> the same rows with their words and vectors of words.

    The model is loaded at the first batch; a copy that is sent to another process contains only its
    name. No vector depends on how rows are batched.
    """

    def __init__(
        self,
        column: str = "text",
        model: ModelSource = None,
        *,
        tokens_column: str = "tokens",
        vectors_column: str = "vectors",
        layers: str | int = "mix",
        storage_dtype: str = "float32",
        tokenize: bool = True,
        device: str | None = None,
        dtype: str | None = None,
    ) -> None:
        """Choose the texts, the model and the vectors.

        Args:
            column: The column of texts: strings, or lists of words.
            model: Anything that `elmokit.load` takes, and every process finds; or a loaded model,
                which is sent along.
            tokens_column: The new column of the words of each text.
            vectors_column: The new column of their vectors, for each text (T, 2D), or (T, L+1, 2D)
                for all layers.
            layers: See `Embedder.embed`.
            storage_dtype: The number type of the vectors, "float32" or "float16".
            tokenize: Split strings like the model's training text; otherwise at white space.
            device: "cpu", "cuda" or "cuda:N"; None: a GPU if there is one, else the CPU.
            dtype: The number type to compute in, see `Embedder`.

        Raises:
            ValueError: `storage_dtype` is neither "float32" nor "float16".
        """
        super().__init__(column, model, layers, storage_dtype, tokenize, device, dtype)
        self.names = tokens_column, vectors_column

    def _columns(self, rows: Sequence[Any], arrow: bool) -> dict[str, Any]:
        # Arrow's types come from one more row, as a batch may have none.
        tokens, vectors = self._embed([*rows, []] if arrow else rows)
        if arrow:
            arrays = embedding_columns(tokens, vectors).values()
            return {
                name: values[: len(rows)] for name, values in zip(self.names, arrays, strict=True)
            }
        # `datasets` takes the type of a column from its first batch, and empty lists have none.
        typed = tokens if any(tokens) else [np.array([], dtype=str) for _ in tokens]
        return dict(zip(self.names, (typed, vectors), strict=True))

    def _embed(self, rows: Sequence[Any]) -> tuple[list[list[str]], list[np.ndarray]]:
        tokens: list[list[str]] = []
        vectors: list[np.ndarray] = []
        embedder = self._embedder.get()
        state = embedder.model.single_sentence_state  # no text may depend on those before it
        with np.errstate(over="raise"):  # in float16
            for part in embedder.embed_stream(rows, self.layers, state, tokenize=self.tokenize):
                tokens += part.tokens
                for of_text in part:  # (T, 2D), or (L+1, T, 2D)
                    by_word = np.moveaxis(of_text, 0, 1) if of_text.ndim == 3 else of_text
                    vectors.append(by_word.astype(self.storage_dtype))
        return tokens, vectors


class EmbedTexts(_EmbedColumn):
    """Batches of rows with texts -> the same rows with a vector for each text."""

    def __init__(
        self,
        column: str = "text",
        model: ModelSource = None,
        *,
        vector_column: str = "vector",
        pooling: Literal["text", "mean", "max"] | None = None,
        normalize: bool = False,
        layers: str | int | None = None,
        storage_dtype: str = "float32",
        tokenize: bool = True,
        device: str | None = None,
        dtype: str | None = None,
    ) -> None:
        """Choose the texts, the model and the vectors.

        Args:
            column, model, storage_dtype, tokenize, device, dtype: As for `EmbedWords`.
            vector_column: The new column of vectors, zeros for a text without words.
            pooling, layers: As for `Embedder.encode`.
            normalize: Scale every vector to length one.

        Raises:
            ValueError: `storage_dtype` is neither "float32" nor "float16", or `pooling` neither
                "text", "mean" nor "max".
        """
        super().__init__(column, model, layers, storage_dtype, tokenize, device, dtype)
        self.vector_column, self.pooling = vector_column, Pooling(pooling, normalize)

    def _columns(self, rows: Sequence[Any], arrow: bool) -> dict[str, Any]:
        embedder, pooling = self._embedder.get(), self.pooling
        state = embedder.model.single_sentence_state
        options = (pooling.name, pooling.normalize, self.layers, state)
        vectors: Any = embedder.encode(rows, *options, tokenize=self.tokenize)
        with np.errstate(over="raise"):  # in float16
            vectors = vectors.astype(self.storage_dtype)
        if arrow:
            numbers, arrays = import_extra("pyarrow", "parquet"), vectors.reshape(-1)
            column = numbers.FixedSizeListArray.from_arrays(numbers.array(arrays), vectors.shape[1])
            return {self.vector_column: column}
        return {self.vector_column: list(vectors)}
