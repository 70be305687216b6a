"""What is in a directory."""

from pathlib import Path


def contents(directory: Path) -> dict[str, bytes]:
    """The bytes of its files, by name."""
    return {path.name: path.read_bytes() for path in directory.iterdir()}
