"""The bidirectional language model: a token encoder under two stacks of LSTMs (paper section 3.1; bilm/model.py)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elmokit.config import BiLMConfig, LSTMConfig
from elmokit.nn.char_cnn import CharCNN
from elmokit.nn.joined_lstm import joined_layers, run_joined
from elmokit.nn.kernels.dropout import dropped
from elmokit.nn.lstm import BidirectionalLSTM, LSTMState
from elmokit.nn.packing import Packing, pack_sentences
from elmokit.nn.words_and_characters import WordsAndCharacters


@dataclass(frozen=True)
class BiLMState:
    """What B rows carry from call to call: `h` (2, L, B, D) and `c` (2, L, B, H); directions fwd, bwd."""

    h: Tensor
    c: Tensor

    def layer(self, index: int, rows: Tensor | None = None) -> LSTMState:
        h, c = self.h[:, index], self.c[:, index]
        return LSTMState(h, c) if rows is None else LSTMState(h[:, rows], c[:, rows])

    def float(self) -> BiLMState:
        return BiLMState(self.h.float(), self.c.float())


@dataclass(frozen=True)
class BiLMOutput:
    """Every layer of a padded batch: `layers` (L+1, B, T, 2D), zero where `mask` (B, T) is False; the state after."""

    layers: Tensor
    mask: Tensor
    state: BiLMState


def _products_of_words(layer: BidirectionalLSTM, words: Tensor, tokens: Tensor) -> Callable[[slice], Tensor]:
    """A layer's input products of any slots, each distinct word multiplied once."""
    table = layer.input_products(words.expand(2, *words.shape))
    return lambda window: torch.stack([F.embedding(tokens[d, window], table[d]) for d in range(2)])


class _Layers:
    """The layers of a stream, side by side. Without gradients each is stored only where it will stay."""

    def __init__(self, tokens: Tensor, count: int) -> None:
        self._room = None if torch.is_grad_enabled() else tokens.new_empty(count, *tokens.shape)
        self._layers: list[Tensor] = []
        self.append(tokens)

    def append(self, layer: Tensor) -> Tensor:
        if self._room is not None:
            layer = self._room[len(self._layers)].copy_(layer)
        self._layers.append(layer)
        return layer

    def stacked(self) -> Tensor:
        return torch.stack(self._layers) if self._room is None else self._room


def check_state(state: BiLMState, lstm: LSTMConfig, rows: int) -> None:
    """ValueError where the state is of another number of rows, or of another model."""
    found = [tuple(part.shape) for part in (state.h, state.c)]
    expected = [(2, lstm.num_layers, rows, width) for width in (lstm.projection_dim, lstm.cell_dim)]
    if found == expected:
        return
    if state.h.dim() == 4 and state.h.shape[2] != rows:
        raise ValueError(f"the state has {state.h.shape[2]} rows, the batch {rows}: give one row for each")
    raise ValueError(f"the state is of another model: its h and c are {found}, those of this one {expected}")


def in_row_order(finals: list[LSTMState], rows: Tensor) -> BiLMState:
    """States by layer and rank -> one state by row."""
    rank = torch.argsort(rows)
    return BiLMState(*(torch.stack([getattr(final, part) for final in finals], dim=1)[:, :, rank] for part in "hc"))


def real_words(ids: Tensor) -> Tensor:
    """(B, T, C) ids of characters or (B, T) of words -> (B, T) bool: True where there is a word, any id above 0."""
    return (ids > 0).any(dim=-1) if ids.dim() == 3 else ids > 0


def _rows_of_words(table: Tensor, ids: Tensor) -> Tensor:
    return F.embedding(ids - 1, table)


class RunsPacked(Protocol):
    """What a biLM is to `run_padded`."""

    @property
    def config(self) -> BiLMConfig: ...

    def encode_words(self, ids: Tensor) -> Tensor: ...

    def run_packed(
        self, words: Tensor, tokens: Tensor, packing: Packing, state: BiLMState | None = None
    ) -> tuple[Tensor, BiLMState]: ...


def run_padded(
    model: RunsPacked, ids: Tensor, mask: Tensor | None = None, state: BiLMState | None = None
) -> BiLMOutput:
    """As `BiLM.forward`: each distinct word encoded once, sentences packed, layers back in their places."""
    mask = real_words(ids) if mask is None else mask.bool()
    text = pack_sentences(mask.sum(dim=1).cpu().numpy(), range(len(mask)), len(mask), reset=False)
    distinct, inverse = torch.unique(ids[mask], dim=0, return_inverse=True)
    tokens = text.to_streams(inverse.cpu().expand(2, -1)).to(ids.device)
    streams, state = model.run_packed(model.encode_words(distinct), tokens, text.packing, state)
    layers = streams.new_zeros(len(streams), *mask.shape, model.config.output_dim)
    layers[:, mask] = torch.stack([text.to_text(stream) for stream in streams])
    return BiLMOutput(layers, mask, state)


class BiLM(nn.Module):
    """Ids of words, boundaries included -> the token layer and every LSTM layer, both directions side by side."""

    char_cnn: CharCNN
    word_embedding: nn.Parameter
    words_and_characters: WordsAndCharacters
    top_projection: nn.Linear  # where directions join

    def __init__(self, config: BiLMConfig) -> None:
        super().__init__()
        self.config = config
        dim = config.lstm.projection_dim
        if config.char_cnn is not None:
            self.char_cnn = CharCNN(config.char_cnn, dim)
        elif config.words_and_characters is not None:
            self.words_and_characters = WordsAndCharacters(config.words_and_characters, dim)
        else:
            assert config.num_words is not None
            self.word_embedding = nn.Parameter(torch.empty(config.num_words, dim).uniform_(-1, 1))
        if config.lstm.joins_directions:
            self.layers = joined_layers(config.lstm)
            self.top_projection = nn.Linear(config.lstm.cell_dim, dim)
        else:
            self.layers = nn.ModuleList(BidirectionalLSTM(config.lstm) for _ in range(config.lstm.num_layers))

    def forward(self, ids: Tensor, mask: Tensor | None = None, state: BiLMState | None = None) -> BiLMOutput:
        """ids (B, T, C) of characters or (B, T) of words, shifted by one, 0 for no word; starts from `state` or zeros.

        Only positions where `mask` is True are words, wherever they lie in a row; without a mask, those with any id
        above 0.
        """
        return run_padded(self, ids, mask, state)

    def encode_words(self, ids: Tensor) -> Tensor:
        """Ids of U words, (U, C) of characters or (U,), shifted by one -> token vectors (U, D)."""
        return self.token_encoder()(ids)

    def token_encoder(self) -> Callable[[Tensor], Tensor]:
        """`encode_words`, holding on to nothing else of the model."""
        if self.config.char_cnn is not None:
            return self.char_cnn
        if self.config.words_and_characters is not None:
            return self.words_and_characters
        return partial(_rows_of_words, self.word_embedding)

    def run_packed(
        self,
        words: Tensor,
        tokens: Tensor,
        packing: Packing,
        state: BiLMState | None = None,
        start: BiLMState | None = None,
        dropout: float = 0.0,
    ) -> tuple[Tensor, BiLMState]:
        """The engine. words (U, D): vectors of distinct words; tokens (2, N): which of them stands at each slot.

        `state` has a row for each row of the packing; a reset sets `start` (one row; zeros where None). Returns the
        layers (L+1, 2, N, D) in stream order, in float32, and the state. `dropout` falls as in bilm-tf
        (training.py:388-424): on the input of every layer, where the skip adds the dropped input too, and on the last
        output; the token layer that is returned is the undropped one.
        """
        if self.config.lstm.joins_directions:
            return self._run_joined(words, tokens, packing, state or start)
        state = self.initial_state(len(packing.row_order)) if state is None else state
        check_state(state, self.config.lstm, len(packing.row_order))
        if start is not None:
            check_state(start, self.config.lstm, 1)
        rows = packing.row_order.to(words.device)
        wide = torch.promote_types(words.dtype, torch.float32)
        x = torch.stack([F.embedding(tokens[d], words) for d in range(2)]).to(wide)
        outputs, finals = _Layers(x, self.config.num_representations), []
        for index, layer in enumerate(cast(BidirectionalLSTM, layer) for layer in self.layers):
            x = dropped(x, dropout)
            begin = None if start is None else start.layer(index)
            # with gradients adding up those of a word's every use would cost more than the products it saves
            by_words = index == 0 and not dropout and not torch.is_grad_enabled()
            inputs = _products_of_words(layer, words, tokens) if by_words else None
            out, final = layer.run(x, packing, state.layer(index, rows), begin, inputs)
            x = out + x if self.config.lstm.use_skip_connections and index > 0 else out
            if index + 1 == len(self.layers):
                x = dropped(x, dropout)
            x = outputs.append(x)
            finals.append(final)
        return outputs.stacked(), in_row_order(finals, rows)

    def _run_joined(
        self, words: Tensor, tokens: Tensor, packing: Packing, state: BiLMState | None
    ) -> tuple[Tensor, BiLMState]:
        """`run_packed` where directions join: the top layer (1, 2, N, D), and zeros for a state."""
        if state is not None:
            raise ValueError("this model's directions join, so it has no state to carry or to start from: use zeros")
        x = torch.stack([F.embedding(tokens[d], words) for d in range(2)])
        x = x.to(torch.promote_types(words.dtype, torch.float32))
        top = run_joined(self.layers, self.top_projection, x, packing)
        return top[None], self.initial_state(len(packing.row_order))

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def initial_state(self, rows: int) -> BiLMState:
        """Zeros for `rows` rows."""
        lstm, weight = self.config.lstm, next(self.layers.parameters())
        wide = torch.promote_types(weight.dtype, torch.float32)

        def zeros(width: int) -> Tensor:
            return torch.zeros(2, lstm.num_layers, rows, width, dtype=wide, device=weight.device)

        return BiLMState(zeros(lstm.projection_dim), zeros(lstm.cell_dim))
