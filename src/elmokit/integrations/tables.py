"""Vectors for the texts in a table: a callable on batches of rows, for any engine that maps batches.

Ray Data, Spark and `datasets.map` take it unchanged. It needs none of these libraries itself; pyarrow's tables need
pyarrow (elmokit's extra parquet).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from elmokit.checkpoints.loading import ModelSource
from elmokit.integrations.lazy_embedder import LazyEmbedder
from elmokit.settings import StorageDtype, conform
from elmokit.storage.parquet import embedding_columns
from elmokit.storage.shard import nothing_overflows


class EmbedWords:
    """Batches of rows with texts -> the same rows with the words of each text, and a vector for each word.

    The model is loaded at the first batch; a copy that is sent to another process contains only its name. No vector
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
        """Choose the texts, the model and the vectors.

        Args:
            column: The column of texts: strings, or lists of words.
            model: Anything that `elmokit.load` takes, and every process finds; or a loaded model, which is sent along.
            layers: See `Embedder.embed`.
            storage_dtype: The number type of the vectors, "float32" or "float16".
            tokenize: Split strings like the model's training text; otherwise at white space.
            device: "cpu", "cuda" or "cuda:N"; None: a GPU if there is one, else the CPU.
            dtype: The number type to compute in, see `Embedder`.

        Raises:
            ValueError: `storage_dtype` is neither "float32" nor "float16".
        """
        conform(StorageDtype, storage_dtype, "storage_dtype")
        self.column, self.layers, self.storage_dtype, self.tokenize = column, layers, storage_dtype, tokenize
        self._embedder = LazyEmbedder(model, device, dtype)

    def __call__(self, batch: Any) -> Any:
        """Embed a batch.

        Args:
            batch: A pyarrow table, or a mapping from names to columns.

        Returns:
            A table or mapping with two more columns: `tokens`, lists of words, and `vectors`, for each text (T, 2D), or
            (T, L+1, 2D) for all layers. Words that are longer than the model can read are truncated without a warning.

        Raises:
            KeyError: There is no such column.
            ValueError: The batch is a single row, or has a column `tokens` or `vectors`, a row has no text, or numbers
                are too large for float16.
        """
        is_mapping = isinstance(batch, Mapping)
        if taken := {"tokens", "vectors"}.intersection(batch if is_mapping else batch.column_names):
            raise ValueError(f"there is a column {taken.pop()!r} already: rename it, or leave it out")
        column = batch[self.column]
        if isinstance(column, str):
            raise ValueError(f"{self.column!r} has one text, not those of several rows: map batches, with batched=True")
        tokens, vectors = self._embed(list(column) if is_mapping else column.to_pylist())
        if is_mapping:
            # `datasets` takes the type of a column from its first batch, and empty lists have none.
            typed = tokens if any(tokens) else [np.array([], dtype=str) for _ in tokens]
            return {**batch, "tokens": typed, "vectors": vectors}
        _, nothing = self._embed([[]])  # whose shape gives a batch without rows its column types
        for name, values in embedding_columns([*tokens, []], vectors + nothing).items():
            batch = batch.append_column(name, values[: len(tokens)])
        return batch

    def _embed(self, rows: Sequence[Any]) -> tuple[list[list[str]], list[np.ndarray]]:
        tokens: list[list[str]] = []
        vectors: list[np.ndarray] = []
        embedder = self._embedder.get()
        state = embedder.model.single_sentence_state  # no text may depend on those before it
        with nothing_overflows(np.dtype(self.storage_dtype)):
            for part in embedder.embed_stream(rows, self.layers, state, tokenize=self.tokenize):
                tokens += part.tokens
                for of_text in part:  # (T, 2D), or (L+1, T, 2D)
                    by_word = np.moveaxis(of_text, 0, 1) if of_text.ndim == 3 else of_text
                    vectors.append(by_word.astype(self.storage_dtype))
        return tokens, vectors
