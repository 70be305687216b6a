"""AllenNLP's `ElmoTokenEmbedder` (modules/token_embedders/elmo_token_embedder.py)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor, nn

from elmokit.compat.allennlp.configuration import ConfigurationError, FromParams
from elmokit.compat.allennlp.elmo import Elmo
from elmokit.compat.weights import DEFAULT_OPTIONS_FILE, DEFAULT_WEIGHT_FILE


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
        self._elmo = Elmo(
            options_file,
            weight_file,
            1,
            requires_grad,
            do_layer_norm,
            dropout,
            vocab_to_cache,
            scalar_mix_parameters=scalar_mix_parameters,
        )
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
        if ids is None:
            raise ConfigurationError("ElmoTokenEmbedder needs character ids: pass batch_to_ids(sentences)")
        representation = self._elmo(ids, word_inputs)["elmo_representations"][0]
        return representation if self._projection is None else self._projection(representation)
