"""JSON that anyone may have written: read within bounds, and checked against types."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from elmokit.fs.json_files import from_json, read_json


@dataclass(frozen=True)
class Inner:
    size: int
    rate: float = 1.0


@dataclass(frozen=True)
class Outer:
    name: str | None
    kind: Literal["a", "b"]
    inner: Inner
    pairs: tuple[tuple[int, int], ...] = ()
    rows: list[list[str]] = field(default_factory=list)
    free: dict[str, Any] = field(default_factory=dict)
    flag: bool = False
    column: str | int | None = None
    counts: dict[Literal["x", "y"], int] = field(default_factory=dict)


VALID = {
    "name": None, "kind": "b", "inner": {"size": 3, "rate": 2}, "pairs": [[1, 2], [3, 4]], "rows": [["x"], []],
    "free": {"any": [None]}, "flag": True,
}  # fmt: skip


def test_valid_values_become_the_dataclass() -> None:
    outer = from_json(Outer, VALID)
    assert outer == Outer(None, "b", Inner(3, 2.0), ((1, 2), (3, 4)), [["x"], []], {"any": [None]}, True)
    assert isinstance(outer.inner.rate, float)
    assert [from_json(Outer, VALID | {"column": value}).column for value in ("upos", 3, None)] == ["upos", 3, None]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": 3}, "it.name must be str"),
        ({"kind": "c"}, "it.kind must be one of"),
        ({"inner": []}, "it.inner must be an object"),
        ({"inner": {}}, "it.inner: missing or unknown settings size"),
        ({"inner": {"size": 3, "other": 1}}, "unknown settings other"),
        ({"inner": {"size": True}}, "it.inner.size must be int, not True"),
        ({"inner": {"size": 3.0}}, "it.inner.size must be int"),
        ({"inner": {"size": 1 << 63}}, "it.inner.size must be int"),
        ({"inner": {"size": 3, "rate": float("inf")}}, "it.inner.rate must be float"),
        ({"pairs": [[1, 2], [3]]}, r"it.pairs\[1\] must be"),
        ({"pairs": "12"}, "it.pairs must be"),
        ({"column": 1.5}, "it.column must be int"),
        ({"rows": [["x", None]]}, r"it.rows\[0\]\[1\] must be str"),
        ({"free": 3}, "it.free must be"),
        ({"flag": 1}, "it.flag must be bool"),
        ({"counts": {"x": "1"}}, "it.counts.x must be int"),
        ({"counts": {"z": 1}}, "a key of it.counts must be one of x, y, not 'z'"),
    ],
)
def test_wrong_values_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_json(Outer, VALID | changes)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[" * 100_000, "nested too deeply|JSON|Expecting"),
        (b"{", "Expecting"),
        (b"[NaN]", "NaN, which is not JSON"),
        (b'"\xff"', "can't decode"),
        (b"1" * 5000, "digits"),
        (b"[" + b" " * 9999 + b"]", "more than 9,000 bytes"),
    ],
)
def test_damaged_json_is_a_value_error(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_json(tmp_path / "a.json", max_bytes=9000 if len(content) == 10_001 else 1 << 20)


def test_pipe_or_device_is_refused_unread(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero", tmp_path):
        with pytest.raises(ValueError, match="is not a regular file"):
            read_json(path)
    with pytest.raises(FileNotFoundError, match=r"missing\.json"):
        read_json(tmp_path / "missing.json")
