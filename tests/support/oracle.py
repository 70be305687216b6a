"""A slow biLM in NumPy float64, written from the equations alone: a word, a row, a direction and a
step at a time.
"""

from __future__ import annotations

import numpy as np
import torch

from elmokit.nn.bilm import BiLM

State = list[tuple[np.ndarray, np.ndarray]]  # (h, c) of each layer


def random_weights(module: torch.nn.Module, seed: int, scale: float = 0.8) -> None:
    """Draw every parameter anew, so large that gates, clips and biases all matter."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(scale * torch.randn(parameter.shape, generator=generator))


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0)


class Oracle:
    """What the weights of a `BiLM` must compute."""

    def __init__(self, bilm: BiLM) -> None:
        self.config = bilm.config
        self.weights = {name: value.double().numpy() for name, value in bilm.state_dict().items()}

    def word(self, ids: np.ndarray) -> np.ndarray:
        """Shifted ids of one word, (C,) or () -> its vector (D,)."""
        if self.config.char_cnn is None:
            return self.weights["token_encoder.weight"][ids - 1]
        x = self._filters(self.weights["token_encoder.char_embedding"][ids - 1])
        for number in range(self.config.char_cnn.num_highway):
            gates = self._affine(f"token_encoder.highways.{number}.gates", x)
            transform = gates[: len(x)]
            carry = sigmoid(gates[len(x) :])
            x = carry * relu(transform) + (1 - carry) * x
        if self.config.char_cnn.num_filters == self.config.lstm.projection_dim:
            return x
        return self._affine("token_encoder.projection", x)

    def _filters(self, characters: np.ndarray) -> np.ndarray:
        """(C, E) -> (F,): each filter's largest value over all places, then the activation."""
        activation = {"relu": relu, "tanh": np.tanh}[self.config.char_cnn.activation]
        pooled = []
        for number, (width, _) in enumerate(self.config.char_cnn.filters):
            kernel = self.weights[f"token_encoder.convolutions.{number}.weight"]  # (F, E, w)
            bias = self.weights[f"token_encoder.convolutions.{number}.bias"]
            places = range(len(characters) - width + 1)
            values = [
                (kernel * characters[p : p + width].T).sum(axis=(1, 2)) + bias for p in places
            ]
            pooled.append(activation(np.max(values, axis=0)))
        return np.concatenate(pooled)

    def _affine(self, name: str, x: np.ndarray) -> np.ndarray:
        return self.weights[f"{name}.weight"] @ x + self.weights[f"{name}.bias"]

    def zeros(self) -> State:
        lstm = self.config.lstm
        return [
            (np.zeros(lstm.projection_dim), np.zeros(lstm.cell_dim)) for _ in range(lstm.num_layers)
        ]

    def direction(self, d: int, words: list[np.ndarray], state: State) -> tuple[np.ndarray, State]:
        """Word vectors as direction `d` reads them -> its layers (L+1, T, D) in that order, and the
        state.
        """
        layers = [words]
        after = []
        for number, (h, c) in enumerate(state):
            outputs = []
            for x in layers[-1]:
                h, c = self.step(d, number, x, h, c)
                skip = self.config.lstm.use_skip_connections and number > 0
                outputs.append(h + x if skip else h)
            layers.append(outputs)
            after.append((h, c))
        return np.array(layers).reshape(
            len(layers), len(words), self.config.lstm.projection_dim
        ), after

    def step(
        self, d: int, number: int, x: np.ndarray, h: np.ndarray, c: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """One step of one cell: its new output (which is its recurrent state too) and cell."""
        lstm = self.config.lstm
        names = ("input_weight", "recurrent_weight", "bias")
        w, u, b = (
            self.weights[f"sequence_encoder.stacks.{d}.layers.{number}.{name}"] for name in names
        )
        i, g, f, o = np.split(w @ x + u @ h + b, 4)
        c = sigmoid(i) * np.tanh(g) + sigmoid(f + lstm.forget_bias) * c
        if lstm.cell_clip is not None:
            c = np.clip(c, -lstm.cell_clip, lstm.cell_clip)
        h = sigmoid(o) * np.tanh(c)
        if lstm.cell_dim != lstm.projection_dim:
            h = self.weights[f"sequence_encoder.stacks.{d}.layers.{number}.projection_weight"] @ h
            if lstm.proj_clip is not None:
                h = np.clip(h, -lstm.proj_clip, lstm.proj_clip)
        return h, c

    def row(
        self, words: list[np.ndarray], states: tuple[State, State]
    ) -> tuple[np.ndarray, tuple[State, State]]:
        """The words of one row -> layers (L+1, T, 2D) in the order of the words, and the state of
        each direction.
        """
        fwd, fwd_state = self.direction(0, words, states[0])
        bwd, bwd_state = self.direction(1, words[::-1], states[1])
        return np.concatenate([fwd, bwd[:, ::-1]], axis=2), (fwd_state, bwd_state)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def cosine(left: np.ndarray, right: np.ndarray) -> float:
    return float(left @ right / np.linalg.norm(left) / np.linalg.norm(right))
