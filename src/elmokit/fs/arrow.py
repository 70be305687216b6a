"""Apache Arrow's library, pyarrow, which is optional (elmokit's extra parquet)."""

from typing import Any


def require_pyarrow() -> Any:
    """The module pyarrow, with pyarrow.parquet. ValueError, which says how to install it, if it is
    missing.
    """
    try:
        import pyarrow.parquet  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ValueError(
            "Parquet needs pyarrow: pip install pyarrow (elmokit's extra parquet)"
        ) from error
    return pyarrow
