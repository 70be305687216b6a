"""Layers on disk: those that the embedder gives, computed once, whole or not at all."""

import shutil
import sys
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from elmokit.checkpoints.pretrained import Pretrained
from elmokit.config import BiLMConfig
from elmokit.embed.embedder import Embedder
from elmokit.nn.bilm import BiLM
from elmokit.tasks import layer_cache
from elmokit.tasks.layer_cache import BiLMLayers, LayerCache, sentence_digest
from elmokit.text.characters import TruncationWarning

SENTENCES = [["the", "cat"], [], ["a", "naïve", "\ud800", "词"], ["the", "cat"], ["x"] * 40]


class Counting:
    """A frozen encoder that counts the words it was asked for; a vector says where its word stands."""

    name, shape = "counting", (2, 3)

    def __init__(self) -> None:
        self.words = 0

    def vectors(self, sentences: Sequence[Sequence[str]], dtype: str) -> np.ndarray:
        lengths = [len(words) for words in sentences]
        self.words += sum(lengths)
        positions = np.concatenate([np.arange(length) + 10 * length for length in lengths])
        return np.broadcast_to(positions[:, None, None], (len(positions), 2, 3)).astype(dtype)


def read(cache: LayerCache, sentences: Sequence[Sequence[str]]) -> np.ndarray:
    return cache.read(cache.places(sentences))


@pytest.mark.parametrize("on_disk", [False, True])
def test_layer_cache_returns_the_vectors_of_each_sentence_in_any_order(on_disk: bool, tmp_path: Path) -> None:
    encoder = Counting()
    cache = LayerCache(encoder, tmp_path if on_disk else None)
    cache.add(SENTENCES)
    assert encoder.words == 2 + 4 + 40  # equal sentences once
    found = read(cache, SENTENCES[::-1])
    assert found.dtype == np.float16 and found.shape == (48, 2, 3)
    expected = [np.arange(len(words)) + 10 * len(words) for words in SENTENCES[::-1]]
    np.testing.assert_array_equal(found[:, 0, 0], np.concatenate(expected))


def test_layer_cache_of_a_second_run_computes_only_new_sentences(tmp_path: Path) -> None:
    LayerCache(Counting(), tmp_path).add(SENTENCES)
    again = Counting()
    cache = LayerCache(again, tmp_path)
    assert ["the", "cat"] in cache and ["dog"] not in cache
    cache.add([*SENTENCES, ["a", "dog"]])
    assert again.words == 2
    np.testing.assert_array_equal(read(cache, [["a", "dog"], ["the", "cat"]])[:, 0, 0], [20, 21, 20, 21])


def test_layer_cache_of_a_killed_run_keeps_finished_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_cache, "SEGMENT_BYTES", 3 * 2 * 3 * 2)  # three words

    class Killed(Counting):
        def vectors(self, sentences: Sequence[Sequence[str]], dtype: str) -> np.ndarray:
            if len(sentences[-1]) == 40:
                raise KeyboardInterrupt
            return super().vectors(sentences, dtype)

    with pytest.raises(KeyboardInterrupt):
        LayerCache(Killed(), tmp_path).add(SENTENCES)
    after = Counting()
    LayerCache(after, tmp_path).add(SENTENCES)
    assert after.words == 40


@pytest.mark.parametrize("kind", ["index", "vectors"])
@pytest.mark.parametrize("damage", [lambda data: data[:-40], lambda data: b"", lambda data: b"x" * len(data)])
def test_layer_cache_refuses_damaged_files_and_says_what_to_do(
    kind: str, damage: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    LayerCache(Counting(), tmp_path).add(SENTENCES)
    (file,) = tmp_path.glob(f"*/segment-*.{kind}.npy")
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(ValueError, match="remove its directory; the vectors will be computed again"):
        read(LayerCache(Counting(), tmp_path), SENTENCES)


def test_layer_cache_refuses_a_file_that_is_truncated_while_it_is_read(tmp_path: Path) -> None:
    cache = LayerCache(Counting(), tmp_path)
    cache.add(SENTENCES)
    (file,) = tmp_path.glob("*/segment-*.vectors.npy")
    with file.open("r+b") as stream:
        stream.truncate(file.stat().st_size - 8)
    with pytest.raises(ValueError, match="is truncated"):
        read(cache, SENTENCES)


def test_layer_cache_on_disk_holds_one_segment_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Wide(Counting):
        name, shape = "wide", (3, 1024)

        def vectors(self, sentences: Sequence[Sequence[str]], dtype: str) -> np.ndarray:
            return np.zeros((sum(map(len, sentences)), *self.shape), dtype)

    monkeypatch.setattr(layer_cache, "SEGMENT_BYTES", 1 << 20)
    sentences = [[f"word{number}"] * 10 for number in range(1000)]
    tracemalloc.start()
    try:
        cache = LayerCache(Wide(), tmp_path)
        cache.add(sentences)
        read(cache, sentences[:32])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    on_disk = sum(file.stat().st_size for file in tmp_path.rglob("*.vectors.npy"))
    assert on_disk > 60_000_000 and peak < 8_000_000


@pytest.mark.skipif(sys.platform == "win32", reason="there is no limit of open files")
def test_layer_cache_has_more_segments_than_a_process_may_hold_open_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import resource

    monkeypatch.setattr(layer_cache, "SEGMENT_BYTES", 1)  # one sentence
    sentences = [["word"] * (number + 1) for number in range(60)]
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    in_use = len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").exists() else 40
    resource.setrlimit(resource.RLIMIT_NOFILE, (in_use + 30, limits[1]))
    try:
        LayerCache(Counting(), tmp_path).add(sentences)
        found = read(LayerCache(Counting(), tmp_path), sentences)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert len(list(tmp_path.glob("*/segment-*.vectors.npy"))) == 60
    expected = [np.arange(len(words)) + 10 * len(words) for words in sentences]
    np.testing.assert_array_equal(found[:, 0, 0], np.concatenate(expected))


def test_layer_cache_passes_on_an_error_of_the_system_that_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    LayerCache(Counting(), tmp_path).add(SENTENCES)

    def refused(*_: object, **__: object) -> None:
        raise PermissionError("not yours")

    monkeypatch.setattr(np, "load", refused)
    with pytest.raises(PermissionError, match="not yours"):
        LayerCache(Counting(), tmp_path)


def test_layer_cache_holds_little_memory_for_each_sentence(tmp_path: Path) -> None:
    sentences = [[f"word{number}"] for number in range(20_000)]
    LayerCache(Counting(), tmp_path).add(sentences)
    tracemalloc.start()
    try:
        cache = LayerCache(Counting(), tmp_path)
        assert sentences[7] in cache
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert held < 60 * len(sentences)


def test_layer_cache_finds_each_of_many_sentences_and_no_other() -> None:
    cache = LayerCache(Counting())
    sentences = [[f"word{number}", "x"] for number in range(3000)]
    for first in range(0, 3000, 1000):
        cache.add(sentences[first : first + 1000])
    assert all(words in cache for words in sentences) and [] not in cache and ["word1"] not in cache
    places = cache.places(sentences)
    assert sorted((place.segment, place.first) for place in places) == [(n // 1000, n % 1000 * 2) for n in range(3000)]
    with pytest.raises(KeyError, match="word1"):
        cache.places([sentences[0], ["word1"]])


def test_bilm_layers_equal_those_of_the_embedder(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Pretrained(BiLM(BiLMConfig.preset("tiny")))
    embedder = Embedder(model, device="cpu")
    cache = LayerCache(BiLMLayers(embedder), tmp_path, "float32")
    cache.add(SENTENCES[:3])
    expected = np.concatenate([embedder.embed([words], "all")[0].swapaxes(0, 1) for words in SENTENCES[:3]])
    np.testing.assert_allclose(read(cache, SENTENCES[:3]), expected, atol=1e-6)
    with pytest.warns(TruncationWarning, match=r"2 distinct words are longer .* truncated, such as .yyy"):
        BiLMLayers(embedder).warn_of_truncated([["a", "y" * 60, "y" * 60], ["z" * 70]])
    other = Pretrained(BiLM(BiLMConfig.preset("tiny")))
    assert BiLMLayers(Embedder(other, device="cpu")).name != BiLMLayers(embedder).name


def test_sentence_digest_depends_on_word_boundaries() -> None:
    assert len({sentence_digest(words) for words in (["ab", "c"], ["a", "bc"], ["abc"], ["abc", ""])}) == 4


def test_what_a_killed_run_left_is_removed(tmp_path: Path) -> None:
    cache = LayerCache(Counting(), tmp_path)
    assert cache.directory is not None
    left = cache.directory / ".partial-01234567-segment-89abcdef.vectors.npy"
    left.mkdir()
    (left / "segment-89abcdef.vectors.npy").write_bytes(b"some")
    LayerCache(Counting(), tmp_path).add(SENTENCES)
    assert not left.exists()
    assert sorted(path.suffixes for path in cache.directory.iterdir()) == [[".index", ".npy"], [".vectors", ".npy"]]


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits of file sizes")
def test_a_full_disk_is_named(tmp_path: Path) -> None:
    """A limit of the size of files stands for it."""
    import resource
    import signal

    cache, limits = LayerCache(Counting(), tmp_path), resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(OSError, match=r"cannot write .*segment-\w+\..*: check free space"):
            cache.add([["word"] * 5000])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert cache.directory is not None and not list(cache.directory.iterdir())


def test_a_disk_that_is_too_small_is_named_before_anything_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = LayerCache(encoder := Counting(), tmp_path, "float32")
    size = 46 * 2 * 3 * 4
    free = shutil.disk_usage(tmp_path)._replace(free=size - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free)
    with pytest.raises(OSError, match=r"vectors of 46 words take 0.0 GB.* choose another .*, store float16, or train"):
        cache.add(SENTENCES)
    assert encoder.words == 0
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free._replace(free=size))
    cache.add(SENTENCES)
    assert encoder.words == 46


def test_an_empty_cache_directory_of_the_system_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ELMOKIT_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert layer_cache.default_cache() == Path.home() / ".cache" / "elmokit"
    monkeypatch.setenv("ELMOKIT_CACHE", "~/vectors")  # as in a file of settings, which no shell expands
    assert layer_cache.default_cache() == Path.home() / "vectors"
