"""Models on top of ELMo that AllenNLP saved: config.json and weights.th, from which the ELMo is read.

The options of the biLM are in `fta`, where versions up to 0.9 archived them, or at the path that config.json names.
Sources: AllenNLP `models/archival.py`, `modules/elmo.py`; `formats/allennlp_weights.py` has the names of weights.
"""

import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from elmokit.checkpoints.errors import CheckpointError, Shape, check_shapes
from elmokit.checkpoints.formats.allennlp_weights import NOT_WEIGHTS, bilm_name, rearranged
from elmokit.checkpoints.formats.bilm_options import FORGET_BIAS, read_options
from elmokit.checkpoints.formats.torch_file import check_weights, read_tensors
from elmokit.checkpoints.native import filled
from elmokit.checkpoints.pretrained import MixWeights, Pretrained
from elmokit.config import BiLMConfig, CharCNNConfig, LSTMConfig
from elmokit.fs.json_files import read_json
from elmokit.nn.bilm import BiLM, shapes_only

# A weight that every biLM has, and no other module.
CHARACTERS = "_token_embedder._char_embedding_weights"
MIX = re.compile(r"scalar_mix_0\.(gamma|scalar_parameters\.\d+)")


def _prefix(path: Path, tensors: Mapping[str, Any]) -> str:
    """The prefix of the biLM's weights; CheckpointError unless there is exactly one biLM."""
    prefixes = [name.removesuffix(CHARACTERS) for name in tensors if str(name).endswith(CHARACTERS)]
    if not prefixes:
        raise CheckpointError(f"{path} has no ELMo in it: no weight of it is called ...{CHARACTERS}")
    if len(prefixes) > 1:
        raise CheckpointError(f"{path} has several ELMos in it, and elmokit cannot choose one: {', '.join(prefixes)}")
    return prefixes[0]


# --- Configuration -----------------------------------------------------------------------------------------------


def _objects(folder: Path) -> Iterator[dict[str, Any]]:
    """All objects in config.json, at any depth; none if it is missing or damaged."""
    try:
        remaining = [read_json(folder / "config.json")]
    except (OSError, ValueError, RecursionError):
        return
    while remaining:
        value = remaining.pop()
        remaining.extend(value.values() if isinstance(value, dict) else value if isinstance(value, list) else ())
        if isinstance(value, dict):
            yield value


def _options(folder: Path) -> Path | None:
    """The options of the biLM, archived or at the path that config.json names; None if they are missing."""
    archived = sorted((folder / "fta").glob("*options_file"))
    if len(archived) == 1:
        return archived[0]
    named = [settings.get("options_file") for settings in _objects(folder)]
    paths = {Path(name) for name in named if isinstance(name, str) and Path(name).is_file()}
    return paths.pop() if len(paths) == 1 else None


def _normalizes_layers(folder: Path) -> bool:
    """Whether the ELMo was configured with layer norm; the same key in a language model's char_cnn does not count."""
    return any(
        settings.get("do_layer_norm") is True
        and (settings.get("type") == "elmo_token_embedder" or "options_file" in settings)
        for settings in _objects(folder)
    )


def config_from_shapes(shapes: Mapping[str, Shape]) -> BiLMConfig:
    """A configuration with sizes from a biLM's weights, named as in a `BiLM`; other settings are the published ones.

    Raises:
        ValueError: The weights are not those of a biLM.
    """

    def count(name: str) -> int:
        numbers = (re.fullmatch(re.escape(name).replace("N", r"(\d+)"), key) for key in shapes)
        return sum(number is not None for number in numbers)

    try:
        gates, dim = shapes["sequence_encoder.stacks.0.layers.0.input_weight"]
        _, embedding_dim = shapes["token_encoder.char_embedding"]
        convolutions = count("token_encoder.convolutions.N.weight")
        filters = [shapes[f"token_encoder.convolutions.{number}.weight"] for number in range(convolutions)]
        cnn = CharCNNConfig(
            embedding_dim=embedding_dim,
            filters=tuple((width, number) for number, _, width in filters),
            num_highway=count("token_encoder.highways.N.gates.weight"),
        )
    except (KeyError, ValueError) as error:
        raise ValueError(f"its weights are not those of a biLM ({error})") from error
    layers = count("sequence_encoder.stacks.0.layers.N.input_weight")
    return BiLMConfig(LSTMConfig(num_layers=layers, cell_dim=gates // 4, projection_dim=dim), cnn)


def _config(path: Path, shapes: Mapping[str, Shape]) -> BiLMConfig:
    if (options := _options(path.parent)) is not None:
        return read_options(options, 0)
    try:
        config = config_from_shapes(shapes)
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from error
    warnings.warn(
        f"{path} comes without the options of its biLM: clips, skip connections and activation are assumed to be "
        "those of the published models; if they are not, copy its options.json to fta/options_file next to it",
        stacklevel=5,
    )
    return config


# --- Loading -----------------------------------------------------------------------------------------------------


def _mix(tensors: Mapping[str, Tensor], num_layers: int) -> MixWeights | None:
    """The first mix, if it has a weight for each layer."""
    named = {name: tensor for name, tensor in tensors.items() if MIX.fullmatch(name) and tensor.numel() == 1}
    names = [f"scalar_mix_0.scalar_parameters.{number}" for number in range(num_layers)]
    if set(named) != {"scalar_mix_0.gamma", *names}:
        return None
    return MixWeights(tuple(named[name].item() for name in names), named["scalar_mix_0.gamma"].item())


def load_allennlp(path: Path, softmax: bool = True) -> Pretrained:
    """Load the ELMo from the weights of a model, with its first mix; it never has a softmax.

    A mix of normalized layers (do_layer_norm) is left out with a warning.

    Raises:
        CheckpointError: The file is damaged, or has no ELMo or several in it.
    """
    tensors = read_tensors(path)
    prefix = _prefix(path, tensors)
    of_elmo = {name: tensor for name, tensor in tensors.items() if str(name).startswith(prefix)}
    check_weights(path, of_elmo)
    weights = {name.removeprefix(prefix): tensor for name, tensor in of_elmo.items()}
    weights = {bilm_name(name) or name: each for name, each in weights.items() if not NOT_WEIGHTS.fullmatch(name)}
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    table = "token_encoder.char_embedding"
    shapes[table] = (max(0, shapes[table][0] - 1), *shapes[table][1:]) if shapes[table] else ()
    config = _config(path, shapes)
    with shapes_only():
        check_shapes(path, {name: tuple(each.shape) for name, each in BiLM(config).state_dict().items()}, shapes)
    state = {name: rearranged(name, tensor.float(), FORGET_BIAS) for name, tensor in weights.items()}
    own = prefix.removesuffix("_elmo_lstm.")
    mixes = {str(name).removeprefix(own): each for name, each in tensors.items() if str(name).startswith(own)}
    mixes = {name: tensor for name, tensor in mixes.items() if isinstance(tensor, Tensor)}
    mix = _mix(mixes, config.num_representations)
    if mix is not None and _normalizes_layers(path.parent):
        warnings.warn(
            f"{path}: its mix normalizes the layers (do_layer_norm), which elmokit's does not: loaded without the mix",
            stacklevel=3,
        )
        mix = None
    return Pretrained(filled(lambda: BiLM(config), state), mix=mix)
