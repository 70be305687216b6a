"""A biLM as an ONNX graph, which runs without PyTorch: every operation of docs/formats.md in ONNX's
own operators.

    ids (B, T, C) or (B, T) int64    as of `BiLM.forward`, but C in full width only
    h (2, L, B, D), c (2, L, B, H)   the state that the rows start from, float32
    ->
    layers (L+1, B, T, 2D)           zero where `mask` is False
    mask (B, T) bool                 True where there is a word
    h_after, c_after                 the state after the last word of each row

A model of interleaved directions has no state.

ONNX's LSTM has neither projection nor clipping, so a layer is a Scan over the positions, whose body
is the cell. Padding is run through, but does not change the state.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from elmokit import __version__
from elmokit.fs import atomic_path
from elmokit.nn import BiLM

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto, TensorProto

OPSET, IR_VERSION = 17, 8  # supported by onnxruntime since 1.12


class _Graph:
    """Nodes in order, and weights. `graph.Add(x, y)` adds a node of ONNX's operator Add.

    Its inputs are names of values; anything else becomes a constant. It returns the name of its
    output, or with several `outputs` a list of names.
    """

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self.nodes: list[NodeProto] = []
        self.weights: list[TensorProto] = []

    def __getattr__(self, operator: str) -> Callable[..., Any]:
        return partial(self._add_node, operator)

    def _add_node(self, operator: str, *inputs: Any, outputs: int = 1, **attributes: Any) -> Any:
        from onnx import helper

        inputs = tuple(x if isinstance(x, str) else self._constant(x) for x in inputs)
        stem = f"{self.prefix}{operator}_{len(self.nodes)}"
        names = [f"{stem}_{number}" for number in range(outputs)]
        self.nodes.append(helper.make_node(operator, inputs, names, **attributes))
        return names[0] if outputs == 1 else names

    def _constant(self, value: Tensor | Sequence[int] | float) -> str:
        """A weight or another constant: float32, or int64 for integers."""
        from onnx import numpy_helper

        array = np.asarray(value.detach().float().cpu() if isinstance(value, Tensor) else value)
        array = array.astype(np.int64 if array.dtype.kind == "i" else np.float32, order="C")
        name = f"{self.prefix}weight_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def linear(self, x: str, weights: Any) -> str:
        """x (..., K) -> (..., N), by the weights of an `nn.Linear`."""
        return self.Add(self.MatMul(x, weights.weight.T), weights.bias)

    def clip(self, x: str, limit: float | None) -> str:
        return x if limit is None else self.Clip(x, -float(limit), float(limit))

    def stack(self, values: Sequence[str]) -> str:
        """Join values along a new first axis."""
        return self.Concat(*(self.Unsqueeze(value, [0]) for value in values), axis=0)

    def proto(self, name: str, inputs: Sequence[Any], outputs: Sequence[Any]) -> GraphProto:
        """The whole graph, from (name, type, shape or None) of each input and output."""
        from onnx import helper

        sources = [helper.make_tensor_value_info(*value) for value in inputs]
        results = [helper.make_tensor_value_info(*value) for value in outputs]
        return helper.make_graph(self.nodes, name, sources, results, self.weights)


# --- Token encoders -------------------------------------------------------------------------------


def _char_cnn(graph: _Graph, encoder: Any, ids: str) -> str:
    """Ids of characters (U, C), from 0 -> (U, D)."""
    characters = graph.Transpose(graph.Gather(encoder.char_embedding, ids), perm=[0, 2, 1])
    pooled = []
    for weight, bias in zip(*encoder.filters(), strict=True):
        pooled.append(graph.ReduceMax(graph.Conv(characters, weight, bias), axes=[2], keepdims=0))
    x = graph.Concat(*pooled, axis=1)
    x = graph.Relu(x) if encoder.config.activation == "relu" else graph.Tanh(x)
    for layer in encoder.highways:
        transform, carry = graph.Split(graph.linear(x, layer.gates), outputs=2, axis=1)
        change = graph.Sub(graph.Relu(transform), x)
        x = graph.Add(x, graph.Mul(graph.Sigmoid(carry), change))
    return x if encoder.projection is None else graph.linear(x, encoder.projection)


def _efml_encoder(graph: _Graph, encoder: Any, ids: str) -> str:
    """Ids (U, 1 + C) of a word and its characters, from 0 -> (U, D)."""
    features = []
    if encoder.word_embedding is not None:
        features.append(graph.Gather(encoder.word_embedding, graph.Gather(ids, 0, axis=1)))
        ids = graph.Slice(ids, [1], [sys.maxsize], [1])  # all columns but the first
    if encoder.char_cnn is not None:
        features.append(_char_cnn(graph, encoder.char_cnn, ids))
    return graph.linear(graph.Concat(*features, axis=1), encoder.projection)


def _encode(graph: _Graph, bilm: BiLM) -> tuple[str, str]:
    """ids (B, T, ...) -> token vectors (T, B, D), each distinct word encoded once; mask (B, T)."""
    encoder: Any = bilm.token_encoder
    if bilm.config.num_words is not None:
        # Padding reads row -1, the last one, and is masked later.
        rows = graph.Transpose(graph.Sub("ids", 1), perm=[1, 0])
        return graph.Gather(encoder.weight, rows), graph.Greater("ids", 0)
    mask = graph.Greater(graph.ReduceMax("ids", axes=[2], keepdims=0), 0)
    distinct, _, inverse = graph.Unique(graph.Flatten("ids", axis=2), outputs=3, axis=0)
    encode = _efml_encoder if bilm.config.char_cnn is None else _char_cnn
    vectors = encode(graph, encoder, graph.Sub(distinct, 1))
    tokens = graph.Reshape(inverse, graph.Shape(mask))
    return graph.Gather(vectors, graph.Transpose(tokens, perm=[1, 0])), mask


# --- LSTMs ----------------------------------------------------------------------------------------


def _cell(layer: Any) -> GraphProto:
    """A Scan's body: (h, c, the input's part of the gates, mask) of a position -> (h, c, h)."""
    from onnx import TensorProto

    (_, recurrent, _, projection), (cell_clip, proj_clip) = layer.weights(), layer.clips
    graph = _Graph("cell_")
    gates = graph.Add("x_t", graph.MatMul("h_t", recurrent.T))
    i, g, f, o = graph.Split(gates, outputs=4, axis=1)
    remembered = graph.Mul(graph.Sigmoid(f), "c_t")
    c = graph.Add(graph.Mul(graph.Sigmoid(i), graph.Tanh(g)), remembered)
    c = graph.clip(c, cell_clip)
    h = graph.Mul(graph.Sigmoid(o), graph.Tanh(c))
    if projection is not None:
        h = graph.clip(graph.MatMul(h, projection.T), proj_clip)
    # At padding the state stays as it is.
    h, c = graph.Where("mask_t", h, "h_t"), graph.Where("mask_t", c, "c_t")
    inputs = [(name, TensorProto.FLOAT, None) for name in ("h_t", "c_t", "x_t")]
    outputs = [(name, TensorProto.FLOAT, None) for name in (h, c, graph.Identity(h))]
    return graph.proto("cell", [*inputs, ("mask_t", TensorProto.BOOL, None)], outputs)


def _lstm(graph: _Graph, layer: Any, x: str, mask: str, state: Sequence[str], d: int) -> list[str]:
    """x (T, B, K), mask (T, B, 1), state (B, D) and (B, H) -> [h, c, outputs (T, B, D)]."""
    input, _, bias, _ = layer.weights()
    gates = graph.Add(graph.MatMul(x, input.T), bias)
    return graph.Scan(
        *state,
        gates,
        mask,
        outputs=3,
        body=_cell(layer),
        num_scan_inputs=2,
        scan_input_directions=[d, d],
        scan_output_directions=[d],
    )


def _independent(graph: _Graph, encoder: Any, x: str, mask: str) -> tuple[list[str], list[str]]:
    """The layers, each (T, B, 2D), and the state after them, h and c, of independent directions."""
    outputs, states = [], []
    for d, stack in enumerate(encoder.stacks):
        layers, finals = [x], []
        for index, layer in enumerate(stack.layers):
            start = [graph.GatherND(name, [d, index]) for name in ("h", "c")]
            *final, y = _lstm(graph, layer, layers[-1], mask, start, d)
            skips = stack.use_skip_connections and index > 0
            layers.append(graph.Add(y, layers[-1]) if skips else y)
            finals.append(final)
        outputs.append(layers)
        states.append([graph.stack(part) for part in zip(*finals, strict=True)])
    joined = [graph.Concat(*pair, axis=2) for pair in zip(*outputs, strict=True)]
    return joined, [graph.stack(part) for part in zip(*states, strict=True)]


def _interleaved(graph: _Graph, encoder: Any, x: str, mask: str) -> list[str]:
    """The layers (T, B, 2D) of interleaved directions; without projections the top one."""
    config, rows = encoder.config, graph.Shape(x, start=1, end=2)
    zeros = graph.ConstantOfShape(graph.Concat(rows, [config.cell_dim], axis=0))
    below, layers = x, [graph.Concat(x, x, axis=2)]
    for index in range(config.num_layers):
        outputs = [
            _lstm(graph, stack["layers"][index], below, mask, [zeros, zeros], d)[2]
            for d, stack in enumerate(encoder.stacks)
        ]
        below = graph.Concat(*outputs, axis=2)
        if config.projects_layers:
            below = graph.Add(graph.linear(below, encoder.projections[index]), layers[-1])
            layers.append(below)
    if config.projects_layers:
        return layers
    return [graph.Concat(*(graph.linear(y, encoder.top_projection) for y in outputs), axis=2)]


# --- The model ------------------------------------------------------------------------------------


def write_onnx(bilm: BiLM, path: str | Path, overwrite: bool = False) -> None:
    """Write a biLM of LSTMs as an ONNX file, atomically.

    Raises:
        FileExistsError: The file exists with other content, and is not to be overwritten.
        ValueError: It has a sequence encoder that is not an LSTM, or is prepacked, so that it lacks
            its own weights; or onnx is not installed.
    """
    config, encoder = bilm.config, bilm.config.sequence_encoder
    if config.interleaved is None:
        config.lstm_for("ONNX files are")  # raises where there is another encoder
    try:
        from onnx import TensorProto, helper
    except ImportError as error:
        raise ValueError(
            "ONNX files are written by onnx: pip install onnx (elmokit's extra onnx)"
        ) from error
    bilm.state_dict()  # ValueError if it is prepacked
    graph = _Graph()
    x, mask = _encode(graph, bilm)
    steps = graph.Unsqueeze(graph.Transpose(mask, perm=[1, 0]), [2])
    states: list[str] = []
    if encoder.merges_directions:
        layers = _interleaved(graph, bilm.sequence_encoder, x, steps)
    else:
        layers, states = _independent(graph, bilm.sequence_encoder, x, steps)
    stacked = graph.Transpose(graph.stack(layers), perm=[0, 2, 1, 3])
    masked = graph.Where(graph.Unsqueeze(mask, [0, 3]), stacked, 0.0)

    # Narrower words would miss padding that wide filters saw in training; `BiLM.forward` adds it.
    width = "characters" if config.char_cnn is None else config.char_cnn.max_characters
    ids = ["batch", "words"] if config.num_words is not None else ["batch", "words", width]
    inputs = [("ids", TensorProto.INT64, ids)]
    shape = [config.num_representations, "batch", "words", config.output_dim]
    outputs = [
        ("layers", TensorProto.FLOAT, shape),
        ("mask", TensorProto.BOOL, ["batch", "words"]),
    ]
    depth, *dims = encoder.state_shape
    for name, dim in zip("hc" if states else "", dims, strict=False):
        inputs.append((name, TensorProto.FLOAT, [2, depth, "batch", dim]))
        outputs.append((f"{name}_after", TensorProto.FLOAT, [2, depth, "batch", dim]))
    for value, (name, *_) in zip([masked, mask, *states], outputs, strict=True):
        graph.nodes.append(helper.make_node("Identity", [value], [name]))
    model = helper.make_model(
        graph.proto("biLM", inputs, outputs),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="elmokit",
        producer_version=__version__,
    )
    # For programs that make the ids: their kind, and the maximum number of characters of a word.
    words = config.char_cnn or config.efml
    settings = {"input": bilm.token_encoder.input, "max_characters": words and words.max_characters}
    helper.set_model_props(model, {"elmokit": json.dumps(settings)})
    with atomic_path(path, overwrite) as file:
        file.write_bytes(model.SerializeToString(deterministic=True))
