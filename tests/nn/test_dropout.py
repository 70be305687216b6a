"""Dropout with cheap random numbers: how often, how much larger, where, and its gradient."""

import math

import pytest
import torch

from elmokit.nn.bidirectional import LEVELS, apply_dropout


@pytest.mark.parametrize("probability", [0.1, 0.25, 0.5, 0.9])
def test_as_many_values_fall_as_asked_for_and_the_mean_stays(probability: float) -> None:
    torch.manual_seed(0)
    x = torch.ones(3, 257, 333)  # whose number is not a multiple of four
    found = apply_dropout(x, probability)
    count = x.numel()
    spread = math.sqrt(probability * (1 - probability) / count)
    assert abs(int((found == 0).sum()) / count - probability) < 5 * spread + 1 / LEVELS
    larger = found[found != 0]
    torch.testing.assert_close(
        larger, torch.full_like(larger, 1 / (1 - probability)), atol=0, rtol=1e-3
    )
    assert abs(float(found.mean()) - 1) < 5 * spread / (1 - probability)


def test_neighbours_fall_independently() -> None:
    """Four values share a draw: any two of them fall together as often as chance has it."""
    torch.manual_seed(1)
    fallen = (apply_dropout(torch.ones(100_000, 4), 0.5) == 0).double()
    together = fallen.T @ fallen / len(fallen)
    expected = torch.full((4, 4), 0.25, dtype=torch.float64).fill_diagonal_(0.5)
    torch.testing.assert_close(together, expected, atol=0.01, rtol=0)


def test_the_gradient_is_what_the_values_were_multiplied_by() -> None:
    x = torch.rand(50, 7, dtype=torch.float64).add_(1).requires_grad_()
    found = apply_dropout(x, 0.3)
    found.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, (found / x).detach())
    assert 0 < int((x.grad == 0).sum()) < x.numel()


@pytest.mark.parametrize("probability", [-0.1, 1.0, 50, math.nan])
def test_what_is_no_probability_is_refused(probability: float) -> None:
    with pytest.raises(ValueError, match="at least 0 and below 1"):
        apply_dropout(torch.ones(3), probability)
