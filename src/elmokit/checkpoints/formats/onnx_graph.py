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
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from torch import Tensor, nn

from elmokit import __version__
from elmokit.config import InterleavedConfig
from elmokit.fs import atomic_path
from elmokit.nn import BiLM, CharCNN

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto

OPSET, IR_VERSION = 17, 8  # supported by onnxruntime since 1.12


class _Graph:
    """Nodes and weights, added in order. Values are identified by names, and methods return the
    names of results.
    """

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self.nodes: list[NodeProto] = []
        self.weights: list[TensorProto] = []

    def op(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """Add a node; returns the name of its output, or with several `outputs` a list of names."""
        from onnx import helper

        names = [f"{self.prefix}{kind}_{len(self.nodes)}_{number}" for number in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, **attributes))
        return names[0] if outputs == 1 else names

    def constant(self, value: Tensor | np.ndarray | Sequence[int] | float) -> str:
        """Add a weight or another constant: float32, or int64 for integers."""
        from onnx import numpy_helper

        array = (
            value.detach().float().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
        )
        array = array.astype(np.int64 if array.dtype.kind == "i" else np.float32, order="C")
        name = f"{self.prefix}weight_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def linear(self, x: str, weight: Tensor, bias: Tensor) -> str:
        """x (..., K) @ weight (N, K).T + bias."""
        return self.op("Add", self.op("MatMul", x, self.constant(weight.T)), self.constant(bias))

    def stack(self, values: Sequence[str], axis: int = 0) -> str:
        axes = self.constant([axis])
        return self.op(
            "Concat", *(self.op("Unsqueeze", value, axes) for value in values), axis=axis
        )


# --- Token encoders -------------------------------------------------------------------------------


def _char_cnn(graph: _Graph, encoder: CharCNN, ids: str) -> str:
    """Ids of characters (U, C), from 0 -> (U, D)."""
    characters = graph.op("Gather", graph.constant(encoder.char_embedding), ids)
    characters = graph.op("Transpose", characters, perm=[0, 2, 1])
    pooled = [
        graph.op(
            "ReduceMax",
            graph.op("Conv", characters, *map(graph.constant, filters)),
            axes=[2],
            keepdims=0,
        )
        for filters in zip(*encoder.filters(), strict=True)
    ]
    x = graph.op(
        {"relu": "Relu", "tanh": "Tanh"}[encoder.config.activation],
        graph.op("Concat", *pooled, axis=1),
    )
    for layer in encoder.highways:
        gates = cast(nn.Linear, layer.gates)
        transform, carry = graph.op(
            "Split", graph.linear(x, gates.weight, gates.bias), outputs=2, axis=1
        )
        change = graph.op("Sub", graph.op("Relu", transform), x)
        x = graph.op("Add", x, graph.op("Mul", graph.op("Sigmoid", carry), change))
    return (
        x
        if encoder.projection is None
        else graph.linear(x, encoder.projection.weight, encoder.projection.bias)
    )


def _efml_encoder(graph: _Graph, encoder: Any, ids: str) -> str:
    """Ids (U, 1 + C) of a word and its characters, from 0 -> (U, D)."""
    features = []
    if encoder.word_embedding is not None:
        words = graph.op("Gather", ids, graph.constant(np.array(0)), axis=1)
        features.append(graph.op("Gather", graph.constant(encoder.word_embedding), words))
        ids = graph.op(
            "Slice", ids, *(graph.constant([number]) for number in (1, np.iinfo(np.int64).max, 1))
        )
    if encoder.char_cnn is not None:
        features.append(_char_cnn(graph, encoder.char_cnn, ids))
    x = features[0] if len(features) == 1 else graph.op("Concat", *features, axis=1)
    return graph.linear(x, encoder.projection.weight, encoder.projection.bias)


def _encode(graph: _Graph, bilm: BiLM, ids: str) -> tuple[str, str]:
    """ids (B, T, ...) -> token vectors (T, B, D) and the mask (B, T). Each distinct word is encoded
    once.
    """
    encoder: Any = bilm.token_encoder
    if bilm.config.num_words is not None:
        mask = graph.op("Greater", ids, graph.constant(np.array(0)))
        # Padding reads row -1, the last one, and is masked later.
        rows = graph.op("Transpose", graph.op("Sub", ids, graph.constant(np.array(1))), perm=[1, 0])
        return graph.op("Gather", graph.constant(encoder.weight), rows), mask
    largest = graph.op("ReduceMax", ids, axes=[2], keepdims=0)
    mask = graph.op("Greater", largest, graph.constant(np.array(0)))
    words, _, inverse = graph.op("Unique", graph.op("Flatten", ids, axis=2), outputs=3, axis=0)
    words = graph.op("Sub", words, graph.constant(np.array(1)))
    encode = _efml_encoder if bilm.config.char_cnn is None else _char_cnn
    vectors = encode(graph, encoder, words)
    tokens = graph.op("Reshape", inverse, graph.op("Shape", mask))
    return graph.op("Gather", vectors, graph.op("Transpose", tokens, perm=[1, 0])), mask


# --- LSTMs ----------------------------------------------------------------------------------------


def _clipped(graph: _Graph, outer: _Graph, x: str, clip: float | None) -> str:
    return (
        x
        if clip is None
        else graph.op("Clip", x, outer.constant(-float(clip)), outer.constant(float(clip)))
    )


def _cell(outer: _Graph, layer: Any) -> Any:
    """The body of a Scan: (h, c, the input's part of the gates, mask) of a position -> (h, c,
    h).
    """
    from onnx import TensorProto, helper

    weights, (cell_clip, proj_clip) = layer.weights(), layer.clips
    graph = _Graph("cell_")  # whose weights are constants of the outer graph
    gates = graph.op("Add", "x_t", graph.op("MatMul", "h_t", outer.constant(weights.recurrent.T)))
    i, g, f, o = graph.op("Split", gates, outputs=4, axis=1)
    kept = graph.op("Mul", graph.op("Sigmoid", f), "c_t")
    c = graph.op("Add", graph.op("Mul", graph.op("Sigmoid", i), graph.op("Tanh", g)), kept)
    c = _clipped(graph, outer, c, cell_clip)
    h = graph.op("Mul", graph.op("Sigmoid", o), graph.op("Tanh", c))
    if weights.projection is not None:
        h = graph.op("MatMul", h, outer.constant(weights.projection.T))
        h = _clipped(graph, outer, h, proj_clip)
    h, c = graph.op("Where", "mask_t", h, "h_t"), graph.op("Where", "mask_t", c, "c_t")
    output = graph.op("Identity", h)
    kinds = {
        "h_t": TensorProto.FLOAT,
        "c_t": TensorProto.FLOAT,
        "x_t": TensorProto.FLOAT,
        "mask_t": TensorProto.BOOL,
    }
    inputs = [helper.make_tensor_value_info(name, kind, None) for name, kind in kinds.items()]
    results = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in (h, c, output)
    ]
    return helper.make_graph(graph.nodes, "cell", inputs, results)


def _lstm(graph: _Graph, layer: Any, x: str, mask: str, state: Sequence[str], d: int) -> list[str]:
    """x (T, B, K), mask (T, B, 1), state (B, D) and (B, H) -> [h, c, outputs (T, B, D)], in
    direction d.
    """
    weights = layer.weights()
    inputs = graph.linear(x, weights.input, weights.bias)
    directions = {"scan_input_directions": [d, d], "scan_output_directions": [d]}
    return graph.op(
        "Scan",
        *state,
        inputs,
        mask,
        outputs=3,
        body=_cell(graph, layer),
        num_scan_inputs=2,
        **directions,
    )


def _independent(graph: _Graph, bilm: BiLM, x: str, mask: str) -> tuple[list[str], list[str]]:
    """The layers, each (T, B, 2D), and the state after them, h and c, of independent directions."""
    outputs, states = [], []
    for d, stack in enumerate(cast(Any, bilm.sequence_encoder).stacks):
        layers, finals = [x], []
        for index, layer in enumerate(stack.layers):
            place = graph.constant([d, index])
            state = [graph.op("GatherND", part, place) for part in ("h", "c")]
            h, c, y = _lstm(graph, layer, layers[-1], mask, state, d)
            layers.append(
                graph.op("Add", y, layers[-1]) if stack.use_skip_connections and index else y
            )
            finals.append((h, c))
        outputs.append(layers)
        states.append([graph.stack(part) for part in zip(*finals, strict=True)])
    joined = [graph.op("Concat", *pair, axis=2) for pair in zip(*outputs, strict=True)]
    return joined, [graph.stack(part) for part in zip(*states, strict=True)]


def _interleaved(graph: _Graph, bilm: BiLM, x: str, mask: str) -> list[str]:
    """The layers, each (T, B, 2D), of interleaved directions; without projections only the top
    layer.
    """
    encoder, shape = cast(Any, bilm.sequence_encoder), graph.op("Shape", x, start=1, end=2)
    config: InterleavedConfig = encoder.config
    zeros = graph.op(
        "ConstantOfShape", graph.op("Concat", shape, graph.constant([config.cell_dim]), axis=0)
    )
    below, layers = x, [graph.op("Concat", x, x, axis=2)]
    for index in range(config.num_layers):
        outputs = [
            _lstm(graph, stack["layers"][index], below, mask, [zeros, zeros], d)[2]
            for d, stack in enumerate(encoder.stacks)
        ]
        below = graph.op("Concat", *outputs, axis=2)
        if config.projects_layers:
            projection = encoder.projections[index]
            below = graph.op(
                "Add", graph.linear(below, projection.weight, projection.bias), layers[-1]
            )
            layers.append(below)
    if config.projects_layers:
        return layers
    projection = encoder.top_projection
    projected = [graph.linear(y, projection.weight, projection.bias) for y in outputs]
    return [graph.op("Concat", *projected, axis=2)]


# --- The model ------------------------------------------------------------------------------------


def onnx_model(bilm: BiLM) -> ModelProto:
    """The graph of a biLM of LSTMs.

    Raises:
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
    x, mask = _encode(graph, bilm, "ids")
    steps = graph.op("Unsqueeze", graph.op("Transpose", mask, perm=[1, 0]), graph.constant([2]))
    if encoder.merges_directions:
        layers, states = _interleaved(graph, bilm, x, steps), []
    else:
        layers, states = _independent(graph, bilm, x, steps)
    stacked = graph.op("Transpose", graph.stack(layers), perm=[0, 2, 1, 3])
    is_word = graph.op("Unsqueeze", mask, graph.constant([0, 3]))
    masked = graph.op("Where", is_word, stacked, graph.constant(0.0))
    depth, *dims = encoder.state_shape
    # Narrower words would miss padding that wide filters saw in training; `BiLM.forward` adds it.
    width = "characters" if config.char_cnn is None else config.char_cnn.max_characters
    ids = ["batch", "words", *([width] if config.num_words is None else [])]
    inputs = [helper.make_tensor_value_info("ids", TensorProto.INT64, ids)]
    results = [
        (
            "layers",
            masked,
            TensorProto.FLOAT,
            [config.num_representations, "batch", "words", config.output_dim],
        ),
        ("mask", mask, TensorProto.BOOL, ["batch", "words"]),
    ]
    for name, after, dim in zip("hc", states, dims, strict=False):
        inputs.append(
            helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, depth, "batch", dim])
        )
        results.append((f"{name}_after", after, TensorProto.FLOAT, [2, depth, "batch", dim]))
    for name, value, _, _ in results:
        graph.nodes.append(helper.make_node("Identity", [value], [name]))
    outputs = [helper.make_tensor_value_info(name, kind, shape) for name, _, kind, shape in results]
    model = helper.make_model(
        helper.make_graph(graph.nodes, "biLM", inputs, outputs, graph.weights),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="elmokit",
        producer_version=__version__,
    )
    # For programs that make the ids: their kind, and the maximum number of characters of a word.
    words = config.char_cnn or config.efml
    settings = {"input": bilm.token_encoder.input, "max_characters": words and words.max_characters}
    helper.set_model_props(model, {"elmokit": json.dumps(settings)})
    return model


def write_onnx(bilm: BiLM, path: str | Path, overwrite: bool = False) -> None:
    """Write a biLM as an ONNX file, atomically.

    Raises:
        FileExistsError: The file exists with other content, and is not to be overwritten.
        ValueError: As `onnx_model`.
    """
    content = onnx_model(bilm).SerializeToString(deterministic=True)
    with atomic_path(path, overwrite) as partial:
        partial.write_bytes(content)
