"""The prepacked biLM against NumPy in float64 and the reference backend, whatever is done to its
weights meanwhile.
"""

import copy
import dataclasses
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from backends import FAST_BACKENDS, each_native_dtype, on_specification
from example_text import example_sentences
from oracle import Oracle, State, random_weights
from torch import Tensor, nn

from elmokit.checkpoints.loading import load
from elmokit.config import BiLMConfig, CharCNNConfig, LSTMConfig
from elmokit.data.batches import PackedBatch
from elmokit.nn.bilm import BiLM, BiLMState
from elmokit.nn.elmo import Elmo, batch_to_ids
from elmokit.nn.inference import PrepackCache, prepack

CPU = torch.device("cpu")
LSTM = LSTMConfig(cell_dim=20, projection_dim=6, cell_clip=1.0, proj_clip=0.8)
CHARACTERS = CharCNNConfig(4, ((1, 3), (2, 33), (5, 4)), num_highway=1)  # 40 filters
CONFIGS = {
    "as published": BiLMConfig(LSTM, CHARACTERS),
    "two highways": BiLMConfig(LSTM, dataclasses.replace(CHARACTERS, num_highway=2)),
    "no highway": BiLMConfig(LSTM, dataclasses.replace(CHARACTERS, num_highway=0)),
    "tanh": BiLMConfig(LSTM, dataclasses.replace(CHARACTERS, activation="tanh")),
    "no character projection": BiLMConfig(dataclasses.replace(LSTM, projection_dim=40), CHARACTERS),
    "no projections": BiLMConfig(
        dataclasses.replace(LSTM, projection_dim=40, cell_dim=40), CHARACTERS
    ),
    "no clips": BiLMConfig(dataclasses.replace(LSTM, cell_clip=None, proj_clip=None), CHARACTERS),
    "no skips": BiLMConfig(dataclasses.replace(LSTM, use_skip_connections=False), CHARACTERS),
    "three layers": BiLMConfig(dataclasses.replace(LSTM, num_layers=3), CHARACTERS),
    "one layer": BiLMConfig(dataclasses.replace(LSTM, num_layers=1), CHARACTERS),
    "odd sizes": BiLMConfig(dataclasses.replace(LSTM, cell_dim=19, projection_dim=7), CHARACTERS),
    "word ids": BiLMConfig(LSTM, None, num_words=30),
}
SENTENCES = [
    ["a", "bc", "a"],
    [],
    ["", "x" * 60, "naïve", "词"],
    ["bc"],
    *([w] for w in "defghi"),
    list("aabcdefgh"),
]


def draw_bilm(config: BiLMConfig) -> BiLM:
    bilm = BiLM(config)
    random_weights(bilm, seed=1, scale=0.3)
    return bilm


def block(rows: int, reset: bool) -> PackedBatch:
    return PackedBatch.to_embed(SENTENCES, rows, None if reset else 0)


def ids_of(words: list[str], bilm: BiLM) -> Tensor:
    by_word = bilm.config.char_cnn is None
    return torch.arange(1, len(words) + 1) if by_word else bilm.token_encoder.ids(words)


def random_state(bilm: BiLM, rows: int) -> BiLMState:
    zeros = bilm.initial_state(rows)
    generator = torch.Generator().manual_seed(rows)
    return BiLMState(*(torch.randn(part.shape, generator=generator) for part in (zeros.h, zeros.c)))


def of_row(state: BiLMState, d: int, row: int) -> State:
    h, c = (part[d, :, row].double().numpy() for part in (state.h, state.c))
    return list(zip(h, c, strict=True))


def assert_close(found: Tensor, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.native(torch.float32)
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_word_vectors_are_those_of_the_definition(config: BiLMConfig) -> None:
    bilm = draw_bilm(config)
    words = block(3, reset=True).words
    ready = prepack(bilm, torch.float32)
    ids = ids_of(words, bilm)
    found = ready.token_encoder(ids)
    oracle = Oracle(bilm)
    assert found.dtype == torch.float32
    assert not found.requires_grad
    assert_close(found, np.array([oracle.word(word.numpy()) for word in ids]))
    for count in (0, 1, 2):
        assert torch.equal(ready.token_encoder(ids[:count]), found[:count])


@pytest.mark.native(torch.float32)
@pytest.mark.parametrize("start", ["zeros", "warm", "carried"])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_layers_are_those_of_the_definition(config: BiLMConfig, start: str) -> None:
    bilm = draw_bilm(config)
    rows = 3
    text = block(3, reset=start != "carried")
    state = random_state(bilm, 1 if start == "warm" else rows) if start != "zeros" else None
    vectors = torch.randn(len(text.words), config.lstm.projection_dim)
    before, begin = (state, None) if start == "carried" else (None, state)
    streams, after = prepack(bilm, torch.float32).run(
        vectors, text.tokens, text.text.packing, before, begin
    )
    oracle = Oracle(bilm)
    states = (
        [tuple(of_row(state, d, row) for d in range(2)) for row in range(rows)]
        if before is not None
        else []
    )

    layers = text.text.unpack(streams)
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
    sentences = example_sentences()[::16]
    text = PackedBatch.to_embed(sentences, 16)
    ready = prepack(bilm, dtype)
    found = ready.run(ready.word_vectors(text.words), text.tokens, text.text.packing)[0]
    with on_specification():
        exact = bilm.double()
        expected = exact.run(exact.word_vectors(text.words), text.tokens, text.text.packing)[0]
    if dtype == torch.float32:
        # The rounding of float32 in a paragraph of some hundred words: 4e-6 for the specification,
        # 1e-5 here.
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=3e-5)
    for layer, of_reference in zip(found, expected, strict=True):
        cosines = torch.cosine_similarity(layer.double(), of_reference.double(), dim=-1)
        assert cosines.mean() > 0.9998
        assert (cosines > 0.9995).double().mean() > 0.99
        both = [torch.cat(list(part), dim=-1).double() for part in (layer, of_reference)]
        assert torch.cosine_similarity(*(part.flatten() for part in both), dim=0) > 0.9995


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("backend_name", ["reference", *FAST_BACKENDS])
def test_every_backend_and_type_prepacks(
    backend_name: str, dtype: torch.dtype, backend: Callable[[str], None]
) -> None:
    backend(backend_name)
    for config in (CONFIGS["as published"], CONFIGS["odd sizes"]):
        bilm = draw_bilm(config).to(torch.float64 if dtype == torch.float64 else torch.float32)
        text = block(3, reset=True)
        ids = ids_of(text.words, bilm)
        prepacked = prepack(bilm, dtype)
        found, state = prepacked.run(prepacked.token_encoder(ids), text.tokens, text.text.packing)
        assert not found.requires_grad
        assert found.dtype == bilm.dtype
        with on_specification(), torch.no_grad():
            exact = bilm.double()
            expected, after = exact.run(exact.token_encoder(ids), text.tokens, text.text.packing)
        tolerance = 0.05 if dtype == torch.bfloat16 else 1e-5
        least = 1e-4 * expected.norm() if dtype == torch.bfloat16 else 0
        assert least <= (found - expected).norm() < tolerance * expected.norm()
        assert (state.c - after.c).norm() <= tolerance * after.c.norm()


def test_errors_are_those_of_the_bilm_which_stays_as_it_is() -> None:
    bilm = draw_bilm(CONFIGS["as published"])
    text = block(3, reset=False)
    before = copy.deepcopy(bilm.state_dict())
    ready = prepack(bilm, torch.float32)
    vectors = torch.randn(len(text.words), 6)
    assert not list(ready.parameters())
    assert all(parameter.requires_grad for parameter in bilm.parameters())
    assert all(map(torch.equal, bilm.state_dict().values(), before.values()))
    for model in (bilm, ready):
        for wrong_call in (
            lambda model: model.run(vectors, text.tokens + len(vectors), text.text.packing),
            lambda model: model.token_encoder(torch.full((2, 50), 300)),
        ):
            with pytest.raises(IndexError):
                wrong_call(model)


def test_prepacked_bilm_is_neither_saved_nor_moved_nor_prepacked_for_another_type() -> None:
    prepacked = prepack(draw_bilm(CONFIGS["as published"]), torch.float32)
    assert prepacked.to(CPU).float() is prepacked  # nothing to do
    assert prepack(prepacked, None) is prepack(prepacked, torch.float32) is prepacked
    calls = [
        lambda: prepacked.to("meta"),
        lambda: nn.ModuleList([prepacked]).half(),
        prepacked.state_dict,
    ]
    for call in (*calls, lambda: prepack(prepacked, torch.bfloat16)):
        with pytest.raises(ValueError, match="prepacked for"):
            call()


# --- Weights that change --------------------------------------------------------------------------


def frozen(config: BiLMConfig = CONFIGS["as published"], seed: int = 1) -> BiLM:
    bilm = draw_bilm(config)
    random_weights(bilm, seed, scale=0.3)
    return bilm.requires_grad_(False)


@torch.no_grad()
def assert_layers(prepacked: PrepackCache, bilm: BiLM) -> Tensor:
    """Layers and state are those of the specification, from zeros and from a state; returns the
    layers.
    """
    ids = bilm.token_encoder.ids(["<S>", "a", "naïve", "a", "x" * 60, "</S>"])[None]
    for state in (None, random_state(bilm, 1)):
        found = prepacked.of(bilm)(ids, state=state)
        with on_specification():
            expected = bilm(ids, state=state)
        for left, right in zip(
            (found.layers, found.state.h), (expected.layers, expected.state.h), strict=True
        ):
            torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-5)
    return found.layers


def one_number(bilm: BiLM) -> None:
    with torch.no_grad():
        bilm.sequence_encoder.stacks[1].layers[1].recurrent_weight[3, 2] += 5.0


def load_others(bilm: BiLM) -> None:
    bilm.load_state_dict(frozen(seed=2).state_dict())


def assign_others(bilm: BiLM) -> None:
    bilm.load_state_dict(frozen(seed=2).state_dict(), assign=True)


def convert_and_back(bilm: BiLM) -> None:
    bilm.bfloat16().float()


def replace_a_parameter(bilm: BiLM) -> None:
    bilm.token_encoder.highways[0].gates.bias = nn.Parameter(torch.ones(80), requires_grad=False)


def learn(bilm: BiLM) -> None:
    bilm.requires_grad_(True)
    for parameter in bilm.parameters():
        parameter.grad = torch.ones_like(parameter)
    torch.optim.SGD(bilm.parameters(), lr=0.1).step()
    bilm.requires_grad_(False)


def past_the_counters(bilm: BiLM) -> None:
    for weight in bilm.parameters():
        weight.data.mul_(1.5)


def one_weight_in_numpy(bilm: BiLM) -> None:
    bilm.sequence_encoder.stacks[1].layers[1].recurrent_weight.numpy()[:, 1:] *= 1.5


CHANGES = [
    *(one_number, load_others, assign_others, convert_and_back, replace_a_parameter, learn),
    *(past_the_counters, one_weight_in_numpy),
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_weights_is_seen(change: Callable[[BiLM], object]) -> None:
    cache = PrepackCache()
    bilm = frozen()
    torch.manual_seed(0)
    before = assert_layers(cache, bilm)
    for _ in range(2):
        change(bilm)
        after = assert_layers(cache, bilm)
    assert not torch.equal(after, before)


def test_what_is_frozen_is_prepacked_once_and_what_learns_runs_itself() -> None:
    cache = PrepackCache()
    bilm = frozen()

    def used() -> BiLM:
        return cache.of(bilm)

    prepacked = used()
    assert prepacked.is_prepacked
    assert used() is prepacked
    with torch.autocast("cpu", torch.bfloat16):
        assert used() is bilm
    assert used().is_prepacked
    bilm.requires_grad_(True)
    assert used() is bilm
    assert bilm.requires_grad_(False) is not used()


@pytest.mark.native(torch.float32)
def test_it_is_no_part_of_a_module_and_takes_many_threads() -> None:
    elmo = Elmo(frozen()).eval()
    ids = batch_to_ids([["a", "naïve"], ["bc"]])
    names = list(elmo.state_dict())
    size = len(pickle.dumps(elmo))
    with torch.inference_mode():
        elmo(ids)
    expected = elmo(ids).representations[0]
    expected.sum().backward()  # after a first call in inference mode
    assert list(elmo.state_dict()) == names
    elmo.zero_grad(set_to_none=True)
    assert len(pickle.dumps(elmo)) == size
    other = copy.deepcopy(elmo)
    assert torch.equal(other(ids).representations[0], expected)
    load_others(other.bilm)
    assert not torch.equal(other(ids).representations[0], expected)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: elmo(ids).representations[0], range(16)))
    assert all(torch.equal(one, expected) for one in found)
