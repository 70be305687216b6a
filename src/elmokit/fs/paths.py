"""Paths as users write them."""

from pathlib import Path


def expand_user(path: str | Path) -> Path:
    """The path with the home directory in the place of ~ or ~USER.

    Raises:
        FileNotFoundError: There is no such user, or no home directory.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        name = Path(path).parts[0]
        raise FileNotFoundError(
            f"{path}: {name} is the home directory of no user here; write the directory in full, or ./{name} for a "
            "file of that name"
        ) from None
