"""Warnings about behavior that the original libraries did not report."""

import os
import sys
import warnings
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import torch

from elmokit.text.characters import count_truncated

# The packages whose code stands between a caller and a warning: a module's `forward` is called by PyTorch.
INSIDE = tuple(f"{folder}{os.sep}" for folder in (Path(__file__).parents[1], Path(torch.__file__).parent))


@cache
def warn_once(message: str) -> None:
    """Issue a UserWarning for the caller of elmokit; each message is issued once per process."""
    frame, level = sys._getframe(), 1
    while frame is not None and frame.f_code.co_filename.startswith(INSIDE):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, UserWarning, stacklevel=level)


def warn_of_strings(sentences: Iterable[Any]) -> None:
    """Warn if a sentence is a string instead of a list of tokens: the libraries read its characters as tokens."""
    if any(isinstance(sentence, str) for sentence in sentences):
        warn_once("a sentence is a string instead of a list of tokens: each of its characters is read as a token")


def warn_of_truncated(words: Iterable[str], max_characters: int, library: str) -> None:
    """Warn if words are longer than a model reads, whose `max_characters` include the two marks around a word."""
    if count_truncated(list(words), max_characters):
        limit = max_characters - 2
        warn_once(f"some words have more than {limit} bytes: as in {library}, only the first {limit} are read")
