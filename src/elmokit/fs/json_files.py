"""Untrusted JSON files: limited in size and depth. `settings.conform` checks what they hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from elmokit.fs.reading import open_regular
from elmokit.settings import conform as from_json

__all__ = ["MAX_BYTES", "from_json", "is_json_object", "read_json"]

MAX_BYTES = 1 << 26


def read_json(path: str | Path, max_bytes: int = MAX_BYTES) -> Any:
    """Read a file of JSON in UTF-8.

    Args:
        path: A regular file.
        max_bytes: A larger file is refused.

    Returns:
        The value: dictionaries, lists, strings, numbers, booleans and None.

    Raises:
        FileNotFoundError: The file is missing.
        ValueError: It is not a regular file, too large, not JSON, or nested too deeply.
    """
    with open_regular(path) as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError(f"it has more than {max_bytes:,} bytes")
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def is_json_object(line: str) -> bool:
    """Whether a line of text is a JSON object that is not empty, as in JSON Lines."""
    try:
        return line.lstrip().startswith("{") and bool(json.loads(line))
    except (ValueError, RecursionError):
        return False
