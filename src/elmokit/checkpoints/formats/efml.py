"""Directories of ELMoForManyLangs: two files of weights saved by PyTorch, with settings and dictionaries.

The weights are pickles, from which tensors alone are read (`formats/torch_file.py`).
Sources: ELMoForManyLangs, `modules/token_embedder.py`, `modules/elmo.py`, `modules/lstm.py`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from elmokit.checkpoints.detect import EFML_WEIGHTS
from elmokit.checkpoints.errors import Shape, check_shapes
from elmokit.checkpoints.formats.efml_settings import read_config
from elmokit.checkpoints.formats.torch_file import check_weights, read_tensors
from elmokit.checkpoints.native import filled, read_card
from elmokit.checkpoints.pretrained import Pretrained
from elmokit.config import BiLMConfig, EfmlEncoderConfig, InterleavedConfig, LSTMConfig
from elmokit.nn.bilm import BiLM, shapes_only

TOKEN_ENCODER, ENCODER = EFML_WEIGHTS

# --- The tables --------------------------------------------------------------------------------------------------


def _igfo(tensor: Tensor) -> Tensor:
    """Rows of the gates i, f, g, o, as PyTorch has them -> i, g, f, o, as TensorFlow."""
    i, f, g, o = tensor.chunk(4)
    return torch.cat([i, g, f, o])


def _negate_gate(tensor: Tensor) -> Tensor:
    """ELMoForManyLangs' highway gate weights the input, ours the transform: sigmoid(-x) = 1 - sigmoid(x)."""
    transform, gate = tensor.chunk(2)
    return torch.cat([transform, -gate])


@dataclass(frozen=True)
class Entry:
    """`change(file[name])` is added to `state_dict[parameter]`."""

    name: str
    shape: Shape  # in the file
    parameter: str
    change: Callable[[Tensor], Tensor] = Tensor.float


def _token_encoder_entries(config: EfmlEncoderConfig, output_dim: int) -> Iterator[Entry]:
    ours, cnn = "token_encoder", config.char_cnn
    if config.words:
        words = (len(config.words), config.word_dim)
        yield Entry("word_emb_layer.embedding.weight", words, f"{ours}.word_embedding")
    if cnn is not None:
        characters, filters = (cnn.num_characters, cnn.embedding_dim), cnn.num_filters
        yield Entry("char_emb_layer.embedding.weight", characters, f"{ours}.char_cnn.char_embedding")
        for i, (width, number) in enumerate(cnn.filters):
            conv = f"{ours}.char_cnn.convolutions.{i}"
            yield Entry(f"convolutions.{i}.weight", (number, cnn.embedding_dim, width), f"{conv}.weight")
            yield Entry(f"convolutions.{i}.bias", (number,), f"{conv}.bias")
        for k in range(cnn.num_highway):
            gates = f"{ours}.char_cnn.highways.{k}.gates"
            yield Entry(f"highways._layers.{k}.weight", (2 * filters, filters), f"{gates}.weight", _negate_gate)
            yield Entry(f"highways._layers.{k}.bias", (2 * filters,), f"{gates}.bias", _negate_gate)
    yield Entry("projection.weight", (output_dim, config.num_features), f"{ours}.projection.weight")
    yield Entry("projection.bias", (output_dim,), f"{ours}.projection.bias")


def _elmo_entries(config: LSTMConfig) -> Iterator[Entry]:
    dim, hidden = config.projection_dim, config.cell_dim
    for layer in range(config.num_layers):
        for d, direction in enumerate(("forward", "backward")):
            ours = f"sequence_encoder.stacks.{d}.layers.{layer}"
            cell = f"{direction}_layer_{layer}"
            for name, weight in (("input", "input_weight"), ("state", "recurrent_weight")):
                yield Entry(f"{cell}.{name}_linearity.weight", (4 * hidden, dim), f"{ours}.{weight}", _igfo)
            yield Entry(f"{cell}.state_linearity.bias", (4 * hidden,), f"{ours}.bias", _igfo)
            yield Entry(f"{cell}.state_projection.weight", (dim, hidden), f"{ours}.projection_weight")


def _lstm_entries(config: InterleavedConfig) -> Iterator[Entry]:
    """The table for weights of torch.nn.LSTM, which has two biases per gate; they are added up."""
    dim, hidden = config.projection_dim, config.cell_dim
    for layer in range(config.num_layers):
        input_dim = 2 * hidden if layer else dim
        for d, suffix in enumerate((f"l{layer}", f"l{layer}_reverse")):
            ours = f"sequence_encoder.stacks.{d}.layers.{layer}"
            weights = (("ih", input_dim, "input_weight"), ("hh", hidden, "recurrent_weight"))
            for name, width, weight in weights:
                yield Entry(f"encoder.weight_{name}_{suffix}", (4 * hidden, width), f"{ours}.{weight}", _igfo)
                yield Entry(f"encoder.bias_{name}_{suffix}", (4 * hidden,), f"{ours}.bias", _igfo)
    yield Entry("projection.weight", (dim, hidden), "sequence_encoder.top_projection.weight")
    yield Entry("projection.bias", (dim,), "sequence_encoder.top_projection.bias")


def tables_of(config: BiLMConfig) -> dict[str, list[Entry]]:
    """The tables of both files: every tensor, its shape, and the part of a parameter that it fills."""
    encoder, lstm, interleaved = config.efml, config.lstm, config.interleaved
    assert encoder is not None
    if lstm is not None:
        entries = _elmo_entries(lstm)
    else:
        assert interleaved is not None  # read_config makes no other
        entries = _lstm_entries(interleaved)
    dim = config.sequence_encoder.projection_dim
    return {TOKEN_ENCODER: list(_token_encoder_entries(encoder, dim)), ENCODER: list(entries)}


# --- Weights -----------------------------------------------------------------------------------------------------


def _read_tensors(path: Path) -> dict[str, Tensor]:
    tensors = read_tensors(path)
    check_weights(path, tensors)
    return tensors


def read_efml(directory: Path) -> tuple[BiLMConfig, dict[str, Tensor]]:
    """Read a model's directory.

    Returns:
        Its configuration, and the state_dict of `BiLM(configuration)` in float32.

    Raises:
        CheckpointError: The files are damaged or do not make one model; every offending key is named.
    """
    config = read_config(directory)
    tables = tables_of(config)
    files = {name: _read_tensors(directory / name) for name in tables}
    for name, entries in tables.items():
        shapes = {key: tuple(tensor.shape) for key, tensor in files[name].items()}
        check_shapes(directory / name, {entry.name: entry.shape for entry in entries}, shapes)
    # Only now are the sizes in the settings known to be those of the files, and safe to allocate.
    with shapes_only():
        shapes = {name: parameter.shape for name, parameter in BiLM(config).state_dict().items()}
    state = {name: torch.zeros(shape, dtype=torch.float32, device="cpu") for name, shape in shapes.items()}
    for name, entries in tables.items():
        for entry in entries:
            state[entry.parameter] += entry.change(files[name][entry.name].float())
    return config, state


def load_efml(directory: Path, softmax: bool = True) -> Pretrained:
    """Load the model in a directory; it never has a softmax. Errors are those of `read_efml`."""
    config, state_dict = read_efml(directory)
    return Pretrained(filled(lambda: BiLM(config), state_dict), card=read_card(directory))
