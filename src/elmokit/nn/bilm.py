"""The bidirectional language model: a token encoder under a sequence encoder (paper section 3.1; bilm/model.py)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from elmokit.config import BiLMConfig
from elmokit.nn.encoders import InterleavedLSTM
from elmokit.nn.lstm import BidirectionalLSTM, BiLMState
from elmokit.nn.token_encoders import TokenEncoder, Vocabulary, token_encoder
from elmokit.ops.dispatch import explain
from elmokit.ops.packing import Packing, pack_sentences

__all__ = ["BiLM", "BiLMOutput", "BiLMState"]

# The names of weights here, and in files.
FIRST_STACK, SECOND_STACK = "sequence_encoder.stacks.0.", "sequence_encoder.stacks.1."
INTERLEAVED_PROJECTION, TOP_PROJECTION = "sequence_encoder.projection.", "top_projection."
WORD_TABLE = "word_embedding"


@dataclass(frozen=True, repr=False)
class BiLMOutput:
    """Every layer of a padded batch: `layers` (L+1, B, T, 2D), zero where `mask` (B, T) is False; the state after."""

    layers: Tensor
    mask: Tensor
    state: BiLMState

    def __repr__(self) -> str:
        return f"BiLMOutput(layers {tuple(self.layers.shape)}, {int(self.mask.sum())} words, {self.layers.dtype})"


def _stacked(first: Tensor, second: Tensor) -> Tensor:
    # torch.stack of tensors without values would import PyTorch's compiler, which takes a second.
    return first.new_empty(2, *first.shape) if first.is_meta else torch.stack([first, second])


class BiLM(nn.Module):
    """Ids of words, boundaries included -> the token layer and every LSTM layer, both directions side by side.

    Its parts are `token_encoder` (`nn.token_encoders`) and `sequence_encoder` (`nn.lstm.BidirectionalLSTM`, or
    `nn.encoders.InterleavedLSTM`).
    """

    def __init__(self, config: BiLMConfig) -> None:
        super().__init__()
        self.config = config
        self.token_encoder = cast(TokenEncoder, token_encoder(config))
        sequence_encoder = InterleavedLSTM if config.lstm.interleaved else BidirectionalLSTM
        self.sequence_encoder = sequence_encoder(config.lstm)
        # Of a prepacked biLM, which has no weights of its own: a tensor like its states, and the type of its products.
        self.like: Tensor | None = None
        self.product_dtype: torch.dtype | None = None

    def forward(self, ids: Tensor, mask: Tensor | None = None, state: BiLMState | None = None) -> BiLMOutput:
        """Run a padded batch.

        Args:
            ids: Of characters (B, T, C) or words (B, T), shifted by one, 0 for no word.
            mask: (B, T), True where there is a word, wherever in a row that is; without it, where an id is above 0.
            state: The state that the rows start from; None: zeros.

        Raises:
            ValueError: If the state is of another number of rows, or of another model.
        """
        mask = self.token_encoder.is_word(ids) if mask is None else mask.bool()
        text = pack_sentences(mask.sum(dim=1).cpu().numpy(), range(len(mask)), len(mask), reset=False)
        distinct, inverse = torch.unique(ids[mask], dim=0, return_inverse=True)
        tokens = text.to_streams(inverse.cpu().expand(2, -1)).to(ids.device)
        streams, state = self.run(self.token_encoder(distinct), tokens, text.packing, state)
        layers = streams.new_zeros(len(streams), *mask.shape, self.config.output_dim)
        layers[:, mask] = torch.stack([text.unpack(stream) for stream in streams])
        return BiLMOutput(layers, mask, state)

    def word_vectors(self, words: Sequence[str], vocab: Vocabulary | None = None) -> Tensor:
        """Distinct words -> their vectors (U, D), and perhaps a few rows that no token stands for."""
        encoder = self.token_encoder
        ids = encoder.ids(words, vocab)
        # Products of our own, whose results can be kept, prepare nothing for a shape.
        return encoder((ids if encoder.is_cacheable else encoder.in_few_shapes(ids)).to(self.device))

    def run(
        self,
        words: Tensor,
        tokens: Tensor,
        packing: Packing,
        state: BiLMState | None = None,
        start: BiLMState | None = None,
        dropout: float = 0.0,
    ) -> tuple[Tensor, BiLMState]:
        """Run packed streams: the one way in which training, embedding, scoring and `forward` compute layers.

        Args:
            words: Vectors of distinct words (U, D).
            tokens: Which of them stands at each slot of either direction (2, N).
            packing: The shape of the streams.
            state: A row for each row of the packing; None: zeros.
            start: The state that a reset sets, of one row; None: zeros.
            dropout: See `LSTMStack.forward`.

        Returns:
            The layers (L+1, 2, N, D) in stream order, float32 at least, and the state after them.
        """
        return self.sequence_encoder(words, tokens, packing, state, start, dropout)

    def __repr__(self) -> str:
        lstm, dtype = self.config.lstm, self.product_dtype or self.dtype
        depths = lstm.projection_dim, lstm.projection_dim, lstm.cell_dim
        *_, backend = explain("lstm", self.device.type, dtype, *depths)
        weights = "prepacked" if self.is_prepacked else f"{sum(map(Tensor.numel, self.parameters())):,} parameters"
        return (
            f"BiLM(reads {self.token_encoder.input}; {lstm.num_layers} layers of 2 x {lstm.cell_dim} cells, "
            f"projected to {lstm.projection_dim}; {weights}, {str(dtype)[6:]} on {self.device} by {backend})"
        )

    def _like(self) -> Tensor:
        return next(self.sequence_encoder.parameters()) if self.like is None else self.like

    @property
    def device(self) -> torch.device:
        return self._like().device

    @property
    def dtype(self) -> torch.dtype:
        """The number type of the LSTMs' weights."""
        return self._like().dtype

    @property
    def is_prepacked(self) -> bool:
        """Whether it is a result of `nn.inference.prepack`, without weights of its own."""
        return self.like is not None

    def initial_state(self, rows: int) -> BiLMState:
        """Zeros for `rows` rows."""
        return BiLMState.zeros(self.config.lstm, rows, self._like())

    def stored_tensors(self) -> dict[str, Tensor]:
        """The weights by their names in files, which `load_state_dict` reads too.

        Weights of the token encoder are called after its kind; those of the two directions lie in one tensor (2, ...).
        """
        own, stored_tensors = self.state_dict(), {}
        for name, tensor in own.items():
            stored = name.replace("token_encoder.", f"{self.token_encoder.stored_name}.", 1)
            stored = stored.replace(INTERLEAVED_PROJECTION, TOP_PROJECTION)
            stored = WORD_TABLE if stored == f"{WORD_TABLE}.weight" else stored
            if name.startswith(FIRST_STACK):
                tensor = _stacked(tensor, own[SECOND_STACK + name.removeprefix(FIRST_STACK)])
            if not name.startswith(SECOND_STACK):
                stored_tensors[stored.removeprefix(FIRST_STACK)] = tensor
        return stored_tensors

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        encoder = self.token_encoder.stored_name
        for key in [key for key in state_dict if key.startswith(prefix)]:
            name = key.removeprefix(prefix)
            if name.startswith("layers."):
                for stack, tensor in zip((FIRST_STACK, SECOND_STACK), state_dict.pop(key), strict=True):
                    state_dict[prefix + stack + name] = tensor
            elif name == WORD_TABLE:
                state_dict[f"{prefix}token_encoder.weight"] = state_dict.pop(key)
            elif name.startswith((f"{encoder}.", TOP_PROJECTION)):
                name = name.replace(f"{encoder}.", "token_encoder.", 1).replace(TOP_PROJECTION, INTERLEAVED_PROJECTION)
                state_dict[prefix + name] = state_dict.pop(key)
        super()._load_from_state_dict(state_dict, prefix, *others)
