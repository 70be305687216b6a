"""The biLM against a slow float64 oracle, on random small models and awkward batches."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import Oracle, State, random_weights
from torch import Tensor

import elmokit.nn.lstm as lstm_module
from elmokit.config import BiLMConfig, CharCNNConfig, LSTMConfig
from elmokit.nn.bilm import BiLM, BiLMOutput, BiLMState
from elmokit.ops.packing import PackedText, Packing

CLIPS = st.sampled_from([None, 0.3, 3.0])
CHARACTERS = 7
WORDS = 9


@st.composite
def configurations(draw: st.DrawFn) -> BiLMConfig:
    filters = tuple(
        draw(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), min_size=1, max_size=3))
    )
    total = sum(number for _, number in filters)
    dim = draw(st.sampled_from([total, 4]))  # the first: no projection after the convolutions
    lstm = LSTMConfig(
        num_layers=draw(st.integers(1, 3)),
        cell_dim=draw(st.sampled_from([dim, 5])),  # the first: no projection in the LSTM
        projection_dim=dim,
        cell_clip=draw(CLIPS),
        proj_clip=draw(CLIPS),
        use_skip_connections=draw(st.booleans()),
        forget_bias=draw(st.sampled_from([0.0, 1.0])),
    )
    if draw(st.integers(0, 3)) == 0:
        return BiLMConfig(lstm, None, num_words=WORDS)
    activation = draw(st.sampled_from(["relu", "tanh"]))
    return BiLMConfig(
        lstm, CharCNNConfig(3, filters, draw(st.integers(0, 2)), activation, CHARACTERS)
    )


def model(config: BiLMConfig, seed: int = 0) -> BiLM:
    bilm = BiLM(config).double()
    random_weights(bilm, seed)
    return bilm


def random_ids(config: BiLMConfig, rows: int, tokens: int, seed: int) -> Tensor:
    random = np.random.default_rng(seed)
    if config.char_cnn is None:
        return torch.from_numpy(random.integers(1, WORDS + 1, (rows, tokens)))
    few = random.integers(1, 262, (5, CHARACTERS))  # words come again, as in text
    return torch.from_numpy(few[random.integers(0, 5, (rows, tokens))])


def random_state(bilm: BiLM, rows: int, seed: int) -> BiLMState:
    generator = torch.Generator().manual_seed(seed)
    zeros = bilm.initial_state(rows)
    h, c = (
        torch.randn(part.shape, dtype=torch.float64, generator=generator)
        for part in (zeros.h, zeros.c)
    )
    return BiLMState(h, c)


def of_row(state: BiLMState, row: int) -> tuple[State, State]:
    h = state.h[:, :, row].detach().numpy()
    c = state.c[:, :, row].detach().numpy()
    fwd, bwd = (list(zip(h[d], c[d], strict=True)) for d in range(2))
    return fwd, bwd


def assert_equals_oracle(
    bilm: BiLM, ids: Tensor, mask: Tensor, state: BiLMState | None, found: BiLMOutput
) -> None:
    oracle = Oracle(bilm)
    assert torch.equal(found.mask, mask)
    for row in range(len(ids)):
        words = [oracle.word(word) for word in ids[row][mask[row]].numpy()]
        begin = (oracle.zeros(), oracle.zeros()) if state is None else of_row(state, row)
        expected, after = oracle.row(words, begin)
        np.testing.assert_allclose(
            found.layers[:, row, mask[row]].detach().numpy(), expected, atol=1e-9, rtol=0
        )
        assert not found.layers[:, row, ~mask[row]].any()
        for mine, theirs in zip(of_row(found.state, row), after, strict=True):
            for (h, c), (expected_h, expected_c) in zip(mine, theirs, strict=True):
                np.testing.assert_allclose(h, expected_h, atol=1e-9, rtol=0)
                np.testing.assert_allclose(c, expected_c, atol=1e-9, rtol=0)


@settings(max_examples=60)
@given(
    configurations(),
    st.integers(1, 4),
    st.integers(0, 6),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2**31),
)
def test_any_model_on_any_mask_equals_the_oracle(
    config: BiLMConfig, rows: int, tokens: int, carried: bool, hidden_words: bool, seed: int
) -> None:
    """Masks are random: padding at the left, holes and rows without a word are among them."""
    bilm = model(config, seed % 1000)
    ids = random_ids(config, rows, tokens, seed)
    mask = torch.from_numpy(np.random.default_rng(seed).random((rows, tokens)) < 0.6)
    if not hidden_words:
        ids[~mask] = 0
    state = random_state(bilm, rows, seed % 1000) if carried else None
    with torch.no_grad():
        found = bilm(ids, mask if hidden_words else None, state)
    assert_equals_oracle(bilm, ids, mask, state, found)


TINY = BiLMConfig(LSTMConfig(2, 5, 4), CharCNNConfig(3, ((1, 3), (3, 4)), 1, "relu", CHARACTERS))


def ragged_stream(bilm: BiLM) -> tuple[Tensor, Tensor, Packing]:
    lengths = [7, 3, 5, 1, 6]
    text = PackedText.of_sentences(lengths, [0, 1, 1, 2, 2], 3, reset=True)
    words = bilm.token_encoder(random_ids(bilm.config, 1, 6, seed=1)[0])
    tokens = torch.from_numpy(np.random.default_rng(0).integers(0, 6, sum(lengths)))
    return words, text.to_streams(tokens.expand(2, -1)), text.packing


@pytest.mark.parametrize("skips", [True, False])
def test_dropout_falls_where_bilm_tf_lets_it_fall(
    monkeypatch: pytest.MonkeyPatch, skips: bool
) -> None:
    """On the input of every layer, which the skip adds as dropped, and on the last output; layer 0
    is whole.
    """
    bilm = model(replace(TINY, lstm=replace(TINY.lstm, use_skip_connections=skips)))
    words, tokens, packing = ragged_stream(bilm)
    drops: list[Tensor] = []

    def drop(x: Tensor, p: float) -> Tensor:
        assert p == 0.5
        drops.append(
            (torch.rand(x.shape, generator=torch.Generator().manual_seed(len(drops))) < 0.5) * 2.0
        )
        return x * drops[-1]

    monkeypatch.setattr(lstm_module, "apply_dropout", drop)
    found, _ = bilm.run(words, tokens, packing, dropout=0.5)
    count = len(bilm.sequence_encoder.stacks[0].layers)
    assert len(drops) == 2 * (count + 1)
    for d, stack in enumerate(bilm.sequence_encoder.stacks):
        x = words[tokens[d]]
        own = drops[d * (count + 1) : (d + 1) * (count + 1)]
        assert torch.equal(found[0, d], x)
        for index, layer in enumerate(stack.layers):
            dropped = x * own[index]
            x, _ = layer(
                dropped, packing, bilm.initial_state(3).of_direction(d, packing.row_order)[index]
            )
            x = x + dropped if skips and index > 0 else x
            expected = x * own[-1] if index == count - 1 else x
            torch.testing.assert_close(found[index + 1, d], expected, atol=1e-12, rtol=0)
