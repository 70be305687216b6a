"""Carried state: rows keep theirs, new rows start from zeros, rows can be reset."""

import torch

from elmokit.compat.shared import CarriedStates
from elmokit.nn.bilm import BiLMState

CPU = torch.device("cpu")


def state(*values: float) -> BiLMState:
    """A state whose row k is filled with values[k]."""
    rows = torch.tensor([*map(float, values)], requires_grad=True).view(1, 1, -1, 1)
    return BiLMState(rows.expand(2, 3, -1, 4).clone(), rows.expand(2, 3, -1, 5).clone())


def rows_of(result: BiLMState | None) -> list[float]:
    assert result is not None and not result.h.requires_grad
    assert (result.h == result.h[:1, :1, :, :1]).all() and (result.c[..., :1] == result.h[..., :1]).all()
    return result.h[0, 0, :, 0].tolist()


def test_carried_states_keep_unused_rows_and_extend_with_zeros() -> None:
    states = CarriedStates()
    assert states.initial(2, CPU) is None
    states.update(state(1, 2, 3))
    assert rows_of(states.initial(2, CPU)) == [1, 2]
    states.update(state(7))
    assert rows_of(states.initial(5, CPU)) == [7, 2, 3, 0, 0]
    states.reset_states(torch.tensor([False, True, False]))
    assert rows_of(states.initial(3, CPU)) == [7, 0, 3]
    states.reset_states()
    assert states.initial(3, CPU) is None
    states.stateful = False
    states.update(state(1))
    assert states.initial(1, CPU) is None
