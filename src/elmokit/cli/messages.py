"""Errors and warnings of the command line: one line each, without the source locations that Python adds."""

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


def reopen_closed_streams() -> None:
    """Give a process whose standard streams were closed (2>&-) ones that lead nowhere, so that it can print."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # The lowest free descriptor, which is that of the stream: a file with it would get what C libraries print.
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def is_debugging() -> bool:
    """Whether ELMOKIT_DEBUG=1 asks for tracebacks and source locations."""
    return os.environ.get("ELMOKIT_DEBUG") == "1"


def one_line(message: Warning | Exception | str) -> str:
    """The message on a single line; the name of its class if it is empty."""
    lines = (line.strip() for line in str(message).splitlines())
    return "; ".join(filter(None, lines)).replace(":; ", ": ") or type(message).__name__


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    from tqdm import tqdm  # `tqdm.write` puts the line above a running progress bar

    tqdm.write(f"elmokit: warning: {one_line(message)}", file=sys.stderr)


@contextmanager
def one_line_warnings() -> Iterator[None]:
    """Show warnings as `elmokit: warning: TEXT` inside the `with` block, except when debugging."""
    previous = warnings.showwarning
    if not is_debugging():
        warnings.showwarning = _show_warning
    try:
        yield
    finally:
        warnings.showwarning = previous
