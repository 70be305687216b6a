"""Which directories a writer of models may replace: those that hold a model of its own format, and nothing else."""

from dataclasses import dataclass
from pathlib import Path

from elmokit.fs.json_files import read_json


@dataclass(frozen=True)
class Layout:
    """The files of a model's directory.

    Attributes:
        settings: The JSON file of settings that every such directory has.
        keys: Keys in it that distinguish it from another program's file of the same name.
        others: The other files that the directory may hold; None: any.
    """

    settings: str
    keys: frozenset[str]
    others: frozenset[str] | None = None

    def describes(self, directory: Path) -> bool:
        """Whether a directory has the file of settings, with its keys."""
        try:
            content = read_json(directory / self.settings)
        except (ValueError, OSError):
            return False
        return isinstance(content, dict) and self.keys <= content.keys()


# Of a native model, without settings and card.
NATIVE_FILES = frozenset(
    {"model.safetensors", "dictionaries.json", "vocab.txt", "softmax.safetensors", "state.safetensors"}
)
NATIVE = Layout(
    "config.json",
    frozenset({"format_version", "model"}),
    NATIVE_FILES | {"README.md", "elmo_module.json"},  # elmokit's module for sentence-transformers adds the last
)
HDF5 = Layout("options.json", frozenset({"lstm"}), frozenset({"weights.hdf5", "vocab.txt", "README.md"}))


def check_overwritable(directory: str | Path, layout: Layout = NATIVE) -> None:
    """Check that a path is free, or holds a model that may be replaced.

    Args:
        directory: The directory to write.
        layout: The files that it may hold.

    Raises:
        FileExistsError: It is a file, holds no model of this layout, or holds other files, which would be lost.
    """
    directory = Path(directory)
    if directory.exists() and not directory.is_dir():
        raise FileExistsError(f"{directory} is a file: name a directory for the model")
    names = {path.name for path in directory.iterdir()} if directory.is_dir() else set[str]()
    if not names:
        return
    if not layout.describes(directory):
        raise FileExistsError(
            f"{directory} holds no model, so it is not overwritten: choose another name (a {layout.settings} with "
            f"{' and '.join(sorted(layout.keys))} was looked for)"
        )
    if layout.others is not None and (foreign := sorted(names - layout.others - {layout.settings})):
        raise FileExistsError(
            f"{directory} holds more than a model ({', '.join(foreign[:9])}), so it is not overwritten: choose another "
            "name, or move that away"
        )
