"""Errors and warnings of the command line: one line each, without the source locations that Python adds."""

import os
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
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


def one_line(message: Warning | Exception | str, options: Mapping[str, str]) -> str:
    """The message on a single line, with options in the place of their names in Python.

    Args:
        message: The message; if it is empty, the name of its class is shown.
        options: As of `option_names`.
    """
    lines = (line.strip() for line in str(message).splitlines())
    text = "; ".join(filter(None, lines)).replace(":; ", ": ") or type(message).__name__
    for name, option in options.items():  # but not in paths, and not where Python's own spelling is shown
        text = re.sub(rf"(?<![\w./-]){name}(?![\w/=(-]|\.\w)", option, text)
    return text


@contextmanager
def one_line_warnings(options: Mapping[str, str]) -> Iterator[None]:
    """Show warnings as `elmokit: warning: TEXT` inside the `with` block, by `one_line`, except when debugging."""

    def show_warning(message: Warning | str, *_: object, **__: object) -> None:
        from tqdm import tqdm  # `tqdm.write` puts the line above a running progress bar

        tqdm.write(f"elmokit: warning: {one_line(message, options)}", file=sys.stderr)

    previous = warnings.showwarning
    if not is_debugging():
        warnings.showwarning = show_warning
    try:
        yield
    finally:
        warnings.showwarning = previous
