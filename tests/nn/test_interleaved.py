"""ELMoForManyLangs' interleaved LSTMs: equal to torch.nn.LSTM, sentence by sentence."""

import pytest
import torch
from torch import Tensor, nn

from elmokit.config import InterleavedConfig
from elmokit.nn.bidirectional import BiLMState
from elmokit.nn.interleaved import InterleavedLSTM
from elmokit.ops.packing import PackedText

DIM, HIDDEN = 5, 7
LENGTHS = [3, 1, 6, 2, 4, 1]


def gates_of_torch(tensor: Tensor) -> Tensor:
    i, g, f, o = tensor.chunk(4)
    return torch.cat([i, f, g, o])


def as_torch_has_it(merged: InterleavedLSTM) -> nn.LSTM:
    lstm = nn.LSTM(DIM, HIDDEN, merged.config.num_layers, bidirectional=True, batch_first=True)
    with torch.no_grad():
        for parameter in lstm.parameters():
            parameter.zero_()
        for index in range(merged.config.num_layers):
            for stack, suffix in zip(
                merged.stacks, (f"l{index}", f"l{index}_reverse"), strict=True
            ):
                layer = stack["layers"][index]
                getattr(lstm, f"weight_ih_{suffix}").copy_(gates_of_torch(layer.input_weight))
                getattr(lstm, f"weight_hh_{suffix}").copy_(gates_of_torch(layer.recurrent_weight))
                getattr(lstm, f"bias_hh_{suffix}").copy_(gates_of_torch(layer.bias))
    return lstm


def packed(rows: list[int], reset: bool) -> PackedText:
    return PackedText.of_sentences(LENGTHS, rows, max(rows) + 1, reset)


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize(
    ("rows", "reset"),
    [([0, 1, 0, 1, 1, 0], True), ([0, 0, 0, 0, 0, 0], True), (list(range(6)), False)],
)
def test_each_sentence_is_as_in_torch(rows: list[int], reset: bool, gradients: bool) -> None:
    torch.manual_seed(0)
    merged = InterleavedLSTM(
        InterleavedConfig(3, HIDDEN, DIM, forget_bias=0.0, projects_layers=False)
    )
    for name, parameter in merged.stacks.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter)
    lstm = as_torch_has_it(merged)
    tokens, text = torch.randn(sum(LENGTHS), DIM), packed(rows, reset)
    streams = text.to_streams(torch.arange(len(tokens)).expand(2, -1))
    state = BiLMState.zeros(merged.config, len(text.packing.row_order), tokens)
    with torch.set_grad_enabled(gradients):
        found = text.unpack(merged(tokens, streams, text.packing, state, None, 0.0)[0][0])
        for vectors, sentence in zip(found.split(LENGTHS), tokens.split(LENGTHS), strict=True):
            directions = lstm(sentence[None])[0][0].split(HIDDEN, dim=1)
            torch.testing.assert_close(
                vectors, torch.cat(list(map(merged.top_projection, directions)), dim=1)
            )
    if gradients:
        found.sum().backward()
        assert all(parameter.grad is not None for parameter in merged.parameters())
