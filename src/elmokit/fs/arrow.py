"""Apache Arrow's library, pyarrow, which is optional (elmokit's extra parquet), and its errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def require_pyarrow() -> Any:
    """The module pyarrow. ValueError, which says how to install it, if it is missing."""
    try:
        import pyarrow  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ValueError("Parquet needs pyarrow: pip install pyarrow (elmokit's extra parquet)") from error
    return pyarrow


@contextmanager
def errors_naming(path: str | Path) -> Iterator[None]:
    """Raise a ValueError that names the file where Arrow cannot read it; errors of disk or memory stay as they are.

    Raises:
        ValueError: The file is damaged, not Parquet, or of a kind that this version of Arrow cannot read.
    """
    arrow = require_pyarrow()
    try:
        yield
    except (MemoryError, arrow.ArrowCancelled):
        raise
    except arrow.ArrowNotImplementedError as error:
        raise ValueError(f"{path} cannot be read by this version of pyarrow: {error}") from error
    except (arrow.ArrowException, UnicodeDecodeError, OSError) as error:
        if getattr(error, "errno", None):  # the system's: for damage, Arrow raises an OSError without a number
            raise
        raise ValueError(f"{path} is not a Parquet file, or is damaged: {error}") from error
