"""Warnings about behavior that the original libraries did not report."""

import os
import sys
import warnings
from functools import cache
from pathlib import Path

import torch

STRING_AS_SENTENCE = "a sentence is a string instead of a list of tokens: each of its characters is read as a token"

# The packages whose code stands between a caller and a warning: a module's `forward` is called by PyTorch.
INSIDE = tuple(f"{folder}{os.sep}" for folder in (Path(__file__).parents[1], Path(torch.__file__).parent))


@cache
def warn_once(message: str) -> None:
    """Issue a UserWarning for the caller of elmokit; each message is issued once per process."""
    frame, level = sys._getframe(), 1
    while frame is not None and frame.f_code.co_filename.startswith(INSIDE):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, UserWarning, stacklevel=level)
