"""Carried state: rows keep theirs, new rows start from zeros, rows can be reset."""

import pytest
import torch

from elmokit.compat.carried import CarriedStates, without_boundaries
from elmokit.nn.bilm import BiLMState

CPU = torch.device("cpu")


def state(*values: float) -> BiLMState:
    """A state whose row k is filled with values[k]."""
    rows = torch.tensor(values).view(1, 1, -1, 1)
    return BiLMState(rows.expand(2, 3, -1, 4).clone(), rows.expand(2, 3, -1, 5).clone())


def rows_of(result: BiLMState | None) -> list[float]:
    assert result is not None
    assert (result.h == result.h[:1, :1, :, :1]).all() and (result.c[..., :1] == result.h[..., :1]).all()
    return result.h[0, 0, :, 0].tolist()


def test_carried_states_keep_unused_rows_and_extend_with_zeros() -> None:
    states = CarriedStates()
    assert states.initial(2, CPU) is None
    states.update(state(1, 2, 3))
    assert rows_of(states.initial(2, CPU)) == [1, 2]
    states.update(state(7))
    assert rows_of(states.initial(5, CPU)) == [7, 2, 3, 0, 0]


def test_carried_states_reset_some_or_all_rows() -> None:
    states = CarriedStates()
    states.update(state(1, 2, 3))
    states.reset_states(torch.tensor([False, True, False]))
    assert rows_of(states.initial(3, CPU)) == [1, 0, 3]
    with pytest.raises(ValueError, match=r"must have the shape \(3,\)"):
        states.reset_states(torch.tensor([True]))
    states.reset_states()
    assert states.initial(3, CPU) is None


def test_carried_states_without_stateful_stay_zero() -> None:
    states = CarriedStates(stateful=False)
    states.update(state(1))
    assert states.initial(1, CPU) is None


def test_carried_states_are_detached() -> None:
    states, after = CarriedStates(), state(1.0)
    states.update(BiLMState(after.h.requires_grad_(), after.c.requires_grad_()))
    begun = states.initial(1, CPU)
    assert begun is not None and not begun.h.requires_grad


def test_without_boundaries_zeroes_padding() -> None:
    mask = torch.tensor([[True, True, True, True], [True, True, True, False]])
    layers, inner = without_boundaries(torch.ones(3, 2, 4, 5), mask)
    assert inner.tolist() == [[True, True], [True, False]]
    assert torch.equal(layers, inner.unsqueeze(-1).expand(3, 2, 2, 5).float())
