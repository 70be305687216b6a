"""Warnings about behavior that the original libraries did not report."""

import warnings
from functools import cache

STRING_AS_SENTENCE = "a sentence is a string instead of a list of tokens: each of its characters is read as a token"


@cache
def warn_once(message: str) -> None:
    """Issue a UserWarning for the caller of elmokit; each message is issued once per process."""
    warnings.warn(message, UserWarning, stacklevel=3)
