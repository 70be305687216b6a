"""The one validator of settings: types, ranges and choices, of dataclasses and of what is read from
JSON.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pytest

from elmokit.settings import (
    Above,
    Below,
    Between,
    Count,
    DropoutRate,
    Fraction,
    Positive,
    check,
    conform,
)


@dataclass(frozen=True)
class Inner:
    size: int
    rate: float = 1.0


@dataclass(frozen=True)
class Outer:
    kinds: ClassVar[str] = "no setting"

    name: str | None
    kind: Literal["a", "b"]
    inner: Inner
    pairs: tuple[tuple[int, int], ...] = ()
    rows: list[list[str]] = field(default_factory=list)
    free: dict[str, Any] = field(default_factory=dict)
    flag: bool = False
    column: str | int | None = None
    counts: dict[Literal["x", "y"], int] = field(default_factory=dict)
    batch_size: Count = 32
    limit: Count | None = None
    dropout: DropoutRate = 0.5
    share: Fraction = 1.0
    hours: Positive | None = None
    odd: Annotated[int, Above(2), Below(9)] = 3
    choice: Literal["c", None] | float = "c"
    files: tuple[Path, ...] = ()
    other: Inner | None = None

    def __post_init__(self) -> None:
        check(self)


VALID = {
    "name": None,
    "kind": "b",
    "inner": {"size": 3, "rate": 2},
    "pairs": [[1, 2], [3, 4]],
    "rows": [["x"], []],
    "free": {"any": [None]},
    "flag": True,
}


def test_values_become_the_dataclass() -> None:
    outer = conform(Outer, VALID)
    assert outer == Outer(
        None, "b", Inner(3, 2.0), ((1, 2), (3, 4)), [["x"], []], {"any": [None]}, True
    )
    assert isinstance(outer.inner.rate, float)
    assert conform(Outer, VALID | {"other": {"size": 1}}).other == Inner(1)


@pytest.mark.parametrize(
    ("setting", "value", "expected"),
    [
        ("column", "upos", "upos"),
        ("column", np.int64(3), 3),
        ("batch_size", np.int32(1), 1),
        ("limit", (1 << 63) - 1, (1 << 63) - 1),
        ("dropout", np.float32(0.25), 0.25),
        ("choice", 3, 3.0),
        ("choice", None, None),
        ("files", "a.txt", (Path("a.txt"),)),
        ("files", ["a", Path("b")], (Path("a"), Path("b"))),
    ],
)
def test_values_are_converted(setting: str, value: Any, expected: Any) -> None:
    found = getattr(conform(Outer, VALID | {setting: value}), setting)
    assert (found, type(found)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": 3}, "it.name must be a string, not 3"),
        ({"kind": "c"}, "it.kind must be one of a, b, not 'c'"),
        ({"inner": []}, "it.inner must be an object"),
        ({"inner": {"size": 3, "other": 1}}, "unknown settings other"),
        ({"inner": {"size": True}}, "it.inner.size must be an integer, not True"),
        ({"inner": {"size": 1 << 63}}, "it.inner.size must be an integer"),
        ({"inner": {"size": 3, "rate": float("inf")}}, "it.inner.rate must be a finite number"),
        ({"inner": {"size": 3, "rate": 10**400}}, "it.inner.rate must be a finite number"),
        ({"pairs": [[1, 2], [3]]}, r"it.pairs\[1\] must be a list"),
        ({"column": 1.5}, "it.column must be a string or an integer or none, not 1.5"),
        ({"rows": [["x", None]]}, r"it.rows\[0\]\[1\] must be a string"),
        ({"flag": 1}, "it.flag must be true or false"),
        ({"counts": {"x": "1"}}, "it.counts.x must be an integer"),
        ({"counts": {"z": 1}}, "a key of it.counts must be one of x, y, not 'z'"),
        ({"batch_size": 0}, "batch_size must be at least 1, not 0"),
        ({"dropout": 1}, "dropout must be at least 0 and below 1, not 1"),
        ({"share": 1.5}, "share must be from 0 to 1, not 1.5"),
        ({"hours": 0}, "hours must be above 0, not 0"),
        ({"odd": 9}, "odd must be above 2 and below 9, not 9"),
        ({"choice": "d"}, "choice must be one of c, None or a finite number, not 'd'"),
    ],
)
def test_wrong_values_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        conform(Outer, VALID | changes)


def test_dataclass_checks_what_it_is_constructed_with() -> None:
    with pytest.raises(ValueError, match=r"^batch_size must be at least 1, not 0$"):
        Outer(None, "a", Inner(1), batch_size=0)
    assert Outer(None, "a", Inner(1), pairs=[[1, 2]]).pairs == ((1, 2),)  # type: ignore[arg-type]


def test_single_argument_is_checked_against_a_type() -> None:
    assert conform(Annotated[int, Between(1, 2)], 2, "sides") == 2
    with pytest.raises(ValueError, match="sides must be from 1 to 2, not 3"):
        conform(Annotated[int, Between(1, 2)], 3, "sides")
