"""Models on top of ELMo that AllenNLP saved: config.json and weights.th, from which the ELMo is
read.

weights.th is a pickle, from which tensors alone are read. The options of the biLM are in `fta`,
where versions up to 0.9 archived them, or at the path that config.json names. Sources: AllenNLP
`models/archival.py`, `modules/elmo.py`.
"""

import re
import warnings
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from elmokit.checkpoints.bilm_hdf5 import read_options
from elmokit.checkpoints.native import module_from, weight_shapes
from elmokit.checkpoints.pretrained import (
    MixWeights,
    Pretrained,
    check_shapes,
    errors_naming,
    numbered,
    shapes_in,
)
from elmokit.config import OPTION_FORGET_BIAS, BiLMConfig, CharCNNConfig, LSTMConfig
from elmokit.fs import read_json
from elmokit.nn import BiLM
from elmokit.runtime import init_on_meta

# --- Names and arrangement of weights -------------------------------------------------------------

PATTERNS = {
    r"_token_embedder\._char_embedding_weights": "token_encoder.char_embedding",
    r"_token_embedder\.char_conv_(\d+)\.(weight|bias)": r"token_encoder.convolutions.\1.\2",
    r"_token_embedder\._highways\._layers\.(\d+)\.(weight|bias)": r"token_encoder.highways.\1.gates.\2",  # noqa: E501
    r"_token_embedder\._projection\.(weight|bias)": r"token_encoder.projection.\1",
    r"_elmo_lstm\.forward_layer_(\d+)\.(\w+\.\w+)": r"sequence_encoder.stacks.0.layers.\1.\2",
    r"_elmo_lstm\.backward_layer_(\d+)\.(\w+\.\w+)": r"sequence_encoder.stacks.1.layers.\1.\2",
}
IN_A_LAYER = {
    "input_linearity.weight": "input_weight",
    "state_linearity.weight": "recurrent_weight",
    "state_linearity.bias": "bias",
    "state_projection.weight": "projection_weight",
}
# Derived from weights or the vocabulary: `_word_embedding` holds the token vectors of
# `vocab_to_cache`.
NOT_WEIGHTS = re.compile(
    r"_word_embedding\.weight|_token_embedder\._(beginning|end)_of_sentence_characters"
)
# A weight that every biLM has, and no other module.
CHARACTERS = "_token_embedder._char_embedding_weights"


def translated(name: str, patterns: Mapping[str, str], parts: Mapping[str, str]) -> str | None:
    """Rename by the first matching pattern; None if none matches."""
    for pattern, replacement in patterns.items():
        if match := re.fullmatch(pattern, name):
            ours = match.expand(replacement)
            for part, its_name in parts.items():
                ours = ours.replace(part, its_name)
            return ours
    return None


def bilm_name(name: str) -> str | None:
    """Rename a weight of AllenNLP's biLM to that of `BiLM`; None if it is another name."""
    return translated(name, PATTERNS, IN_A_LAYER)


def rearranged(name: str, tensor: Tensor, forget_bias: float) -> Tensor:
    """Convert AllenNLP's tensor to the layout of the weight `name` of a `BiLM`."""
    if name.endswith("char_embedding"):
        return tensor[1:]  # its first row is for padding
    # The rows of a matrix, or of a bias, in AllenNLP's layers and in ours:
    #
    #   highways   transform, gate of the input       transform, gate of the transform
    #   LSTMs      i, f, g, o                         i, g, f, o
    #
    # The forget bias is part of AllenNLP's bias of f, and not of ours.
    # AllenNLP's gate weights the input, ours the transform: sigmoid(-x) = 1 - sigmoid(x).
    if ".gates." in name:
        transform, carry = tensor.chunk(2)
        return torch.cat([transform, -carry])
    if name.endswith(("input_weight", "recurrent_weight", ".bias")) and ".layers." in name:
        i, f, g, o = tensor.chunk(4)
        return torch.cat([i, g, f - forget_bias if name.endswith(".bias") else f, o])
    return tensor


def arranged(name: str, tensor: Tensor, forget_bias: float) -> Tensor:
    """The inverse of `rearranged`."""
    if name.endswith("char_embedding"):
        return torch.cat([tensor.new_zeros(1, tensor.shape[1]), tensor])
    if ".layers." in name and name.endswith(".bias"):
        i, g, f, o = tensor.chunk(4)
        return torch.cat([i, f + forget_bias, g, o])
    return rearranged(name, tensor, 0.0)  # its own inverse


def from_allennlp(config: BiLMConfig, weights: Mapping[str, Tensor]) -> BiLM:
    """Compute the weights of a biLM from AllenNLP's, to which gradients flow.

    Args:
        config: Its configuration.
        weights: AllenNLP's weights by name. Those that are missing stay on the meta device.
    """
    with init_on_meta():
        bilm = BiLM(config)
    for theirs, tensor in weights.items():
        name = cast(str, bilm_name(theirs))
        module, _, leaf = name.rpartition(".")
        weight = rearranged(name, tensor, config.lstm_for("AllenNLP's ELMo is").forget_bias)
        bilm.get_submodule(module)._parameters[leaf] = cast(nn.Parameter, weight)
    return bilm


def to_allennlp(bilm: BiLM, names: Iterable[str]) -> dict[str, Tensor]:
    """The weights of a biLM that AllenNLP has under these names."""
    state, forget_bias = bilm.state_dict(), bilm.config.lstm_for("AllenNLP's ELMo is").forget_bias
    ours = {name: cast(str, bilm_name(name)) for name in names}
    return {name: arranged(key, state[key], forget_bias) for name, key in ours.items()}


def read_tensors(path: Path) -> dict[str, Any]:
    """Load a dictionary without executing anything. CheckpointError if that is not possible."""
    with errors_naming(path), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's, about the old file format
        with path.open("rb") as file:
            is_zip = file.read(2) == b"PK"  # else it is from before PyTorch 1.6
        if is_zip:
            with zipfile.ZipFile(path) as archive:
                unpacked = sum(member.file_size for member in archive.infolist())
            if unpacked > path.stat().st_size:  # PyTorch compresses nothing
                raise ValueError(
                    "it unpacks to more than its own size, which no file of PyTorch does"
                )
        return {
            str(name): value
            for name, value in torch.load(path, map_location="cpu", weights_only=True).items()
        }


# --- Files and configuration ----------------------------------------------------------------------


def find_allennlp(path: Path) -> Path | None:
    """The weights: the path itself, or best.th or weights.th in the directory."""
    if path.suffix == ".th" and path.is_file():
        return path
    return next(filter(Path.is_file, (path / "best.th", path / "weights.th")), None)


def _settings(folder: Path) -> list[dict[str, Any]]:
    """All objects in config.json, at any depth; none if it is missing or damaged."""
    try:
        values = [read_json(folder / "config.json")]
    except (OSError, ValueError):
        return []
    for value in values:  # the list grows by what is inside each value
        if isinstance(value, dict):
            values += value.values()
        elif isinstance(value, list):
            values += value
    return [value for value in values if isinstance(value, dict)]


def _options(folder: Path) -> Path | None:
    """The biLM's options, archived or at the path that config.json names; None if missing."""
    archived = sorted((folder / "fta").glob("*options_file"))
    if len(archived) == 1:
        return archived[0]
    named = [settings.get("options_file") for settings in _settings(folder)]
    paths = {Path(name) for name in named if isinstance(name, str) and Path(name).is_file()}
    return paths.pop() if len(paths) == 1 else None


def _config_from_shapes(shapes: Mapping[str, Any]) -> BiLMConfig:
    """Infer the configuration from a `BiLM`'s weights; other settings are as published."""
    layers = numbered(shapes, "sequence_encoder.stacks.0.layers.{}.input_weight")
    filters = numbered(shapes, "token_encoder.convolutions.{}.weight")
    (gates, dim), (_, embedding_dim) = layers[0], shapes["token_encoder.char_embedding"]
    return BiLMConfig(
        LSTMConfig(num_layers=len(layers), cell_dim=gates // 4, projection_dim=dim),
        CharCNNConfig(
            embedding_dim=embedding_dim,
            filters=tuple((width, number) for number, _, width in filters),
            num_highway=len(numbered(shapes, "token_encoder.highways.{}.gates.weight")),
        ),
    )


# --- Loading --------------------------------------------------------------------------------------


def _mix(tensors: Mapping[str, Any], prefix: str, num_layers: int) -> MixWeights | None:
    """The first mix, if it has a weight for each layer."""
    names = [f"scalar_parameters.{number}" for number in range(num_layers)]
    try:
        *weights, gamma = (
            tensors[f"{prefix}scalar_mix_0.{name}"].item() for name in (*names, "gamma")
        )
    except KeyError:
        return None
    return MixWeights(tuple(weights), gamma)


def load_allennlp(path: Path) -> Pretrained:
    """Load the ELMo from the weights of a model, with its first mix; it never has a softmax.

    A mix of normalized layers (do_layer_norm) is left out with a warning.

    Raises:
        CheckpointError: The file is damaged, or has no ELMo or several in it.
    """
    tensors, folder = read_tensors(path), path.parent
    prefixes = [name.removesuffix(CHARACTERS) for name in tensors if name.endswith(CHARACTERS)]
    if len(prefixes) != 1:
        raise ValueError(
            f"{path} must have one ELMo in it, but has {len(prefixes)}: {', '.join(prefixes)}"
        )
    weights = {}
    for name, tensor in tensors.items():
        plain = name.removeprefix(prefixes[0])
        if name.startswith(prefixes[0]) and not NOT_WEIGHTS.fullmatch(plain):
            weights[bilm_name(plain) or plain] = tensor
    shapes, table = shapes_in(weights), "token_encoder.char_embedding"
    if rows := shapes[table]:
        shapes[table] = (max(0, rows[0] - 1), *rows[1:])
    with errors_naming(path):
        options = _options(folder)
        config = _config_from_shapes(shapes) if options is None else read_options(options, 0)
    check_shapes(path, weight_shapes(config), shapes)
    if options is None:
        warnings.warn(
            f"{path} comes without the options of its biLM: clips, skip connections and activation "
            "are assumed to be those of the published models; if they are not, copy its "
            "options.json to fta/options_file next to it",
            stacklevel=3,
        )
    state = {
        name: rearranged(name, tensor.float(), OPTION_FORGET_BIAS)
        for name, tensor in weights.items()
    }
    mix = _mix(tensors, prefixes[0].removesuffix("_elmo_lstm."), config.num_representations)
    # The same key in a language model's char_cnn does not count.
    normalizes = any(
        settings.get("do_layer_norm")
        in (True, "true")  # a string where it is an external variable of Jsonnet
        and (settings.get("type") == "elmo_token_embedder" or "options_file" in settings)
        for settings in _settings(folder)
    )
    if mix is not None and normalizes:
        warnings.warn(
            f"{path}: its mix normalizes the layers (do_layer_norm): loaded without the mix",
            stacklevel=3,
        )
        mix = None
    return Pretrained(module_from(lambda: BiLM(config), state), mix=mix)
