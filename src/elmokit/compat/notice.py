"""Warnings about behavior that the original libraries did not report."""

import warnings
from functools import cache


@cache
def warn_once(message: str) -> None:
    """Issue a UserWarning for the caller of elmokit; each message is issued once per process."""
    warnings.warn(message, UserWarning, stacklevel=3)
