"""Layers on disk: those that the biLM gives, computed once, whole or not at all."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from tiny_model import tiny_model

from elmokit.embed.embedder import Embedder
from elmokit.tasks.fitting import layers as layers_module
from elmokit.tasks.fitting.layers import LayerCache, default_cache

SENTENCES = [["the", "cat"], [], ["a", "naïve", "\u2028", "词"], ["the", "cat"], ["x"] * 40]


@pytest.fixture
def embedder() -> Embedder:
    return Embedder(tiny_model(), "cpu")


class Counting(LayerCache):
    """Counts the words that it computes; a vector says where its word stands."""

    computed = 0

    def compute(self, sentences: Sequence[Sequence[str]]) -> np.ndarray:
        lengths = [len(words) for words in sentences]
        self.computed += sum(lengths)
        positions = np.concatenate([np.arange(length) + 10 * length for length in lengths])
        whole = np.broadcast_to(positions[:, None, None], (len(positions), *self.shape))
        return whole.astype(self.dtype)


def read(cache: LayerCache, sentences: Sequence[Sequence[str]]) -> np.ndarray:
    return cache.read(cache.find(sentences))


@pytest.mark.parametrize("segment_words", [0, 5, 1000])
@pytest.mark.parametrize("on_disk", [False, True])
def test_layers_are_those_of_each_sentence_in_any_order_and_computed_once(
    on_disk: bool,
    segment_words: int,
    embedder: Embedder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(layers_module, "SEGMENT_BYTES", segment_words * 3 * 32 * 4)
    cache = Counting(embedder, tmp_path if on_disk else None)
    cache.add(SENTENCES)
    assert cache.computed == 2 + 4 + 40  # equal sentences once
    if on_disk:  # a second run computes what is new
        cache = Counting(embedder, tmp_path)
    cache.add([*SENTENCES, ["a", "dog"]])
    assert cache.computed == (2 if on_disk else 46 + 2)
    found = read(cache, [["a", "dog"], *SENTENCES[::-1]])
    assert found.dtype == np.float16
    assert found.shape == (50, 3, 32)
    lengths = [2, *map(len, SENTENCES[::-1])]
    expected = np.concatenate([np.arange(n) + 10 * n for n in lengths])
    np.testing.assert_array_equal(found[:, 1, 2], expected)


def test_a_killed_run_keeps_whole_segments_and_a_truncated_one_is_refused(
    embedder: Embedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers_module, "SEGMENT_BYTES", 3 * 3 * 32 * 2)  # three words

    class Killed(Counting):
        def compute(self, sentences: Sequence[Sequence[str]]) -> np.ndarray:
            if len(sentences[-1]) == 40:
                raise KeyboardInterrupt
            return super().compute(sentences)

    with pytest.raises(KeyboardInterrupt):
        Killed(embedder, tmp_path).add(SENTENCES)
    after = Counting(embedder, tmp_path)
    after.add(SENTENCES)
    assert after.computed == 40
    assert all(path.name.startswith("segment-") for path in tmp_path.glob("*/*"))
    file = next(tmp_path.glob("*/segment-*"))
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(ValueError, match="damaged"):
        Counting(embedder, tmp_path)


def test_layers_equal_those_of_the_embedder_and_are_kept_apart_from_other_models(
    embedder: Embedder, tmp_path: Path
) -> None:
    cache = LayerCache(embedder, tmp_path)
    cache.add(SENTENCES[:3])
    expected = np.concatenate(
        [embedder.embed([words], "all")[0].swapaxes(0, 1) for words in SENTENCES[:3]]
    )
    np.testing.assert_allclose(read(cache, SENTENCES[:3]), expected, atol=1e-3)
    others = (
        Embedder(tiny_model(seed=1), "cpu"),
        Embedder(embedder.model, "cpu", "bfloat16"),
    )
    for other in others:
        with pytest.raises(KeyError):
            LayerCache(other, tmp_path).find(SENTENCES[:1])


def test_a_home_that_cannot_be_written_is_an_error_that_names_the_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ELMOKIT_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "file"))  # where nobody can write, root neither
    with pytest.raises(ValueError, match="ELMOKIT_CACHE"):
        default_cache()
