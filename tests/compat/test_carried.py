"""The hidden state: rows keep theirs, grow from zeros, and can be reset one by one."""

import pytest
import torch

from elmokit.compat.carried import CarriedStates, without_boundaries
from elmokit.nn.bilm import BiLMState

CPU = torch.device("cpu")


def state(*values: float) -> BiLMState:
    """A state whose row k is full of values[k]."""
    rows = torch.tensor(values).view(1, 1, -1, 1)
    return BiLMState(rows.expand(2, 3, -1, 4).clone(), rows.expand(2, 3, -1, 5).clone())


def rows_of(found: BiLMState | None) -> list[float]:
    assert found is not None
    assert (found.h == found.h[:1, :1, :, :1]).all() and (found.c[..., :1] == found.h[..., :1]).all()
    return found.h[0, 0, :, 0].tolist()


def test_a_smaller_batch_leaves_the_other_rows_as_they_are_and_a_larger_one_adds_zeros() -> None:
    states = CarriedStates()
    assert states.initial(2, CPU) is None
    states.update(state(1, 2, 3))
    assert rows_of(states.initial(2, CPU)) == [1, 2]
    states.update(state(7))
    assert rows_of(states.initial(5, CPU)) == [7, 2, 3, 0, 0]


def test_rows_are_reset_one_by_one_or_all_together() -> None:
    states = CarriedStates()
    states.update(state(1, 2, 3))
    states.reset_states(torch.tensor([False, True, False]))
    assert rows_of(states.initial(3, CPU)) == [1, 0, 3]
    with pytest.raises(ValueError, match=r"must have the shape \(3,\)"):
        states.reset_states(torch.tensor([True]))
    states.reset_states()
    assert states.initial(3, CPU) is None


def test_without_state_nothing_is_kept() -> None:
    states = CarriedStates(stateful=False)
    states.update(state(1))
    assert states.initial(1, CPU) is None


def test_gradients_are_not_carried() -> None:
    states, after = CarriedStates(), state(1.0)
    states.update(BiLMState(after.h.requires_grad_(), after.c.requires_grad_()))
    begun = states.initial(1, CPU)
    assert begun is not None and not begun.h.requires_grad


def test_boundaries_are_cut_off_and_padding_is_zero() -> None:
    mask = torch.tensor([[True, True, True, True], [True, True, True, False]])
    layers, inner = without_boundaries(torch.ones(3, 2, 4, 5), mask)
    assert inner.tolist() == [[True, True], [True, False]]
    assert torch.equal(layers, inner.unsqueeze(-1).expand(3, 2, 2, 5).float())
