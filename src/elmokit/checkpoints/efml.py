"""Directories of ELMoForManyLangs: two files of weights saved by PyTorch, with settings and
dictionaries.

The weights are pickles, from which tensors alone are read. config.json names the file with the
model's settings by a path on the machine where it was trained; the file itself is in the directory,
or is one that came with ELMoForManyLangs. Sources: ELMoForManyLangs, `elmo.py`
(Embedder.get_model), `modules/token_embedder.py`, `modules/elmo.py`, `modules/lstm.py`.
"""

from pathlib import Path, PureWindowsPath
from typing import Any

from torch import Tensor

from elmokit.checkpoints.allennlp import IN_A_LAYER, read_tensors, rearranged, translated
from elmokit.checkpoints.native import module_from, read_card, weight_shapes
from elmokit.checkpoints.pretrained import Pretrained, check_shapes, errors_naming, shapes_in
from elmokit.config import (
    BiLMConfig,
    CharCNNConfig,
    EfmlEncoderConfig,
    InterleavedConfig,
    LSTMConfig,
)
from elmokit.fs import read_json, read_lines
from elmokit.nn import BiLM

TOKEN_ENCODER, ENCODER = "token_embedder.pkl", "encoder.pkl"


def find_efml(path: Path) -> Path | None:
    """The directory, if it has one of the files of weights."""
    return path if any((path / name).is_file() for name in (TOKEN_ENCODER, ENCODER)) else None


# --- Settings and dictionaries --------------------------------------------------------------------

# The library's configs/*.json, which most published models name; the contents of both files are the
# same.
PUBLISHED_SETTINGS: dict[str, Any] = {
    "encoder": {
        "name": "elmo",
        "projection_dim": 512,
        "cell_clip": 3,
        "proj_clip": 3,
        "dim": 4096,
        "n_layers": 2,
    },
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


def settings_path(directory: Path) -> Path | None:
    """The file with the model's settings; None if it came with the library.

    Raises:
        FileNotFoundError: The file is missing.
    """
    named = read_json(directory / "config.json")["config_path"]
    name = PureWindowsPath(named).name  # understands both kinds of slashes
    for path in (directory / named, directory / name, directory / "configs" / name):
        if path.is_file():
            return path
    if name in PUBLISHED_NAMES:
        return None
    raise FileNotFoundError(
        f"{directory}/config.json names {named}, which is missing: put {name} into {directory}"
    )


def _read_dictionary(path: Path) -> tuple[str, ...]:
    """The entries in the order of their rows; each line has an entry, a tab and its row."""
    rows: dict[int, str] = {}
    with errors_naming(path):
        lines = list(read_lines(path))
        for line in lines:
            entry, _, row = line.strip("\r\n").rpartition("\t")
            # ELMoForManyLangs stripped white space, and read an empty entry as the ideographic
            # space.
            rows[int(row)] = entry.strip() or "\u3000"
        if not rows or sorted(rows) != list(range(len(lines))):
            raise ValueError(f"it does not number its {len(lines)} entries from 0, each once")
    return tuple(rows[row] for row in range(len(lines)))


def _token_encoder_config(settings: dict[str, Any], directory: Path) -> EfmlEncoderConfig:
    kind, word_dim, char_dim = settings["name"].lower(), settings["word_dim"], settings["char_dim"]
    if kind not in ("cnn", "lstm") or (kind == "lstm" and char_dim > 0):
        raise ValueError(
            f"its token_embedder {kind!r} over characters is not known (in ELMoForManyLangs it "
            f"failed)"
        )
    max_characters = settings["max_characters_per_token"] if kind == "cnn" else None
    words = _read_dictionary(directory / "word.dic") if word_dim > 0 else ()
    characters = _read_dictionary(directory / "char.dic") if char_dim > 0 else ()
    cnn = None
    if characters:
        cnn = CharCNNConfig(
            embedding_dim=char_dim,
            filters=tuple((width, number) for width, number in settings["filters"]),
            num_highway=settings["n_highway"],
            activation=settings["activation"],
            max_characters=settings["max_characters_per_token"],
            num_characters=len(characters),
        )
    return EfmlEncoderConfig(words, max(word_dim, 0), characters, cnn, max_characters)


def _sequence_encoder(settings: dict[str, Any]) -> dict[str, Any]:
    """The sequence encoder as fields of `BiLMConfig`."""
    sizes: dict[str, Any] = {
        "num_layers": settings["n_layers"],
        "cell_dim": settings["dim"],
        "projection_dim": settings["projection_dim"],
        "forget_bias": 0.0,  # its biases include it
    }
    if settings["name"].lower() == "lstm":
        return {"lstm": None, "interleaved": InterleavedConfig(**sizes, projects_layers=False)}
    # A clip of 0 means none.
    config = LSTMConfig(
        **sizes,
        cell_clip=settings.get("cell_clip") or None,
        proj_clip=settings.get("proj_clip") or None,
    )
    if settings["name"].lower() != "elmo" or not config.has_projection:
        raise ValueError(
            f"its encoder {settings} is neither lstm nor elmo with dim and projection_dim that "
            f"differ"
        )
    return {"lstm": config}


def read_config(directory: Path) -> BiLMConfig:
    """Read the configuration in a directory, with its dictionaries.

    Raises:
        FileNotFoundError, CheckpointError: The settings or dictionaries are missing, damaged or not
            supported.
    """
    with errors_naming(directory):
        path = settings_path(directory)
        settings = PUBLISHED_SETTINGS if path is None else read_json(path)
        encoder = _token_encoder_config(settings["token_embedder"], directory)
        return BiLMConfig(char_cnn=None, efml=encoder, **_sequence_encoder(settings["encoder"]))


# --- Weights --------------------------------------------------------------------------------------

NAMES = {
    TOKEN_ENCODER: {
        r"word_emb_layer\.embedding\.weight": "token_encoder.word_embedding",
        r"char_emb_layer\.embedding\.weight": "token_encoder.char_cnn.char_embedding",
        r"convolutions\.(\d+)\.(weight|bias)": r"token_encoder.char_cnn.convolutions.\1.\2",
        r"highways\._layers\.(\d+)\.(weight|bias)": r"token_encoder.char_cnn.highways.\1.gates.\2",
        r"projection\.(weight|bias)": r"token_encoder.projection.\1",
    },
    # the first two of the encoder elmo, which is AllenNLP's; the others of lstm, which is PyTorch's
    ENCODER: {
        r"forward_layer_(\d+)\.(\w+\.\w+)": r"sequence_encoder.stacks.0.layers.\1.\2",
        r"backward_layer_(\d+)\.(\w+\.\w+)": r"sequence_encoder.stacks.1.layers.\1.\2",
        r"encoder\.(\w+_[ih]h)_l(\d+)": r"sequence_encoder.stacks.0.layers.\2.\1",
        r"encoder\.(\w+_[ih]h)_l(\d+)_reverse": r"sequence_encoder.stacks.1.layers.\2.\1",
        r"projection\.(weight|bias)": r"sequence_encoder.top_projection.\1",
    },
}
SECOND_BIAS = "bias_hh"  # PyTorch has two for each gate, which are added
PARTS = {
    **IN_A_LAYER,
    "weight_ih": "input_weight",
    "weight_hh": "recurrent_weight",
    "bias_ih": "bias",
}


def load_efml(directory: Path) -> Pretrained:
    """Load the model in a directory; it never has a softmax.

    Raises:
        FileNotFoundError, CheckpointError: The files are damaged or do not make one model; every
            offending key is named.
    """
    config, weights = read_config(directory), {}
    for file, patterns in NAMES.items():
        tensors = read_tensors(directory / file)
        for name, tensor in tensors.items():
            weights[translated(name, patterns, PARTS) or f"{file}: {name}"] = tensor
    expected = weight_shapes(config)
    if config.interleaved is not None:
        biases = [name for name in expected if name.endswith("bias") and ".layers." in name]
        expected |= {name.replace("bias", SECOND_BIAS): expected[name] for name in biases}
    check_shapes(directory, expected, shapes_in(weights))
    state: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        ours = name.replace(SECOND_BIAS, "bias")
        weight = tensor.float()
        if not ours.endswith("char_embedding"):
            weight = rearranged(ours, weight, forget_bias=0.0)
        state[ours] = state[ours] + weight if ours in state else weight
    return Pretrained(module_from(lambda: BiLM(config), state), card=read_card(directory))
