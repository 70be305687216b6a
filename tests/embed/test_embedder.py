"""Sentences to vectors: those of the biLM run on each sentence alone, in any batch."""

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from layers_alone import layers_alone
from tiny_model import tiny_model

import elmokit
from elmokit.checkpoints.loading import save
from elmokit.checkpoints.pretrained import MixWeights, Pretrained
from elmokit.config import BiLMConfig, InterleavedConfig
from elmokit.embed.embedder import Embedder
from elmokit.embed.outputs import OutputSpec
from elmokit.embed.pipeline import Pipeline, Plan
from elmokit.nn.bilm import BiLM, BiLMState
from elmokit.settings import StatePolicy

LONGER = "The quick brown fox jumps over the lazy dog , twice and thrice and more often than that ."
SENTENCES = [
    ["I", "like", "to", "eat", "apple"],
    [],
    ["Hello"],
    LONGER.split(),
    ["naïve", "词向量", "", "x" * 40],
    ["I", "like", "to", "eat", "apple"],
]
MIX = MixWeights((0.5, 0.0, -0.5), gamma=1.5)


def assert_close(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.dtype == np.float32
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


@pytest.fixture
def embedder() -> Embedder:
    return Embedder(tiny_model(mix=MIX), device="cpu")


def test_layers_are_those_of_the_bilm(embedder: Embedder) -> None:
    weights = MIX.gamma * np.exp(MIX.weights) / np.exp(MIX.weights).sum()
    expected = [layers_alone(embedder.model.bilm, sentence)[0] for sentence in SENTENCES]
    wanted: dict[str | int, Callable[[np.ndarray], np.ndarray]] = {
        "all": lambda layers: layers,
        "average": lambda layers: layers.mean(axis=0),
        "sum": lambda layers: layers.sum(axis=0),
        "mix": lambda layers: np.tensordot(weights, layers, axes=1),
        **{
            name: operator.itemgetter(number)
            for name, number in (("top", 2), (0, 0), (1, 1), (-1, 2))
        },
    }
    without_mix = Embedder(replace(embedder.model, mix=None), device="cpu")
    assert_close(without_mix.embed(SENTENCES)[0], expected[0].mean(axis=0))
    for choice, of_layers in wanted.items():
        found = embedder.embed(SENTENCES, layers=choice)
        assert len(found) == len(SENTENCES)
        for vectors, layers in zip(found, expected, strict=True):
            assert_close(vectors, of_layers(layers))


def test_a_prepacked_model_is_used_again_in_its_own_type_only(tmp_path: Path) -> None:
    save(
        tiny_model(["I"]),
        tmp_path / "model",
    )
    first = Embedder(tmp_path / "model", device="cpu", softmax=True)
    assert first.model.softmax.weight.device == first.device
    again = Embedder(first.model, device="cpu")
    np.testing.assert_array_equal(again.embed(["I like"])[0], first.embed(["I like"])[0])
    with pytest.raises(ValueError, match="prepacked for float32, not for bfloat16"):
        Embedder(first.model, device="cpu", dtype="bfloat16")
    (tmp_path / "model" / "notes.txt").write_text("my notes")  # which changes no fingerprint
    assert first.fingerprint() == Embedder(tmp_path / "model", device="cpu").fingerprint()


@pytest.mark.parametrize("policy", ["zeros", "carry"])
def test_vectors_of_documents_and_queries_are_those_of_encode(policy: StatePolicy) -> None:
    """LangChain's interface: lists of numbers, and no text depends on those before it."""
    texts = ["I like", "", "I like"]
    embedder = Embedder(replace(tiny_model(), state_policy=policy), device="cpu")
    found = embedder.embed_documents(texts)
    assert all(isinstance(number, float) for vector in found for number in vector)
    np.testing.assert_allclose(found, embedder.encode(texts, state="zeros"), atol=1e-6)
    np.testing.assert_allclose(embedder.embed_query(texts[2]), found[0], atol=1e-6)


@pytest.mark.parametrize("batch_size", [1, 2])
def test_carried_state_goes_from_sentence_to_sentence_of_a_row(
    embedder: Embedder, batch_size: int
) -> None:
    found = embedder.embed(SENTENCES[:4], layers="all", state="carry", batch_size=batch_size)
    resumed = embedder.embed(SENTENCES[4:], layers="all", state=found.state)
    rows: list[BiLMState | None] = [None] * batch_size
    for number, vectors in enumerate([*found, *resumed]):
        row = number % batch_size
        expected, rows[row] = layers_alone(embedder.model.bilm, SENTENCES[number], rows[row])
        assert_close(vectors, expected)
    with pytest.raises(ValueError, match="rows"):
        embedder.embed(SENTENCES, state=found.state, batch_size=3)
    for row, state in enumerate(rows):
        torch.testing.assert_close(resumed.state.c[:, :, row], state.c[:, :, 0], rtol=0, atol=1e-5)


def test_the_warm_state_is_where_each_sentence_starts_when_the_model_says_so() -> None:
    torch.manual_seed(1)
    warm, other = (BiLMState(torch.randn(2, 2, 1, 16), torch.randn(2, 2, 1, 32)) for _ in range(2))
    embedder = Embedder(tiny_model(warm_state=warm, state_policy="warm"), device="cpu")
    for state in (warm, other):
        embedder.model.warm_state = state
        for sentence, vectors in zip(
            SENTENCES, embedder.embed(SENTENCES, layers="all"), strict=True
        ):
            assert_close(vectors, layers_alone(embedder.model.bilm, sentence, state)[0])


def test_batches_of_sentences_without_end_are_those_of_embed() -> None:
    embedder = Embedder(tiny_model(mix=MIX), device="cpu")
    embedder.pipeline.batch_words = 20
    asked = 0

    def endless() -> Iterator[list[str]]:
        nonlocal asked
        for asked in count(1):
            yield SENTENCES[(asked - 1) % len(SENTENCES)]

    groups = embedder.embed_stream(endless(), layers="all")
    found = list(islice(chain.from_iterable(groups), 3 * len(SENTENCES)))
    assert asked < 5 * len(SENTENCES)
    for vectors, expected in zip(found, embedder.embed(3 * SENTENCES, layers="all"), strict=True):
        np.testing.assert_allclose(vectors, expected, rtol=0, atol=1e-5)


def test_streams_count_long_words_and_carry_the_state(embedder: Embedder) -> None:
    (found,) = embedder.embed_stream([["x" * 48, "y" * 49], ["ü" * 25]])
    assert found.truncated_words == 2
    assert list(embedder.embed_stream([])) == []
    embedder = Embedder(embedder.model, "cpu")
    embedder.pipeline.batch_words = 1
    carried = [
        vectors for batch in embedder.embed_stream(SENTENCES, state="carry") for vectors in batch
    ]
    for vectors, expected in zip(carried, embedder.embed(SENTENCES, state="carry"), strict=True):
        np.testing.assert_allclose(vectors, expected, rtol=0, atol=1e-6)


def test_empty_sentences_no_sentences_and_arrays_of_words(embedder: Embedder) -> None:
    assert embedder.embed([]) == []
    assert embedder.embed([[], []])[1].shape == (0, embedder.dim)
    assert embedder.embed([[]], layers="all")[0].shape == (embedder.num_layers, 0, embedder.dim)
    array, words = embedder.embed([np.array(["I", "like"], dtype=object), ["I", "like"]])  # type: ignore[list-item]
    np.testing.assert_allclose(array, words, atol=1e-6)


def test_words_that_lose_bytes_are_counted(embedder: Embedder) -> None:
    with pytest.warns(
        UserWarning, match="2 words are too long and are cut after 48 bytes, as in sentence 1: 'yyy"
    ):
        embedder.embed([["x" * 48], ["a", "y" * 49, "ü" * 25]])


def test_encode_pools_the_words_of_a_text(embedder: Embedder) -> None:
    vectors = embedder.embed(SENTENCES)
    for pooling, pool in (("mean", np.mean), ("max", np.max)):
        pooled = embedder.encode(SENTENCES, pooling=pooling)
        expected = [
            pool(words, axis=0) if len(words) else np.zeros(embedder.dim) for words in vectors
        ]
        np.testing.assert_allclose(pooled, expected, rtol=0, atol=1e-6)
    lengths = np.linalg.norm(embedder.encode(SENTENCES, normalize_embeddings=True), axis=1)
    np.testing.assert_allclose(lengths, [1, 0, 1, 1, 1, 1], rtol=0, atol=1e-6)
    assert embedder.encode("I like to eat apple").shape == (embedder.dim,)


@pytest.mark.parametrize("batch_size", [1, 3])
def test_encode_returns_the_same_as_a_tensor_in_any_batch(
    embedder: Embedder, batch_size: int
) -> None:
    options = {"show_progress_bar": True, "convert_to_tensor": True}
    vectors = embedder.encode(SENTENCES, batch_size=batch_size, **options)
    assert vectors.device == embedder.device
    np.testing.assert_allclose(vectors.numpy(), embedder.encode(SENTENCES), rtol=0, atol=1e-5)


def test_vectors_do_not_depend_on_the_autocast_of_a_caller(embedder: Embedder) -> None:
    """As in a training loop that embeds its batches."""
    expected = np.concatenate(embedder.embed(SENTENCES))
    with torch.autocast("cpu", torch.bfloat16):
        made_inside = Embedder(embedder.model, device="cpu")
        inside = [each.embed(SENTENCES) for each in (embedder, made_inside)]
    for vectors in (*inside, made_inside.embed(SENTENCES)):
        np.testing.assert_allclose(np.concatenate(vectors), expected, rtol=0, atol=1e-6)


def test_embeddings_hold_the_words_of_their_rows(embedder: Embedder) -> None:
    texts = ["I like apple .", "", LONGER.split()]
    expected = [["I", "like", "apple", "."], [], LONGER.split()]
    embeddings = embedder.embed(iter(texts))
    assert embeddings.tokens == expected
    assert [len(words) for words in embeddings.tokens] == [len(vectors) for vectors in embeddings]
    small = Embedder(tiny_model(), device="cpu")
    small.pipeline.batch_words = 4
    streamed = list(small.embed_stream(3 * texts))
    assert len(streamed) > 3
    assert list(chain.from_iterable(batch.tokens for batch in streamed)) == 3 * expected
    assert list(chain.from_iterable(batch.offsets for batch in streamed)) == 3 * embeddings.offsets
    for text, words, offsets in zip(texts, expected, embeddings.offsets, strict=True):
        text = text if isinstance(text, str) else " ".join(text)
        assert [text[start:end] for start, end in offsets] == words


@pytest.mark.parametrize(
    ("sentences", "options", "message"),
    [
        ("I like apple", {}, "a list"),
        ({"text": ["I like apple"]}, {}, "a list"),
        ([["I"], 7], {}, "sentence 1 is neither"),
        ([["I", 7]], {}, "sentence 0 is neither"),
        ([["a"], ["a"] * 100_001], {}, "sentence 1 has 100,001 words"),
        ([["I"]], {"layers": 3}, r"a number from 0 \(the tokens\) to 2 \(the top\), .*; not 3"),
        ([["I"]], {"layers": "first"}, "not 'first'"),
        ([["I"]], {"state": "cold"}, "state must be one of zeros, warm, carry"),
        ([["I"]], {"state": "warm"}, "needs a model with a warm state"),
        ([["I"]], {"batch_size": 0}, "batch_size must be at least 1"),
    ],
)
def test_what_cannot_be_embedded_raises(
    embedder: Embedder, sentences: Any, options: dict, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        embedder.embed(sentences, **options)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("layers", ["all", "mix", 0])
@pytest.mark.parametrize(
    ("state", "joined"), [("zeros", False), ("warm", False), ("carry", False), ("zeros", True)]
)
def test_words_end_to_end_are_those_of_embed(
    layers: str | int, dtype: str, state: str, joined: bool
) -> None:
    config = BiLMConfig.preset("tiny")
    if joined:
        config = replace(
            config, lstm=None, interleaved=InterleavedConfig(2, 32, 16, projects_layers=False)
        )
    torch.manual_seed(4)
    bilm = BiLM(config)
    warm = BiLMState(*(torch.randn(2, 2, 1, width) for width in (16, 32)))
    embedder = Embedder(
        Pretrained(bilm, mix=None if joined else MIX, warm_state=None if joined else warm),
        device="cpu",
    )
    groups = [SENTENCES[:4], [[]], [], SENTENCES[4:]]
    pipeline = embedder.pipeline
    spec = OutputSpec.of(embedder.model, layers, None, dtype)
    found = [
        result.vectors[0]
        for result in pipeline.embed_all(iter(groups), spec, pipeline.start(state))
    ]
    assert [array.dtype for array in found] == [np.dtype(dtype)] * len(groups)
    in_order = list(chain.from_iterable(groups))  # a sentence without words changes a carried state
    expected = np.concatenate(embedder.embed(in_order, layers, state), axis=-2)
    by_word = expected.swapaxes(0, 1) if expected.ndim == 3 else expected
    np.testing.assert_allclose(
        np.concatenate(found), by_word, rtol=0, atol=1e-5 if dtype == "float32" else 1e-2
    )


def test_embedder_loads_the_tokenizer_only_for_strings(embedder: Embedder) -> None:
    other = Embedder(
        replace(embedder.model, tokenizer="rjieba==0.0.1"), device="cpu"
    )  # no such version is installed
    np.testing.assert_array_equal(other.embed([["a", "b"]])[0], embedder.embed([["a", "b"]])[0])
    np.testing.assert_array_equal(
        other.embed(["a b"], tokenize=False)[0], embedder.embed([["a", "b"]])[0]
    )
    with pytest.raises((ValueError, ModuleNotFoundError), match="rjieba"):
        other.embed(["a b"])
    other.pipeline.model = replace(embedder.model, tokenizer="english-1")
    split, tokens = other.embed(["I don't.", ["I", "do", "n't", "."]])
    np.testing.assert_allclose(split, tokens, atol=1e-6)
    assert embedder.tokenize("I don't.") == ["I", "don't."]


def test_words_end_to_end_refuse_what_float16_cannot_hold() -> None:
    large = Embedder(tiny_model(mix=MixWeights((0.0, 0.0, 0.0), gamma=1e9)), device="cpu")
    with pytest.raises(ValueError, match="too large for float16"):
        spec = OutputSpec.of(large.model, "mix", None, "float16")
        pipeline = large.pipeline
        list(pipeline.embed_all([SENTENCES], spec, pipeline.start(None)))


@pytest.mark.parametrize("seed", range(1, 5))
def test_batches_are_even(seed: int) -> None:
    lengths = np.random.default_rng(seed).integers(0, 30, 50 * seed).tolist()
    sentences = [[str(number)] * length for number, length in enumerate(lengths)]
    pipeline = Embedder(tiny_model(), device="cpu").pipeline
    pipeline.batch_words = 100
    pipeline.rows = 4
    batches = list(pipeline.split_evenly(sentences))
    assert list(chain.from_iterable(batches)) == sentences
    sizes = [sum(len(sentence) + 2 for sentence in batch) for batch in batches]
    assert len(batches) <= sum(sizes) / 100 + 1
    assert all(size < 100 + 32 for size in sizes)
    assert (
        len(sizes) < 2 or max(sizes[:-1]) - min(sizes[:-1]) < 32
    )  # a batch ends with the sentence that fills it


def test_long_sentences_are_run_by_length_and_returned_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lengths = [90, 3, 70, 5, 0, 88, 4, 71, 120]
    sentences = [
        [f"{number}-{word}" for word in range(length)] for number, length in enumerate(lengths)
    ]
    embedder = Embedder(tiny_model(), device="cpu")
    embedder.pipeline.batch_words = 100
    embedder.pipeline.rows = 8
    run = []
    sizes = []
    plan = Pipeline.plan

    def planned(self: Pipeline, batch: Sequence[Sequence[str]], *given: Any) -> Plan:
        run.extend(map(len, batch))
        sizes.append(sum(map(len, batch)))
        return plan(self, batch, *given)

    monkeypatch.setattr(Pipeline, "plan", planned)
    found = embedder.embed(sentences)
    assert run == sorted(lengths)
    assert found.tokens == sentences
    assert sizes == [3 + 4 + 5 + 70 + 71, 88 + 90, 120]  # about 200 words, for more rows
    for vectors, sentence in zip(found, sentences, strict=True):
        np.testing.assert_allclose(vectors, embedder.embed([sentence])[0], atol=1e-6)
    run.clear()
    embedder.embed(sentences, state="carry")
    embedder.embed([sentence[:6] for sentence in sentences])  # short ones fill their rows evenly
    assert run == [*lengths, *(min(6, length) for length in lengths)]


@pytest.mark.parametrize("tokenize", [True, False])
def test_text_in_a_script_that_the_model_was_not_trained_on_is_doubted(tokenize: bool) -> None:
    english = Embedder(tiny_model(language="en", tokenizer="english-1"))
    with pytest.warns(UserWarning, match="zh-small"):
        english.embed(["我 喜欢 苹果 。"], tokenize=tokenize)
    chinese = Embedder(tiny_model(language="zh", tokenizer="whitespace-1"))
    with pytest.warns(UserWarning, match="en-small"):
        chinese.encode(["I like apples ."], tokenize=tokenize)
    with pytest.warns(UserWarning, match="zh-small"):
        elmokit.compare("苹果", ["我 喜欢 苹果 。", "苹果 很 大"], english, tokenize=tokenize)
    with pytest.warns(UserWarning, match="zh-small"):
        elmokit.score(["我 喜欢 苹果 。"], "en-small", tokenize=tokenize)
    chinese.embed(["我 喜欢 苹果 。", "?", "Windows OK"], tokenize=tokenize)
    english.embed(["42 %", "I like 苹果"], tokenize=tokenize)
    Embedder(tiny_model()).embed(["我 喜欢 苹果 。"])  # whose language is not known
