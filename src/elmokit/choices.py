"""A run-time check of settings typed as Literal, which type checkers alone would enforce."""

from typing import Literal, get_args, get_origin, get_type_hints


def check_choices(config: object) -> None:
    """ValueError if a field of `config` typed as a Literal, or a Literal | None, has none of its values."""
    for name, kind in get_type_hints(type(config)).items():
        literals = [each for each in (kind, *get_args(kind)) if get_origin(each) is Literal]
        choices = [choice for literal in literals for choice in get_args(literal)]
        value, may_be_none = getattr(config, name), type(None) in get_args(kind)
        if choices and value not in choices and not (value is None and may_be_none):
            raise ValueError(f"{name} must be one of {', '.join(map(str, choices))}, not {value!r}")
