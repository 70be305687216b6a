"""ELMoForManyLangs' `Embedder` (its elmo.py), which carries its state from call to call."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from elmokit.compat.shared import warn_once, word_lists
from elmokit.embed import Embedder as Vectors
from elmokit.nn import BiLMState
from elmokit.settings import StatePolicy

Sentences = Sequence[Sequence[str]]
AVERAGE, ALL = -1, -2


class Embedder:
    """ELMoForManyLangs' `Embedder`, whose `sents2elmo` computes vectors.

    As in ELMoForManyLangs, a call sorts its sentences, the longest first; in that order sentence i
    starts from the final state of sentence i - `batch_size`, also across calls. `reset_states()`
    resets the state to zeros.
    """

    def __init__(
        self, model_dir: str | Path, batch_size: int = 64, device: str | None = None
    ) -> None:
        """Load a model.

        Args:
            model_dir: Directory of the model, or any other model that `elmokit.load` accepts.
            batch_size: Sentences per batch.
            device: Device to compute on; a GPU by default if there is one.

        Raises:
            ValueError: The model carries no state.
        """
        self.model_dir, self.batch_size = model_dir, batch_size
        self._embedder = Vectors(model_dir, device)
        self._state: BiLMState | StatePolicy = "carry"
        if (
            not self._embedder.model.config.sequence_encoder.carries_state
        ):  # includes ELMoForManyLangs' "lstm"
            raise ValueError(
                "ELMoForManyLangs carries its state, which this model has not: use elmokit.Embedder"
            )

    def sents2elmo(self, sents: Sentences, output_layer: int = AVERAGE) -> list[np.ndarray]:
        """Compute the vectors of tokenized sentences.

        Args:
            sents: Tokenized sentences.
            output_layer: Index of the layer, -1 for the average of all layers, -2 for all layers.

        Returns:
            For each sentence (T, 2D) float32, or (L+1, T, 2D) for all layers.
        """
        sents = word_lists(sents)
        if len(sents) > self.batch_size:
            warn_once(
                "batches are processed longest first; ELMoForManyLangs shuffles them, so that its "
                "vectors vary"
            )
        order = sorted(range(len(sents)), key=lambda number: -len(sents[number]))
        embeddings = self._embedder.embed(
            [sents[number] for number in order], "all", self._state, self.batch_size
        )
        self._state = embeddings.state or "carry"
        vectors = [embeddings[position] for position in np.argsort(order)]
        if output_layer == ALL:
            return vectors
        return [
            layers.mean(axis=0) if output_layer == AVERAGE else layers[output_layer]
            for layers in vectors
        ]

    def __getattr__(self, name: str) -> Any:
        if name in ("model", "config", "char_lexicon", "word_lexicon"):
            raise AttributeError(
                f"elmokit has no Embedder.{name}: to train further, use elmokit.Elmo or `elmokit "
                "finetune` (docs/migrating.md)"
            )
        raise AttributeError(name)

    def reset_states(self) -> None:
        """Reset the state to zeros."""
        self._state = "carry"
