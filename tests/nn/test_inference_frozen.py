"""A frozen biLM that is prepacked: the same as the specification, whatever is done to its weights between calls."""

import copy
import io
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from backends import FAST_BACKENDS, on_specification
from oracle import random_weights
from torch import Tensor, nn

from elmokit.config import BiLMConfig, CharCNNConfig, InterleavedConfig, LSTMConfig
from elmokit.nn.bilm import BiLM, BiLMOutput, BiLMState
from elmokit.nn.elmo import Elmo, batch_to_ids
from elmokit.nn.inference import Frozen
from elmokit.text.characters import encode_sentences

LSTM = LSTMConfig(cell_dim=20, projection_dim=6, cell_clip=1.0, proj_clip=0.8)
AS_PUBLISHED = BiLMConfig(LSTM, CharCNNConfig(4, ((1, 3), (2, 33), (5, 4)), num_highway=1))
WORD_IDS = BiLMConfig(LSTM, None, num_words=30)
JOINED = BiLMConfig(
    None, AS_PUBLISHED.char_cnn, interleaved=InterleavedConfig(cell_dim=20, projection_dim=6, projects_layers=False)
)
SENTENCES = [["<S>", "a", "naïve", "a", "</S>"], ["<S>", "</S>"], ["<S>", "bc", "x" * 60, "词", "d", "e", "</S>"]]

pytestmark = pytest.mark.native(torch.float32)


def draw_bilm(config: BiLMConfig = AS_PUBLISHED, seed: int = 1) -> BiLM:
    bilm = BiLM(config)
    random_weights(bilm, seed, scale=0.3)
    return bilm.requires_grad_(False)


def ids(config: BiLMConfig = AS_PUBLISHED) -> Tensor:
    characters = torch.from_numpy(encode_sentences(SENTENCES)).long()
    return characters if config.char_cnn is not None else characters[..., 1] % 30 * (characters > 0).any(dim=-1)


def random_state(bilm: BiLM) -> BiLMState:
    zeros = bilm.initial_state(len(SENTENCES))
    return BiLMState(*(torch.rand(part.shape) - 0.5 for part in (zeros.h, zeros.c)))


@torch.no_grad()
def run(frozen: Frozen, bilm: BiLM, state: BiLMState | None = None) -> BiLMOutput:
    return frozen.run(bilm, ids(bilm.config), state)


@torch.no_grad()
def assert_is_that_of(bilm: BiLM, found: BiLMOutput, state: BiLMState | None = None) -> None:
    with on_specification():
        expected = bilm(ids(bilm.config), state=state)
    assert torch.equal(found.mask, expected.mask) and not found.layers.requires_grad
    pairs = [(found.layers, expected.layers), (found.state.h, expected.state.h), (found.state.c, expected.state.c)]
    for left, right in pairs:
        torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("config", [AS_PUBLISHED, WORD_IDS], ids=["characters", "words"])
def test_layers_and_state_are_those_of_the_bilm(config: BiLMConfig) -> None:
    frozen, bilm = Frozen(), draw_bilm(config)
    first = run(frozen, bilm)
    assert frozen._prepacked is not None
    assert_is_that_of(bilm, first)
    assert_is_that_of(bilm, run(frozen, bilm, first.state), first.state)
    state = random_state(bilm)
    assert_is_that_of(bilm, run(frozen, bilm, state), state)


def test_weights_are_packed_once() -> None:
    frozen, bilm = Frozen(), draw_bilm()
    first, kept = run(frozen, bilm), frozen._prepacked
    second = run(frozen, bilm)
    assert frozen._prepacked is kept and torch.equal(first.layers, second.layers)


# --- Weights that change -------------------------------------------------------------------------------------------


def optimizer_step(bilm: BiLM) -> None:
    for parameter in bilm.parameters():
        parameter.grad = torch.ones_like(parameter)
    torch.optim.SGD(bilm.parameters(), lr=0.1).step()


def one_number(bilm: BiLM) -> None:
    with torch.no_grad():
        bilm.sequence_encoder.stacks[1].layers[1].recurrent_weight[3, 2] += 5.0


def load_others(bilm: BiLM) -> None:
    bilm.load_state_dict(draw_bilm(seed=2).state_dict())


def assign_others(bilm: BiLM) -> None:
    bilm.load_state_dict(draw_bilm(seed=2).state_dict(), assign=True)


def load_a_part(bilm: BiLM) -> None:
    bilm.token_encoder.load_state_dict(draw_bilm(seed=2).token_encoder.state_dict())


def convert_and_back(bilm: BiLM) -> None:
    bilm.bfloat16().float()


def replace_a_parameter(bilm: BiLM) -> None:
    bilm.token_encoder.highways[0].gates.bias = nn.Parameter(torch.ones(80), requires_grad=False)


def hook(bilm: BiLM) -> None:
    bilm.token_encoder.register_forward_hook(lambda module, inputs, outputs: outputs + 1)


def learn(bilm: BiLM) -> None:
    bilm.requires_grad_(True)
    optimizer_step(bilm)
    bilm.requires_grad_(False)


CHANGES = [
    *(optimizer_step, one_number, load_others, assign_others, load_a_part),
    *(convert_and_back, replace_a_parameter, hook, learn),
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_weights_is_seen(change: Callable[[BiLM], object]) -> None:
    frozen, bilm = Frozen(), draw_bilm()
    before = run(frozen, bilm).layers
    for _ in range(2):
        change(bilm)
        assert_is_that_of(bilm, run(frozen, bilm))
    assert not torch.equal(run(frozen, bilm).layers, before)


# --- What runs itself ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [lambda bilm: bilm.requires_grad_(True), lambda bilm: bilm.double()])
def test_what_learns_or_is_not_faster_runs_itself(change: Callable[[BiLM], BiLM]) -> None:
    frozen, bilm = Frozen(), draw_bilm()
    run(frozen, bilm)
    bilm = change(bilm)
    found = run(frozen, bilm)
    assert frozen._prepacked is None
    with torch.no_grad():
        assert torch.equal(found.layers, bilm(ids()).layers)


@pytest.mark.parametrize("config", [JOINED, AS_PUBLISHED])
def test_other_types_and_encoders_are_prepacked_too(config: BiLMConfig) -> None:
    frozen, bilm = Frozen(), draw_bilm(config)
    assert_is_that_of(bilm, run(frozen, bilm))
    low = bilm.bfloat16()
    with torch.no_grad():
        found = frozen.run(low, ids()).layers
        with on_specification():
            expected = low(ids()).layers
    assert (found - expected).norm() < 0.02 * expected.norm()


def test_forgetting_reads_what_was_written_past_pytorch() -> None:
    frozen, bilm = Frozen(), draw_bilm()
    run(frozen, bilm)
    bilm.sequence_encoder.stacks[1].layers[1].projection_weight.data.mul_(1.5)
    frozen.forget()
    assert_is_that_of(bilm, run(frozen, bilm))


@pytest.mark.parametrize("name", FAST_BACKENDS)
def test_a_backward_pass_may_be_under_autocast(name: str, backend: Callable[[str], None]) -> None:
    """PyTorch advises against it, because its own operations, here those of the mix, then round their gradients."""
    backend(name)
    torch.manual_seed(0)
    elmo, ids = Elmo(BiLM(BiLMConfig.preset("tiny")), freeze=False, dropout=0.0), batch_to_ids([["a", "word"], ["b"]])
    gradients = []
    for enabled in (False, True):
        elmo.zero_grad()
        loss = elmo(ids).representations[0].square().sum()
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            loss.backward()
        gradients.append([weight.grad for weight in elmo.bilm.parameters()])
    torch.testing.assert_close(gradients[1], gradients[0], rtol=0.02, atol=1e-3)


def test_autocast_is_obeyed() -> None:
    frozen, bilm = Frozen(), draw_bilm()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(frozen.run(bilm, ids()).layers, bilm(ids()).layers) and frozen._prepacked is None


def test_gradients_reach_a_state_and_free_what_was_prepared() -> None:
    frozen, bilm = Frozen(), draw_bilm()
    run(frozen, bilm)
    state = random_state(bilm)
    state.h.requires_grad_(True)
    frozen.run(bilm, ids(), state).layers.sum().backward()
    assert state.h.grad is not None and frozen._prepacked is None


def test_a_machine_without_the_products(without_native: None) -> None:
    frozen, bilm = Frozen(), draw_bilm()
    assert_is_that_of(bilm, run(frozen, bilm))
    assert frozen._prepacked is None


# --- In a model ----------------------------------------------------------------------------------------------------


def words() -> Tensor:
    return torch.from_numpy(encode_sentences([sentence[1:-1] for sentence in SENTENCES])).long()


def unprepared(elmo: Elmo) -> Elmo:
    """A copy that runs its biLM as it is."""
    other = copy.deepcopy(elmo)
    other.bilm.register_forward_hook(lambda *_: None)
    return other


def test_mixes_get_the_same_gradients() -> None:
    elmo = Elmo(draw_bilm(), num_mixes=2, dropout=0.0)
    other = unprepared(elmo)
    for model in (elmo, other):
        for number, representation in enumerate(model(words()).representations):
            (representation.square().sum() * (number + 1)).backward()
    assert elmo._frozen._prepacked is not None and other._frozen._prepacked is None
    for left, right in zip(elmo.mixes.parameters(), other.mixes.parameters(), strict=True):
        assert left.grad is not None and left.grad.any()
        torch.testing.assert_close(left.grad, right.grad, rtol=1e-5, atol=1e-5)


def test_mixes_learn_after_a_first_call_in_inference_mode() -> None:
    elmo = Elmo(draw_bilm())
    with torch.inference_mode():
        elmo(words())
    elmo(words()).representations[0].sum().backward()
    assert elmo.mixes[0].gamma.grad is not None


def test_a_model_that_is_tuned_between_evaluations() -> None:
    elmo = Elmo(draw_bilm(), freeze=False, dropout=0.0)
    optimizer = torch.optim.SGD(elmo.parameters(), lr=0.05)
    for _ in range(2):
        elmo(words()).representations[0].square().sum().backward()
        optimizer.step()
        with torch.no_grad():
            found, expected = (model(words()).representations[0] for model in (elmo, unprepared(elmo)))
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_it_is_no_part_of_the_state() -> None:
    elmo = Elmo(draw_bilm()).eval()
    names, size = list(elmo.state_dict()), len(pickle.dumps(elmo))
    expected = elmo(words()).representations[0]
    assert list(elmo.state_dict()) == names and len(pickle.dumps(elmo)) == size
    file = io.BytesIO()
    torch.save(elmo, file)
    file.seek(0)
    for other in (copy.deepcopy(elmo), pickle.loads(pickle.dumps(elmo)), torch.load(file, weights_only=False)):
        assert other._frozen._prepacked is None
        assert torch.equal(other(words()).representations[0], expected)


def test_a_copy_goes_its_own_way() -> None:
    elmo = Elmo(draw_bilm()).eval()
    expected = elmo(words()).representations[0]
    other = copy.deepcopy(elmo)
    load_others(other.bilm)
    assert not torch.equal(other(words()).representations[0], expected)
    assert torch.equal(elmo(words()).representations[0], expected)


def test_many_threads() -> None:
    elmo = Elmo(draw_bilm()).eval()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: elmo(words()).representations[0], range(16)))
    assert all(torch.equal(one, found[0]) for one in found)
