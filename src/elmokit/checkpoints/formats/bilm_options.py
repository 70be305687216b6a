"""options.json, the settings of a biLM as bilm-tf and AllenNLP keep them, to and from the configuration here.

Sources: bilm-tf `bilm/model.py` and `bilm/training.py`; AllenNLP `modules/elmo.py` and `modules/elmo_lstm.py`.
"""

import json
from pathlib import Path
from typing import Any

from elmokit.checkpoints.errors import CheckpointError
from elmokit.config import NUM_CHARACTERS, BiLMConfig, CharCNNConfig, LSTMConfig

# TensorFlow adds it at run time, so it is in no file.
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
    # 261 while training, 262 at inference: the same 261 vectors, and one more row for the mask.
    if char_cnn.get("n_characters", NUM_CHARACTERS) not in (NUM_CHARACTERS, NUM_CHARACTERS + 1):
        raise ValueError(f"char_cnn.n_characters is {char_cnn['n_characters']}, neither 261 nor 262")
    return CharCNNConfig(
        embedding_dim=int(char_cnn["embedding"]["dim"]),
        filters=tuple((int(width), int(number)) for width, number in char_cnn["filters"]),
        # Left out where there is none.
        num_highway=int(char_cnn.get("n_highway") or 0),
        activation=char_cnn["activation"],
        max_characters=int(char_cnn.get("max_characters_per_token", 50)),
    )


def config_from_options(options: dict[str, Any], num_words: int | None = None) -> BiLMConfig:
    """The configuration that options.json describes; `num_words` is the height of the word table, for word-id models.

    ValueError naming every option that is missing, or the one that makes no sense.
    """
    if not isinstance(options, dict):
        raise ValueError("it holds no settings")
    # A model without char_cnn reads word ids.
    reads_words = options.get("char_cnn") is None
    _require(options, REQUIRED_OPTIONS + (() if reads_words else REQUIRED_CHAR_CNN_OPTIONS))
    lstm = options["lstm"]
    return BiLMConfig(
        lstm=LSTMConfig(
            num_layers=int(lstm["n_layers"]),
            cell_dim=int(lstm["dim"]),
            projection_dim=int(lstm["projection_dim"]),
            # AllenNLP takes a clip of 0 as "off", as it does a missing one; TensorFlow would clip everything to 0.
            cell_clip=lstm.get("cell_clip") or None,
            proj_clip=lstm.get("proj_clip") or None,
            use_skip_connections=bool(lstm.get("use_skip_connections", False)),
            forget_bias=FORGET_BIAS,
        ),
        char_cnn=None if reads_words else _char_cnn_config(options["char_cnn"]),
        num_words=num_words if reads_words else None,
    )


def read_options(path: Path, num_words: int) -> BiLMConfig:
    """The configuration in a file, as `config_from_options`; CheckpointError where it is none."""
    try:
        return config_from_options(json.loads(path.read_text(encoding="utf-8")), num_words)
    # OverflowError: JSON as Python reads it knows infinity.
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise CheckpointError(f"{path} is not the options.json of a biLM: {error}") from error


def options_from_config(config: BiLMConfig) -> dict[str, Any]:
    """The inverse of `config_from_options`; ValueError where the format has no words for a configuration."""
    lstm, char_cnn = config.lstm, config.char_cnn
    if lstm.forget_bias != FORGET_BIAS:
        raise ValueError(
            f"the forget bias is {lstm.forget_bias}, and whoever reads options.json takes it for {FORGET_BIAS}: "
            "this model can be kept in the native format only"
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
            # What both systems ask for at inference, though the file has 261 rows: one more id is the mask's.
            "n_characters": NUM_CHARACTERS + 1,
        }
    return options
