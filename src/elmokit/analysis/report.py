"""Results of analyses: frozen dataclasses that print as a table, and convert to JSON."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np


def table(header: Sequence[str], rows: Iterable[Sequence[str]], note: str = "") -> str:
    """Lines of text with aligned columns, the first to the left and others to the right, and a note
    in parentheses.
    """
    lines = [header, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    texts = [
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip()
        for line in lines
    ]
    return "\n".join([*texts, f"({note})"] if note else texts)


def as_json(value: Any) -> Any:
    """A value as JSON values; dataclasses and named tuples as objects of their fields."""
    if hasattr(value, "to_json"):
        return value.to_json()
    if is_dataclass(value):
        return {field.name: as_json(getattr(value, field.name)) for field in fields(value)}
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return {key: as_json(item) for key, item in value.items()}
    return list(map(as_json, value)) if isinstance(value, list | tuple) else value


class Report:
    """The base of results, dataclasses without a `__repr__` of their own, so that a notebook shows
    the table.
    """

    def __repr__(self) -> str:
        return str(self)

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return {field.name: as_json(getattr(self, field.name)) for field in fields(self)}  # pyright: ignore
