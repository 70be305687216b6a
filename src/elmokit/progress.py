"""Progress of long jobs: a bar on a terminal, elsewhere a line every half minute."""

import sys
from typing import Any

from tqdm import tqdm

SECONDS_BETWEEN_LINES = 30


class _Lines:
    """Line-buffered progress output for non-terminals."""

    def write(self, text: str) -> None:
        if line := text.strip(" \r\n"):
            print(line, file=sys.stderr, flush=True)

    def flush(self) -> None:
        pass


class ProgressBar(tqdm):
    """tqdm's bar, with its arguments. Without a terminal, a job of less than half a minute prints
    nothing.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        if sys.stderr is None or not sys.stderr.isatty():  # a program may have none
            options |= {"file": _Lines(), "ncols": 0, "miniters": 1, "position": 0}
            options |= {"mininterval": SECONDS_BETWEEN_LINES, "delay": SECONDS_BETWEEN_LINES}
        super().__init__(*args, **options)
