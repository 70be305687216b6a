"""Untrusted JSON files: limited in size and depth. `settings.conform` checks what they hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from elmokit.fs.reading import open_regular

MAX_BYTES = 1 << 26


def read_json(path: str | Path) -> Any:
    """Read a file of JSON in UTF-8.

    Args:
        path: A regular file.

    Returns:
        The value: dictionaries, lists, strings, numbers, booleans and None.

    Raises:
        FileNotFoundError: The file is missing.
        ValueError: It is not a regular file, larger than 64 MiB, not JSON, or nested too deeply.
    """
    with open_regular(path) as file:
        content = file.read(MAX_BYTES)
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
