"""From words to layers: the same on any machine, and the same whatever was embedded before."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from backends import each_native_dtype
from oracle import random_weights
from tiny_model import tiny_bilm

from elmokit.checkpoints.pretrained import Pretrained
from elmokit.embed.embedder import Embedder
from elmokit.embed.pipeline import WordCache
from elmokit.nn.bilm import BiLM, BiLMState
from elmokit.nn.inference import PrepackedCharCNN

RESULTS = "Results do not depend on what else is in the batch ."
FOX = "The quick brown fox jumps over the lazy dog and over a quick dog ."
SENTENCES = [
    RESULTS.split(),
    [],
    ["naïve", "词向量", "", "x" * 40, "naïve"],
    *([letter] for letter in "abcdefghij"),
    FOX.split(),
]


def tiny() -> Pretrained:
    """Weights large enough that every bit counts."""
    bilm = tiny_bilm()
    random_weights(bilm, seed=1, scale=0.4)
    generator = torch.Generator().manual_seed(0)
    h, c = (torch.randn(2, 2, 1, width, generator=generator) for width in (16, 32))
    return Pretrained(bilm, warm_state=BiLMState(h, c))


def embedder(dtype: torch.dtype = torch.float32, cached_words: int = 1000) -> Embedder:
    made = Embedder(tiny(), device="cpu", dtype=str(dtype)[6:])
    if made.pipeline.cache is not None:
        made.pipeline.cache = WordCache(16, cached_words * 16 * 4)
    return made


def vectors_of(made: Embedder, state: str = "zeros") -> np.ndarray:
    """All layers of all words."""
    return np.concatenate(made.embed(SENTENCES, layers="all", state=state, batch_size=3), axis=1)


def assert_equal(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for left, right in zip(found, expected, strict=True):
        np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize("absent", ["without_native", "on_reference"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("state", ["zeros", "warm", "carry"])
def test_every_machine_gives_the_same(
    absent: str, dtype: str, state: str, request: pytest.FixtureRequest
) -> None:
    model = tiny()
    here = Embedder(model, device="cpu", dtype=dtype)
    found = vectors_of(here, state)
    request.getfixturevalue(absent)
    there = Embedder(model, device="cpu", dtype=dtype)
    assert there.pipeline.cache is None
    expected = vectors_of(there, state)
    if dtype == "float32":
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    else:
        for layer, of_layer in zip(found, expected, strict=True):
            assert (layer * of_layer).sum() / np.linalg.norm(layer) / np.linalg.norm(
                of_layer
            ) > 0.9995


@each_native_dtype
def test_vectors_are_the_same_to_the_last_bit_whatever_came_before(dtype: torch.dtype) -> None:
    used = embedder(dtype)
    expected = []
    for sentence in SENTENCES:
        expected += embedder(dtype).embed([sentence], layers="all")
    used.embed([["other", "words", ",", "and", "some", "of", "those", ":", "The", "quick", "dog"]])
    for batch_size in (None, 1, 2, 5):
        assert_equal(used.embed(SENTENCES, layers="all", batch_size=batch_size), expected)
    for sentence, vectors in zip(SENTENCES, expected, strict=True):
        assert_equal(used.embed([sentence], layers="all"), [vectors])


@each_native_dtype
@pytest.mark.parametrize("words", [0, 5, 20])
def test_a_small_cache_changes_nothing(dtype: torch.dtype, words: int) -> None:
    expected = embedder(dtype).embed(SENTENCES, layers="all")
    small = embedder(dtype, cached_words=words)
    known = small.pipeline.cache
    assert known.capacity == max(1, words)
    for _ in range(2):
        for sentence, vectors in zip(SENTENCES, expected, strict=True):
            assert_equal(small.embed([sentence], layers="all"), [vectors])
        assert_equal(small.embed(SENTENCES, layers="all"), expected)


def test_products_that_float16_cannot_hold_are_refused() -> None:
    model = tiny()
    np.testing.assert_allclose(
        Embedder(model, "cpu", "float16").embed([["a"]], "all")[0],
        embedder().embed([["a"]], "all")[0],
        atol=0.02,
    )
    with torch.no_grad():
        model.bilm.token_encoder.projection.bias.fill_(60_000)
        model.bilm.token_encoder.projection.weight.fill_(60_000)
    with pytest.raises(ValueError, match="too large for products in float16"):
        Embedder(model, "cpu", "float16").embed([["a", "word"]])


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The words that went through the character CNN."""
    words: list[str] = []
    function = PrepackedCharCNN.ids

    def noted(encoder: PrepackedCharCNN, new: list[str], *others: Any) -> torch.Tensor:
        words.extend(new)
        return function(encoder, new, *others)

    monkeypatch.setattr(PrepackedCharCNN, "ids", noted)
    return words


@pytest.mark.native(torch.float32)
def test_a_word_is_encoded_once_until_it_is_forgotten(encoded: list[str]) -> None:
    made = embedder()
    distinct = {word for sentence in SENTENCES for word in sentence}
    for _ in range(2):
        made.embed(SENTENCES)
        assert sorted(encoded) == sorted(["<S>", "</S>", *distinct])
    encoded.clear()
    made.embed([["eleven", "j"]])
    assert encoded == ["eleven"]
    made.clear_word_cache()
    made.embed(SENTENCES)
    assert sorted(encoded[1:]) == sorted(distinct)


@each_native_dtype
@pytest.mark.parametrize("state", ["zeros", "warm"])
def test_only_words_are_computed_and_the_first_boundaries_once(
    dtype: torch.dtype, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = embedder(dtype)
    lengths = []
    run = BiLM.run

    def noted(bilm: BiLM, words: torch.Tensor, tokens: torch.Tensor, *others: Any) -> Any:
        lengths.append(tokens.shape[1])
        return run(bilm, words, tokens, *others)

    monkeypatch.setattr(BiLM, "run", noted)
    for _ in range(2):
        made.embed(SENTENCES, state=state)
    words = sum(map(len, SENTENCES))
    assert lengths == [1, words, words]


@pytest.mark.native(torch.float32)
def test_threads_may_share_an_embedder() -> None:
    made = embedder(cached_words=12)  # so that it is emptied all the time
    expected = [made.embed([sentence])[0] for sentence in SENTENCES]
    order = [number * 5 % len(SENTENCES) for number in range(20 * len(SENTENCES))]
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda number: made.embed([SENTENCES[number]])[0], order)
        assert_equal(list(found), [expected[number] for number in order])
