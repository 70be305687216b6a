"""Stores of embeddings: exact, resumable after a kill, and convertible to the older HDF5 layouts."""

import json
import os
import pickle
import shutil
import zlib
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from safetensors.numpy import save_file

from elmokit.storage import store as storage
from elmokit.storage.hdf5 import write_allennlp_hdf5
from elmokit.storage.npy import read_npy_index
from elmokit.storage.npz import read_npz_index, write_npz
from elmokit.storage.store import EmbeddingStore, StoreIndex, begin_store, finish_store, finished_shards, write_shard
from elmokit.storage.token_spool import TokenSpool, cut_words, read_together

SENTENCES = [["I", "like", "apple"], [], ["naïve", "词向量", ""], ["Hello"], ["I", "like", "apple"]]
TOP = StoreIndex(model="abc", layers="top", vector_shape=(4,), sentences_per_part=2)
ALL = StoreIndex(model="abc", layers="all", vector_shape=(3, 4), sentences_per_part=2)


def vectors_of(index: StoreIndex) -> list[np.ndarray]:
    """Random vectors of each sentence, (T, 2D), or (L+1, T, 2D) for all layers."""
    draw = np.random.default_rng(5).standard_normal
    layers, dim = index.vector_shape[:-1], index.vector_shape[-1]
    return [draw((*layers, len(sentence), dim)).astype(np.float32) for sentence in SENTENCES]


def by_word(sentences: list[np.ndarray], index: StoreIndex) -> np.ndarray:
    """Vectors of sentences, (T, 2D) or (L+1, T, 2D) each, end to end as a shard has them."""
    words = [vectors if vectors.ndim == 2 else vectors.swapaxes(0, 1) for vectors in sentences]
    return np.concatenate([np.empty((0, *index.vector_shape)), *words]).astype(index.dtype)


def write_part(directory: Path, index: StoreIndex, number: int, sentences: list, vectors: list[np.ndarray]) -> None:
    spool = TokenSpool(directory)
    for sentence in sentences:
        spool.add_sentence([sentence[:1], sentence[1:]])
    with write_shard(directory, index, number, spool) as writer:
        writer.write(0, by_word(vectors[:1], index))
        writer.write(len(sentences[0]), by_word(vectors[1:], index))


def fill(directory: Path, index: StoreIndex) -> EmbeddingStore:
    done, vectors = begin_store(directory, index), vectors_of(index)
    for number in set(range(3)) - set(done):
        rows = slice(2 * number, 2 * number + 2)
        write_part(directory, index, number, SENTENCES[rows], vectors[rows])
    finish_store(directory, index, num_parts=3)
    return EmbeddingStore(directory)


@pytest.mark.parametrize("index", [TOP, ALL, replace(TOP, dtype="float16")], ids=["top", "all", "float16"])
def test_store_returns_what_was_written(tmp_path: Path, index: StoreIndex) -> None:
    store = fill(tmp_path / "out", index)
    assert len(store) == len(SENTENCES)
    assert [words for words, _ in store] == SENTENCES
    assert (store.index.num_sentences, store.index.num_words, store.index.num_parts) == (5, 10, 3)
    for number, expected in enumerate(vectors_of(index)):
        words_first = expected.swapaxes(0, 1) if index is ALL else expected
        np.testing.assert_array_equal(store[number][1], words_first.astype(index.dtype))
    assert store[-1][0] == SENTENCES[-1]
    assert pickle.loads(pickle.dumps(store)).words(0) == SENTENCES[0]
    assert store[np.int64(0)][0] == SENTENCES[0]
    with pytest.raises(IndexError):
        store[5]
    for several in ([0, 1], np.array([0, 1])):
        with pytest.raises(TypeError, match=r"not by a \w+: read several as \[store\[n\] for n in"):
            store[several]


def test_slice_of_a_store_is_a_list_of_lines(tmp_path: Path) -> None:
    store = fill(tmp_path / "out", TOP)
    assert [words for words, _ in store[1:4]] == SENTENCES[1:4]
    assert [words for words, _ in store[::-2]] == SENTENCES[::-2]
    np.testing.assert_array_equal(store[:3][2][1], store[2][1])
    assert store[7:] == []


def test_repr_says_what_the_store_holds(tmp_path: Path) -> None:
    store = fill(tmp_path / "out", ALL)
    expected = f"EmbeddingStore('{tmp_path}/out': 5 sentences, 10 words, layers 'all', float32 (3, 4) a word)"
    assert repr(store) == expected


def test_a_killed_run_repeats_only_what_is_missing_and_ends_with_the_same_bytes(tmp_path: Path) -> None:
    fill(tmp_path / "whole", ALL)
    fill(tmp_path / "killed", ALL)
    cut = tmp_path / "killed" / "part-00001.safetensors"
    shutil.copy(cut, cut.with_stem("part-00001 copy"))
    cut.write_bytes(cut.read_bytes()[:-7])
    (tmp_path / "killed" / "part-00002.safetensors").unlink()
    (tmp_path / "killed" / "part-00009.safetensors").write_text("not a part")
    nothing = {name: np.zeros(0, np.int64) for name in ("vectors", "offsets", "token_bytes")}
    save_file(nothing | {"token_offsets": np.zeros(1, np.int64)}, tmp_path / "killed" / "part-00008.safetensors")
    assert finished_shards(tmp_path / "killed") == [0]
    with pytest.raises(ValueError, match=r"lacks the parts \[1, 2\]"):
        finish_store(tmp_path / "killed", ALL, num_parts=3)
    fill(tmp_path / "killed", ALL)
    for path in (tmp_path / "whole").iterdir():
        assert path.read_bytes() == (tmp_path / "killed" / path.name).read_bytes()


def test_a_part_with_one_changed_bit_is_written_again_and_found_where_it_is_asked_for(tmp_path: Path) -> None:
    store = fill(tmp_path / "out", TOP)
    part = tmp_path / "out" / "part-00001.safetensors"
    whole = part.read_bytes()
    for bit in range(3, 8 * len(whole), 97):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        part.write_bytes(damaged)
        assert finished_shards(tmp_path / "out") == [0, 2]
        with pytest.raises(ValueError, match=r"part-00001\.safetensors is damaged: embed the text again"):
            EmbeddingStore(tmp_path / "out", verify=True)[2]
    fill(tmp_path / "out", TOP)
    assert part.read_bytes() == whole
    verified = EmbeddingStore(tmp_path / "out", verify=True)
    assert [words for words, _ in pickle.loads(pickle.dumps(verified))] == [words for words, _ in store]


def test_a_part_is_checked_once_however_often_it_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path / "out", TOP)
    checked: list[str] = []
    monkeypatch.setattr(storage, "is_intact", lambda path: not checked.append(path.name))
    store = EmbeddingStore(tmp_path / "out", verify=True)
    for _ in range(2):
        store._shard.cache_clear()  # as when more parts are read than are kept open
        assert len(list(store)) == len(SENTENCES)
    assert sorted(checked) == [f"part-0000{number}.safetensors" for number in range(3)]


def test_a_store_that_was_written_anew_is_not_read_with_the_layout_of_before(tmp_path: Path) -> None:
    store = fill(tmp_path / "store", TOP)
    before = store[0]
    shutil.rmtree(tmp_path / "store")
    fill(tmp_path / "store", TOP)  # of other words, it would be cut in other places
    os.utime(tmp_path / "store" / "part-00000.safetensors", ns=(0, 0))  # a clock may tick only every 10 ms
    with pytest.raises(ValueError, match="was written anew since this store was opened: open the store again"):
        store[0]
    assert EmbeddingStore(tmp_path / "store")[0][0] == before[0]


def test_a_store_that_was_written_anew_and_shorter_is_not_read_beyond_its_end(tmp_path: Path) -> None:
    store = fill(tmp_path / "store", TOP)
    store.length(0)  # opens the part
    (tmp_path / "store" / "part-00000.safetensors").unlink()
    write_part(tmp_path / "store", TOP, 0, [["a"], []], [np.zeros((1, 4)), np.zeros((0, 4))])
    with pytest.raises(ValueError, match="was written anew since this store was opened: open the store again"):
        store.vectors(0)


def test_an_index_is_read_of_no_archive_of_a_later_version(tmp_path: Path) -> None:
    write_npz(fill(tmp_path / "store", TOP), tmp_path / "a.npz", {"a": 0})
    content = bytearray((tmp_path / "a.npz").read_bytes())
    content[content.index(b"PK\x01\x02") + 6] = 255  # the version that is needed to extract the array
    (tmp_path / "a.npz").write_bytes(content)
    assert read_npz_index(tmp_path / "a.npz") is None


@pytest.mark.parametrize("shape", ["(3,", f"({10**30},)", f"({1 << 62}, 3)", "(-5,)"])
def test_an_index_is_read_of_no_damaged_numpy_file(tmp_path: Path, shape: str) -> None:
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}\n".encode()
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    assert read_npy_index(tmp_path / "a.npy") is None


def test_a_store_is_read_after_a_change_of_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path / "out", TOP)
    monkeypatch.chdir(tmp_path)
    store = EmbeddingStore("out")
    monkeypatch.chdir("/")
    assert store.words(0) == SENTENCES[0]


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"offsets": np.array([0, 2, 1, 2])}, "inconsistent"),
        ({"offsets": np.array([1, 1, 2])}, "inconsistent"),
        ({"offsets": np.zeros(0, np.int64)}, "inconsistent"),
        ({"offsets": np.zeros((1, 3), np.int64)}, r"offsets are I64 \(1, 3\)"),
        ({"offsets": np.zeros(3, np.float32)}, "offsets are F32"),
        ({"token_offsets": np.array([0, 5, 2])}, "are not within it"),
        ({"token_offsets": np.array([0, -5, 2])}, "are not within it"),
        ({"vectors": np.zeros((2, 5), np.float32)}, "not the part 0"),
        ({"vectors": np.zeros((2, 4), np.float16)}, "not the part 0"),
        ({"vectors": np.zeros((2, 4), np.int64)}, "vectors are I64"),
        ({"offsets": np.array([0, 2])}, "not the part 0"),
    ],
)
def test_a_part_of_other_tensors_is_refused(tmp_path: Path, tensors: dict[str, np.ndarray], message: str) -> None:
    begin_store(tmp_path, TOP)
    write_part(tmp_path, TOP, 0, [["a"], ["b"]], [np.zeros((1, 4), np.float32)] * 2)
    finish_store(tmp_path, TOP, num_parts=1)
    valid = {
        "vectors": np.zeros((2, 4), np.float32), "offsets": np.array([0, 1, 2]),
        "token_offsets": np.array([0, 1, 2]), "token_bytes": np.zeros(2, np.uint8),
    }  # fmt: skip
    save_file(valid | tensors, tmp_path / "part-00000.safetensors")
    with pytest.raises(ValueError, match=message):
        list(EmbeddingStore(tmp_path))


@pytest.mark.parametrize(
    "changes",
    [
        {"model": 3}, {"dtype": "int8"}, {"vector_shape": []}, {"vector_shape": [-4]}, {"vector_shape": "44"},
        {"sentences_per_part": 0}, {"num_parts": 2.0}, {"num_sentences": -5}, {"num_parts": 10**30}, {"complete": 1},
        {"num_parts": 1}, {"other": 1},
    ],
)  # fmt: skip
def test_an_index_that_contradicts_its_format_is_refused(tmp_path: Path, changes: dict[str, object]) -> None:
    fill(tmp_path, TOP)
    content = json.loads((tmp_path / "index.json").read_text())
    (tmp_path / "index.json").write_text(json.dumps(content | changes))
    with pytest.raises(ValueError, match=r"index\.json is not an index"):
        EmbeddingStore(tmp_path)


def test_pipe_in_the_place_of_a_file_is_refused_and_does_not_block(tmp_path: Path) -> None:
    store = fill(tmp_path, TOP)
    for name in ("part-00000.safetensors", "index.json"):
        (tmp_path / name).unlink()
        os.mkfifo(tmp_path / name)
    with pytest.raises(ValueError, match="is not a regular file"):
        store[0]
    with pytest.raises(ValueError, match="is not a regular file"):
        EmbeddingStore(tmp_path)
    assert finished_shards(tmp_path) == [1, 2]


def test_store_without_sentences_is_empty(tmp_path: Path) -> None:
    begin_store(tmp_path / "out", TOP)
    finish_store(tmp_path / "out", TOP, num_parts=0)
    assert list(EmbeddingStore(tmp_path / "out")) == []


def test_shard_of_blank_lines_is_read(tmp_path: Path) -> None:
    begin_store(tmp_path / "out", ALL)
    write_part(tmp_path / "out", ALL, 0, [[], []], [np.zeros((3, 0, 4), np.float32)] * 2)
    finish_store(tmp_path / "out", ALL, num_parts=1)
    assert [(words, vectors.shape) for words, vectors in EmbeddingStore(tmp_path / "out")] == [([], (0, 3, 4))] * 2


def test_begin_store_refuses_other_embeddings(tmp_path: Path) -> None:
    fill(tmp_path / "out", TOP)
    with pytest.raises(ValueError, match="model is 'abc', now 'xyz'; source_bytes is 0, now 7"):
        begin_store(tmp_path / "out", replace(TOP, model="xyz", source_bytes=7))
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match="not empty"):
        begin_store(tmp_path / "foreign", TOP)


def test_incomplete_and_foreign_directories_are_refused(tmp_path: Path) -> None:
    begin_store(tmp_path / "out", TOP)
    with pytest.raises(ValueError, match="not complete"):
        EmbeddingStore(tmp_path / "out")
    with pytest.raises(FileNotFoundError, match=r"no index\.json"):
        EmbeddingStore(tmp_path)
    (tmp_path / "out" / "index.json").write_text('{"vector_shape": [4]}')
    with pytest.raises(ValueError, match="not an index"):
        EmbeddingStore(tmp_path / "out")


def test_vectors_of_another_shape_are_refused(tmp_path: Path) -> None:
    begin_store(tmp_path / "out", TOP)
    wrong = {(3, 4): "do not fit words 0", (2, 5): "do not fit words 0", (1, 4): "1 of 2 words have no vectors"}
    for shape, message in wrong.items():
        spool = TokenSpool(tmp_path / "out")
        spool.add_sentence([["a", "b"]])
        with (
            pytest.raises(ValueError, match=message),
            write_shard(tmp_path / "out", TOP, 0, spool) as writer,
        ):
            writer.write(0, np.zeros(shape, np.float32))
    assert finished_shards(tmp_path / "out") == []


@pytest.mark.parametrize("index", [TOP, ALL, replace(TOP, dtype="float16")], ids=["top", "all", "float16"])
@pytest.mark.parametrize("sentences", [SENTENCES, [[], []], [["one"]]], ids=["words", "blank", "one"])
def test_shard_has_the_bytes_of_safetensors(tmp_path: Path, index: StoreIndex, sentences: list[list[str]]) -> None:
    vectors = [array[..., : len(words), :] for array, words in zip(vectors_of(index), sentences, strict=False)]
    write_part(tmp_path, index, 0, sentences, vectors)
    words = [word.encode() for sentence in sentences for word in sentence]
    joined = np.concatenate([np.moveaxis(array, -2, 0) for array in vectors]).astype(index.dtype)
    tensors = {
        "vectors": np.ascontiguousarray(joined),
        "offsets": np.cumsum([0, *map(len, sentences)]),
        "token_bytes": np.frombuffer(b"".join(words), np.uint8),
        "token_offsets": np.cumsum([0, *map(len, words)]),
    }
    save_file(tensors, tmp_path / "expected", {"crc32": "00000000"})
    expected = (tmp_path / "expected").read_bytes()
    sealed = expected.replace(b"00000000", b"%08x" % zlib.crc32(expected), 1)
    assert (tmp_path / "part-00000.safetensors").read_bytes() == sealed


@pytest.mark.parametrize("index", [TOP, ALL], ids=["top", "all"])
def test_directions_may_be_written_in_any_order(tmp_path: Path, index: StoreIndex) -> None:
    words, vectors = SENTENCES[0] + SENTENCES[2], np.concatenate([vectors_of(index)[0], vectors_of(index)[2]], axis=-2)
    spool = TokenSpool()
    spool.add_sentence([words])
    with write_shard(tmp_path, index, 0, spool) as writer:
        for rows, columns in (((4, 6), (2, 4)), ((0, 3), (0, 2)), ((0, 4), (2, 4)), ((3, 6), (0, 2))):
            writer.fill(slice(*rows), slice(*columns), vectors[..., slice(*rows), slice(*columns)])
    finish_store(tmp_path, index, num_parts=1)
    store = EmbeddingStore(tmp_path)
    words_first = vectors.swapaxes(0, 1) if index is ALL else vectors
    np.testing.assert_array_equal(store.vectors(0), words_first)
    np.testing.assert_array_equal(store.vectors(0, slice(1, 4)), words_first[1:4])
    assert (store.words(0), store.length(0), store.vectors(0, slice(4, 2)).shape[0]) == (words, 6, 0)
    with pytest.raises(ValueError, match="step of -1"):
        store.vectors(0, slice(None, None, -1))


def test_numbers_that_float16_cannot_hold_are_refused(tmp_path: Path) -> None:
    vectors = np.full((1, 4), 7e4, np.float32)
    for dtype in ("float32", "float16"):
        index, spool = replace(TOP, dtype=dtype), TokenSpool(tmp_path)
        spool.add_sentence([["a", "b"]])
        with (
            pytest.raises(ValueError, match="no vectors" if dtype == "float32" else "too large for float16"),
            write_shard(tmp_path, index, 0, spool) as writer,
        ):
            writer.fill(slice(0, 1), slice(0, 2), vectors[:, :2])
    assert not list(tmp_path.iterdir())


def test_shard_writer_refuses_another_dtype(tmp_path: Path) -> None:
    index, spool = replace(TOP, dtype="float16"), TokenSpool(tmp_path)
    spool.add_sentence([["a"]])
    with pytest.raises(ValueError, match=r"float32 .* do not fit"), write_shard(tmp_path, index, 0, spool) as writer:
        writer.write(0, np.ones((1, 4), np.float32))


@pytest.mark.parametrize(
    "words",
    [[], [""], ["", "", "a", ""], ["a\0", "\0", "b"], ["naïve", "\0词"], ["\ud800", "\udc00", "x"], ["a" * 3000]],
)
def test_cut_words_splits_end_to_end_words(words: list[str]) -> None:
    encoded = [word.encode("utf-8", "surrogatepass") for word in words]
    offsets = 1000 + np.cumsum([0, *map(len, encoded)])
    assert cut_words(b"".join(encoded), offsets) == words


@pytest.mark.parametrize("put_by", [1, 3, 4096])
def test_spool_returns_words_by_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, put_by: int) -> None:
    monkeypatch.setattr("elmokit.storage.token_spool.IN_MEMORY", 4)  # so that they wait on disk
    monkeypatch.setattr("elmokit.storage.token_spool.BUFFERED_WORDS", put_by)
    spool = TokenSpool(tmp_path)
    for sentence in SENTENCES:
        spool.add_sentence([sentence])
    lazily = spool.sentences()
    assert [sentence[:] for sentence in lazily] == SENTENCES
    assert read_together(lazily) == SENTENCES and read_together(lazily[1:3]) == SENTENCES[1:3]
    assert (lazily[2][1], lazily[2][-1], lazily[0][1:], lazily[0][5:], len(lazily[1])) == (
        "词向量",
        "",
        ["like", "apple"],
        [],
        0,
    )
    for rows in (slice(None, None, -1), slice(None, None, 2), slice(2, 0, -2), slice(-2, None), slice(0, 0)):
        assert lazily[0][rows] == SENTENCES[0][rows]
    with pytest.raises(IndexError):
        lazily[0][3]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("index", [TOP, ALL], ids=["top", "all"])
def test_allennlp_layout_holds_lines_and_sentences(tmp_path: Path, index: StoreIndex) -> None:
    write_allennlp_hdf5(fill(tmp_path / "out", index), tmp_path / "out.hdf5")
    with h5py.File(tmp_path / "out.hdf5") as file:
        assert set(file) == {"0", "1", "2", "3", "4", "sentence_to_index"}
        for number, expected in enumerate(vectors_of(index)):
            np.testing.assert_array_equal(file[str(number)], expected)
        lines = json.loads(file["sentence_to_index"][0])
    assert lines == {"I like apple": "4", "": "1", "naïve 词向量 ": "2", "Hello": "3"}


def test_hdf5_files_of_the_same_vectors_are_the_same_bytes(tmp_path: Path) -> None:
    store = fill(tmp_path / "out", ALL)
    for name in "ab":
        write_allennlp_hdf5(store, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
