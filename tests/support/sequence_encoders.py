"""A small model of every sequence encoder, and what its layers are by the formulas, in NumPy
float64.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from oracle import Oracle, random_weights, sigmoid

from elmokit.config import (
    BiLMConfig,
    CharCNNConfig,
    InterleavedConfig,
    LSTMConfig,
    TransformerConfig,
)
from elmokit.nn.bilm import BiLM

DIM = 8
NUM_WORDS = 20
LSTM = LSTMConfig(2, 12, DIM, cell_clip=1.0, proj_clip=0.8)
CONFIGS = {
    "lstm": BiLMConfig(LSTM, None, NUM_WORDS),
    "interleaved": BiLMConfig(None, None, NUM_WORDS, interleaved=InterleavedConfig(2, 12, DIM)),
    "elmoformanylangs": BiLMConfig(
        None, None, NUM_WORDS, interleaved=InterleavedConfig(2, 12, DIM, projects_layers=False)
    ),
    "transformer": BiLMConfig(
        None, None, NUM_WORDS, transformer=TransformerConfig(3, DIM, 2, 16, context=5)
    ),
}
CHARACTERS = CharCNNConfig(4, ((1, 8), (2, 8)), num_highway=1)
CARRYING = [name for name, config in CONFIGS.items() if config.sequence_encoder.carries_state]
STATELESS = [name for name in CONFIGS if name not in CARRYING]
INDEPENDENT = [
    name for name, config in CONFIGS.items() if not config.sequence_encoder.merges_directions
]


class LayerOracle:
    """The layers of a segment, a position at a time."""

    def __init__(self, bilm: BiLM) -> None:
        self.config = bilm.config
        self.bilm = bilm
        self.weights = {
            name: value.detach().double().numpy() for name, value in bilm.state_dict().items()
        }

    def layers(self, words: np.ndarray) -> np.ndarray:
        """Token vectors (T, D) -> layers (L+1, T, 2D)."""
        if self.config.lstm is not None:
            lstm = Oracle(self.bilm)
            return lstm.row([*words], (lstm.zeros(), lstm.zeros()))[0]
        if self.config.interleaved is not None:
            return self._interleaved(self.config.interleaved, words)
        fwd = self._transformer(0, words)
        bwd = self._transformer(1, words[::-1])
        return np.concatenate([fwd, bwd[:, ::-1]], axis=2)

    def _affine(self, name: str, x: np.ndarray) -> np.ndarray:
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    # Interleaved LSTMs

    def _interleaved(self, config: InterleavedConfig, words: np.ndarray) -> np.ndarray:
        below = [words, words]  # what each direction reads, in the order of the words
        stream = np.concatenate([words, words], axis=1)
        layers = [stream]
        for number in range(config.num_layers):
            fwd = self._lstm(config, number, 0, below[0])
            bwd = self._lstm(config, number, 1, below[1][::-1])[::-1]
            both = np.concatenate([fwd, bwd], axis=1)
            if config.projects_layers:
                weight, bias = (
                    self.weights[f"sequence_encoder.projections.{number}.{name}"]
                    for name in ("weight", "bias")
                )
                stream = stream + both @ weight.T + bias
                layers.append(stream)
                both = stream
            below = [both, both]
        if config.projects_layers:
            return np.array(layers)
        weight, bias = (
            self.weights[f"sequence_encoder.top_projection.{name}"] for name in ("weight", "bias")
        )
        return np.concatenate([half @ weight.T + bias for half in (fwd, bwd)], axis=1)[None]

    def _lstm(
        self, config: InterleavedConfig, number: int, d: int, inputs: np.ndarray
    ) -> np.ndarray:
        layer = f"sequence_encoder.stacks.{d}.layers.{number}"
        w, u, b = (
            self.weights[f"{layer}.{name}"] for name in ("input_weight", "recurrent_weight", "bias")
        )
        h = np.zeros(config.cell_dim)
        c = np.zeros(config.cell_dim)
        outputs = []
        for x in inputs:
            i, g, f, o = np.split(w @ x + u @ h + b, 4)
            c = sigmoid(i) * np.tanh(g) + sigmoid(f + config.forget_bias) * c
            h = sigmoid(o) * np.tanh(c)
            outputs.append(h)
        return np.array(outputs)

    # Transformer

    def _transformer(self, d: int, x: np.ndarray) -> np.ndarray:
        config = self.config.transformer
        layers = [x]
        for number in range(config.num_layers):
            name = f"sequence_encoder.stacks.{d}.layers.{number}"
            attended = self._attention(
                config, self._affine(f"{name}.attention_input", normalized(x))
            )
            x = x + self._affine(f"{name}.attention_output", attended)
            hidden = gelu(self._affine(f"{name}.feedforward_input", normalized(x)))
            x = x + self._affine(f"{name}.feedforward_output", hidden)
            layers.append(x)
        layers[-1] = normalized(x)
        return np.array(layers)

    @staticmethod
    def _attention(config: TransformerConfig, projected: np.ndarray) -> np.ndarray:
        """Queries, keys and values side by side (T, 3D), heads side by side in each -> (T, D)."""
        width = config.projection_dim // config.num_heads
        queries, keys, values = (
            part.reshape(len(part), config.num_heads, width) for part in np.split(projected, 3, 1)
        )
        outputs = np.zeros_like(queries)
        for position in range(len(projected)):
            seen = range(max(0, position - config.context + 1), position + 1)
            for head in range(config.num_heads):
                query = rotated(queries[position, head], position)
                scores = np.array(
                    [query @ rotated(keys[other, head], other) for other in seen]
                ) / math.sqrt(width)
                weights = np.exp(scores - scores.max())
                outputs[position, head] = weights / weights.sum() @ values[list(seen), head]
        return outputs.reshape(len(projected), -1)


def normalized(x: np.ndarray) -> np.ndarray:
    centred = x - x.mean(axis=1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-5)


def gelu(x: np.ndarray) -> np.ndarray:
    return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2


def rotated(x: np.ndarray, position: int) -> np.ndarray:
    """Rotary positions (Su et al. 2021, equation 15): each pair of neighbours is turned by its own
    angle.
    """
    turned = np.empty_like(x)
    pairs = len(x) // 2
    for pair in range(pairs):
        angle = position * 10_000 ** (-pair / pairs)
        a, b = x[2 * pair : 2 * pair + 2]
        turned[2 * pair] = a * math.cos(angle) - b * math.sin(angle)
        turned[2 * pair + 1] = a * math.sin(angle) + b * math.cos(angle)
    return turned


def random_bilm(name: str, seed: int = 1, scale: float = 0.5, characters: bool = False) -> BiLM:
    """A model of words, or of characters, with large random weights, float64, without gradients."""
    config = (
        replace(CONFIGS[name], char_cnn=CHARACTERS, num_words=None) if characters else CONFIGS[name]
    )
    bilm = BiLM(config).double()
    random_weights(bilm, seed, scale)
    return bilm.requires_grad_(False)


def random_sentences(lengths: list[int], seed: int = 0) -> list[torch.Tensor]:
    """Rows of the word table, for sentences of these lengths."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(NUM_WORDS, (length,), generator=generator) for length in lengths]
