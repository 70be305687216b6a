"""Notices about what the old libraries did silently, each given once."""

import warnings
from functools import cache


@cache
def warn_once(message: str) -> None:
    """A UserWarning at the line that called into elmokit; the same message is not given twice in a process."""
    warnings.warn(message, UserWarning, stacklevel=3)
