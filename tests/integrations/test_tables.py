"""`EmbedWords` and `EmbedTexts` on tables, data frames and mappings, against `Embedder`."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed: make test-integrations")
import pandas as pd
import pyarrow as pa

import elmokit
from elmokit.checkpoints.pretrained import MixWeights
from elmokit.embed.embedder import Embedder
from elmokit.integrations.tables import EmbedTexts, EmbedWords

TEXTS = ["The children play in the garden.", "Shakespeare wrote the play.", "", "Hä? 中文 🙂"]


def check(
    columns: Any,
    embedder: Embedder,
    texts: list[str],
    layers: str | int = "mix",
    atol: float = 1e-5,
) -> None:
    expected = embedder.embed(texts, layers)
    assert [list(words) for words in columns["tokens"]] == expected.tokens
    for vectors, of_text in zip(columns["vectors"], expected, strict=True):
        of_text = np.moveaxis(of_text, 0, 1) if of_text.ndim == 3 else of_text
        np.testing.assert_allclose(
            np.array(vectors).reshape(of_text.shape), of_text, atol=atol, rtol=1e-3
        )


@pytest.mark.parametrize("layers", ["mix", 1, "all"])
def test_a_table_gets_columns_of_words_and_vectors(embedder: Embedder, layers: str | int) -> None:
    full, empty = (
        EmbedWords(layers=layers)(pa.table({"text": pa.array(t, pa.string())})) for t in (TEXTS, [])
    )
    assert full.column_names == ["text", "tokens", "vectors"]
    check(full.to_pydict(), embedder, TEXTS, layers)
    assert len(empty) == 0
    assert empty.schema == full.schema


def test_a_mapping_of_columns_gets_lists_of_words_and_arrays(embedder: Embedder) -> None:
    embedded = EmbedWords("line", storage_dtype="float16")({"line": TEXTS, "id": [0, 1, 2, 3]})
    assert embedded["vectors"][0].dtype == np.float16
    assert embedded["id"] == [0, 1, 2, 3]
    check(embedded, embedder, TEXTS, atol=5e-3)
    embedded = EmbedWords("words")({"words": np.array([["a", "b."], ["c"]], dtype=object)})
    assert embedded["tokens"] == [["a", "b."], ["c"]]


KINDS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "mapping": dict,
    "frame": lambda columns: pd.DataFrame(columns, index=range(5, 5 + len(TEXTS))),
    "table": pa.table,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "settings",
    [{}, {"pooling": "max", "normalize": True, "layers": 1, "storage_dtype": "float16"}],
    ids=str,
)
def test_one_vector_for_each_text_is_that_of_the_embedder(
    embedder: Embedder, kind: str, settings: dict[str, Any]
) -> None:
    batch = KINDS[kind]({"id": [3, 1, 2, 0], "text": TEXTS})
    embedded = EmbedTexts(vector_column="v", **settings)(batch)
    assert type(embedded) is type(batch)
    columns = embedded.to_pydict() if kind == "table" else embedded
    assert list(columns) == ["id", "text", "v"]
    assert list(columns["id"]) == [3, 1, 2, 0]
    assert "v" not in (
        batch.column_names if kind == "table" else batch
    )  # the batch itself is not changed
    options = {
        "normalize_embeddings" if name == "normalize" else name: value
        for name, value in settings.items()
    }
    dtype = options.pop("storage_dtype", "float32")
    expected = embedder.encode(TEXTS, **options)
    found = np.array(list(columns["v"]), dtype=dtype)
    np.testing.assert_allclose(found, expected, atol=1e-5 if dtype == "float32" else 2e-3)


def test_use_leaves_the_pickle_small_and_as_it_was() -> None:
    embed = EmbedWords()
    before = pickle.dumps(embed)
    embed({"text": ["a b"]})
    assert pickle.dumps(embed) == before  # by which datasets looks its cache up
    assert len(before) < 500


def test_a_text_does_not_depend_on_those_before_it_where_the_model_carries_its_state(
    embedder: Embedder,
) -> None:
    carrying = replace(elmokit.load(softmax=False), state_policy="carry")
    texts = ["The play.", "They play.", "The play."]
    vectors = EmbedWords(model=carrying)({"text": texts})["vectors"]
    for found, expected in zip(vectors, embedder.embed(texts, state="zeros"), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_model_named_by_a_relative_path_is_found_from_another_directory(
    embedder: Embedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    elmokit.save(elmokit.load(), "model")
    embed = EmbedWords(model="model")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    check(pickle.loads(pickle.dumps(embed))({"text": TEXTS}), embedder, TEXTS)


@pytest.mark.parametrize(
    ("batch", "reason"),
    [
        ({"text": ["a"], "tokens": [1]}, "choose other names"),
        (pa.table({"text": ["a"], "vectors": [1]}), "choose other names"),
        ({"text": "the cat"}, "batched=True"),
        *(
            ({"text": ["a", row]}, "sentence 1")
            for row in (None, 3, float("nan"), b"abc", {"en": "the cat"})
        ),
        (pa.table({"text": ["a", None]}), "sentence 1"),
    ],
    ids=str,
)
def test_batches_without_texts_are_refused(batch: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        EmbedWords()(batch)


def test_vectors_that_float16_cannot_hold_are_refused() -> None:
    large = replace(elmokit.load(softmax=False), mix=MixWeights((0.0, 0.0, 0.0), gamma=1e6))
    with pytest.raises(FloatingPointError):
        EmbedWords(model=large, storage_dtype="float16")({"text": ["the cat"]})
    assert np.abs(EmbedWords(model=large)({"text": ["the cat"]})["vectors"][0]).max() > 65_504


@pytest.mark.parametrize("form", [None, "numpy"])
def test_datasets_map_takes_both_and_removes_columns(embedder: Embedder, form: str | None) -> None:
    datasets = pytest.importorskip(
        "datasets", reason="datasets is not installed: make test-integrations"
    )
    datasets.disable_caching()
    texts = ["", " ", *TEXTS]  # the first batch has no words that would show their type
    dataset = datasets.Dataset.from_dict({"id": range(len(texts)), "text": texts}).with_format(form)
    words = dataset.map(EmbedWords(), batched=True, batch_size=2)
    assert words.column_names == ["id", "text", "tokens", "vectors"]
    check(words.with_format(None), embedder, texts)
    plain = dataset.with_format(
        None
    )  # of one with a format, `datasets` removes nothing that a function returns
    vectors = plain.map(EmbedTexts(), batched=True, batch_size=2, remove_columns=["text"])
    assert vectors.column_names == ["id", "vector"]
    np.testing.assert_allclose(np.array(vectors["vector"][:]), embedder.encode(texts), atol=1e-5)
