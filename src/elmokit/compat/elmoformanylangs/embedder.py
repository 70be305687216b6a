"""ELMoForManyLangs' `Embedder` (its elmo.py), which carries its state from call to call."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import torch

from elmokit.compat.notice import warn_of_strings, warn_once
from elmokit.embed import embedder
from elmokit.nn.bilm import BiLMState
from elmokit.settings import StatePolicy
from elmokit.text.characters import BOS, EOS
from elmokit.text.efml import padding_ids

Sentences = Sequence[Sequence[str]]
AVERAGE, ALL = -1, -2


def _longest_first(sentences: Sentences) -> list[int]:
    """The indices of the sentences, longest first, in order for the same length (the original's `create_batches`)."""
    return sorted(range(len(sentences)), key=lambda number: -len(sentences[number]))


class Embedder:
    """ELMoForManyLangs' `Embedder`, whose `sents2elmo` computes vectors.

    As in ELMoForManyLangs, a call sorts its sentences, the longest first; in that order sentence i starts from the
    final state of sentence i - `batch_size`, also across calls. `reset_states()` resets the state to zeros.
    """

    def __init__(self, model_dir: str | Path, batch_size: int = 64, device: str | None = None) -> None:
        """Load a model.

        Args:
            model_dir: Directory of the model, or any other model that `elmokit.load` accepts.
            batch_size: Sentences per batch.
            device: Device to compute on; a GPU by default if there is one.

        Raises:
            ValueError: `batch_size` is less than 1, or the model has neither a state to carry nor ELMoForManyLangs'
                encoder `lstm`.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {batch_size}")
        self.model_dir, self.batch_size = model_dir, batch_size
        self._embedder = embedder.Embedder.load(model_dir, device)
        self._config = self._embedder.model.config
        self._state: BiLMState | StatePolicy = "carry"
        encoder = self._config.interleaved
        self.interleaved = encoder is not None and not encoder.projects_layers  # ELMoForManyLangs' encoder "lstm"
        is_original = self.interleaved and self._config.efml is not None
        if not (is_original or self._config.sequence_encoder.carries_state):
            raise ValueError(
                f"ELMoForManyLangs carries its state from call to call but {self._config.encoder_name} models have "
                "none: use elmokit.Embedder"
            )

    def sents2elmo(self, sents: Sentences, output_layer: int = AVERAGE) -> list[np.ndarray]:
        """Compute the vectors of tokenized sentences.

        Args:
            sents: Tokenized sentences.
            output_layer: Index of the layer, -1 for the average of all layers, -2 for all layers. For models with
                interleaved directions (the encoder "lstm"), as in ELMoForManyLangs: the index of a word, -1 for the
                average of all words, -2 for all words.

        Returns:
            For each sentence (T, 2D) float32, or (L+1, T, 2D) for all layers; with interleaved directions (2D,), or
            (T, 2D) for all words.

        Raises:
            ValueError: There is no such layer.
        """
        self.check_layers([output_layer])
        vectors = self.all_layers(sents)
        if self.interleaved and output_layer != ALL:
            warn_once(
                "as in ELMoForManyLangs, output_layer selects words, not layers, with the encoder lstm: -2 gives all"
            )
        if output_layer == ALL:
            return vectors
        return [layers.mean(axis=0) if output_layer == AVERAGE else layers[output_layer] for layers in vectors]

    def check_layers(self, numbers: Sequence[int]) -> None:
        """ValueError if there is no layer with one of the numbers."""
        count = self._embedder.num_layers
        wrong = [number for number in numbers if not -2 <= number < count]
        if wrong and not self.interleaved:
            raise ValueError(f"output_layer must be -1 (average), -2 (all) or from 0 to {count - 1}, not {wrong[0]}")

    def all_layers(self, sents: Sentences, *, sort: bool = True) -> list[np.ndarray]:
        """All layers of each sentence, (L+1, T, 2D), or (T, 2D) with interleaved directions.

        Args:
            sents: Tokenized sentences.
            sort: Process the longest first, as `sents2elmo` does; otherwise in the order given.
        """
        warn_of_strings(sents)
        sentences = [list(sentence) for sentence in sents]
        if self._embedder.count_truncated(list(chain.from_iterable(sentences))):
            warn_once("some words are too long: as in ELMoForManyLangs, only their beginning is read")
        order = _longest_first(sentences) if sort else list(range(len(sentences)))
        if self.interleaved:
            return self._padded(sentences, order)
        if sort and len(sentences) > self.batch_size:
            warn_once(
                "batches are processed longest first; ELMoForManyLangs shuffles them, so that its vectors vary between "
                "calls"
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", embedder.TruncationWarning)  # issued above
            embeddings = self._embedder.embed(
                [sentences[number] for number in order], "all", self._state, self.batch_size
            )
        self._state = embeddings.state or "carry"
        return [embeddings[place] for place in np.argsort(order)]

    def reset_states(self) -> None:
        """Reset the state to zeros."""
        self._state = "carry"

    def _padded(self, sentences: list[list[str]], order: list[int]) -> list[np.ndarray]:
        """Vectors of each sentence, (T, 2D), in batches in this order; the model reads padding, as in the original."""
        if len({len(sentence) for sentence in sentences}) > 1 and self.batch_size > 1:
            warn_once(
                "as in ELMoForManyLangs, the encoder lstm reads padding, so that vectors depend on the batch; "
                "elmokit.Embedder avoids that"
            )
        vectors: list[np.ndarray] = [np.empty(0)] * len(sentences)
        for begin in range(0, len(sentences), self.batch_size):
            batch = order[begin : begin + self.batch_size]
            for number, row in zip(batch, self._batch([sentences[number] for number in batch]), strict=True):
                vectors[number] = row[1 : len(sentences[number]) + 1]
        return vectors

    @torch.no_grad()
    def _batch(self, sentences: list[list[str]]) -> np.ndarray:
        """Vectors of one batch with boundaries, (B, T+2, 2D)."""
        bilm, device, encoder = self._embedder.model.bilm, self._embedder.device, self._config.efml
        assert encoder is not None
        lengths = np.array([len(sentence) + 2 for sentence in sentences])
        ids = bilm.token_encoder.ids(list(chain.from_iterable((BOS, *sentence, EOS) for sentence in sentences)))
        padding = torch.from_numpy(padding_ids(ids.shape[1], encoder))
        padded = padding.expand(len(sentences), int(lengths.max()), -1).clone()
        padded[torch.from_numpy(np.arange(lengths.max()) < lengths[:, None])] = ids
        everywhere = torch.ones(padded.shape[:2], dtype=torch.bool)
        return bilm(padded.to(device), everywhere.to(device)).layers[0].cpu().numpy()
