"""Parquet files of embeddings, as pyarrow reads them."""

from pathlib import Path

import numpy as np
import pytest
from tiny_model import tiny_model

from elmokit.embed.embedder import Embedder
from elmokit.embed.files import embed_file
from elmokit.storage import exports
from elmokit.storage.store import EmbeddingStore

arrow = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")

LINES = ["the cat sat on the mat", "", "yes", "Hä 中文 🙂", "a dog"]


@pytest.fixture(scope="module")
def embedder() -> Embedder:
    return Embedder(tiny_model(tokenizer="whitespace-1"), "cpu")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("\n".join(LINES))
    return path


@pytest.mark.parametrize("layers", ["mix", "all"])
@pytest.mark.parametrize("storage_dtype", ["float32", "float16"])
def test_rows_hold_the_words_and_vectors_of_lines(
    layers: str,
    storage_dtype: str,
    text: Path,
    embedder: Embedder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    word = embedder.embed([["a"]], layers)[0].astype(storage_dtype)
    monkeypatch.setattr(exports, "ROW_BYTES", 0)
    monkeypatch.setattr(
        exports, "GROUP_BYTES", 5 * word.nbytes - 1
    )  # several groups, one of a line that is longer
    settings = {"layers": layers, "storage_dtype": storage_dtype, "sentences_per_part": 2}
    embed_file(text, tmp_path / "out.parquet", embedder, **settings)
    embed_file(text, tmp_path / "store", embedder, **settings)
    table = arrow.read_table(tmp_path / "out.parquet")
    assert table.column_names == ["tokens", "vectors"]
    assert table["tokens"].to_pylist() == list(map(str.split, LINES))
    for of_row, (_, vectors) in zip(
        table["vectors"].to_pylist(), EmbeddingStore(tmp_path / "store"), strict=True
    ):
        np.testing.assert_array_equal(
            np.array(of_row, storage_dtype).reshape(vectors.shape), vectors
        )
    assert arrow.ParquetFile(tmp_path / "out.parquet").num_row_groups == 3
