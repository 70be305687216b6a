"""`EmbedWords` on tables and mappings, and in a local cluster of Ray, against `Embedder`."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed: make test-integrations")
import pyarrow as pa
from pyarrow import parquet

from elmokit.embed.embedder import Embedder
from elmokit.integrations.ray import EmbedWords, embed_parquet

TEXTS = ["The children play in the garden.", "Shakespeare wrote the play.", "", "Hä? 中文 🙂"]


@pytest.fixture(scope="module")
def embedder() -> Embedder:
    return Embedder()


def check(columns: Any, embedder: Embedder, texts: list[str], layers: str | int = "mix", atol: float = 1e-5) -> None:
    expected = embedder.embed(texts, layers)
    assert [list(words) for words in columns["tokens"]] == expected.tokens
    for vectors, of_text in zip(columns["vectors"], expected, strict=True):
        of_text = np.moveaxis(of_text, 0, 1) if of_text.ndim == 3 else of_text
        np.testing.assert_allclose(np.array(vectors).reshape(of_text.shape), of_text, atol=atol, rtol=1e-3)


@pytest.mark.parametrize("layers", ["mix", 1, "all"])
def test_a_table_gets_columns_of_words_and_vectors(embedder: Embedder, layers: str | int) -> None:
    table = pa.table({"id": range(4), "text": TEXTS})
    embedded = EmbedWords(layers=layers)(table)
    assert embedded.column_names == ["id", "text", "tokens", "vectors"]
    check(embedded.to_pydict(), embedder, TEXTS, layers)


def test_a_mapping_of_columns_gets_lists_of_words_and_arrays(embedder: Embedder) -> None:
    embedded = EmbedWords("line", storage_dtype="float16")({"line": TEXTS, "id": [0, 1, 2, 3]})
    assert embedded["vectors"][0].dtype == np.float16 and embedded["id"] == [0, 1, 2, 3]
    check(embedded, embedder, TEXTS, atol=5e-3)


def test_lists_of_words_are_taken_as_they_are(embedder: Embedder) -> None:
    embedded = EmbedWords("words")({"words": np.array([["a", "b."], ["c"]], dtype=object)})
    assert embedded["tokens"] == [["a", "b."], ["c"]]


def test_a_table_without_rows_keeps_the_types(embedder: Embedder) -> None:
    embed = EmbedWords(layers="all")
    empty, full = (embed(pa.table({"text": pa.array(texts, pa.string())})) for texts in ([], TEXTS))
    assert len(empty) == 0 and empty.schema == full.schema


def test_a_copy_for_another_process_is_small() -> None:
    embed = EmbedWords()
    embed({"text": ["a"]})
    assert len(pickle.dumps(embed)) < 500


def test_unusable_rows_and_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="no column 'text': name one of 'line'"):
        EmbedWords()({"line": []})
    with pytest.raises(ValueError, match="row 1 of 'text' has no text"):
        EmbedWords()(pa.table({"text": ["a", None]}))
    with pytest.raises(ValueError, match="float32 or float16"):
        EmbedWords(storage_dtype="int8")


def test_datasets_map_takes_it(embedder: Embedder) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed: make test-integrations")
    datasets.disable_caching()
    dataset = datasets.Dataset.from_dict({"text": TEXTS})
    check(dataset.map(EmbedWords(), batched=True, batch_size=2), embedder, TEXTS)


# --- A cluster -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray = pytest.importorskip("ray", reason="Ray is not installed: make test-integrations")
    path = os.pathsep.join([str(Path(__file__).parents[2] / "src"), os.environ.get("PYTHONPATH", "")])
    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": {"PYTHONPATH": path}})
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield
    ray.shutdown()


def write_source(path: Path, rows: int = 40) -> list[str]:
    texts = [f"{TEXTS[number % 4]} {number} times." for number in range(rows)]
    path.mkdir()
    for part in range(4):
        chosen = range(part, rows, 4)
        parquet.write_table(pa.table({"id": chosen, "text": [texts[n] for n in chosen]}), path / f"{part}.parquet")
    return texts


def read_target(path: Path) -> dict[str, list[Any]]:
    return parquet.read_table(path).sort_by("id").to_pydict()


class Dying(EmbedWords):
    """Kills its process once."""

    def __init__(self, marker: Path) -> None:
        super().__init__()
        self.marker = marker

    def __call__(self, batch: Any) -> Any:
        if not self.marker.exists():
            self.marker.touch()
            os._exit(1)
        return super().__call__(batch)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_cluster_embeds_every_row_although_a_worker_dies(cluster: None, embedder: Embedder, tmp_path: Path) -> None:
    texts = write_source(tmp_path / "source")
    embed_parquet(tmp_path / "source", tmp_path / "target", Dying(tmp_path / "died"), batch_size=5)
    assert (tmp_path / "died").exists()
    rows = read_target(tmp_path / "target")
    assert rows["id"] == list(range(40)) and rows["text"] == texts
    check(rows, embedder, texts)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_jobs_that_cannot_be_done_are_refused(cluster: None, tmp_path: Path) -> None:
    write_source(tmp_path / "source", rows=4)
    with pytest.raises(ValueError, match="3 actors need 4 processors, and Ray has 3"):
        embed_parquet(tmp_path / "source", tmp_path / "target", num_actors=3)
    with pytest.raises(FileExistsError, match="source is not empty"):
        embed_parquet(tmp_path / "source", tmp_path / "source")
    with pytest.raises(ValueError, match="no column 'number': name one of 'id', 'text'"):
        embed_parquet(tmp_path / "source", tmp_path / "target", id_column="number")
