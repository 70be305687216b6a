"""When a training is over, and when its learning rate is halved."""

import pytest

from elmokit.tasks.report import Epoch
from elmokit.tasks.training import unimproved


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([], 0),
        ([0.5], 0),
        ([0.5, 0.6, 0.6, 0.4], 2),
        ([0.0, 0.0, 0.0], 0),  # not one span is found yet
        ([0.7, 0.7, 0.7, 0.6, 0.7], 2),  # of the changes since the third epoch
        ([0.0, 0.0, 0.3], 0),
        ([1.0, 1.0, 1.0], 2),  # nothing is left to learn
    ],
)
def test_unimproved_epochs_count_from_the_first_change_of_the_score(scores: list[float], expected: int) -> None:
    assert unimproved([Epoch(1.0, {"f1": score}, 0.1, 1.0) for score in scores], "f1") == expected
