"""From words to layers: the same on any machine, and the same whatever was embedded before."""

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from oracle import random_weights
from processors import each_product_type, needs_products

from elmokit.checkpoints.pretrained import Pretrained
from elmokit.config import BiLMConfig
from elmokit.data.streams import embedding_block
from elmokit.embed import engine
from elmokit.embed.embedder import Embedder
from elmokit.nn.bilm import BiLM, BiLMState
from elmokit.nn.prepared import PreparedBiLM
from elmokit.text.vocab import Vocab

SENTENCES = [
    ["Results", "do", "not", "depend", "on", "what", "else", "is", "in", "the", "batch", "."],
    [],
    ["naïve", "词向量", "", "x" * 40, "naïve"],
    *([word] for word in ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]),
    ["The", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog", "and", "over", "a", "quick", "dog", "."],
]


def tiny() -> Pretrained:
    """Weights large enough that every bit counts."""
    bilm = BiLM(BiLMConfig.preset("tiny"))
    random_weights(bilm, seed=1, scale=0.4)
    generator = torch.Generator().manual_seed(0)
    h, c = (torch.randn(2, 2, 1, width, generator=generator) for width in (16, 32))
    return Pretrained(bilm, warm_state=BiLMState(h, c))


def embedder(dtype: torch.dtype = torch.float32) -> Embedder:
    return Embedder(tiny(), device="cpu", dtype=str(dtype)[6:])


def vectors_of(made: Embedder, state: str = "zeros") -> np.ndarray:
    """All layers of all words."""
    return np.concatenate(made.embed(SENTENCES, layers="all", state=state, batch_size=3), axis=1)


def assert_equal(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for left, right in zip(found, expected, strict=True):
        np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize("absent", ["without_products", "without_library", "both_at_once"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("state", ["zeros", "warm", "carry"])
def test_every_machine_gives_the_same(absent: str, dtype: str, state: str, request: pytest.FixtureRequest) -> None:
    model = tiny()
    here = Embedder(model, device="cpu", dtype=dtype)
    found = vectors_of(here, state)
    request.getfixturevalue(absent)
    there = Embedder(model, device="cpu", dtype=dtype)
    assert not isinstance(there._engine._bilm, PreparedBiLM)
    expected = vectors_of(there, state)
    if dtype == "float32":
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    else:
        for layer, of_layer in zip(found, expected, strict=True):
            assert (layer * of_layer).sum() / np.linalg.norm(layer) / np.linalg.norm(of_layer) > 0.9995


@each_product_type
def test_prepared_weights_are_used_where_they_can_be(dtype: torch.dtype) -> None:
    assert isinstance(embedder(dtype)._engine._bilm, PreparedBiLM)


@each_product_type
def test_vectors_are_the_same_to_the_last_bit_whatever_came_before(dtype: torch.dtype) -> None:
    used, expected = embedder(dtype), []
    for sentence in SENTENCES:
        expected += embedder(dtype).embed([sentence], layers="all")
    used.embed([["other", "words", ",", "and", "some", "of", "those", ":", "The", "quick", "dog"]])
    for batch_size in (None, 1, 2, 5):
        assert_equal(used.embed(SENTENCES, layers="all", batch_size=batch_size), expected)
    for sentence, vectors in zip(SENTENCES, expected, strict=True):
        assert_equal(used.embed([sentence], layers="all"), [vectors])


@each_product_type
@pytest.mark.parametrize("words", [0, 5, 20])
def test_a_small_cache_changes_nothing(dtype: torch.dtype, words: int, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = embedder(dtype).embed(SENTENCES, layers="all")
    monkeypatch.setattr(engine, "CACHE_BYTES", words * 16 * 4)
    small = embedder(dtype)
    known = small._engine._known
    assert known is not None and known.capacity == len(known._vectors) == max(1, words)
    for _ in range(2):
        for sentence, vectors in zip(SENTENCES, expected, strict=True):
            assert_equal(small.embed([sentence], layers="all"), [vectors])
            assert len(known._rows) <= known.capacity
        assert_equal(small.embed(SENTENCES, layers="all"), expected)


@needs_products(torch.float32)
def test_words_of_any_length_do_not_fill_the_cache() -> None:
    made = embedder()
    long = "x" * 100_000
    with pytest.warns(UserWarning, match="1 words are too long"):
        (found,) = made.embed([["a", long, "b"]])
    known = made._engine._known
    assert known is not None and {"a", "b"} <= known._rows.keys() and long not in known._rows
    with pytest.warns(UserWarning, match="1 words are too long"):
        np.testing.assert_array_equal(made.embed([["a", long, "b"]])[0], found)


def test_products_that_float16_cannot_hold_are_refused() -> None:
    model = tiny()
    assert model.bilm.char_cnn.projection is not None
    np.testing.assert_allclose(
        Embedder(model, "cpu", "float16").embed([["a"]], "all")[0], embedder().embed([["a"]], "all")[0], atol=0.02
    )
    with torch.no_grad():
        model.bilm.char_cnn.projection.bias.fill_(60_000)
        model.bilm.char_cnn.projection.weight.fill_(60_000)
    with pytest.raises(ValueError, match="too large for products in float16"):
        Embedder(model, "cpu", "float16").embed([["a", "word"]])


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The words that went through the character CNN."""
    words: list[str] = []
    function = engine.word_ids

    def noted(new: list[str], *others) -> torch.Tensor:
        words.extend(new)
        return function(new, *others)

    monkeypatch.setattr(engine, "word_ids", noted)
    return words


@needs_products(torch.float32)
def test_a_word_is_encoded_once_until_it_is_forgotten(encoded: list[str]) -> None:
    made, distinct = embedder(), {word for sentence in SENTENCES for word in sentence}
    for _ in range(2):
        made.embed(SENTENCES)
        assert sorted(encoded) == sorted(["<S>", "</S>", *distinct])
    encoded.clear()
    made.embed([["eleven", "ten"]])
    assert encoded == ["eleven"]
    made.forget_words()
    made.embed(SENTENCES)
    assert sorted(encoded[1:]) == sorted(distinct)


@each_product_type
@pytest.mark.parametrize("state", ["zeros", "warm"])
def test_only_words_are_computed_and_the_first_boundaries_once(
    dtype: torch.dtype, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, lengths = embedder(dtype), []
    run = made._engine._bilm.begin_packed

    def noted(words: torch.Tensor, tokens: torch.Tensor, *others: Any) -> Callable[[], Any]:
        lengths.append(tokens.shape[1])
        return run(words, tokens, *others)

    monkeypatch.setattr(made._engine._bilm, "begin_packed", noted)
    for _ in range(2):
        made.embed(SENTENCES, state=state)
    words = sum(map(len, SENTENCES))
    assert lengths == ([1, words, words] if state == "zeros" else [1, words, 1, words])


def test_weights_that_change_are_read_again(without_products: None) -> None:
    """Without a copy of its own an embedder uses those of the model."""
    model = tiny()
    made = Embedder(model, device="cpu")
    before = made.embed(SENTENCES)
    random_weights(model.bilm, seed=2, scale=0.4)
    after = made.embed(SENTENCES)
    assert np.abs(after[0] - before[0]).max() > 0.1
    assert_equal(after, Embedder(model, device="cpu").embed(SENTENCES))


@needs_products(torch.float32)
def test_a_failure_leaves_the_cache_right(monkeypatch: pytest.MonkeyPatch) -> None:
    made, expected = embedder(), embedder().embed(SENTENCES)
    made.embed(SENTENCES[:3])

    def fails(*_: object) -> torch.Tensor:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patched:
        patched.setattr(made._engine._bilm, "encode_words", fails)
        with pytest.raises(RuntimeError, match="out of memory"):
            made.embed(SENTENCES)
    assert_equal(made.embed(SENTENCES), expected)


@needs_products(torch.float32)
def test_threads_may_share_an_embedder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "CACHE_BYTES", 12 * 16 * 4)  # so that it is emptied all the time
    made = embedder()
    expected = [made.embed([sentence])[0] for sentence in SENTENCES]
    order = [number * 5 % len(SENTENCES) for number in range(20 * len(SENTENCES))]
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda number: made.embed([SENTENCES[number]])[0], order)
        assert_equal(list(found), [expected[number] for number in order])


@needs_products(torch.float32)
def test_a_copy_begins_with_no_words(encoded: list[str]) -> None:
    made = embedder()
    expected = made.embed(SENTENCES)
    before = len(encoded)
    assert_equal(copy.deepcopy(made).embed(SENTENCES), expected)
    assert encoded[before:] == [word for word in encoded[:before] if word not in ("<S>", "</S>")]


@needs_products(torch.float32)
def test_words_without_characters_are_not_kept() -> None:
    """Their vectors are a table already."""
    lstm = BiLMConfig.preset("tiny").lstm
    vocab = Vocab.from_counts({"a": 3, "b": 2})
    made = Embedder(Pretrained(BiLM(BiLMConfig(lstm, None, num_words=len(vocab))), vocab=vocab), device="cpu")
    assert made._engine._known is None
    np.testing.assert_array_equal(made.embed([["a", "unknown", "b"]])[0], made.embed([["a", "c", "b"]])[0])
    made.forget_words()


@each_product_type
def test_layers_stay_while_they_are_in_use(dtype: torch.dtype) -> None:
    """What runs meanwhile has room of its own; what runs afterwards uses the same memory again."""
    made = embedder(dtype)._engine
    blocks = [embedding_block([sentence], np.zeros(1, np.int64), 1, reset=True) for sentence in SENTENCES[:3:2]]
    expected = [made.begin(block, None, None, lambda layers, _: layers.clone())() for block in blocks]
    used: set[int] = set()

    def meanwhile(layers: torch.Tensor, _: BiLMState) -> None:
        made.begin(blocks[1], None, None, partial(see, 1))()
        see(0, layers, _)

    def see(which: int, layers: torch.Tensor, _: BiLMState) -> None:
        assert torch.equal(layers, expected[which])
        used.add(layers.data_ptr())

    for _ in range(3):
        made.begin(blocks[0], None, None, meanwhile)()
    assert len(used) == 2


@each_product_type
def test_room_is_given_up_after_an_error(dtype: torch.dtype) -> None:
    """Another thread may not have noticed yet."""
    made = embedder(dtype)._engine
    block = embedding_block(SENTENCES[:1], np.zeros(1, np.int64), 1, reset=True)

    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made.begin(block, None, None, stopped)()
    assert not made._rooms._free
