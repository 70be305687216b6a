"""Validates dataclass fields against their annotations.

    @dataclass(frozen=True)
    class NetworkConfig:
        hidden_dim: Count = 200
        dropout: DropoutRate = 0.5
        sides: Annotated[int, Between(1, 2)] = 2
        mix: Literal["learned", "uniform"] = "learned"

        def __post_init__(self) -> None:
            check(self)

`conform(NetworkConfig, values)` converts JSON values to such a dataclass.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

MAX_INTEGER = 1 << 63  # an integer must fit 64 bits: JSON has larger ones


@dataclasses.dataclass(frozen=True)
class Range:
    """A range of allowed numbers, in words and as a function."""

    words: str
    allows: Callable[[float], bool]


def AtLeast(limit: float) -> Range:
    """The number is `limit` or more."""
    return Range(f"at least {limit}", lambda number: number >= limit)


def Above(limit: float) -> Range:
    """The number is more than `limit`."""
    return Range(f"above {limit}", lambda number: number > limit)


def Below(limit: float) -> Range:
    """The number is less than `limit`."""
    return Range(f"below {limit}", lambda number: number < limit)


def Between(lowest: float, highest: float) -> Range:
    """The number is from `lowest` to `highest`, both included."""
    return Range(f"from {lowest} to {highest}", lambda number: lowest <= number <= highest)


Count: TypeAlias = Annotated[int, AtLeast(1)]
CountOrZero: TypeAlias = Annotated[int, AtLeast(0)]
Positive: TypeAlias = Annotated[float, Above(0)]
NonNegative: TypeAlias = Annotated[float, AtLeast(0)]
Fraction: TypeAlias = Annotated[float, Between(0, 1)]
DropoutRate: TypeAlias = Annotated[float, AtLeast(0), Below(1)]
# The state of the LSTMs at the start of a sentence: zeros, the model's stored warm state, or
# carried over from the end of the previous sentence.
StatePolicy: TypeAlias = Literal["zeros", "warm", "carry"]
StorageDtype: TypeAlias = Literal["float32", "float16"]  # of vectors and weights on disk

_NAMES: dict[Any, str] = {
    str: "a string",
    bool: "true or false",
    int: "an integer",
    float: "a finite number",
    NoneType: "none",
    list: "a list",
    tuple: "a list",
    Path: "a path",
}


@cache
def _fields(kind: type) -> dict[str, Any]:
    """The type of each field of a dataclass."""
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _describe(kind: Any) -> str:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _describe(arguments[0])
    if origin is Literal:
        return f"one of {', '.join(map(str, arguments))}"
    if origin in (Union, UnionType):
        return " or ".join(map(_describe, arguments))
    if origin is dict or dataclasses.is_dataclass(kind):
        return "an object with settings"
    return _NAMES.get(origin or kind, str(kind))


def _conform_number(kind: type, value: Any) -> int | float | None:
    """Convert a number to Python's; None if it has another type, or is not finite."""
    if isinstance(value, bool) or not isinstance(value, Integral if kind is int else Real):
        return None
    number = int(value) if isinstance(value, Integral) else float(value)
    if not abs(number) < (
        MAX_INTEGER if kind is int else sys.float_info.max
    ):  # not true of NaN either
        return None
    return kind(number)


def _conform_object(kind: Any, values: dict[str, Any], name: str) -> Any:
    """Build a dataclass from the values of its fields."""
    fields = _fields(kind)
    required = {
        field.name
        for field in dataclasses.fields(kind)
        if field.default is field.default_factory is dataclasses.MISSING
    }
    if wrong := sorted(map(str, (required - values.keys()) | (values.keys() - fields.keys()))):
        raise ValueError(f"{name}: missing or unknown settings {', '.join(wrong[:9])}")
    return kind(
        **{key: conform(fields[key], value, f"{name}.{key}") for key, value in values.items()}
    )


def conform(kind: Any, value: Any, name: str = "it") -> Any:
    """Check a value against a type, recursively, and convert it where the type says so.

    Args:
        kind: str, bool, int (64 bits), float (finite), Path, Any, another class, Literal, X | Y, X
            | None, list[X], tuple[X, ...], tuple[X, Y], dict[X, Y], a dataclass, or `Annotated` of
            these with ranges (`AtLeast`, `Above`, `Below`, `Between`).
        value: A setting, or what was read from JSON.
        name: The name of the value, for error messages.

    Returns:
        The value. Numbers of NumPy become Python's, lists tuples and strings paths where the type
        is one; objects, as dictionaries, become dataclasses.

    Raises:
        ValueError: It is something else, out of range, or a dataclass rejects it; the message names
            it.
    """
    origin: Any = get_origin(kind)
    arguments = get_args(kind)
    if kind is Any:
        return value
    if origin is Annotated:
        value = conform(arguments[0], value, name)
        ranges = [limit for limit in arguments[1:] if isinstance(limit, Range)]
        if value is not None and not all(limit.allows(value) for limit in ranges):
            words = " and ".join(limit.words for limit in ranges)
            raise ValueError(f"{name} must be {words}, not {value!r}")
        return value
    if origin in (Union, UnionType):
        if value is None and NoneType in arguments:
            return None
        choices = [choice for choice in arguments if choice is not NoneType]
        if len(choices) == 1:  # whose message says more
            return conform(choices[0], value, name)
        for choice in choices:
            with suppress(ValueError):
                return conform(choice, value, name)
    elif origin in (list, tuple):
        if arguments == (Path, ...) and isinstance(value, str | Path):
            value = [value]  # one file in place of several
        if isinstance(value, list | tuple):
            is_of_fixed_length = origin is tuple and ... not in arguments
            kinds = arguments if is_of_fixed_length else arguments[:1] * len(value)
            if len(kinds) == len(value):
                numbered = enumerate(zip(kinds, value, strict=True))
                return origin(conform(kind, item, f"{name}[{i}]") for i, (kind, item) in numbered)
    elif origin is dict:
        if isinstance(value, dict):
            key_kind, kind = arguments
            return {
                conform(key_kind, key, f"a key of {name}"): conform(kind, item, f"{name}.{key}")
                for key, item in value.items()
            }
    elif origin is Literal:
        if any(value == choice and type(value) is type(choice) for choice in arguments):
            return value
    elif kind in (int, float):
        if (number := _conform_number(kind, value)) is not None:
            return number
    elif kind is Path and isinstance(value, str | Path):
        return Path(os.path.expanduser(value))
    elif dataclasses.is_dataclass(kind) and isinstance(value, dict):
        return _conform_object(kind, value, name)
    elif isinstance(value, kind):
        return value
    raise ValueError(f"{name} must be {_describe(kind)}, not {value!r:.60}")


def check(config: Any) -> None:
    """Check the fields of a frozen dataclass against their annotations, in its `__post_init__`.

    Args:
        config: The dataclass. Settings are converted as by `conform`.

    Raises:
        ValueError: A setting is not what its annotation says; the message names it.
    """
    for name, kind in _fields(type(config)).items():
        value = getattr(config, name)
        if value is not getattr(type(config), name, dataclasses.MISSING):  # its default
            object.__setattr__(config, name, conform(kind, value, name))
