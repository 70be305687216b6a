"""The settings and dictionaries of an ELMoForManyLangs directory, as a configuration.

config.json names the file with the model's settings by a path on the machine where it was trained; the file itself is
in the directory, or is one that came with ELMoForManyLangs. Source: ELMoForManyLangs, `elmo.py` (Embedder.get_model).
"""

from pathlib import Path, PureWindowsPath
from typing import Any

from elmokit.checkpoints.errors import CheckpointError
from elmokit.config import BiLMConfig, CharCNNConfig, EfmlEncoderConfig, InterleavedConfig, LSTMConfig
from elmokit.fs.json_files import read_json
from elmokit.fs.reading import read_lines

WORDS, CHARACTERS = "word.dic", "char.dic"
MAX_SETTINGS = 1 << 20  # bytes

# The library's configs/*.json, which most published models name; the contents of both files are the same.
PUBLISHED_SETTINGS: dict[str, Any] = {
    "encoder": {"name": "elmo", "projection_dim": 512, "cell_clip": 3, "proj_clip": 3, "dim": 4096, "n_layers": 2},
    "token_embedder": {
        "name": "cnn",
        "activation": "relu",
        "filters": [[1, 32], [2, 32], [3, 64], [4, 128], [5, 256], [6, 512], [7, 1024]],
        "n_highway": 2,
        "word_dim": 100,
        "char_dim": 50,
        "max_characters_per_token": 50,
    },
}
PUBLISHED_NAMES = ("cnn_50_100_512_4096_sample.json", "cnn_0_100_512_4096_sample.json")


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name too long for a file
        return False


def settings_path(directory: Path) -> Path | None:
    """The file with the model's settings; None for one of those that came with the library.

    Raises:
        ValueError: The file is missing.
    """
    named = read_json(directory / "config.json", MAX_SETTINGS)["config_path"]
    name = PureWindowsPath(named).name  # understands both kinds of slashes
    for path in (directory / named, directory / name, directory / "configs" / name):
        if _is_file(path):
            return path
    if name in PUBLISHED_NAMES:
        return None
    raise ValueError(f"it names {named}, which is missing: put that file, {name}, into {directory}")


def _read_dictionary(path: Path) -> tuple[str, ...]:
    """The entries in the order of their rows; each line has an entry, a tab and its row."""
    rows: dict[int, str] = {}
    number = 0
    for number, line in enumerate(read_lines(path), start=1):
        entry, tab, row = line.strip("\r\n").rpartition("\t")
        if not tab or not row.strip().isdecimal():
            raise ValueError(f"{path}, line {number} is not an entry, a tab and its row: {line[:60]!r}")
        # ELMoForManyLangs stripped white space, and read an empty entry as the ideographic space.
        rows[int(row)] = entry.strip() or "\u3000"
    if not rows or sorted(rows) != list(range(number)):
        raise ValueError(f"{path} does not number its {number} entries from 0, each once: fetch it again")
    return tuple(rows[row] for row in range(number))


def _token_encoder_config(settings: dict[str, Any], directory: Path) -> EfmlEncoderConfig:
    kind, word_dim, char_dim = settings["name"].lower(), settings["word_dim"], settings["char_dim"]
    if kind not in ("cnn", "lstm") or (kind == "lstm" and char_dim > 0):
        raise ValueError(f"its token_embedder {kind!r} over characters is not known (in ELMoForManyLangs it failed)")
    max_characters = settings["max_characters_per_token"] if kind == "cnn" else None
    characters = _read_dictionary(directory / CHARACTERS) if char_dim > 0 else ()
    return EfmlEncoderConfig(
        words=_read_dictionary(directory / WORDS) if word_dim > 0 else (),
        word_dim=max(word_dim, 0),
        characters=characters,
        char_cnn=CharCNNConfig(
            embedding_dim=char_dim,
            filters=tuple((width, number) for width, number in settings["filters"]),
            num_highway=settings["n_highway"],
            activation=settings["activation"],
            max_characters=settings["max_characters_per_token"],
            num_characters=len(characters),
        )
        if characters
        else None,
        max_characters=max_characters,
    )


def _sequence_encoder(settings: dict[str, Any]) -> dict[str, Any]:
    """The sequence encoder as fields of `BiLMConfig`."""
    kind = settings["name"].lower()
    if kind not in ("elmo", "lstm"):
        raise ValueError(f"its encoder {kind!r} is neither 'elmo' nor 'lstm'")
    sizes: dict[str, Any] = {
        "num_layers": settings["n_layers"],
        "cell_dim": settings["dim"],
        "projection_dim": settings["projection_dim"],
        "forget_bias": 0.0,  # its biases include it
    }
    if kind == "lstm":
        return {"lstm": None, "interleaved": InterleavedConfig(**sizes, projects_layers=False)}
    # A clip of 0 means none.
    clips: dict[str, Any] = {name: settings.get(name) or None for name in ("cell_clip", "proj_clip")}
    config = LSTMConfig(**sizes, **clips)
    if not config.has_projection:
        raise ValueError(f"its dim and projection_dim are both {config.cell_dim}, with a projection: not supported")
    return {"lstm": config}


def read_config(directory: Path) -> BiLMConfig:
    """Read the configuration in a directory, with its dictionaries.

    Raises:
        CheckpointError: The settings or dictionaries are missing, damaged or not supported.
    """
    try:
        path = settings_path(directory)
        settings = PUBLISHED_SETTINGS if path is None else read_json(path, MAX_SETTINGS)
        encoder = _token_encoder_config(settings["token_embedder"], directory)
        return BiLMConfig(char_cnn=None, efml=encoder, **_sequence_encoder(settings["encoder"]))
    # JSON may hold any type, and infinity. The FileNotFoundError of a missing dictionary passes through.
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else error
        raise CheckpointError(f"{directory} is not a model of ELMoForManyLangs: {reason}") from error
