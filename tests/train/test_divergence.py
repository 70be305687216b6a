"""When a loss has diverged, written out by hand, and the state of the detection as JSON."""

import json
from math import inf, nan

import pytest

from elmokit.train.divergence import LossMonitor


@pytest.fixture
def monitor() -> LossMonitor:
    """After three intervals, whose smoothed losses are 5, 4.9 and 4.71, so that a loss is high above 5.71."""
    monitor = LossMonitor()
    assert [monitor.has_diverged(loss, 1.0) for loss in (5.0, 4.0, 3.0)] == [False] * 3
    assert monitor.lowest == pytest.approx(4.71) and monitor.is_calm
    return monitor


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([5.70] * 5, [False] * 5),
        ([5.72, 5.72], [False, True]),
        ([9.0, 5.0, 9.0, 9.0], [False, False, False, True]),  # a spike, and later a divergence
        ([nan], [True]),
        ([inf], [True]),
    ],
)
def test_loss_has_diverged_after_two_high_intervals_in_a_row_or_where_it_is_no_number(
    losses: list[float], expected: list[bool], monitor: LossMonitor
) -> None:
    assert [monitor.has_diverged(loss, 1.0) for loss in losses] == expected


@pytest.mark.parametrize("norm", [nan, inf])
def test_gradient_that_is_not_finite_is_a_divergence(norm: float, monitor: LossMonitor) -> None:
    assert monitor.has_diverged(3.0, norm) and not monitor.is_calm


def test_monitor_is_calm_again_after_a_spike_but_not_while_the_smoothed_loss_is_high(monitor: LossMonitor) -> None:
    calm = []
    for loss in (9.0, 5.0, 9.0, 5.0):  # smoothed: 5.14, 5.13, 5.51, 5.46; calm below 4.71 + 0.5
        assert not monitor.has_diverged(loss, 1.0)
        calm.append(monitor.is_calm)
    assert calm == [False, True, False, False]


def test_state_is_restored_from_json(monitor: LossMonitor) -> None:
    monitor.has_diverged(9.0, 1.0)
    for state in (monitor, LossMonitor()):
        written = json.dumps(state.to_dict(), allow_nan=False)
        assert LossMonitor.from_dict(json.loads(written)) == state
