"""What the command says when something is wrong: one line each, without Python's file names."""

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


def is_debugging() -> bool:
    """Whether errors keep their traceback and warnings their place: ELMOKIT_DEBUG=1 in the environment."""
    return os.environ.get("ELMOKIT_DEBUG") == "1"


def one_line(message: Warning | Exception | str) -> str:
    """Its text on one line; the name of its kind where it has none."""
    lines = (line.strip() for line in str(message).splitlines())
    return "; ".join(filter(None, lines)).replace(":; ", ": ") or type(message).__name__


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    from tqdm import tqdm  # which puts the line above a progress bar that is shown

    tqdm.write(f"elmokit: warning: {one_line(message)}", file=sys.stderr)


@contextmanager
def warnings_of_one_line() -> Iterator[None]:
    """Within it, a warning is shown as `elmokit: warning: TEXT`, unless one is debugging."""
    before = warnings.showwarning
    if not is_debugging():
        warnings.showwarning = _show_warning
    try:
        yield
    finally:
        warnings.showwarning = before
