"""The best evaluation so far, and how many came after it."""

import json
from math import nan

from elmokit.train.early_stopping import EarlyStopping


def test_each_new_minimum_improves_and_later_evaluations_are_counted() -> None:
    stopping, counts = EarlyStopping(), []
    for step, (value, is_best) in enumerate([(9.0, 1), (7.0, 1), (7.0, 0), (nan, 0), (8.0, 0), (6.5, 1), (6.6, 0)]):
        assert stopping.improves(value, 10 * step) == bool(is_best)
        counts.append(stopping.evaluations_since)
    assert counts == [0, 0, 1, 2, 3, 0, 1]
    assert stopping == EarlyStopping(best=6.5, best_step=50, evaluations_since=1)


def test_best_of_another_state_is_kept_where_it_is_better() -> None:
    for other, expected in (
        (EarlyStopping(6.5, 50, 1), EarlyStopping(6.5, 50, 0)),
        (EarlyStopping(8.0, 50, 1), EarlyStopping(7.0, 30, 2)),
        (EarlyStopping(), EarlyStopping(7.0, 30, 2)),
    ):
        state = EarlyStopping(7.0, 30, 2)
        state.keep_best_of(other)
        assert state == expected


def test_state_is_restored_from_json() -> None:
    for state in (EarlyStopping(), EarlyStopping(6.5, 50, 1)):
        written = json.dumps(state.to_dict(), allow_nan=False)
        assert EarlyStopping.from_dict(json.loads(written)) == state
