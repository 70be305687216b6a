"""options.json, the settings of a biLM in bilm-tf and AllenNLP, to and from `BiLMConfig`.

Sources: bilm-tf `bilm/model.py` and `bilm/training.py`; AllenNLP `modules/elmo.py` and `modules/elmo_lstm.py`.
"""

from pathlib import Path
from typing import Any

from elmokit.checkpoints.errors import CheckpointError
from elmokit.config import NUM_CHARACTERS, BiLMConfig, CharCNNConfig, LSTMConfig
from elmokit.fs.json_files import read_json

# TensorFlow adds it at run time, so no file has it.
FORGET_BIAS = 1.0
REQUIRED_OPTIONS = ("lstm.dim", "lstm.projection_dim", "lstm.n_layers")
REQUIRED_CHAR_CNN_OPTIONS = ("char_cnn.activation", "char_cnn.embedding.dim", "char_cnn.filters")


def _has(options: Any, path: list[str]) -> bool:
    return not path or (isinstance(options, dict) and path[0] in options and _has(options[path[0]], path[1:]))


def _require(options: dict[str, Any], paths: tuple[str, ...]) -> None:
    missing = [path for path in paths if not _has(options, path.split("."))]
    if missing:
        raise ValueError(f"it lacks {', '.join(missing)}")


def _char_cnn_config(char_cnn: dict[str, Any]) -> CharCNNConfig:
    # 261 in training, 262 at inference, where one more row stands for padding: the same 261 vectors.
    if char_cnn.get("n_characters", NUM_CHARACTERS) not in (NUM_CHARACTERS, NUM_CHARACTERS + 1):
        raise ValueError(f"char_cnn.n_characters is {char_cnn['n_characters']}, neither 261 nor 262")
    return CharCNNConfig(
        embedding_dim=char_cnn["embedding"]["dim"],
        filters=tuple((width, number) for width, number in char_cnn["filters"]),
        # Absent means none.
        num_highway=char_cnn.get("n_highway") or 0,
        activation=char_cnn["activation"],
        max_characters=char_cnn.get("max_characters_per_token", 50),
    )


def config_from_options(options: dict[str, Any], num_words: int | None = None) -> BiLMConfig:
    """The configuration that options.json describes.

    Args:
        options: The contents of the file.
        num_words: Rows of the word table, for models of word ids.

    Raises:
        ValueError: Options are missing, all of which are named, or one is invalid.
    """
    if not isinstance(options, dict):
        raise ValueError("it is not a JSON object")
    # A model without char_cnn reads word ids.
    reads_words = options.get("char_cnn") is None
    _require(options, REQUIRED_OPTIONS + (() if reads_words else REQUIRED_CHAR_CNN_OPTIONS))
    lstm = options["lstm"]
    return BiLMConfig(
        lstm=LSTMConfig(
            num_layers=lstm["n_layers"],
            cell_dim=lstm["dim"],
            projection_dim=lstm["projection_dim"],
            # As in AllenNLP, a clip of 0 means none; TensorFlow would clip everything to 0.
            cell_clip=lstm.get("cell_clip") or None,
            proj_clip=lstm.get("proj_clip") or None,
            use_skip_connections=lstm.get("use_skip_connections") or False,
            forget_bias=FORGET_BIAS,
        ),
        char_cnn=None if reads_words else _char_cnn_config(options["char_cnn"]),
        num_words=num_words if reads_words else None,
    )


def read_options(path: Path, num_words: int) -> BiLMConfig:
    """Read the configuration from a file, as `config_from_options`. CheckpointError if it is invalid."""
    try:
        return config_from_options(read_json(path), num_words)
    except (ValueError, TypeError, OverflowError) as error:  # OverflowError for 1e999, which Python reads as infinity
        raise CheckpointError(f"{path} is not the options.json of a biLM: {error}") from error


def options_from_config(config: BiLMConfig) -> dict[str, Any]:
    """The inverse of `config_from_options`. ValueError if the format cannot express the configuration."""
    lstm, char_cnn = config.lstm_for("AllenNLP's and bilm-tf's files are"), config.char_cnn
    if lstm.forget_bias != FORGET_BIAS:
        raise ValueError(
            f"the forget bias is {lstm.forget_bias}, and readers of options.json assume {FORGET_BIAS}: save this model "
            "in the native format"
        )
    if char_cnn is not None and char_cnn.num_characters != NUM_CHARACTERS:
        raise ValueError(
            f"the table of characters has {char_cnn.num_characters} rows, and readers of options.json expect "
            f"{NUM_CHARACTERS}: save this model in the native format"
        )
    options: dict[str, Any] = {
        "lstm": {
            "use_skip_connections": lstm.use_skip_connections,
            "projection_dim": lstm.projection_dim,
            "cell_clip": lstm.cell_clip,
            "proj_clip": lstm.proj_clip,
            "dim": lstm.cell_dim,
            "n_layers": lstm.num_layers,
        }
    }
    if char_cnn is not None:
        options["char_cnn"] = {
            "activation": char_cnn.activation,
            "embedding": {"dim": char_cnn.embedding_dim},
            "filters": [list(pair) for pair in char_cnn.filters],
            "n_highway": char_cnn.num_highway,
            "max_characters_per_token": char_cnn.max_characters,
            # Both systems expect 262 at inference, though the file has 261 rows: padding has an id, too.
            "n_characters": NUM_CHARACTERS + 1,
        }
    return options
