"""Paths as users write them."""

import os
from collections.abc import Iterable
from pathlib import Path


def expand_user(path: str | Path) -> Path:
    """The path with ~ or ~USER replaced by the home directory.

    Raises:
        FileNotFoundError: There is no such user, or the user has no home directory.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        name = Path(path).parts[0]
        raise FileNotFoundError(
            f"{path}: there is no home directory {name} here; write the directory in full, or ./{name} for a "
            "file of that name"
        ) from None


def check_distinct(paths: Iterable[str | Path]) -> None:
    """Check that no file is given twice, not even under another name or through a link.

    Raises:
        ValueError: A file is given twice; the message names it as it was given.
    """
    given: dict[str, str | Path] = {}
    for path in paths:
        real = os.path.realpath(path)
        if real in given:
            also = "" if str(given[real]) == str(path) else f", also as {given[real]}"
            raise ValueError(f"{path} is given more than once{also}: give each file once")
        given[real] = path
