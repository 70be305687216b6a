"""TensorFlow checkpoints: of bilm-tf's training, or the module google/elmo of TensorFlow Hub.

Their variables are mapped by the ends of their names to the datasets of the HDF5 format, whose table does the rest.
TensorFlow itself is not needed.
Sources: bilm-tf `bilm/training.py` (names and `dump_weights`); the module's names as its users printed them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from elmokit.checkpoints.detect import find_companion
from elmokit.checkpoints.errors import CheckpointError, Shape, check_shapes
from elmokit.checkpoints.formats.bilm_hdf5 import fill_state_dict, table_of, weights_shape
from elmokit.checkpoints.formats.bilm_options import read_options
from elmokit.checkpoints.formats.companions import VOCABULARIES, read_vocabulary, with_boundary_words
from elmokit.checkpoints.formats.tensor_bundle import StoredTensor, read_index, read_tensor
from elmokit.checkpoints.native import filled, read_card
from elmokit.checkpoints.pretrained import MixWeights, Pretrained
from elmokit.config import BiLMConfig, CharCNNConfig, LSTMConfig
from elmokit.nn.bilm import BiLM
from elmokit.nn.softmax import FullSoftmax

# After any scope: "lm/" in a checkpoint of bilm-tf, "bilm/" or "module/bilm/" in the module.
ENCODER = re.compile(
    r"(?:.*/)?(char_embed|embedding|CNN/[Wb]_cnn_\d+|CNN_high_\d+/[Wb]_(?:carry|transform)|CNN_proj/[Wb]_proj)"
)
# TensorFlow before 1.2 called the weights W_0, B and W_P_0.
LSTM = re.compile(r"(?:.*/)?(RNN_[01])/(.*/)?(?:lstm_cell|LSTMCell)/(kernel|bias|projection/kernel|W_0|B|W_P_0)")
# Absent where there is one layer, which is not wrapped in a MultiRNNCell.
LAYER = re.compile(r"(?:^|/)(?:cell_|Cell)(\d+)/")
LSTM_WEIGHTS = {"kernel": "W_0", "bias": "B", "projection/kernel": "W_P_0"}
HEADS = re.compile(r"(?:.*/)?(softmax/[Wb]|aggregation/(?:weights|scaling))")

OPTIMIZER_SLOT = re.compile(r"(.+)/(Adagrad|Adam|Adam_1|Momentum|RMSProp|RMSProp_1)(?:_\d+)?")
OF_TRAINING = re.compile(r"(?:.*/)?(global_step|train_perplexity|beta[12]_power)(?:_\d+)?")


@dataclass(frozen=True)
class TFModel:
    """The parts of a model in a checkpoint; `num_softmax_words` is set even if the softmax was not read."""

    config: BiLMConfig
    state_dict: dict[str, Tensor]
    softmax: FullSoftmax | None
    num_softmax_words: int | None
    mix: MixWeights | None


# --- Names -------------------------------------------------------------------------------------------------------


def dataset_name(variable: str) -> str | None:
    """The name of a variable in the HDF5 format (which lacks softmax and mix); None for any other variable."""
    if match := ENCODER.fullmatch(variable) or HEADS.fullmatch(variable):
        return match[1]
    if match := LSTM.fullmatch(variable):
        direction, path, weight = match.groups()
        layer = LAYER.search(path or "")
        return (
            f"{direction}/RNN/MultiRNNCell/Cell{layer[1] if layer else 0}/LSTMCell/{LSTM_WEIGHTS.get(weight, weight)}"
        )
    return None


def _by_dataset(prefix: Path, tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """The variables of the model by their names in the HDF5 format, without those of training.

    Raises:
        CheckpointError: There are unknown variables, or duplicates; all are listed.
    """
    by_dataset: dict[str, StoredTensor] = {}
    unknown = []
    for variable, tensor in tensors.items():
        dataset = dataset_name(variable)
        if OF_TRAINING.fullmatch(variable) or OPTIMIZER_SLOT.fullmatch(variable):
            continue
        if dataset is None or dataset in by_dataset or tensor.dtype is None or tensor.dtype.kind != "f":
            unknown.append(f"  {variable} {tensor.shape}")
        else:
            by_dataset[dataset] = tensor
    if unknown:
        raise CheckpointError(f"{prefix} holds variables that no ELMo has, or has twice:\n" + "\n".join(unknown))
    return by_dataset


# --- Configuration -----------------------------------------------------------------------------------------------


def _numbered(shapes: Mapping[str, Shape], name: str, rank: int) -> list[Shape]:
    """The shapes of name.format(0), name.format(1), ... ValueError if one has another rank."""
    numbered: list[Shape] = []
    while (shape := shapes.get(name.format(len(numbered)))) is not None:
        if len(shape) != rank:
            raise ValueError(f"{name.format(len(numbered))} has the shape {shape}")
        numbered.append(shape)
    return numbered


def config_from_shapes(shapes: Mapping[str, Shape]) -> BiLMConfig:
    """The configuration of a module without options.json: sizes from its weights, the rest as published.

    Raises:
        ValueError: The weights are not those of an ELMo.
    """
    cell = "RNN_0/RNN/MultiRNNCell/Cell{}/LSTMCell/"
    kernels, biases = _numbered(shapes, cell + "W_0", 2), _numbered(shapes, cell + "B", 1)
    embedding, filters = shapes.get("char_embed", ()), _numbered(shapes, "CNN/W_cnn_{}", 4)
    if not kernels or not biases or not filters or len(embedding) != 2:
        raise ValueError("it lacks the LSTMs or the character CNN")
    # The kernel has input and state in its rows, four gates in its columns. Clips, skips and relu are those of the
    # published model (options.json), whose weights the module has.
    lstm = LSTMConfig(num_layers=len(kernels), cell_dim=biases[0][0] // 4, projection_dim=kernels[0][0] // 2)
    return BiLMConfig(
        lstm,
        CharCNNConfig(
            embedding_dim=embedding[1],
            filters=tuple((width, number) for _, width, _, number in filters),
            num_highway=len(_numbered(shapes, "CNN_high_{}/W_carry", 2)),
        ),
    )


def _config(prefix: Path, shapes: Mapping[str, Shape]) -> BiLMConfig:
    options = find_companion(prefix, ["options.json"])
    if options is not None:
        return read_options(options, shapes.get("embedding", (0,))[0])
    if "aggregation/weights" not in shapes:
        raise FileNotFoundError(f"{prefix} has no options.json in its directory or the parent: put it there")
    try:
        return config_from_shapes(shapes)
    except ValueError as error:
        raise CheckpointError(f"{prefix} is not the module google/elmo: {error}") from error


def _mix_shapes(shapes: Mapping[str, Shape], num_layers: int) -> dict[str, Shape]:
    """The expected shapes of the module's mix of layers; empty without one."""
    if not any(name.startswith("aggregation/") for name in shapes):
        return {}
    return {"aggregation/weights": (num_layers,), "aggregation/scaling": ()}


def _read_mix(tensors: Mapping[str, StoredTensor]) -> MixWeights | None:
    """The mix, whose stored weights are those before the softmax."""
    if "aggregation/weights" not in tensors:
        return None
    weights, scaling = (read_tensor(tensors[f"aggregation/{name}"]) for name in ("weights", "scaling"))
    return MixWeights(tuple(map(float, weights)), float(scaling))


def _softmax_shapes(shapes: Mapping[str, Shape], dim: int) -> dict[str, Shape]:
    """The expected shapes of the output layer; empty without one. Its weight may be the word table."""
    if "softmax/b" not in shapes:
        return {}
    num_words = shapes["softmax/b"][:1]
    shared = "softmax/W" not in shapes and "embedding" in shapes
    return {"softmax/b": num_words, "embedding" if shared else "softmax/W": (*num_words, dim)}


def _read_softmax(tensors: Mapping[str, StoredTensor], shapes: Mapping[str, Shape]) -> FullSoftmax:
    """The output layer, from the two tensors that `_softmax_shapes` names."""
    bias, weight = shapes
    arrays = {"weight": read_tensor(tensors[weight]), "bias": read_tensor(tensors[bias])}
    return filled(
        lambda: FullSoftmax(*shapes[weight]), {name: torch.from_numpy(array) for name, array in arrays.items()}
    )


# --- Loading -----------------------------------------------------------------------------------------------------


def read_tf_checkpoint(prefix: str | Path, softmax: bool = True) -> TFModel:
    """Read a model from PREFIX.index and its data, with options.json next to them or in the parent directory.

    Args:
        prefix: The common beginning of the files' names, see `detect.find_prefix`.
        softmax: Read the output layer, too, if there is one.

    Raises:
        FileNotFoundError: There are no options. (The module of TensorFlow Hub needs none.)
        CheckpointError: The files are damaged; every variable that is missing, unknown or of another shape is named.
    """
    prefix = Path(prefix)
    tensors = _by_dataset(prefix, read_index(prefix))
    shapes = {name: weights_shape(name, tensor.shape) for name, tensor in tensors.items()}
    config = _config(prefix, shapes)
    encoder = {entry.dataset: entry.shape for entry in table_of(config)}
    output_layer = _softmax_shapes(shapes, config.sequence_encoder.projection_dim)
    check_shapes(prefix, encoder | output_layer | _mix_shapes(shapes, config.num_representations), shapes)
    return TFModel(
        config,
        fill_state_dict(config, {name: read_tensor(tensors[name]) for name in encoder}),
        _read_softmax(tensors, output_layer) if softmax and output_layer else None,
        output_layer["softmax/b"][0] if output_layer else None,
        _read_mix(tensors),
    )


def load_tf_checkpoint(prefix: Path, softmax: bool = True) -> Pretrained:
    """Load a model from PREFIX.index and the files next to it, with or without its softmax.

    Raises:
        FileNotFoundError, CheckpointError: As `read_tf_checkpoint`, and if the vocabulary does not fit.
    """
    model = read_tf_checkpoint(prefix, softmax)
    words = find_companion(prefix, VOCABULARIES)
    vocab = read_vocabulary(words, model.config)
    if vocab is not None and model.num_softmax_words not in (None, len(vocab)):
        raise CheckpointError(f"{prefix} has a softmax over {model.num_softmax_words} words, {words} has {len(vocab)}")
    try:
        config = with_boundary_words(model.config, vocab)
        bilm = filled(lambda: BiLM(config), model.state_dict)
        return Pretrained(bilm, softmax=model.softmax, vocab=vocab, card=read_card(prefix.parent), mix=model.mix)
    except ValueError as error:
        raise CheckpointError(f"{prefix} does not match the files next to it: {error}") from error
