"""A plain loop over torch.nn.LSTM(proj_size=...) on padded batches, in both directions: a baseline
in plain PyTorch.

torch.nn.LSTM cannot clip states, so its vectors are correct only where no value reaches a clip. The
token encoder is elmokit's own, run on the distinct words of a batch, since only the LSTMs are
compared. worker.py defines the jobs.
"""

import argparse
from typing import Any

import h5py
import numpy as np
import torch
import worker
from torch import nn

import elmokit
from elmokit.text.characters import BOS, EOS, encode_words

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
FORGET_BIAS = 1.0


def lstm_of(file: h5py.File, direction: int, layer: int) -> nn.LSTM:
    """One layer of one direction, with weights from the file; its gates i, j, f, o become PyTorch's
    i, f, g, o.
    """
    group: Any = file[f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"]
    kernel, bias, projection = (torch.from_numpy(group[name][()]) for name in ("W_0", "B", "W_P_0"))
    cell_dim, dim = projection.shape
    lstm = nn.LSTM(dim, cell_dim, proj_size=dim, batch_first=True)

    def in_torch_order(gates: torch.Tensor) -> torch.Tensor:
        i, g, f, o = gates.chunk(4)
        return torch.cat([i, f, g, o])

    with torch.no_grad():
        bias[2 * cell_dim : 3 * cell_dim] += FORGET_BIAS
        lstm.get_parameter("weight_ih_l0").copy_(in_torch_order(kernel[:dim].T))
        lstm.get_parameter("weight_hh_l0").copy_(in_torch_order(kernel[dim:].T))
        lstm.get_parameter("bias_ih_l0").copy_(in_torch_order(bias))
        lstm.get_parameter("bias_hh_l0").zero_()
        lstm.get_parameter("weight_hr_l0").copy_(projection.T)
    return lstm


class TorchLSTM(worker.Side):
    packages = ("torch", "numpy")

    def __init__(self, arguments: argparse.Namespace) -> None:
        dtype = DTYPES[arguments.dtype]
        self.bilm = elmokit.load(arguments.model).bilm.eval().to(dtype)
        with h5py.File(arguments.model / "weights.hdf5") as file:
            layers = range(self.bilm.config.lstm.num_layers)
            self.stacks = [
                [lstm_of(file, d, layer).to(dtype) for layer in layers] for d in range(2)
            ]

    def _tokens(self, group: worker.Sentences) -> tuple[torch.Tensor, torch.Tensor]:
        """Token vectors (B, T, D), padded with zeros, and the positions (B, T) of each row in
        reverse, padding last.
        """
        number = {
            word: i
            for i, word in enumerate(
                dict.fromkeys([BOS, EOS, *(w for words in group for w in words)])
            )
        }
        config = self.bilm.config.char_cnn
        assert config is not None
        ids = torch.from_numpy(
            encode_words(list(number), config.max_characters, config.widest_filter)
        )
        rows = [torch.tensor([number[word] for word in (BOS, *words, EOS)]) for words in group]
        vectors = self.bilm.token_encoder(ids)
        tokens = nn.utils.rnn.pad_sequence([vectors[row] for row in rows], batch_first=True)
        places = torch.arange(tokens.shape[1]).repeat(len(group), 1)
        for row, words in zip(places, group, strict=True):
            row[: len(words) + 2] = row[: len(words) + 2].flip(0)
        return tokens, places

    @torch.no_grad()
    def embed(self, sentences: worker.Sentences, batch: int | None) -> list[np.ndarray]:
        arrays = []
        for group in worker.batches(sentences, batch):
            tokens, places = self._tokens(group)
            back = places.unsqueeze(2).expand_as(tokens)
            layers = [torch.cat([tokens, tokens], dim=2)]
            streams = [tokens, tokens.gather(1, back)]
            for layer in range(len(self.stacks[0])):
                outputs = [self.stacks[d][layer](streams[d])[0] for d in range(2)]
                streams = [
                    out + x if layer else out for out, x in zip(outputs, streams, strict=True)
                ]
                layers.append(torch.cat([streams[0], streams[1].gather(1, back)], dim=2))
            for i, words in enumerate(group):
                arrays.append(
                    np.stack([layer[i, 1 : len(words) + 1].float().numpy() for layer in layers])
                )
        return arrays


if __name__ == "__main__":
    worker.serve(TorchLSTM)
