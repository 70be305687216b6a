"""Apache Arrow's library, pyarrow, which is optional (elmokit's extra parquet), and its errors."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def require_pyarrow() -> Any:
    """The module pyarrow, with pyarrow.parquet. ValueError, which says how to install it, if it is missing."""
    try:
        import pyarrow.parquet  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ValueError("Parquet needs pyarrow: pip install pyarrow (elmokit's extra parquet)") from error
    return pyarrow


@contextmanager
def errors_naming(path: str | Path) -> Iterator[None]:
    """ValueError, which names the file, where Arrow cannot read it: its own errors do not."""
    try:
        yield
    except (require_pyarrow().ArrowException, OSError) as error:
        raise ValueError(f"{path} is not a Parquet file, or is damaged: {error}") from error
