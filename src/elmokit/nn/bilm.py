"""The bidirectional language model: a token encoder under a sequence encoder (paper section 3.1; bilm/model.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elmokit.config import (
    PAD_CHARACTER,
    BiLMConfig,
    CharCNNConfig,
    GatedCNNConfig,
    InterleavedConfig,
    LSTMConfig,
    TransformerConfig,
)
from elmokit.nn.gated_cnn import BidirectionalGatedCNN
from elmokit.nn.interleaved import InterleavedLSTM
from elmokit.nn.lstm import BidirectionalLSTM, BiLMState
from elmokit.nn.token_encoders import TokenEncoder, Vocabulary, token_encoder
from elmokit.nn.transformer import BidirectionalTransformer
from elmokit.ops.dispatch import explain
from elmokit.ops.packing import Packing, pack_sentences
from elmokit.ops.transfer import upload

__all__ = ["BiLM", "BiLMOutput", "BiLMState"]

SEQUENCE_ENCODERS = {
    LSTMConfig: BidirectionalLSTM,
    InterleavedConfig: InterleavedLSTM,
    TransformerConfig: BidirectionalTransformer,
    GatedCNNConfig: BidirectionalGatedCNN,
}

# Prefixes of weights' names here; in files the weights of the two directions are one tensor.
FIRST_STACK, SECOND_STACK = "sequence_encoder.stacks.0.", "sequence_encoder.stacks.1."
WORD_TABLE = "word_embedding"

Function = TypeVar("Function", bound=Callable[..., Any])

MAX_WHOLE_BYTES = 2 << 30  # of the layers of a sentence that cannot be read in windows


@dataclass(frozen=True, repr=False)
class BiLMOutput:
    """Layers of a padded batch: `layers` (L+1, B, T, 2D), zero where `mask` (B, T) is False; the final `state`."""

    layers: Tensor
    mask: Tensor
    state: BiLMState

    def __repr__(self) -> str:
        return f"BiLMOutput(layers {tuple(self.layers.shape)}, {int(self.mask.sum())} words, {self.layers.dtype})"


def longest_sentence(config: BiLMConfig, max_bytes: int = MAX_WHOLE_BYTES) -> int | None:
    """The most words of a sentence whose layers take at most `max_bytes`; None where state is carried, for any number.

    With carried state, a long sentence is read in windows.
    """
    if config.sequence_encoder.carries_state:
        return None
    return max_bytes // (4 * config.num_representations * config.output_dim)


def check_length(config: BiLMConfig, words: int, name: str, max_bytes: int = MAX_WHOLE_BYTES) -> None:
    """ValueError, which names the sentence, if it must be computed whole and would take too much memory."""
    longest = longest_sentence(config, max_bytes)
    if longest is not None and words > longest:
        raise ValueError(
            f"{name} has {words:,} words, but this model ({config.encoder_name}) must read a sentence as a whole, and "
            f"at most {longest:,} words: split it"
        )


def check_ids(ids: Tensor, config: BiLMConfig) -> None:
    """ValueError unless ids have the type and shape that a model of this configuration reads."""
    if not isinstance(ids, Tensor):
        raise ValueError(f"ids must be a tensor, such as elmokit.batch_to_ids(sentences), not {type(ids).__name__}")
    by_word = config.num_words is not None
    if ids.dim() != (2 if by_word else 3) or ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        shape, source = ("(B, T)", "Vocab.ids(words) + 1") if by_word else ("(B, T, C)", "batch_to_ids")
        raise ValueError(f"ids must be integers {shape}, as from {source}, not {tuple(ids.shape)} of {ids.dtype}")
    width = None if config.char_cnn is None else config.char_cnn.max_characters
    if width is not None and not 3 <= ids.shape[2] <= width:
        raise ValueError(
            f"this model reads {width} characters of a word, not {ids.shape[2]}: use batch_to_ids(sentences, {width})"
        )


def uncompiled(function: Function) -> Function:
    """A function that `torch.compile` does not trace.

    Streams are packed in NumPy, and computed by kernels that PyTorch does not know as operations.
    """
    # `torch.compiler.disable` imports the compiler, which takes a second.
    return cast(Function, torch.compiler.disable(function)) if torch.compiler.is_compiling() else function


def in_full_width(ids: Tensor, char_cnn: CharCNNConfig | None) -> Tensor:
    """Character ids of words (U, C) padded to the C that the model was trained with; other ids as they are.

    In a narrower batch, wide filters would not see the padding after a word that they saw in training, and the word
    would have another vector.
    """
    missing = 0 if char_cnn is None else char_cnn.max_characters - ids.shape[1]
    return F.pad(ids, (0, missing), value=PAD_CHARACTER) if missing else ids


def _stacked(first: Tensor, second: Tensor) -> Tensor:
    # torch.stack of meta tensors would import PyTorch's compiler, which takes a second.
    return first.new_empty(2, *first.shape) if first.is_meta else torch.stack([first, second])


class BiLM(nn.Module):
    """The bidirectional language model: ids of words with their boundaries -> the token layer and every layer above.

    Its parts are `token_encoder` (`nn.token_encoders`) and `sequence_encoder`, one of `SEQUENCE_ENCODERS`.
    """

    def __init__(self, config: BiLMConfig) -> None:
        super().__init__()
        self.config = config
        self.token_encoder = cast(TokenEncoder, token_encoder(config))
        encoder = config.sequence_encoder
        self.sequence_encoder = SEQUENCE_ENCODERS[type(encoder)](encoder)
        # Set in a prepacked biLM, which has no weights of its own: a tensor with the device and dtype of its states,
        # and the number type of its products.
        self.like: Tensor | None = None
        self.product_dtype: torch.dtype | None = None

    def forward(self, ids: Tensor, mask: Tensor | None = None, state: BiLMState | None = None) -> BiLMOutput:
        """Run a padded batch.

        Args:
            ids: Ids of characters (B, T, C) or of words (B, T), shifted by one, 0 for no word. C may be smaller than
                the number of characters that the model reads.
            mask: (B, T), True where there is a word, at any positions of a row; None: where an id is above 0.
            state: The state that the rows start from; None: zeros.

        Returns:
            The layers (L+1, B, T, 2D), zero where there is no word, the mask, and the state of each row after it.

        Raises:
            ValueError: The ids are not those that this model reads, or the mask or the state is of another shape.
            IndexError: An id has no row in the model's table, or the mask is True at a 0.
        """
        return uncompiled(self._forward)(ids, mask, state)

    def _forward(self, ids: Tensor, mask: Tensor | None, state: BiLMState | None) -> BiLMOutput:
        check_ids(ids, self.config)
        if mask is not None and getattr(mask, "shape", None) != ids.shape[:2]:
            given = tuple(mask.shape) if isinstance(mask, Tensor) else f"a {type(mask).__name__}"
            raise ValueError(f"the mask of ids {tuple(ids.shape)} is a tensor {tuple(ids.shape[:2])}, not {given}")
        mask = self.token_encoder.is_word(ids) if mask is None else mask.bool()
        text = pack_sentences(mask.sum(dim=1).cpu().numpy(), range(len(mask)), len(mask), reset=False)
        distinct, inverse = torch.unique(ids[mask].long(), dim=0, return_inverse=True)
        tokens = text.to_streams(inverse.cpu().expand(2, -1)).to(ids.device)
        words = self.token_encoder(in_full_width(distinct, self.config.char_cnn))
        streams, state = self.run(words, tokens, text.packing, state)
        layers = streams.new_zeros(len(streams), *mask.shape, self.config.output_dim)
        layers[:, mask] = torch.stack([text.unpack(stream) for stream in streams])
        return BiLMOutput(layers, mask, state)

    def word_vectors(self, words: Sequence[str], vocab: Vocabulary | None = None) -> Tensor:
        """U distinct words -> their vectors (U, D), possibly with a few unused rows after them."""
        encoder = self.token_encoder
        ids = encoder.ids(words, vocab)
        # Cacheable encoders use the package's own kernels, which compile nothing for a shape.
        return encoder(*upload([ids if encoder.is_cacheable else encoder.in_few_shapes(ids)], self.device))

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
            words: Vectors of the distinct words, (U, D).
            tokens: Index into `words` at each slot of each direction, (2, N).
            packing: The shape of the streams.
            state: The initial state, with a row for each row of the packing; None: zeros.
            start: The state of one row that a reset sets, to which no gradient flows; None: zeros.
            dropout: See the `forward` of the sequence encoder.

        Returns:
            The layers (L+1, 2, N, D) in stream order, float32 at least, and the state after them.

        Raises:
            ValueError: A state does not fit, or is given to a sequence encoder that carries none.
        """
        return self.sequence_encoder(words, tokens, packing, state, start, dropout)

    def __repr__(self) -> str:
        encoder, dtype = self.config.sequence_encoder, self.product_dtype or self.dtype
        if isinstance(encoder, LSTMConfig | InterleavedConfig):
            op, depths = "lstm", (encoder.projection_dim, encoder.projection_dim, encoder.cell_dim)
        else:
            op, depths = "prepacked linear" if self.is_prepacked else "linear", (encoder.projection_dim,)
        *_, backend = explain(op, self.device.type, dtype, *depths)
        weights = "prepacked" if self.is_prepacked else f"{sum(map(Tensor.numel, self.parameters())):,} parameters"
        return (
            f"BiLM(reads {self.token_encoder.input}; {encoder}; {weights}, {str(dtype)[6:]} on {self.device} "
            f"by {backend})"
        )

    def _like(self) -> Tensor:
        like = next(self.sequence_encoder.parameters(), None) if self.like is None else self.like
        if like is None:
            raise ValueError("nn.DataParallel's copies of a biLM have no parameters: use DistributedDataParallel")
        return like

    @property
    def device(self) -> torch.device:
        return self._like().device

    @property
    def dtype(self) -> torch.dtype:
        """The number type of the sequence encoder's weights."""
        return self._like().dtype

    @property
    def is_prepacked(self) -> bool:
        """Whether it comes from `nn.inference.prepack`, and so has no weights of its own."""
        return self.like is not None

    def check_has_weights(self) -> None:
        """ValueError if it is prepacked, and so has no weights that can be written or trained."""
        if self.is_prepacked:
            raise ValueError("this biLM is prepacked for inference and has no weights of its own: use `elmokit.load`")

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> BiLM:
        """Called by `to`, `cuda`, `half` and others. ValueError if it is prepacked and would have to be converted."""
        if self.like is not None and ((after := fn(self.like)).device, after.dtype) != (self.device, self.dtype):
            raise ValueError(
                f"this biLM is prepacked for {str(self.product_dtype)[6:]} on {self.device}, and cannot be moved or "
                "converted: load the model again, and prepack it there, as `elmokit.Embedder` does"
            )
        return super()._apply(fn, recurse)

    def initial_state(self, rows: int) -> BiLMState:
        """Zeros for `rows` rows."""
        return BiLMState.zeros(self.config.sequence_encoder, rows, self._like())

    def _stored_names(self) -> dict[str, list[str]]:
        """The names of the parameters, one or one for each direction, by their common name in files.

        In files, the prefix of the token encoder's weights is its kind.
        """
        names = {}
        for name in self.state_dict():
            if name.startswith(FIRST_STACK):
                shared = name.removeprefix(FIRST_STACK)
                names[shared] = [name, SECOND_STACK + shared]
            elif not name.startswith(SECOND_STACK):
                stored = name.replace("token_encoder.", f"{self.token_encoder.stored_name}.", 1)
                stored = stored.removeprefix("sequence_encoder.")
                names[WORD_TABLE if stored == f"{WORD_TABLE}.weight" else stored] = [name]
        return names

    def stored_tensors(self) -> dict[str, Tensor]:
        """The weights by their names in files, which `load_state_dict` also reads; both directions as one (2, ...).

        Raises:
            ValueError: It is prepacked, or was pruned or parametrized in one direction alone.
        """
        self.check_has_weights()
        own, names_of = self.state_dict(), self._stored_names()
        if missing := [name for names in names_of.values() for name in names if name not in own]:
            raise ValueError(
                f"there is no {missing[0]}: make masks and parametrizations permanent first, as with "
                "torch.nn.utils.prune.remove"
            )
        return {
            stored: own[names[0]] if len(names) == 1 else _stacked(*(own[name] for name in names))
            for stored, names in names_of.items()
        }

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        for stored, names in self._stored_names().items():
            if prefix + stored in state_dict:
                tensor = state_dict.pop(prefix + stored)
                if len(names) == 2 and (tensor.dim() == 0 or len(tensor) != 2):
                    raise ValueError(
                        f"{stored} has shape {tuple(tensor.shape)}: it must be (2, ...), of two directions"
                    )
                # Copies, because safetensors does not write weights that share their memory.
                parts = [tensor] if len(names) == 1 else [direction.clone() for direction in tensor]
                state_dict |= {prefix + name: part for name, part in zip(names, parts, strict=True)}
        super()._load_from_state_dict(state_dict, prefix, *others)
