"""The prepacked biLM against NumPy in float64, and against the biLM on the reference backend in float64."""

import copy
import dataclasses
import gc
import pickle
import weakref
from collections.abc import Callable

import numpy as np
import pytest
import torch
from backends import FAST_BACKENDS, each_native_dtype, on_specification
from example_text import example_sentences
from oracle import Oracle, State, random_weights
from torch import Tensor, nn

from elmokit.checkpoints.loading import load
from elmokit.config import BiLMConfig, CharCNNConfig, InterleavedConfig, LSTMConfig
from elmokit.data.streams import PackedBatch, embedding_batch
from elmokit.nn.bilm import BiLM, BiLMState
from elmokit.nn.inference import PrepackedCharCNN, PrepackedLSTMLayer, prepack
from elmokit.ops.packing import Packing

CPU = torch.device("cpu")
LSTM = LSTMConfig(cell_dim=20, projection_dim=6, cell_clip=1.0, proj_clip=0.8)
CHARACTERS = CharCNNConfig(4, ((1, 3), (2, 33), (5, 4)), num_highway=1)  # 40 filters
CONFIGS = {
    "as published": BiLMConfig(LSTM, CHARACTERS),
    "two highways": BiLMConfig(LSTM, dataclasses.replace(CHARACTERS, num_highway=2)),
    "no highway": BiLMConfig(LSTM, dataclasses.replace(CHARACTERS, num_highway=0)),
    "tanh": BiLMConfig(LSTM, dataclasses.replace(CHARACTERS, activation="tanh")),
    "no character projection": BiLMConfig(dataclasses.replace(LSTM, projection_dim=40), CHARACTERS),
    "no projections": BiLMConfig(dataclasses.replace(LSTM, projection_dim=40, cell_dim=40), CHARACTERS),
    "no clips": BiLMConfig(dataclasses.replace(LSTM, cell_clip=None, proj_clip=None), CHARACTERS),
    "no skips": BiLMConfig(dataclasses.replace(LSTM, use_skip_connections=False), CHARACTERS),
    "three layers": BiLMConfig(dataclasses.replace(LSTM, num_layers=3), CHARACTERS),
    "one layer": BiLMConfig(dataclasses.replace(LSTM, num_layers=1), CHARACTERS),
    "odd sizes": BiLMConfig(dataclasses.replace(LSTM, cell_dim=19, projection_dim=7), CHARACTERS),
    "word ids": BiLMConfig(LSTM, None, num_words=30),
}
SENTENCES = [["a", "bc", "a"], [], ["", "x" * 60, "naïve", "词"], ["bc"], *([w] for w in "defghi"), list("aabcdefgh")]


def draw_bilm(config: BiLMConfig) -> BiLM:
    bilm = BiLM(config)
    random_weights(bilm, seed=1, scale=0.3)
    return bilm


def block(rows: int, reset: bool) -> PackedBatch:
    return embedding_batch(SENTENCES, np.arange(len(SENTENCES)) % rows, rows, reset)


def ids_of(words: list[str], bilm: BiLM) -> Tensor:
    by_word = bilm.config.char_cnn is None
    return torch.arange(1, len(words) + 1) if by_word else bilm.token_encoder.ids(words)


def random_state(bilm: BiLM, rows: int) -> BiLMState:
    zeros, generator = bilm.initial_state(rows), torch.Generator().manual_seed(rows)
    return BiLMState(*(torch.randn(part.shape, generator=generator) for part in (zeros.h, zeros.c)))


def of_row(state: BiLMState, d: int, row: int) -> State:
    h, c = (part[d, :, row].double().numpy() for part in (state.h, state.c))
    return list(zip(h, c, strict=True))


def assert_close(found: Tensor, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.native(torch.float32)
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_word_vectors_are_those_of_the_definition(config: BiLMConfig) -> None:
    bilm, words = draw_bilm(config), block(3, reset=True).words
    ready, ids = prepack(bilm, torch.float32), ids_of(words, bilm)
    found, oracle = ready.token_encoder(ids), Oracle(bilm)
    assert found.dtype == torch.float32 and not found.requires_grad
    assert_close(found, np.array([oracle.word(word.numpy()) for word in ids]))
    for count in (0, 1, 2):
        assert torch.equal(ready.token_encoder(ids[:count]), found[:count])


@pytest.mark.native(torch.float32)
@pytest.mark.parametrize("start", ["zeros", "warm", "carried"])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_layers_are_those_of_the_definition(config: BiLMConfig, start: str) -> None:
    bilm, rows, text = draw_bilm(config), 3, block(3, reset=start != "carried")
    state = random_state(bilm, 1 if start == "warm" else rows) if start != "zeros" else None
    vectors = torch.randn(len(text.words), config.lstm.projection_dim)
    before, begin = (state, None) if start == "carried" else (None, state)
    streams, after = prepack(bilm, torch.float32).run(vectors, text.tokens, text.text.packing, before, begin)
    oracle = Oracle(bilm)
    states = [tuple(of_row(state, d, row) for d in range(2)) for row in range(rows)] if before is not None else []

    layers = torch.stack([text.text.unpack(stream) for stream in streams])
    ends = np.cumsum(text.lengths)
    for number, (end, length) in enumerate(zip(ends, text.lengths, strict=True)):
        tokens = text.text.unpack(text.tokens[..., None])[end - length : end, 0]
        words = [vectors[token].double().numpy() for token in tokens]
        if before is not None:
            expected, states[number % rows] = oracle.row(words, states[number % rows])
        else:
            fresh = oracle.zeros() if begin is None else None
            expected, _ = oracle.row(words, tuple(fresh or of_row(begin, d, 0) for d in range(2)))
        assert_close(layers[:, end - length : end], expected)
    for row, pair in enumerate(states):
        for d, of_direction in enumerate(pair):
            for (h, c), (found_h, found_c) in zip(of_direction, of_row(after, d, row), strict=True):
                np.testing.assert_allclose(found_h, h, rtol=1e-5, atol=1e-5)
                np.testing.assert_allclose(found_c, c, rtol=1e-5, atol=1e-5)


@each_native_dtype
@torch.no_grad()
def test_the_bundled_model_on_real_text(dtype: torch.dtype) -> None:
    bilm = load().bilm
    sentences = example_sentences()
    text = embedding_batch(sentences, np.arange(len(sentences)) % 16, 16, reset=True)
    ready = prepack(bilm, dtype)
    found = ready.run(ready.word_vectors(text.words), text.tokens, text.text.packing)[0]
    with on_specification():
        exact = bilm.double()
        expected = exact.run(exact.word_vectors(text.words), text.tokens, text.text.packing)[0]
    if dtype == torch.float32:
        # The rounding of float32 in a paragraph of some hundred words: 4e-6 for the specification, 1e-5 here.
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=3e-5)
    for layer, of_reference in zip(found, expected, strict=True):
        cosines = torch.cosine_similarity(layer.double(), of_reference.double(), dim=-1)
        assert cosines.mean() > 0.9998 and (cosines > 0.9995).double().mean() > 0.99
        both = [torch.cat(list(part), dim=-1).double() for part in (layer, of_reference)]
        assert torch.cosine_similarity(*(part.flatten() for part in both), dim=0) > 0.9995


@pytest.mark.native(torch.float32)
def test_what_another_type_or_order_of_memory_holds_is_read_right() -> None:
    bilm, text = draw_bilm(CONFIGS["as published"]), block(3, reset=True)
    ready, packing = prepack(bilm, torch.float32), text.text.packing
    vectors, state, start = torch.randn(len(text.words), 6).bfloat16(), random_state(bilm, 3), random_state(bilm, 1)
    expected = ready.run(vectors.float(), text.tokens, packing, state, start)

    def double(state: BiLMState) -> BiLMState:
        return BiLMState(*(part.double().transpose(1, 3).contiguous().transpose(1, 3) for part in (state.h, state.c)))

    tokens = text.tokens.T.contiguous().T
    found = ready.run(vectors.T.contiguous().T, tokens, packing, double(state), double(start))
    assert torch.equal(found[0], expected[0]) and torch.equal(found[1].c, expected[1].c)


@pytest.mark.native(torch.float32)
def test_a_given_state_is_left_as_it_was() -> None:
    bilm, text = draw_bilm(CONFIGS["as published"]), block(3, reset=False)
    state, vectors = random_state(bilm, 3), torch.randn(len(text.words), 6)
    before = copy.deepcopy(state)
    prepack(bilm, torch.float32).run(vectors, text.tokens, text.text.packing, state)
    assert torch.equal(state.h, before.h) and torch.equal(state.c, before.c)


@pytest.mark.native(torch.float32)
def test_errors_are_those_of_the_bilm() -> None:
    bilm, text = draw_bilm(CONFIGS["as published"]), block(3, reset=False)
    ready, vectors = prepack(bilm, torch.float32), torch.randn(len(text.words), 6)
    for model in (bilm, ready):
        for rows in (2, 4):
            with pytest.raises(ValueError, match="the state of 3 rows"):
                model.run(vectors, text.tokens, text.text.packing, random_state(bilm, rows))
        for other in (CONFIGS["no projections"], CONFIGS["three layers"]):
            with pytest.raises(ValueError, match="the state of"):
                model.run(vectors, text.tokens, text.text.packing, random_state(draw_bilm(other), 3))
            with pytest.raises(ValueError, match="the state of"):
                start = random_state(draw_bilm(other), 1)
                model.run(vectors, text.tokens, text.text.packing, start=start)
        with pytest.raises(IndexError):
            model.run(vectors, text.tokens + len(vectors), text.text.packing)
        with pytest.raises(IndexError, match="characters must lie in"):
            model.token_encoder(torch.full((2, 50), 300))
        with pytest.raises(ValueError, match="too short for filters 5 wide"):
            model.token_encoder(torch.full((2, 3), 20))


@each_native_dtype
def test_no_words_at_all(dtype: torch.dtype) -> None:
    bilm = draw_bilm(CONFIGS["as published"])
    state = random_state(bilm, 2)
    layers, after = prepack(bilm, dtype).run(
        torch.randn(0, 6), torch.zeros(2, 0, dtype=torch.int64), Packing.rectangle(0, 2), state
    )
    assert layers.shape == (3, 2, 0, 6) and torch.equal(after.h, state.h) and torch.equal(after.c, state.c)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("backend_name", ["reference", *FAST_BACKENDS])
def test_every_backend_and_type_prepacks(backend_name: str, dtype: torch.dtype, backend: Callable[[str], None]) -> None:
    backend(backend_name)
    plain = InterleavedConfig(cell_dim=20, projection_dim=6, projects_layers=False)
    merged = BiLMConfig(None, CHARACTERS, interleaved=plain)
    for config in (CONFIGS["as published"], CONFIGS["word ids"], merged, CONFIGS["odd sizes"]):
        bilm = draw_bilm(config).to(torch.float64 if dtype == torch.float64 else torch.float32)
        text = block(3, reset=True)
        ids, prepacked = ids_of(text.words, bilm), prepack(bilm, dtype)
        found, state = prepacked.run(prepacked.token_encoder(ids), text.tokens, text.text.packing)
        assert not found.requires_grad and found.dtype == bilm.dtype
        with on_specification(), torch.no_grad():
            exact = bilm.double()
            expected, after = exact.run(exact.token_encoder(ids), text.tokens, text.text.packing)
        tolerance = 0.05 if dtype == torch.bfloat16 else 1e-5
        least = 1e-4 * expected.norm() if dtype == torch.bfloat16 else 0
        assert least <= (found - expected).norm() < tolerance * expected.norm()
        assert (state.c - after.c).norm() <= tolerance * after.c.norm()


def test_prepacking_swaps_leaves_and_leaves_the_original_as_it_was() -> None:
    bilm = draw_bilm(CONFIGS["as published"])
    before = {name: tensor.clone() for name, tensor in bilm.state_dict().items()}
    prepacked = prepack(bilm, torch.float32)
    kinds = [type(module) for module in prepacked.modules()]
    assert kinds.count(PrepackedLSTMLayer) == 4 and kinds.count(PrepackedCharCNN) == 1
    assert not list(prepacked.parameters()) and prepacked.device == CPU and prepacked.dtype == torch.float32
    assert all(parameter.requires_grad for parameter in bilm.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in bilm.state_dict().items())
    for encoder in (bilm.token_encoder, prepacked.token_encoder):
        assert encoder.count_truncated(["x" * 60, "a"]) == 1 and encoder.input == "characters"


@pytest.mark.native(torch.float32)
@pytest.mark.parametrize("num_characters", [1024, 1025])
def test_word_vectors_are_cacheable_where_tables_have_all_characters(num_characters: int) -> None:
    """Products of PyTorch's may give a word other bits in another batch."""
    characters = dataclasses.replace(CHARACTERS, num_characters=num_characters)
    encoder = prepack(draw_bilm(BiLMConfig(LSTM, characters)), torch.float32).token_encoder
    assert encoder.is_cacheable == (num_characters == 1024)
    assert encoder(encoder.ids(["a", "bc"])).shape == (2, 6)


def test_prepacked_bilm_is_neither_moved_nor_converted_nor_prepacked_for_another_type() -> None:
    prepacked = prepack(draw_bilm(CONFIGS["as published"]), torch.float32)
    assert prepacked.to(CPU).float() is prepacked  # nothing to do
    assert prepack(prepacked, None) is prepack(prepacked, torch.float32) is prepacked
    for move in (lambda bilm: bilm.to("meta"), lambda bilm: nn.ModuleList([bilm]).half()):
        with pytest.raises(ValueError, match=r"prepacked for float32 on cpu.*load the model again"):
            move(prepacked)
    with pytest.raises(ValueError, match=r"prepacked for float32, not for bfloat16: load the model again"):
        prepack(prepacked, torch.bfloat16)


@pytest.mark.native(torch.float32)
@pytest.mark.parametrize("name", ["as published", "word ids"])
def test_it_can_be_sent_to_another_process(name: str) -> None:
    made = prepack(draw_bilm(CONFIGS[name]), torch.float32)
    ids = ids_of(["a", "bc", "naïve"], made)
    assert torch.equal(pickle.loads(pickle.dumps(made)).token_encoder(ids), made.token_encoder(ids))


@pytest.mark.native(torch.float32)
@pytest.mark.parametrize("name", ["as published", "word ids"])
def test_the_weights_it_has_packed_can_be_freed(name: str) -> None:
    bilm = draw_bilm(CONFIGS[name])
    layer = weakref.ref(bilm.sequence_encoder.stacks[0].layers[0])
    made = prepack(bilm, torch.float32)
    del bilm
    gc.collect()
    assert layer() is None and made.config == CONFIGS[name]
