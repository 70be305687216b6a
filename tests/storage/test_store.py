"""Stores of embeddings: exact, resumable after a kill, and convertible to formats of one file."""

import json
import pickle
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from elmokit.storage import EXPORTS, EmbeddingStore, StoreIndex, StoreWriter, collate

SENTENCES = [["I", "like", "apple"], [], ["naïve", "词向量", ""], ["Hello"], ["I", "like", "apple"]]
TOP = StoreIndex(
    settings={"model": "abc", "layers": "top"}, vector_shape=(4,), sentences_per_part=2
)
ALL = replace(TOP, settings={"model": "abc", "layers": "all"}, vector_shape=(3, 4))
each_index = pytest.mark.parametrize(
    "index", [TOP, ALL, replace(TOP, dtype="float16")], ids=["top", "all", "float16"]
)


def vectors_of(index: StoreIndex, sentences: list[list[str]] = SENTENCES) -> list[np.ndarray]:
    """Random vectors of each sentence, (T, 2D), or (T, L+1, 2D) for all layers."""
    draw = np.random.default_rng(5).standard_normal
    return [
        draw((len(sentence), *index.vector_shape)).astype(index.dtype) for sentence in sentences
    ]


def write_part(
    directory: Path, index: StoreIndex, number: int, sentences: list, vectors: list[np.ndarray]
) -> None:
    with StoreWriter(directory, index).shard(number, sentences) as write:
        write(vectors[0])
        write(np.concatenate([np.empty((0, *index.vector_shape), index.dtype), *vectors[1:]]))


def fill(directory: Path, index: StoreIndex) -> EmbeddingStore:
    writer = StoreWriter(directory, index)
    vectors = vectors_of(index)
    for number in set(range(3)) - writer.read_shards().keys():
        rows = slice(2 * number, 2 * number + 2)
        write_part(directory, index, number, SENTENCES[rows], vectors[rows])
    writer.finish(num_parts=3)
    return EmbeddingStore(directory)


@each_index
def test_store_returns_what_was_written(
    tmp_path: Path, index: StoreIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path / "out", index)
    monkeypatch.chdir(tmp_path)
    store = EmbeddingStore("out")
    monkeypatch.chdir("/")
    assert len(store) == len(SENTENCES)
    assert "5 sentences, 10 words" in repr(store)
    assert [words for words, _ in store] == SENTENCES
    assert (store.index.num_sentences, store.index.num_words, store.index.num_parts) == (5, 10, 3)
    for number, expected in enumerate(vectors_of(index)):
        np.testing.assert_array_equal(store[number][1], expected, strict=True)
        np.testing.assert_array_equal(store.vectors(np.int64(number)), expected, strict=True)  # type: ignore[arg-type]
    assert store[-1][0] == SENTENCES[-1]
    assert pickle.loads(pickle.dumps(store)).words(0) == SENTENCES[0]
    for rows in (slice(1, 4), slice(None, None, -2), slice(7, None)):
        assert [words for words, _ in store[rows]] == SENTENCES[rows]
    with pytest.raises(IndexError):
        store[5]


def test_killed_run_repeats_only_what_is_missing_and_ends_with_the_same_bytes(
    tmp_path: Path,
) -> None:
    fill(tmp_path / "whole", ALL)
    fill(tmp_path / "killed", ALL)
    cut = tmp_path / "killed" / "part-00001.safetensors"
    shutil.copy(cut, cut.with_stem("part-00001 copy"))
    cut.write_bytes(cut.read_bytes()[:-7])
    (tmp_path / "killed" / "part-00002.safetensors").unlink()
    (tmp_path / "killed" / ".partial-01234567-part-00002.safetensors").mkdir()
    (tmp_path / "killed" / "part-00009.safetensors").write_text("not a part")
    writer = StoreWriter(tmp_path / "killed", ALL)
    assert writer.read_shards().keys() == {0}
    with pytest.raises(KeyError, match="1"):
        writer.finish(num_parts=3)
    fill(tmp_path / "killed", ALL)
    for path in (tmp_path / "whole").iterdir():
        assert path.read_bytes() == (tmp_path / "killed" / path.name).read_bytes()


@pytest.mark.parametrize(
    "changes",
    [
        {"dtype": "int8"},
        {"vector_shape": [-4]},
        {"settings": "mix"},
        {"sentences_per_part": 0},
        {"complete": 1},
        {"other": 1},
    ],
)
def test_damaged_index_is_refused(tmp_path: Path, changes: dict[str, object]) -> None:
    fill(tmp_path, TOP)
    (tmp_path / "index.json").write_text(json.dumps(asdict(TOP) | changes))
    with pytest.raises(ValueError, match=r"index\.json is not an index"):
        EmbeddingStore(tmp_path)


@pytest.mark.parametrize("sentences", [[], [[], []]])
def test_store_of_blank_lines_is_read(tmp_path: Path, sentences: list[list[str]]) -> None:
    for number in range(len(sentences) // 2):
        write_part(tmp_path, ALL, number, sentences, vectors_of(ALL, sentences))
    StoreWriter(tmp_path, ALL).finish(num_parts=len(sentences) // 2)
    assert [(words, vectors.shape) for words, vectors in EmbeddingStore(tmp_path)] == [
        ([], (0, 3, 4))
    ] * len(sentences)


def test_a_store_of_other_settings_begins_anew_and_is_read_when_it_is_complete(
    tmp_path: Path,
) -> None:
    for number, other in enumerate(
        (
            replace(TOP, settings=TOP.settings | {"text": "7"}),
            replace(TOP, settings={"model": "abc"}),
            replace(TOP, dtype="float16"),
            replace(TOP, sentences_per_part=3),
        )
    ):
        directory = tmp_path / str(number)
        fill(directory, TOP)
        assert StoreWriter(directory, TOP).read_shards().keys() == {0, 1, 2}
        assert StoreWriter(directory, other).read_shards() == {}
        assert other.is_at(directory)
        with pytest.raises(ValueError, match="not complete"):
            EmbeddingStore(directory)
    with pytest.raises(FileNotFoundError, match=r"no index\.json"):
        EmbeddingStore(tmp_path)


@each_index
@pytest.mark.parametrize(
    "sentences", [SENTENCES, [[], []], [["one"]]], ids=["words", "blank", "one"]
)
def test_shard_has_the_bytes_of_safetensors(
    tmp_path: Path, index: StoreIndex, sentences: list[list[str]]
) -> None:
    vectors = vectors_of(index, sentences)
    write_part(tmp_path, index, 0, sentences, vectors)
    words = [word.encode() for sentence in sentences for word in sentence]
    tensors = {
        "vectors": np.concatenate(vectors),
        "offsets": np.cumsum([0, *map(len, sentences)]),
        "token_bytes": np.frombuffer(b"".join(words), np.uint8),
        "token_offsets": np.cumsum([0, *map(len, words)]),
    }
    save_file(tensors, tmp_path / "expected")
    assert (tmp_path / "part-00000.safetensors").read_bytes() == (
        tmp_path / "expected"
    ).read_bytes()


# --- One file -------------------------------------------------------------------------------------


@each_index
def test_hdf5_holds_lines(tmp_path: Path, index: StoreIndex) -> None:
    store = fill(tmp_path / "out", index)
    layers_first = [vectors.swapaxes(0, -2) for vectors in vectors_of(index)]
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        EXPORTS[".hdf5"](store, tmp_path / name / "lines.hdf5")
    for file in (tmp_path / "first").iterdir():
        assert file.read_bytes() == (tmp_path / "second" / file.name).read_bytes()
    with h5py.File(tmp_path / "first" / "lines.hdf5") as file:
        assert set(file) == {"0", "1", "2", "3", "4", "sentence_to_index"}
        for number, expected in enumerate(layers_first):
            np.testing.assert_array_equal(
                file[str(number)][()], expected.astype(np.float32), strict=True
            )
        assert json.loads(file["sentence_to_index"][0]) == {
            "I like apple": "4",
            "": "1",
            "naïve 词向量 ": "2",
            "Hello": "3",
        }


def test_one_vector_a_line_becomes_an_array(tmp_path: Path) -> None:
    vectors = np.arange(8, dtype=np.float32).reshape(2, 4)
    write_part(tmp_path, TOP, 0, [["a"], ["b"]], [vectors[:1], vectors[1:]])
    StoreWriter(tmp_path, TOP).finish(num_parts=1)
    store = EmbeddingStore(tmp_path)
    EXPORTS[".npy"](store, tmp_path / "a.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), vectors, strict=True)


@pytest.mark.parametrize("shape", [(4,), (3, 4)], ids=["mix", "all layers"])
def test_collate_pads_sentences_with_zeros(shape: tuple[int, ...]) -> None:
    draw = np.random.default_rng(1)
    lengths = [2, 0, 3]
    sentences = [
        ([f"w{n}"] * n, draw.standard_normal((n, *shape)).astype(np.float16)) for n in lengths
    ]
    batch = collate(sentences)
    assert batch.words == [words for words, _ in sentences]
    assert batch.vectors.shape == (3, 3, *shape)
    assert batch.vectors.dtype == torch.float32
    assert batch.mask.tolist() == [[True, True, False], [False] * 3, [True] * 3]
    for row, (_, vectors) in enumerate(sentences):
        np.testing.assert_array_equal(
            batch.vectors[row, : len(vectors)], vectors.astype(np.float32)
        )
    assert not batch.vectors[~batch.mask].any()
