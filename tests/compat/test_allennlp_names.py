"""AllenNLP's names inside `Elmo`: weights chosen, frozen, changed and replaced by them, as AllenNLP
2.10.1 computes.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from allennlp_state import allennlp_state_dict
from torch import Tensor, nn

from elmokit.compat import allennlp

SENTENCES = [
    ["They", "give", "state", "of", "the", "art"],
    ["Another", "."],
    ["the", "the"],
    ["words"],
]
WORDS = ["@@PADDING@@", *sorted({word for sentence in SENTENCES for word in sentence})]


class WordsOnly(nn.Module):
    """A token layer of one's own, with the outputs of AllenNLP's."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(50, 16)
        nn.init.constant_(self.linear.weight, 0.02)
        nn.init.constant_(self.linear.bias, 0.1)

    def forward(self, inputs: Tensor) -> dict[str, Tensor]:
        bounded = nn.functional.pad(inputs / 262, (0, 0, 2, 0), value=1.0)  # both marks come first
        return {"token_embedding": self.linear(bounded), "mask": (bounded > 0).any(-1)}


def unfreeze(elmo: Any, *parts: str) -> None:
    for name, weight in elmo.named_parameters():
        weight.requires_grad = any(part in name for part in parts)


def constant(elmo: Any, name: str, value: float) -> None:
    with torch.no_grad():
        elmo.get_parameter(name).fill_(value)


def hooked(module: nn.Module, inputs: Any, output: dict[str, Tensor]) -> dict[str, Tensor]:
    return {**output, "token_embedding": 2 * output["token_embedding"]}


# What a program does to `Elmo` between its first call and its training.
PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda elmo: None,
    "all weights": lambda elmo: unfreeze(elmo, "_elmo_lstm"),
    "a layer and the projection": lambda elmo: unfreeze(elmo, "forward_layer_1", "_projection"),
    "LSTMs": lambda elmo: elmo._elmo_lstm._elmo_lstm.requires_grad_(True),
    "convolutions": lambda elmo: [
        m.requires_grad_(True) for m in elmo.modules() if isinstance(m, nn.Conv1d)
    ],
    "characters": lambda elmo: (
        elmo._elmo_lstm._token_embedder._char_embedding_weights.requires_grad_(True)
    ),
    "a changed gate": lambda elmo: constant(
        elmo, "_elmo_lstm._elmo_lstm.forward_layer_0.state_linearity.bias", 0.3
    ),
    "changed by module": lambda elmo: nn.init.constant_(
        elmo._elmo_lstm._token_embedder._highways._layers[0].weight, 0.1
    ),
    "changed before it learns": lambda elmo: (
        constant(elmo, "_elmo_lstm._elmo_lstm.backward_layer_1.input_linearity.weight", 0.02),
        unfreeze(elmo, "backward"),
    ),
    "another token layer": lambda elmo: setattr(elmo._elmo_lstm, "_token_embedder", WordsOnly()),
    "a hook": lambda elmo: elmo._elmo_lstm._token_embedder.register_forward_hook(hooked),
}
# The losses of four steps by AllenNLP 2.10.1 with PyTorch 2.13.
LOSSES = {
    "nothing": [0.06249, 0.054884, 0.0482139, 0.0423616],
    "all weights": [0.06249, 0.0358419, 0.0247078, 0.0183568],
    "a layer and the projection": [0.06249, 0.0402725, 0.0289184, 0.0218784],
    "LSTMs": [0.06249, 0.0446395, 0.0344586, 0.0280306],
    "convolutions": [0.06249, 0.0539278, 0.0467626, 0.0407181],
    "characters": [0.06249, 0.0545675, 0.0477375, 0.0418271],
    "a changed gate": [0.0675356, 0.0586721, 0.0509848, 0.044314],
    "changed by module": [0.0876836, 0.0726649, 0.0603268, 0.0501517],
    "changed before it learns": [0.0586455, 0.0526551, 0.0481185, 0.0449329],
    "another token layer": [0.0883235, 0.0464939, 0.0317851, 0.0247722],
    "a hook": [0.1605315, 0.1085447, 0.0757457, 0.0538134],
    "cached words": [0.06249, 0.0586867, 0.0551875, 0.0519907],
}


def losses_of(library: Any, files: Any, program: str) -> list[float]:
    """The mean squares of ELMo's vectors while SGD makes them smaller."""
    elmo = library.Elmo(*files, 1, dropout=0.0)
    ids = library.batch_to_ids(SENTENCES)
    elmo._elmo_lstm._elmo_lstm.stateful = False
    elmo(ids)
    PROGRAMS[program](elmo)
    optimizer = torch.optim.SGD(
        [weight for weight in elmo.parameters() if weight.requires_grad], lr=0.5
    )
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = elmo(ids)["elmo_representations"][0].square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def cached_losses(library: Any, files: Any) -> list[float]:
    """The same with `vocab_to_cache`, whose vectors learn, without the token layer."""
    elmo = library.Elmo(*files, 1, requires_grad=True, dropout=0.0, vocab_to_cache=WORDS)
    elmo._elmo_lstm._elmo_lstm.stateful = False
    del elmo._elmo_lstm._token_embedder
    elmo._elmo_lstm._elmo_lstm.requires_grad_(False)
    rows = [torch.tensor([WORDS.index(word) for word in sentence]) for sentence in SENTENCES]
    ids = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    losses = []
    optimizer = torch.optim.SGD([elmo._elmo_lstm._word_embedding.weight], lr=20.0)
    for _ in range(4):
        optimizer.zero_grad()
        loss = elmo(ids, ids)["elmo_representations"][0].square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.fixture
def golden(goldens: Callable[[str], Path]) -> tuple[Path, Path]:
    return goldens("char-2layer/options.json"), goldens("char-2layer/weights.hdf5")


@pytest.mark.parametrize("program", LOSSES)
def test_weights_learn_and_change_by_their_names_as_in_allennlp(
    program: str, golden: tuple[Path, Path]
) -> None:
    is_cached = program == "cached words"
    found = cached_losses(allennlp, golden) if is_cached else losses_of(allennlp, golden, program)
    assert found == pytest.approx(LOSSES[program], rel=1e-5)


@pytest.mark.parametrize("write", ["half", "shuffle"])
def test_weights_written_through_data_are_seen(golden: tuple[Path, Path], write: str) -> None:
    """PyTorch does not count these; a random control of a pretrained model is made in this way."""
    elmo = allennlp._ElmoBiLm(*golden)
    ids = allennlp.batch_to_ids(SENTENCES)
    elmo._elmo_lstm.stateful = False
    before = elmo(ids)["activations"]
    for weight in elmo.parameters():
        changed = weight.data * 0.5 if write == "half" else weight.data.flip(0)
        weight.data.copy_(changed)
    found = elmo(ids)["activations"]
    assert not torch.allclose(torch.stack(found), torch.stack(before), atol=0.01)
    fresh = allennlp._ElmoBiLm(*golden)
    fresh.load_state_dict(elmo.state_dict())
    torch.testing.assert_close(found, fresh(ids)["activations"])


HOOKS: list[Callable[[Any], Any]] = [
    lambda elmo: elmo._elmo_lstm.forward_layer_1.register_forward_hook(print),
    lambda elmo: elmo._token_embedder.char_conv_0.register_forward_pre_hook(print),
    lambda elmo: elmo._token_embedder._highways.register_full_backward_hook(print),
]
OTHER_MODULES: list[Callable[[Any], Any]] = [
    lambda elmo: setattr(
        elmo._elmo_lstm.forward_layer_0, "state_projection", nn.Sequential(nn.Linear(64, 16))
    ),
    lambda elmo: setattr(elmo._token_embedder._projection, "forward", lambda x: x),
]


@pytest.mark.parametrize("change", [*HOOKS, *OTHER_MODULES])
def test_what_has_no_effect_inside_the_bilm_is_reported_or_refused(
    golden: tuple[Path, Path], change: Callable[[Any], Any]
) -> None:
    elmo = allennlp._ElmoBiLm(*golden)
    ids = allennlp.batch_to_ids(SENTENCES)
    elmo(ids)
    change(elmo)
    if change in HOOKS:
        with pytest.warns(UserWarning, match="not called"):
            elmo(ids)
    else:
        with pytest.raises(allennlp.ConfigurationError):
            elmo(ids)


def test_parametrized_weights_and_other_linear_layers_have_effect(
    golden: tuple[Path, Path],
) -> None:
    elmo = allennlp._ElmoBiLm(*golden)
    ids = allennlp.batch_to_ids(SENTENCES)
    layer = elmo._elmo_lstm.forward_layer_0
    layer.state_projection = other = nn.Linear(64, 16, bias=False)
    elmo(ids)["activations"][2].sum().backward()
    assert other.weight.grad.any()
    nn.utils.parametrizations.weight_norm(layer.input_linearity)
    assert elmo(ids)["activations"][2].requires_grad


def test_the_state_dict_is_that_of_allennlp(golden: tuple[Path, Path]) -> None:
    elmo = allennlp.Elmo(*golden, 1)
    state = elmo.state_dict()
    expected = allennlp_state_dict(golden[1], layers=2, highways=1)
    expected |= {f"scalar_mix_0.scalar_parameters.{number}": torch.zeros(1) for number in range(3)}
    expected["scalar_mix_0.gamma"] = torch.ones(1)
    assert state.keys() == expected.keys()
    for name, weight in expected.items():
        torch.testing.assert_close(state[name], weight, rtol=0, atol=0)
    assert [name for name, _ in elmo.named_parameters()] == list(state)
    assert isinstance(elmo._elmo_lstm._elmo_lstm, allennlp.ElmoLstm)
    encoder = elmo._elmo_lstm._token_embedder
    assert encoder._weight_file == golden[1]
    assert encoder._options["lstm"]["dim"] == 64
    assert elmo._elmo_lstm._word_embedding is None
    assert not elmo._elmo_lstm._requires_grad


def test_a_state_dict_of_any_version_is_loaded(golden: tuple[Path, Path]) -> None:
    ids = allennlp.batch_to_ids(SENTENCES)
    model, expected = (nn.Sequential(allennlp.Elmo(*golden, 1, dropout=0.0)) for _ in range(2))
    model(ids)
    with torch.no_grad():
        for weight in model.parameters():
            weight.fill_(0.3)
        expected[0].scalar_mix_0.gamma.fill_(1.5)
    state = expected.state_dict()
    state["0._elmo_lstm._token_embedder._beginning_of_sentence_characters"] = torch.zeros(50)
    state["0._elmo_lstm._word_embedding.weight"] = torch.zeros(3, 16)
    model[0]._elmo_lstm._elmo_lstm.reset_states()
    model.load_state_dict(state)
    (found,), (known,) = model(ids)["elmo_representations"], expected(ids)["elmo_representations"]
    torch.testing.assert_close(found, known)
    cached = allennlp.Elmo(*golden, 1, vocab_to_cache=["", "a", "b"])
    assert cached._elmo_lstm._word_embedding.weight.any(dim=1).tolist() == [False, True, True]
    cached.load_state_dict({name.removeprefix("0."): weight for name, weight in state.items()})
    assert not cached._elmo_lstm._word_embedding.weight.any()
