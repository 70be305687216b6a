"""AllenNLP's `batch_to_ids`, `Elmo`, `ScalarMix` and `ElmoTokenEmbedder` (in its `modules`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from elmokit.compat.allennlp.bilm import ElmoLstm as ElmoLstm
from elmokit.compat.allennlp.bilm import _ElmoBiLm, remove_sentence_boundaries
from elmokit.compat.allennlp.bilm import _ElmoCharacterEncoder as _ElmoCharacterEncoder
from elmokit.compat.allennlp.common import ConfigurationError, FromParams
from elmokit.compat.allennlp.indexer import ELMoCharacterMapper as ELMoCharacterMapper
from elmokit.compat.allennlp.indexer import ELMoTokenCharactersIndexer as ELMoTokenCharactersIndexer
from elmokit.compat.notice import encode_with_notices, warn_once
from elmokit.compat.weights import DEFAULT_OPTIONS_FILE, DEFAULT_WEIGHT_FILE
from elmokit.nn.scalar_mix import mix_layers
from elmokit.text.characters import MAX_CHARACTERS


def batch_to_ids(batch: Sequence[Sequence[str]]) -> Tensor:
    """Tokenized sentences -> character ids (B, T, 50) int64, without boundaries, zeros for padding."""
    return torch.from_numpy(encode_with_notices(batch, MAX_CHARACTERS, "AllenNLP"))


class ScalarMix(nn.Module, FromParams):
    """A learned weighted sum of tensors: `gamma` (1,) times the softmax of `scalar_parameters`, each (1,)."""

    def __init__(
        self,
        mixture_size: int,
        do_layer_norm: bool = False,
        initial_scalar_parameters: Sequence[float] | None = None,
        trainable: bool = True,
    ) -> None:
        super().__init__()
        initial = [0.0] * mixture_size if initial_scalar_parameters is None else initial_scalar_parameters
        if len(initial) != mixture_size:
            raise ConfigurationError(f"initial_scalar_parameters must be {mixture_size} numbers, not {list(initial)}")
        self.mixture_size, self.do_layer_norm = mixture_size, do_layer_norm
        self.scalar_parameters = nn.ParameterList(
            nn.Parameter(torch.tensor([float(number)]), requires_grad=trainable) for number in initial
        )
        self.gamma = nn.Parameter(torch.ones(1), requires_grad=trainable)

    def forward(self, tensors: Sequence[Tensor] | Tensor, mask: Tensor | None = None) -> Tensor:
        """Mix tensors of one shape, given in a list or stacked; layer norm needs the `mask` of words, (B, T)."""
        if len(tensors) != self.mixture_size:
            raise ConfigurationError(f"{len(tensors)} tensors were passed to a module that mixes {self.mixture_size}")
        layers = tensors if isinstance(tensors, Tensor) else torch.stack(list(tensors))
        weights = torch.softmax(torch.cat(list(cast(nn.ParameterList, self.scalar_parameters))), dim=0)
        # Like AllenNLP's, the mix of tensors in float64 is in float64, whatever the weights are in.
        dtype = torch.promote_types(weights.dtype, layers.dtype)
        return mix_layers(layers, (self.gamma * weights).to(dtype), mask, self.do_layer_norm)


class Elmo(nn.Module, FromParams):
    """AllenNLP's `Elmo`, with all its arguments: mixes of the biLM's layers. State is carried between calls.

    The mixes are `scalar_mix_0`, `scalar_mix_1`, ...; with `scalar_mix_parameters` (before the softmax) they are fixed.
    `module` may be any biLM with `num_layers` and the outputs of `_ElmoBiLm`; then the files must be None.
    """

    def __init__(
        self,
        options_file: str | Path | None,
        weight_file: str | Path | None,
        num_output_representations: int,
        requires_grad: bool = False,
        do_layer_norm: bool = False,
        dropout: float = 0.5,
        vocab_to_cache: Sequence[str] | None = None,
        keep_sentence_boundaries: bool = False,
        scalar_mix_parameters: Sequence[float] | None = None,
        module: nn.Module | None = None,
    ) -> None:
        super().__init__()
        if module is not None and (options_file, weight_file) != (None, None):
            raise ConfigurationError("module excludes options_file and weight_file: set them to None")
        module = module or _ElmoBiLm(options_file, weight_file, requires_grad, vocab_to_cache)
        self._elmo_lstm = module
        self._has_cached_vocab = vocab_to_cache is not None
        self._keep_sentence_boundaries = keep_sentence_boundaries
        self._dropout = nn.Dropout(dropout)
        settings = do_layer_norm, scalar_mix_parameters, scalar_mix_parameters is None
        self._scalar_mixes = [
            ScalarMix(cast(int, module.num_layers), *settings) for _ in range(num_output_representations)
        ]
        for k, mix in enumerate(self._scalar_mixes):
            self.add_module(f"scalar_mix_{k}", mix)

    def get_output_dim(self) -> int:
        """2D."""
        return cast(_ElmoBiLm, self._elmo_lstm).get_output_dim()

    def forward(self, inputs: Tensor, word_inputs: Tensor | None = None) -> dict[str, Any]:
        """inputs (B, ..., T, 50), word_inputs (B, ..., T) -> {"elmo_representations": [(B, ..., T, 2D)], "mask": bool}.

        `word_inputs` are indices into `vocab_to_cache`, 0 for padding; if given, they replace `inputs`.
        """
        if word_inputs is not None and not self._has_cached_vocab:
            warn_once("word_inputs is ignored without vocab_to_cache: the character ids are read instead")
            word_inputs = None
        words = None if word_inputs is None else word_inputs.flatten(0, -2)
        out = self._elmo_lstm(inputs.flatten(0, -3) if inputs.dim() > 3 else inputs, words)
        layers, mask = torch.stack(out["activations"]), out["mask"]
        mixes = [self.get_submodule(f"scalar_mix_{k}") for k in range(len(self._scalar_mixes))]
        mixed = [mix(layers, mask) for mix in mixes]  # layer norm includes the boundaries
        if self._keep_sentence_boundaries:
            mixed = [representation * mask.unsqueeze(-1) for representation in mixed]
        else:
            mixed, mask = [remove_sentence_boundaries(representation, mask)[0] for representation in mixed], mask[:, 2:]
        rows = inputs.shape[:-2] if word_inputs is None else word_inputs.shape[:-1]
        return {
            "elmo_representations": [self._dropout(representation).unflatten(0, rows) for representation in mixed],
            "mask": mask.unflatten(0, rows),
        }


class ElmoTokenEmbedder(nn.Module, FromParams):
    """AllenNLP's `ElmoTokenEmbedder`: one representation, projected to `projection_dim` if given."""

    def __init__(
        self,
        options_file: str | Path | None = DEFAULT_OPTIONS_FILE,
        weight_file: str | Path | None = DEFAULT_WEIGHT_FILE,
        do_layer_norm: bool = False,
        dropout: float = 0.5,
        requires_grad: bool = False,
        projection_dim: int | None = None,
        vocab_to_cache: Sequence[str] | None = None,
        scalar_mix_parameters: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        mix = False, scalar_mix_parameters
        self._elmo = Elmo(options_file, weight_file, 1, requires_grad, do_layer_norm, dropout, vocab_to_cache, *mix)
        dim = self._elmo.get_output_dim()
        self._projection = nn.Linear(dim, projection_dim) if projection_dim else None
        self.output_dim = projection_dim or dim

    def get_output_dim(self) -> int:
        """`projection_dim`, or 2D without a projection."""
        return self.output_dim

    def forward(
        self, elmo_tokens: Tensor | None = None, word_inputs: Tensor | None = None, *, inputs: Tensor | None = None
    ) -> Tensor:
        """elmo_tokens (B, ..., T, 50), word_inputs (B, ..., T) -> (B, ..., T, output dim).

        Before version 1.0, AllenNLP called the first argument `inputs`.
        """
        ids = inputs if elmo_tokens is None else elmo_tokens
        representation = self._elmo(ids, word_inputs)["elmo_representations"][0]
        return representation if self._projection is None else self._projection(representation)
