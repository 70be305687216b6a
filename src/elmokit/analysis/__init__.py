"""Measuring and exploring the vectors: similarity, neighbors, probes, clusters of a word's uses.

The results of analyses are frozen dataclasses that print as a table, and convert to JSON.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any


def table(header: Sequence[str], rows: Iterable[Sequence[str]], note: str = "") -> str:
    """Lines with aligned columns, the first to the left, the others to the right; then a note."""
    lines = [header, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    texts = []
    for first, *others in lines:
        cells = [first.ljust(widths[0]), *map(str.rjust, others, widths[1:])]
        texts.append("  ".join(cells).rstrip())
    return "\n".join([*texts, f"({note})"] if note else texts)


def as_json(value: Any) -> Any:
    """A value as JSON values; dataclasses and named tuples as objects of their fields."""
    if hasattr(value, "to_json"):
        return value.to_json()
    if is_dataclass(value):
        return {field.name: as_json(getattr(value, field.name)) for field in fields(value)}
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {key: as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return list(map(as_json, value))
    return value.tolist() if hasattr(value, "tolist") else value  # NumPy's arrays and numbers


class Report:
    """The base of results, which a notebook shows as what they print."""

    def __repr__(self) -> str:
        return str(self)

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return {field.name: as_json(getattr(self, field.name)) for field in fields(self)}  # pyright: ignore
