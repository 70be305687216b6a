"""Libraries that are optional: elmokit's extras."""

from importlib import import_module
from typing import Any


def import_extra(module: str, extra: str) -> Any:
    """A module of an extra. ValueError says which one if its library is missing."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ValueError(
            f"{error}: install elmokit's extra {extra} (pip install 'elmokit[{extra}]')"
        ) from error
