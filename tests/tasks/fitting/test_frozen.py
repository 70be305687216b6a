"""Vectors on disk: those that the encoder gives, computed once, whole or not at all."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from elmokit.checkpoints.pretrained import Pretrained
from elmokit.config import BiLMConfig
from elmokit.embed.embedder import Embedder
from elmokit.nn.bilm import BiLM
from elmokit.tasks.fitting import frozen as cache_module
from elmokit.tasks.fitting.frozen import BiLMLayers, VectorCache

SENTENCES = [["the", "cat"], [], ["a", "naïve", "\u2028", "词"], ["the", "cat"], ["x"] * 40]


class Counting:
    """A frozen encoder that counts the words it was asked for; a vector says where its word
    stands.
    """

    name, shape = "counting", (2, 3)

    def __init__(self) -> None:
        self.words = 0

    def vectors(self, sentences: Sequence[Sequence[str]], dtype: str) -> np.ndarray:
        lengths = [len(words) for words in sentences]
        self.words += sum(lengths)
        positions = np.concatenate([np.arange(length) + 10 * length for length in lengths])
        return np.broadcast_to(positions[:, None, None], (len(positions), 2, 3)).astype(dtype)


def read(cache: VectorCache, sentences: Sequence[Sequence[str]]) -> np.ndarray:
    return cache.read(cache.places(sentences))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("segment_bytes", [1, 60, 1 << 20])
@pytest.mark.parametrize("on_disk", [False, True])
def test_vectors_are_those_of_each_sentence_in_any_order_and_computed_once(
    on_disk: bool, segment_bytes: int, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "SEGMENT_BYTES", segment_bytes)
    encoder = Counting()
    cache = VectorCache(encoder, tmp_path if on_disk else None, dtype)
    cache.add(SENTENCES)
    assert encoder.words == 2 + 4 + 40  # equal sentences once
    if on_disk:  # a second run computes what is new
        cache = VectorCache(encoder, tmp_path, dtype)
    cache.add([*SENTENCES, ["a", "dog"]])
    assert encoder.words == 46 + 2
    found = read(cache, [["a", "dog"], *SENTENCES[::-1]])
    assert found.dtype == dtype and found.shape == (50, 2, 3)
    lengths = [2, *map(len, SENTENCES[::-1])]
    np.testing.assert_array_equal(
        found[:, 1, 2], np.concatenate([np.arange(n) + 10 * n for n in lengths])
    )


def test_a_killed_run_keeps_whole_segments_and_a_truncated_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "SEGMENT_BYTES", 36)  # three words

    class Killed(Counting):
        def vectors(self, sentences: Sequence[Sequence[str]], dtype: str) -> np.ndarray:
            if len(sentences[-1]) == 40:
                raise KeyboardInterrupt
            return super().vectors(sentences, dtype)

    with pytest.raises(KeyboardInterrupt):
        VectorCache(Killed(), tmp_path).add(SENTENCES)
    after = Counting()
    VectorCache(after, tmp_path).add(SENTENCES)
    assert after.words == 40
    assert all(path.name.startswith("segment-") for path in tmp_path.glob("*/*"))
    file = next(tmp_path.glob("*/segment-*"))
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(ValueError, match="damaged"):
        VectorCache(Counting(), tmp_path)


def test_layers_of_a_bilm_equal_those_of_the_embedder_and_are_kept_apart_from_others(
    tmp_path: Path,
) -> None:
    torch.manual_seed(0)
    model, other = (Pretrained(BiLM(BiLMConfig.preset("tiny"))) for _ in range(2))
    embedder = Embedder(model, device="cpu")
    cache = VectorCache(BiLMLayers(embedder), tmp_path, "float32")
    cache.add(SENTENCES[:3])
    expected = np.concatenate(
        [embedder.embed([words], "all")[0].swapaxes(0, 1) for words in SENTENCES[:3]]
    )
    np.testing.assert_allclose(read(cache, SENTENCES[:3]), expected, atol=1e-6)
    names = {
        BiLMLayers(each).name
        for each in (embedder, Embedder(other, "cpu"), Embedder(model, "cpu", "bfloat16"))
    }
    assert len(names) == 3
