"""The bidirectional language model: a token encoder under a sequence encoder (paper section 3.1;
bilm/model.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from elmokit.config import PAD_CHARACTER, BiLMConfig, CharCNNConfig
from elmokit.nn.bidirectional import BiLMState
from elmokit.nn.gated_cnn import BidirectionalGatedCNN
from elmokit.nn.interleaved import InterleavedLSTM
from elmokit.nn.lstm import BidirectionalLSTM
from elmokit.nn.token_encoders import token_encoder
from elmokit.nn.transformer import BidirectionalTransformer
from elmokit.ops import Packing, pack_sentences, upload

if TYPE_CHECKING:
    from elmokit.text import Vocab

__all__ = ["BiLM", "BiLMOutput", "BiLMState"]

SEQUENCE_ENCODERS = {
    "lstm": BidirectionalLSTM,
    "interleaved": InterleavedLSTM,
    "transformer": BidirectionalTransformer,
    "gated_cnn": BidirectionalGatedCNN,
}

INITIALISERS = {"normal_", "uniform_", "kaiming_uniform_"}  # of torch.nn.init, or of a tensor

Method = TypeVar("Method", bound=Callable[..., Any])


@dataclass(frozen=True)
class BiLMOutput:
    """Layers of a padded batch: `layers` (L+1, B, T, 2D), zero where `mask` (B, T) is False; the
    final `state`.
    """

    layers: Tensor
    mask: Tensor
    state: BiLMState


def check_ids(ids: Tensor, config: BiLMConfig) -> None:
    """ValueError unless ids have the type and shape that a model of this configuration reads."""
    shape, source = (
        ("(B, T, C)", "elmokit.batch_to_ids")
        if config.num_words is None
        else ("(B, T)", "Vocab.ids + 1")
    )
    dims = 1 + shape.count(",")
    if not isinstance(ids, Tensor) or ids.dim() != dims or ids.is_floating_point():
        found = (
            f"{tuple(ids.shape)} of {ids.dtype}" if isinstance(ids, Tensor) else type(ids).__name__
        )
        raise ValueError(f"ids must be a tensor of integers {shape}, as from {source}, not {found}")
    width = ids.shape[-1] if config.char_cnn is None else config.char_cnn.max_characters
    if ids.shape[-1] > width:
        raise ValueError(
            f"this model reads {width} characters of a word: use batch_to_ids(sentences, {width})"
        )


def uncompiled(method: Method) -> Method:
    """Keep `torch.compile` from tracing a method: streams are packed in NumPy, and run by kernels
    unknown to it.
    """

    @wraps(method)
    def call(*args: Any, **options: Any) -> Any:
        # Not at the top: `torch.compiler.disable` imports the compiler, which takes a second.
        run = torch.compiler.disable(method) if torch.compiler.is_compiling() else method
        return run(*args, **options)

    return cast(Method, call)


def in_full_width(ids: Tensor, char_cnn: CharCNNConfig | None) -> Tensor:
    """Character ids of words (U, C) padded to the C that the model was trained with; other ids as
    they are.

    In a narrower batch, wide filters would not see the padding after a word that they saw in
    training, and the word would have another vector.
    """
    missing = 0 if char_cnn is None else char_cnn.max_characters - ids.shape[1]
    return F.pad(ids, (0, missing), value=PAD_CHARACTER) if missing else ids


class _WithoutInitialValues(TorchFunctionMode):
    """Skips initialization: on the meta device PyTorch would import its compiler for it, which
    takes a second.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", None) in INITIALISERS:
            return next(iter((*args, *(kwargs or {}).values())))  # the tensor itself
        return func(*args, **(kwargs or {}))


@contextmanager
def shapes_only() -> Iterator[None]:
    """Within the `with` block, modules are created on PyTorch's meta device, to be given weights
    that were read.
    """
    with torch.device("meta"), _WithoutInitialValues():
        yield


class BiLM(nn.Module):
    """The bidirectional language model: ids of words with their boundaries -> the token layer and
    every layer above.

    Its parts are `token_encoder` (`nn.token_encoders`) and `sequence_encoder`, one of
    `SEQUENCE_ENCODERS`.
    """

    def __init__(self, config: BiLMConfig) -> None:
        super().__init__()
        self.config = config
        self.token_encoder = token_encoder(config)
        self.sequence_encoder = SEQUENCE_ENCODERS[config.encoder_name](config.sequence_encoder)

    @uncompiled
    def forward(
        self, ids: Tensor, mask: Tensor | None = None, state: BiLMState | None = None
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
        check_ids(ids, self.config)
        mask = self.token_encoder.is_word(ids) if mask is None else mask.bool()
        distinct, tokens = torch.unique(ids[mask].long(), dim=0, return_inverse=True)
        words = self.token_encoder(in_full_width(distinct, self.config.char_cnn))
        return self.run_padded(words, tokens, mask, state)

    def run_padded(
        self, words: Tensor, tokens: Tensor, mask: Tensor, state: BiLMState | None = None
    ) -> BiLMOutput:
        """Run a padded batch of words whose vectors are known.

        Args:
            words: Vectors of the distinct words, (U, D).
            tokens: Index into `words` at each True of the mask, (N,).
            mask, state: As for `forward`.
        """
        text = pack_sentences(
            mask.sum(dim=1).cpu().numpy(), range(len(mask)), len(mask), reset=False
        )
        tokens = text.to_streams(tokens.cpu().expand(2, -1)).to(words.device)
        streams, state = self.run(words, tokens, text.packing, state)
        layers = streams.new_zeros(len(streams), *mask.shape, self.config.output_dim)
        layers[:, mask] = torch.stack([text.unpack(stream) for stream in streams])
        return BiLMOutput(layers, mask, state)

    def word_vectors(self, words: Sequence[str], vocab: Vocab | None = None) -> Tensor:
        """U distinct words -> their vectors (U, D), possibly with a few unused rows after them."""
        encoder = self.token_encoder
        ids = encoder.ids(words, vocab)
        # Cacheable encoders use the package's own kernels, which compile nothing for a shape.
        return encoder(
            *upload([ids if encoder.is_cacheable else encoder.in_few_shapes(ids)], self.device)
        )

    def run(
        self,
        words: Tensor,
        tokens: Tensor,
        packing: Packing,
        state: BiLMState | None = None,
        start: BiLMState | None = None,
        dropout: float = 0.0,
    ) -> tuple[Tensor, BiLMState]:
        """Run packed streams: the one way in which training, embedding, scoring and `forward`
        compute layers.

        Args:
            words: Vectors of the distinct words, (U, D).
            tokens: Index into `words` at each slot of each direction, (2, N).
            packing: The shape of the streams.
            state: The initial state, with a row for each row of the packing; None: zeros.
            start: The state of one row that a reset sets, to which no gradient flows; None: zeros.
            dropout: See the `forward` of the sequence encoder.

        Returns:
            The layers (L+1, 2, N, D) in stream order, float32 at least, and the state after them.

        Raises:
            ValueError: A state is of another number of rows, or of another model.
        """
        encoder, rows = self.config.sequence_encoder, len(packing.row_order)
        words = words.to(torch.promote_types(words.dtype, torch.float32))
        state = BiLMState.zeros(encoder, rows, words) if state is None else state
        state.check(encoder, rows)
        if start is not None:
            start.check(encoder, 1)
        return self.sequence_encoder(words, tokens, packing, state, start, dropout)

    def masked_outputs(
        self, words: Tensor, tokens: Tensor, packing: Packing, hidden: Tensor, dropout: float = 0.0
    ) -> Tensor:
        """Run sentences some words of which are hidden, for an encoder that merges the directions.

        Args:
            words: As in `run`.
            tokens: As in `run`.
            packing: As in `run`.
            hidden: The slot of each hidden word in each direction, (2, M).
            dropout: As in `run`.

        Returns:
            The input of the softmax for the hidden words, (M, D): the sum of the two halves of the
            top layer.
        """
        mask = self.sequence_encoder.mask
        tokens = tokens.scatter(1, hidden, len(words))  # the index of the vector `mask`
        words = torch.cat([words, mask[None].to(words.dtype)])
        (*_, top), _ = self.run(words, tokens, packing, dropout=dropout)
        return top[0, hidden[0]] + top[1, hidden[1]]

    def initial_state(self, rows: int) -> BiLMState:
        """Zeros for `rows` rows."""
        return BiLMState.zeros(
            self.config.sequence_encoder, rows, torch.empty(0, dtype=self.dtype, device=self.device)
        )

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
