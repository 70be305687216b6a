"""ELMo for a downstream model: a biLM and learned mixes (paper sections 3.2 and 3.3).

ELMo_k = gamma sum_j s_j h_kj,  s = softmax(w)      of the layers h_kj of word k (equation 1)
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from elmokit.nn.bidirectional import BiLMState, has_hooks
from elmokit.nn.bilm import BiLM, BiLMOutput
from elmokit.nn.inference import PrepackCache
from elmokit.runtime import accumulation_dtype, disable_compile, needs_grad
from elmokit.text import TruncationWarning, count_truncated, encode_sentences
from elmokit.threads import run_on_own_thread

LAYER_NORM_EPSILON = 1e-12  # bilm-tf's; AllenNLP has 1e-13, which float32 cannot tell apart


def _normalized(layer: Tensor, mask: Tensor) -> Tensor:
    real = layer[mask].to(accumulation_dtype(layer.dtype))
    mean = real.mean()
    variance = (real - mean).square().mean()
    scale = torch.rsqrt(variance + LAYER_NORM_EPSILON)
    return ((layer - mean) * scale).to(layer.dtype)


class ScalarMix(nn.Module):
    """A weighted sum of layers, whose `weights` (before a softmax) and `gamma` learn.

    With `layer_norm`, each layer is first normalized to mean 0 and variance 1 over the whole batch
    (all dimensions of all positions where the mask is True), as in bilm-tf and AllenNLP: results
    then depend on the batch.
    """

    def __init__(self, num_layers: int, *, layer_norm: bool = False) -> None:
        super().__init__()
        self.layer_norm = layer_norm
        self.weights = nn.Parameter(torch.zeros(num_layers))
        self.gamma = nn.Parameter(torch.ones(()))

    def forward(self, layers: Tensor, mask: Tensor | None = None) -> Tensor:
        """Mix layers.

        Args:
            layers: (L+1, ..., 2D).
            mask: (...), True for words; for layer norm only.

        Returns:
            (..., 2D), in the number type of the weights.
        """
        return self.mix(layers, self.gamma * self.layer_weights(), mask, self.layer_norm)

    @staticmethod
    def mix(
        layers: Tensor,
        weights: Tensor,
        mask: Tensor | None = None,
        layer_norm: bool = False,
    ) -> Tensor:
        """`forward` with given weights (L+1,), to which no softmax is applied."""
        if layer_norm:
            is_word = cast(Tensor, mask).bool()
            layers = torch.stack([_normalized(layer, is_word) for layer in layers])
        mixed = torch.tensordot(weights.to(layers.dtype), layers, dims=1)
        return mixed.to(weights.dtype)

    def layer_weights(self) -> Tensor:
        """The weights after the softmax, (L+1,)."""
        return torch.softmax(self.weights, dim=0)

    def penalty(self, coefficient: float) -> Tensor:
        """The L2 penalty on the weights, which draws them towards an average (bilm/data.py:541)."""
        return coefficient * self.weights.square().sum()


@dataclass(frozen=True)
class ElmoOutput:
    """The output of `Elmo`.

    Attributes:
        representations: For each mix (B, T, 2D), zero where there is no word.
        mask: (B, T) bool, True where there is a word.
        state: The state after the batch.
    """

    representations: list[Tensor]
    mask: Tensor
    state: BiLMState


def batch_to_ids(sentences: Sequence[Sequence[str]], max_characters: int = 50) -> Tensor:
    """Encode tokenized sentences as character ids for `Elmo`, which adds the boundaries.

    Args:
        sentences: Lists of tokens.
        max_characters: C, the characters of a word that the model reads, including the two marks
            around it; 50 in published models.

    Returns:
        Ids (B, T, C) int64, shifted by one; zeros after the end of a sentence.

    Raises:
        ValueError: A sentence is a string, or no character fits between the marks.

    Warns:
        TruncationWarning: Words have more bytes than fit.
    """
    if isinstance(sentences, str) or any(isinstance(sentence, str) for sentence in sentences):
        raise ValueError(
            "batch_to_ids takes sentences as lists of tokens: split each first, as with "
            "Embedder.tokenize"
        )
    count = partial(count_truncated, max_characters=max_characters)
    if any(map(count, sentences)):
        warning = TruncationWarning.in_sentences(sentences, count, f"{max_characters - 2} bytes")
        warnings.warn(warning, stacklevel=2)
    return torch.from_numpy(encode_sentences(sentences, max_characters)).long()


class Elmo(nn.Module):
    """Ids of words without boundaries -> learned mixes of the biLM's layers, one for each place in
    a downstream model.

    The weights of a frozen biLM are prepacked on first use, and again when one has changed. That is
    1.4 to 1.8 times as fast with the compiled kernels, and takes the memory of the weights once
    more.

    PyTorch's autograd and `torch.compile`, which leaves the biLM out of its graph, see an ordinary
    module. The transforms of `torch.func`, `torch.export` and `torch.jit.trace` do not see through
    the kernels.
    """

    def __init__(
        self,
        bilm: BiLM,
        num_mixes: int = 1,
        dropout: float = 0.5,
        freeze: bool = True,
    ) -> None:
        """Put mixes on top of a biLM.

        Args:
            bilm: The biLM, which is not copied.
            num_mixes: Number of mixes, each with its own weights.
            dropout: Dropout probability on each mix.
            freeze: Whether only the mixes learn. This sets `requires_grad` of the parameters of
                `bilm` itself, and so freezes it, or not, for everything else that uses it.

        Raises:
            ValueError: `bilm` is something else, such as the whole model, or is prepacked and
                should be trained, or `dropout` is not a probability.
        """
        super().__init__()
        if not isinstance(bilm, BiLM):
            raise ValueError(
                f"Elmo takes a biLM, not {type(bilm).__name__}: write Elmo(elmokit.load(...).bilm)"
            )
        if not freeze and bilm.is_prepacked:
            raise ValueError(
                "a prepacked biLM has no weights that could be trained: use `elmokit.load`"
            )
        self.bilm = bilm
        bilm.requires_grad_(not freeze)
        self._prepacked = PrepackCache()
        self.mixes = nn.ModuleList(
            ScalarMix(bilm.config.num_representations) for _ in range(num_mixes)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, ids: Tensor, state: BiLMState | None = None) -> ElmoOutput:
        """Run a padded batch; the boundaries of sentences are added and removed here.

        Args:
            ids: Ids of characters (B, T, C) or of words (B, T), shifted by one, 0 for padding on
                the right.
            state: The state that the rows start from; None: zeros.

        Returns:
            A representation for each mix (B, T, 2D), zero where there is no word; the mask; the
            state after the batch.

        Raises:
            ValueError: `ids` are no tensor of the kind that this model reads, there is padding
                before a word, or the state does not fit.
            IndexError: An id has no row in the model's table.
        """
        out = self.layers(ids, state)
        representations = self.mix(out.layers, out.mask)
        return ElmoOutput(representations, out.mask, out.state)

    def layers(self, ids: Tensor, state: BiLMState | None = None) -> BiLMOutput:
        """The layers that `forward` mixes, without boundaries; arguments and errors are its own."""
        self.bilm.token_encoder.check_ids(ids)
        run = partial(self._layers, ids.long(), state)
        return disable_compile(run_on_own_thread)(run, self.bilm.device)

    def _layers(self, ids: Tensor, state: BiLMState | None) -> BiLMOutput:
        bilm, mask = self.bilm, self.bilm.token_encoder.is_word(ids)
        # Hooks, and a state that learns, need the modules themselves.
        needs_state_grad = state is not None and needs_grad(state.h, state.c)
        if not has_hooks(bilm) and not needs_state_grad:
            bilm = self._prepacked.of(bilm)
        out = bilm(bilm.token_encoder.add_boundaries(ids), state=state)
        layers = out.layers[:, :, 1:-1] * mask.unsqueeze(-1)
        return BiLMOutput(layers, mask, out.state)

    def mix(self, layers: Tensor, mask: Tensor) -> list[Tensor]:
        """Layers (L+1, B, T, 2D) and mask (B, T) -> the representations of `forward`."""
        return [self.dropout(mix(layers, mask)) * mask.unsqueeze(-1) for mix in self.mixes]

    def penalty(self, coefficient: float) -> Tensor:
        """The L2 penalty on all mix weights; add it to the loss."""
        penalties = [cast(ScalarMix, mix).penalty(coefficient) for mix in self.mixes]
        return torch.stack(penalties).sum()
