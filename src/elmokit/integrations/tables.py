"""Vectors for the texts in a table: a callable on batches of rows, for any engine that maps batches.

Ray Data, Spark and `datasets.map` take it unchanged. It needs none of these libraries itself; pyarrow's tables need
pyarrow (elmokit's extra parquet).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from elmokit.checkpoints.loading import ModelSource, resolve_model
from elmokit.checkpoints.pretrained import fingerprint
from elmokit.embed.outputs import select_layers
from elmokit.integrations.lazy_embedder import LazyEmbedder
from elmokit.settings import StorageDtype, conform
from elmokit.storage.parquet import embedding_columns

NEW_COLUMNS = ("tokens", "vectors")


class EmbedWords:
    """Batches of rows with texts -> the same rows with the words of each text, and a vector for each word.

    The model is loaded at the first batch; a copy that is sent to another process contains only its name. No vector
    depends on how rows are batched.

    Attributes:
        words: Number of words in all batches so far.
        truncated_words: Number of those that were longer than the model can read.
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
        self.words = self.truncated_words = 0
        if isinstance(model, str | Path) and Path(model).expanduser().exists():
            model = Path(model).expanduser().absolute()  # a copy may run in another directory
        self._embedder = LazyEmbedder(model, device, dtype)

    def __getstate__(self) -> dict[str, Any]:
        """The attributes, with counts of 0: those of a copy start anew, and pickles do not depend on past batches."""
        return {**vars(self), "words": 0, "truncated_words": 0}

    def __call__(self, batch: Any) -> Any:
        """Embed a batch.

        Args:
            batch: A pyarrow table, or a mapping from names to columns.

        Returns:
            A table or mapping with two more columns: `tokens`, lists of words, and `vectors`, for each text (T, 2D), or
            (T, L+1, 2D) for all layers. Words that are longer than the model can read are counted, without a warning.

        Raises:
            ValueError: The batch is neither, such as a DataFrame, or a single row, the columns do not satisfy
                `check_columns`, a row has no text, or numbers are too large for float16.
        """
        is_mapping = isinstance(batch, Mapping)
        if not (is_mapping or hasattr(batch, "column_names")):
            raise ValueError(
                f"a batch is a pyarrow table or a mapping from names to columns, not a {type(batch).__name__}: pass "
                "pyarrow.Table.from_pandas(batch) for a DataFrame of pandas"
            )
        self.check_columns(list(batch) if is_mapping else batch.column_names)
        column = batch[self.column]
        if isinstance(column, str | bytes):
            raise ValueError(f"{self.column!r} has one text, not those of several rows: map batches, with batched=True")
        tokens, vectors = self._embed(list(column) if is_mapping else column.to_pylist())
        if is_mapping:
            # `datasets` takes the type of a column from its first batch, and empty lists have none.
            typed = tokens if any(tokens) else [np.array([], dtype=str) for _ in tokens]
            return {**batch, "tokens": typed, "vectors": vectors}
        for name, values in embedding_columns([*tokens, []], [*vectors, self._nothing()]).items():
            batch = batch.append_column(name, values[: len(tokens)])
        return batch

    def check_columns(self, names: Sequence[str]) -> None:
        """ValueError unless these columns include that of the texts, and none of those that are added."""
        if self.column not in names:
            raise ValueError(f"there is no column {self.column!r}: name one of {', '.join(map(repr, names))}")
        if taken := [name for name in NEW_COLUMNS if name in names]:
            raise ValueError(f"there is a column {taken[0]!r} already: rename it, or leave it out")

    def _embed(self, rows: Sequence[Any]) -> tuple[list[list[str]], list[np.ndarray]]:
        for number, row in enumerate(rows):
            if isinstance(row, bytes | bytearray):
                raise ValueError(f"row {number} of {self.column!r} has bytes, not text: decode them to strings")
            if not isinstance(row, Sequence | np.ndarray):  # a missing value, a number, or columns of their own
                raise ValueError(
                    f"row {number} of {self.column!r} has no text, but {str(row)[:60]!r}: fill it, leave the row out, "
                    "or name a column of texts"
                )
        texts = [row if isinstance(row, str) else list(row) for row in rows]
        tokens: list[list[str]] = []
        vectors: list[np.ndarray] = []
        embedder = self._embedder.get()
        state = embedder.model.single_sentence_state  # no text may depend on those before it
        for part in embedder.embed_stream(texts, self.layers, state, tokenize=self.tokenize):
            tokens += part.tokens
            vectors += map(self._stored, part)
            self.words += sum(map(len, part.tokens))
            self.truncated_words += part.truncated_words
        return tokens, vectors

    def settings(self) -> dict[str, Any]:
        """Everything that determines the vectors of a text.

        Raises:
            ValueError: The model lacks the layers, or the number type depends on the machine.
        """
        source, _, dtype = self._embedder.arguments
        if dtype == "auto":
            raise ValueError("with dtype auto machines may compute in different types: name bfloat16 or float32")
        model = resolve_model(source)
        select_layers(model, self.layers)
        return {
            "model": fingerprint(model),
            "dtype": dtype or "float32",
            "column": self.column,
            "layers": str(self.layers),
            "storage_dtype": self.storage_dtype,
            "tokenize": self.tokenize,
        }

    def _stored(self, vectors: np.ndarray) -> np.ndarray:
        """Vectors (T, 2D) or (L+1, T, 2D) -> (T, 2D) or (T, L+1, 2D), in the number type of the output."""
        stored = np.moveaxis(vectors, 0, 1) if vectors.ndim == 3 else vectors
        with np.errstate(over="ignore"):
            stored = stored.astype(self.storage_dtype)
        if not np.isfinite(stored).all():
            raise ValueError(f"a vector has numbers that are too large for {self.storage_dtype}: write float32")
        return stored

    def _nothing(self) -> np.ndarray:
        """The vectors of an empty text, whose shape gives a batch without rows its column types."""
        return self._stored(self._embedder.get().embed([[]], self.layers)[0])
