"""Untrusted JSON files: limited in size and depth, and checked against a dataclass."""

from __future__ import annotations

import dataclasses
import json
import math
import types
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from elmokit.fs.reading import open_regular

MAX_BYTES = 1 << 26
MAX_INTEGER = 1 << 63

T = TypeVar("T")


def _refuse(constant: str) -> Any:
    raise ValueError(f"it holds {constant}, which is not JSON")


def read_json(path: str | Path, max_bytes: int = MAX_BYTES) -> Any:
    """Read a file of JSON in UTF-8.

    Args:
        path: A regular file.
        max_bytes: A larger file is refused.

    Returns:
        The value: dictionaries, lists, strings, numbers, booleans and None.

    Raises:
        FileNotFoundError: The file is missing.
        ValueError: It is not a regular file, too large, not JSON, or nested too deeply.
    """
    with open_regular(path) as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError(f"it has more than {max_bytes:,} bytes")
    try:
        return json.loads(content.decode("utf-8", "surrogatepass"), parse_constant=_refuse)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def is_json_object(line: str) -> bool:
    """Whether a line of text is a JSON object that is not empty, as in JSON Lines."""
    try:
        return line.lstrip().startswith("{") and bool(json.loads(line))
    except (ValueError, RecursionError):
        return False


def _dataclass_from_json(kind: type[T], value: Any, name: str) -> T:
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be an object, not {value!r:.60}")
    hints, fields = get_type_hints(kind), dataclasses.fields(kind)  # pyright: ignore[reportArgumentType]
    required = {
        field.name
        for field in fields
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }
    if wrong := sorted((required - value.keys()) | (value.keys() - hints.keys())):
        raise ValueError(f"{name}: missing or unknown settings {', '.join(map(str, wrong[:9]))}")
    return kind(**{key: from_json(hints[key], item, f"{name}.{key}") for key, item in value.items()})


def _is_scalar(kind: type, value: Any) -> bool:
    """Whether a value is a str, bool, int within 64 bits or finite float, whichever `kind` is."""
    if kind in (str, bool):
        return isinstance(value, kind)
    if kind is float and isinstance(value, float):
        return math.isfinite(value)
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    return kind in (int, float) and is_integer and abs(value) < MAX_INTEGER


def from_json(kind: Any, value: Any, name: str = "it") -> Any:
    """Convert a value that was read from JSON to a type, and check it recursively.

    Args:
        kind: A dataclass, whose fields are the keys of an object, or the type of such a field: str, int (64 bits),
            float (finite), bool, Any, Literal, X | Y, X | None, list[X], tuple[X, ...], tuple[X, Y], dict[str, X],
            dict[Literal, X].
        value: The result of `read_json`, or a value in it.
        name: The name of the value, for error messages.

    Returns:
        The value; objects become dataclasses, and lists tuples, as the type requires.

    Raises:
        ValueError: A value has another type, or a dataclass rejects it; the message names the key.
    """
    origin: Any = get_origin(kind)
    arguments = get_args(kind)
    if kind is Any:
        return value
    if dataclasses.is_dataclass(kind):
        return _dataclass_from_json(kind, value, name)  # pyright: ignore[reportArgumentType]
    if origin in (Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        *others, last = (argument for argument in arguments if argument is not type(None))
        for each in others:
            with suppress(ValueError):
                return from_json(each, value, name)
        return from_json(last, value, name)
    if origin in (list, tuple) and isinstance(value, list):
        kinds = arguments if origin is tuple and ... not in arguments else arguments[:1] * len(value)
        if len(kinds) == len(value):
            return origin(from_json(kinds[i], item, f"{name}[{i}]") for i, item in enumerate(value))
    if origin is dict and isinstance(value, dict):
        return {
            from_json(arguments[0], key, f"a key of {name}"): from_json(arguments[1], item, f"{name}.{key}")
            for key, item in value.items()
        }
    if origin is Literal and any(value == choice and type(value) is type(choice) for choice in arguments):
        return value
    if _is_scalar(kind, value):
        return float(cast(float, value)) if kind is float else value
    expected = f"one of {', '.join(map(str, arguments))}" if origin is Literal else getattr(kind, "__name__", str(kind))
    raise ValueError(f"{name} must be {expected}, not {value!r:.60}")
