"""Imports optional libraries: elmokit's extras."""

from importlib import import_module
from typing import Any


def import_extra(module: str, extra: str) -> Any:
    """Import a module of an extra. ValueError names the extra if its library is missing."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ValueError(
            f"{error}: install elmokit's extra {extra} (pip install 'elmokit[{extra}]')"
        ) from error
