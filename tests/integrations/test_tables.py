"""`EmbedWords` on tables and mappings, against `Embedder`."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed: make test-integrations")
import pyarrow as pa

import elmokit
from elmokit.checkpoints.pretrained import MixWeights
from elmokit.embed.embedder import Embedder
from elmokit.integrations.tables import EmbedWords

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


def test_use_leaves_the_pickle_as_it_was() -> None:
    embed = EmbedWords()
    before = pickle.dumps(embed)
    embed({"text": ["a b"]})
    assert pickle.dumps(embed) == before and embed.words == 2  # datasets looks its cache up by the pickle


def test_a_text_does_not_depend_on_those_before_it_where_the_model_carries_its_state(embedder: Embedder) -> None:
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


def test_words_of_all_batches_are_counted_and_those_that_are_truncated() -> None:
    embed = EmbedWords()
    embed({"text": ["a " + "b" * 60, "c"]})
    embed({"text": ["d" * 60]})
    assert (embed.words, embed.truncated_words) == (4, 2)


def test_unusable_rows_and_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="no column 'text': name one of 'line'"):
        EmbedWords()({"line": []})
    with pytest.raises(ValueError, match="a column 'tokens' already: rename it"):
        EmbedWords()({"text": ["a"], "tokens": [1]})
    for value in (None, 3, float("nan")):
        with pytest.raises(ValueError, match="row 1 of 'text' has no text"):
            EmbedWords()({"text": ["a", value]})
    with pytest.raises(ValueError, match="row 1 of 'text' has no text"):
        EmbedWords()(pa.table({"text": ["a", None]}))
    for rows in ([b"abc"], pa.array([b"abc"])):
        with pytest.raises(ValueError, match="row 0 of 'text' has bytes, not text: decode them"):
            EmbedWords()(pa.table({"text": rows}) if isinstance(rows, pa.Array) else {"text": rows})
    for row in ({"en": "the cat", "de": "die Katze"}, {"the", "cat"}):
        with pytest.raises(ValueError, match=r"row 0 of 'text' has no text, but .*the.*: .*name a column of texts"):
            EmbedWords()({"text": [row]})
    with pytest.raises(ValueError, match=r"row 0 of 'text' has no text, but .*the cat"):
        EmbedWords()(pa.table({"text": [{"en": "the cat"}]}))
    with pytest.raises(ValueError, match="'text' has one text, not those of several rows: map batches"):
        EmbedWords()({"text": "the cat"})
    with pytest.raises(ValueError, match="float32, float16"):
        EmbedWords(storage_dtype="int8")


def test_vectors_that_float16_cannot_hold_are_refused() -> None:
    large = replace(elmokit.load(softmax=False), mix=MixWeights((0.0, 0.0, 0.0), gamma=1e6))
    for rows in ({"text": ["the cat"]}, pa.table({"text": ["the cat"]})):
        with pytest.raises(ValueError, match="a vector has numbers that are too large for float16: write float32"):
            EmbedWords(model=large, storage_dtype="float16")(rows)
    assert np.abs(EmbedWords(model=large)({"text": ["the cat"]})["vectors"][0]).max() > 65_504


def test_a_data_frame_is_refused_with_what_to_pass() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = pandas.DataFrame({"text": ["a"]})
    with pytest.raises(ValueError, match=r"not a DataFrame: pass pyarrow\.Table\.from_pandas\(batch\)"):
        EmbedWords()(frame)
    assert EmbedWords()(pa.Table.from_pandas(frame)).column_names == ["text", "tokens", "vectors"]


def test_datasets_map_takes_it(embedder: Embedder) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed: make test-integrations")
    datasets.disable_caching()
    dataset = datasets.Dataset.from_dict({"text": TEXTS})
    check(dataset.map(EmbedWords(), batched=True, batch_size=2), embedder, TEXTS)
    texts = ["", " ", *TEXTS]  # the first batch has no words that would show their type
    check(dataset.from_dict({"text": texts}).map(EmbedWords(), batched=True, batch_size=2), embedder, texts)
