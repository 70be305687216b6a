"""Errors and warnings of the command line: one line each, without the source locations that Python adds."""

import os
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

# Where `spool_standard_input` writes standard input to, a file that is gone when the message is read.
SPOOLED = r"\S*/elmokit-\w+/standard-input[.\w]*\w"


def discard_output() -> None:
    """Discard what is printed from now on, and what Python has buffered of standard output."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def flush_output() -> None:
    """Write what Python has buffered of standard output.

    Raises:
        OSError: It cannot be written. It is discarded, as it would fail again when Python ends.
    """
    try:
        sys.stdout.flush()
    except OSError:
        discard_output()
        raise


def reopen_closed_streams() -> None:
    """Connect standard streams that were closed (2>&-) to the null device, so that the process can print."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # `open` takes the lowest free descriptor, that of the stream. Else the next file would get it, and with it
            # what C libraries print.
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def is_debugging() -> bool:
    """Whether ELMOKIT_DEBUG=1 asks for tracebacks and source locations."""
    return os.environ.get("ELMOKIT_DEBUG") == "1"


def one_line(message: Warning | Exception | str, options: Mapping[str, str]) -> str:
    """The message on a single line, which names options in place of arguments, and standard input in place of its copy.

    Args:
        message: The message; if it is empty, the name of its class is shown.
        options: Options by their names in Python, from `option_names`.
    """
    lines = (line.strip() for line in str(message).splitlines())
    text = "; ".join(filter(None, lines)).replace(":; ", ": ") or type(message).__name__
    for name, option in options.items():  # but not in paths or quotations, and not where Python's own spelling is shown
        text = re.sub(rf"(?<![\w./'-]){name}(?![\w/=(-]|\.\w)", option, text)
    text = re.sub(rf"(`[^`]*\s){SPOOLED}", r"\1-", text)  # within a command
    return re.sub(SPOOLED, "standard input", text)


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
