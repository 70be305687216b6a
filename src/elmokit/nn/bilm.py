"""The bidirectional language model (paper section 3.1; bilm/model.py).

Of a sentence of words t_1 .. t_N, two language models predict each word, one from those before it,
the other one from those after it, and learn to maximize

    sum_k log p(t_k | t_1 .. t_k-1; x, fwd, s) + log p(t_k | t_k+1 .. t_N; x, bwd, s)

They share x, the token layer (`token_encoder`), and s, the softmax (`FullSoftmax`); each direction
has layers of its own (`sequence_encoder`). The representations of word k are its token vector,
twice, and the outputs h_kj of both directions of each layer j = 1 .. L above it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from elmokit.config import BiLMConfig
from elmokit.nn.bidirectional import BiLMState
from elmokit.nn.efml import EfmlEncoder
from elmokit.nn.interleaved import InterleavedLSTM
from elmokit.nn.lstm import BidirectionalLSTM
from elmokit.nn.token_encoders import CharCNN, TokenEncoder, WordEmbedding
from elmokit.nn.transformer import BidirectionalTransformer
from elmokit.ops import PackedText, Packing, upload
from elmokit.runtime import accumulation_dtype, disable_compile

if TYPE_CHECKING:
    from elmokit.text import Vocab

SEQUENCE_ENCODERS = {
    "lstm": BidirectionalLSTM,
    "interleaved": InterleavedLSTM,
    "transformer": BidirectionalTransformer,
}


@dataclass(frozen=True)
class BiLMOutput:
    """The layers of a padded batch.

    Attributes:
        layers: (L+1, B, T, 2D), zero where there is no word.
        mask: (B, T) bool, True where there is a word.
        state: The state after the batch.
    """

    layers: Tensor
    mask: Tensor
    state: BiLMState


class BiLM(nn.Module):
    """Ids of words with their boundaries -> the token layer and every layer above.

    Its parts are `token_encoder`, ids -> vectors of words, and `sequence_encoder`, vectors ->
    layers.
    """

    is_prepacked = False  # whether it has prepacked weights only, as the result of `prepack`

    def __init__(self, config: BiLMConfig) -> None:
        super().__init__()
        self.config, dim = config, config.sequence_encoder.projection_dim
        self.token_encoder: TokenEncoder
        if config.char_cnn is not None:
            self.token_encoder = CharCNN(config.char_cnn, dim)
        elif config.efml is not None:
            self.token_encoder = EfmlEncoder(config.efml, dim)
        else:
            words = cast(int, config.num_words)
            self.token_encoder = WordEmbedding(words, dim, config.boundary_words)
        self.sequence_encoder = SEQUENCE_ENCODERS[config.encoder_name](config.sequence_encoder)

    @disable_compile
    def forward(
        self,
        ids: Tensor,
        mask: Tensor | None = None,
        state: BiLMState | None = None,
    ) -> BiLMOutput:
        """Run a padded batch.

        Args:
            ids: Ids of characters (B, T, C) or of words (B, T), shifted by one, 0 for no word. C
                may be smaller than the number of characters that the model reads.
            mask: (B, T), True where there is a word, at any positions of a row; None: where an id
                is above 0.
            state: The state that the rows start from; None: zeros.

        Returns:
            The layers (L+1, B, T, 2D), zero where there is no word, the mask, and the state of each
            row after it.

        Raises:
            ValueError: The ids are not those that this model reads, or the state is of another
                shape.
            IndexError: An id has no row in the model's table, or the mask does not fit.
        """
        encoder = self.token_encoder
        encoder.check_ids(ids)
        mask = encoder.is_word(ids) if mask is None else mask.bool()
        # Each distinct word is encoded once, however often it occurs.
        distinct, tokens = torch.unique(ids[mask].long(), dim=0, return_inverse=True)
        word_vectors = encoder(encoder.pad_to_max_characters(distinct))
        return self.run_padded(word_vectors, tokens, mask, state)

    def run_padded(
        self,
        word_vectors: Tensor,
        tokens: Tensor,
        mask: Tensor,
        state: BiLMState | None = None,
    ) -> BiLMOutput:
        """Run a padded batch of words whose vectors are known.

        Args:
            word_vectors: Vectors of the distinct words, (U, D).
            tokens: Index into `word_vectors` at each True of the mask, (N,).
            mask, state: As for `forward`.
        """
        # mask 1 1 0   words a b .   `tokens` are those of a b c d. The forward stream has a c b d,
        #      1 0 1         c . d   a step of all rows after the other, the backward one b d a c.
        text = PackedText.of_mask(mask)
        tokens = text.to_streams(tokens.cpu().expand(2, -1)).to(word_vectors.device)
        streams, state = self.run(word_vectors, tokens, text.packing, state)
        # h_kj of both directions side by side, where the word is: (L+1, 2, N, D) -> (L+1, B, T, 2D)
        layers = streams.new_zeros(len(streams), *mask.shape, self.config.output_dim)
        layers[:, mask] = text.unpack(streams)
        return BiLMOutput(layers, mask, state)

    def run(
        self,
        word_vectors: Tensor,
        tokens: Tensor,
        packing: Packing,
        state: BiLMState | None = None,
        reset_state: BiLMState | None = None,
        dropout: float = 0.0,
    ) -> tuple[Tensor, BiLMState]:
        """Run packed streams; training, embedding, scoring and `forward` compute layers here.

        Args:
            word_vectors: Vectors of the distinct words, (U, D).
            tokens: Index into `word_vectors` at each slot of each direction, (2, N).
            packing: The shape of the streams.
            state: The initial state, with a row for each row of the packing; None: zeros.
            reset_state: The state of one row that a reset sets, to which no gradient flows; None:
                zeros.
            dropout: See the `forward` of the sequence encoder.

        Returns:
            The layers (L+1, 2, N, D) in stream order, float32 at least, and the state after them.

        Raises:
            ValueError: A state is of another number of rows, or of another model.
        """
        encoder, rows = self.config.sequence_encoder, len(packing.row_order)
        word_vectors = word_vectors.to(accumulation_dtype(word_vectors.dtype))
        state = BiLMState.zeros(encoder, rows, word_vectors) if state is None else state
        state.check(encoder, rows)
        if reset_state is not None:
            reset_state.check(encoder, 1)
        return self.sequence_encoder(word_vectors, tokens, packing, state, reset_state, dropout)

    def masked_outputs(
        self,
        word_vectors: Tensor,
        tokens: Tensor,
        packing: Packing,
        masked_slots: Tensor,
        dropout: float = 0.0,
    ) -> Tensor:
        """Run sentences with masked words, for an encoder that merges the directions.

        Args:
            word_vectors, tokens, packing, dropout: As in `run`.
            masked_slots: The slot of each masked word in each direction, (2, M).

        Returns:
            The input of the softmax for the masked words, (M, D): the sum of the two halves of the
            top layer.
        """
        mask = self.sequence_encoder.mask
        tokens = tokens.scatter(
            1, masked_slots, len(word_vectors)
        )  # the index of the vector `mask`
        word_vectors = torch.cat([word_vectors, mask[None].to(word_vectors.dtype)])
        layers, _ = self.run(word_vectors, tokens, packing, dropout=dropout)
        top = layers[-1]
        return top[0, masked_slots[0]] + top[1, masked_slots[1]]

    def word_vectors(self, words: Sequence[str], vocab: Vocab | None = None) -> Tensor:
        """U distinct words -> their vectors (U, D), possibly with a few unused rows after them."""
        encoder = self.token_encoder
        ids = encoder.ids(words, vocab)
        if not encoder.is_cacheable:  # our own kernels, which compile nothing, need no padding
            ids = encoder.pad_to_bucket(ids)
        return encoder(*upload([ids], self.device))

    def initial_state(self, rows: int) -> BiLMState:
        """Zeros for `rows` rows."""
        like = torch.empty(0, dtype=self.dtype, device=self.device)
        return BiLMState.zeros(self.config.sequence_encoder, rows, like)

    def hidden_matrices(self) -> list[nn.Parameter]:
        """All weight matrices except embeddings."""
        modules = self.token_encoder.modules()
        linear: Any = [module.weight for module in modules if isinstance(module, nn.Linear)]
        weights = self.sequence_encoder.parameters()
        return linear + [weight for weight in weights if weight.dim() == 2]

    @property
    def device(self) -> torch.device:
        return next(self.sequence_encoder.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the sequence encoder's weights."""
        return next(self.sequence_encoder.parameters()).dtype

    def __repr__(self) -> str:
        encoder, dtype = self.config.sequence_encoder, str(self.dtype)[6:]
        return (
            f"{type(self).__name__}(reads {self.token_encoder.input}; {encoder}; {dtype} on "
            f"{self.device})"
        )
