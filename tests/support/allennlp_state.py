"""Weights as AllenNLP saves them, from the files that it loads."""

from pathlib import Path

import h5py
import numpy as np
import torch
from torch import Tensor


def allennlp_state_dict(weight_file: Path, layers: int, highways: int) -> dict[str, Tensor]:
    """The biLM's part of the state_dict of AllenNLP's `Elmo`, from HDF5 as its modules/elmo.py and
    elmo_lstm.py do.
    """
    state = {}
    prefix = "_elmo_lstm._token_embedder."
    with h5py.File(weight_file) as file:

        def read(*names: str) -> np.ndarray:
            return np.asarray(file["/".join(names)])

        embedded = read("char_embed")
        state[prefix + "_char_embedding_weights"] = np.vstack(
            [np.zeros((1, embedded.shape[1])), embedded]
        )
        for number in range(len(file["CNN"]) // 2):
            weight = read("CNN", f"W_cnn_{number}")
            state[f"{prefix}char_conv_{number}.weight"] = weight.squeeze(axis=0).transpose(2, 1, 0)
            state[f"{prefix}char_conv_{number}.bias"] = read("CNN", f"b_cnn_{number}")
        for k in range(highways):
            layer = f"{prefix}_highways._layers.{k}."
            group = f"CNN_high_{k}"
            weights = [read(group, "W_transform").T, -read(group, "W_carry").T]
            state[layer + "weight"] = np.concatenate(weights)
            state[layer + "bias"] = np.concatenate(
                [read(group, "b_transform"), -read(group, "b_carry")]
            )
        state[prefix + "_projection.weight"] = read("CNN_proj", "W_proj").T
        state[prefix + "_projection.bias"] = read("CNN_proj", "b_proj")
        for d, direction in enumerate(("forward", "backward")):
            for k in range(layers):
                cell = f"RNN_{d}/RNN/MultiRNNCell/Cell{k}/LSTMCell"
                kernel, bias, projection = (read(cell, name) for name in ("W_0", "B", "W_P_0"))
                width = projection.shape[1]
                hidden = len(bias) // 4
                bias[2 * hidden : 3 * hidden] += 1
                in_order = np.concatenate(
                    [np.arange(hidden) + hidden * gate for gate in (0, 2, 1, 3)]
                )  # i, f, g, o
                layer = f"_elmo_lstm._elmo_lstm.{direction}_layer_{k}."
                state[layer + "input_linearity.weight"] = kernel.T[in_order, :-width]
                state[layer + "state_linearity.weight"] = kernel.T[in_order, -width:]
                state[layer + "state_linearity.bias"] = bias[in_order]
                state[layer + "state_projection.weight"] = projection.T
    return {name: torch.tensor(values, dtype=torch.float32) for name, values in state.items()}
