"""ELMoForManyLangs' `Embedder`, which carries its state from call to call (its elmo.py)."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import torch

from elmokit.compat.notice import warn_once
from elmokit.embed import embedder
from elmokit.nn.bilm import BiLMState
from elmokit.text.characters import BOS, EOS
from elmokit.text.lexicon import padding_ids

Sentences = Sequence[Sequence[str]]
AVERAGE, ALL = -1, -2


class Embedder:
    """A model of ELMoForManyLangs, or any other that `elmokit.load` takes: `sents2elmo` gives its vectors.

    As before, sentence i goes on from the state of sentence i - `batch_size`, across calls too; `reset_states()`
    starts anew. `device` is the best there is when not given.
    """

    def __init__(self, model_dir: str | Path, batch_size: int = 64, device: str | None = None) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {batch_size}")
        self.model_dir, self.batch_size = model_dir, batch_size
        self._embedder = embedder.Embedder.load(model_dir, device)
        self._config = self._embedder.model.config
        self._state: BiLMState | str = "carry"
        self.interleaved = self._config.lstm.interleaved  # the encoder called lstm

    def sents2elmo(self, sents: Sentences, output_layer: int = AVERAGE) -> list[np.ndarray]:
        """Tokenized sentences -> for each (T, 2D) float32: the layer's number, or -1 for the average of all.

        -2 is all layers, (L+1, T, 2D). The encoder called lstm has but one, (T, 2D), of which, as before, -1 is the
        mean of the words and any other number but -2 one word, (2D,). ValueError for a layer that is not there.
        """
        self.check_layers([output_layer])
        found = self.all_layers(sents)
        if self.interleaved and output_layer != ALL:
            warn_once("with the encoder lstm, output_layer picks words, not layers, as before: -2 gives them all")
        if output_layer == ALL:
            return found
        return [layers.mean(axis=0) if output_layer == AVERAGE else layers[output_layer] for layers in found]

    def check_layers(self, numbers: Sequence[int]) -> None:
        """ValueError for a layer that is not there."""
        count = self._embedder.num_layers
        wrong = [number for number in numbers if not -2 <= number < count]
        if wrong and not self.interleaved:
            raise ValueError(f"output_layer must be -1 (average), -2 (all) or from 0 to {count - 1}, not {wrong[0]}")

    def all_layers(self, sents: Sentences) -> list[np.ndarray]:
        """(L+1, T, 2D) of each sentence, or (T, 2D) with the encoder called lstm."""
        if any(isinstance(sentence, str) for sentence in sents):
            warn_once("a string was given in place of a list of tokens: each of its characters is read as a token")
        sentences = [list(sentence) for sentence in sents]
        if self._embedder.count_truncated(list(chain.from_iterable(sentences))):
            warn_once("some words are longer than the model reads: as before, only their beginning is read")
        if self.interleaved:
            return self._padded(sentences)
        if len(sentences) > self.batch_size:
            warn_once(
                "batches are read in order; ELMoForManyLangs shuffled them, so that its vectors changed each time"
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", embedder.TruncationWarning)  # said above
            found = self._embedder.embed(sentences, "all", self._state, self.batch_size)
        self._state = found.state or "carry"
        return list(found)

    def reset_states(self) -> None:
        """Start from zeros again."""
        self._state = "carry"

    def _padded(self, sentences: list[list[str]]) -> list[np.ndarray]:
        """(T, 2D) of each sentence, in batches of about equal length, whose padding is read as it was."""
        if len({len(sentence) for sentence in sentences}) > 1 and self.batch_size > 1:
            warn_once(
                "the encoder lstm reads padding, as before, so its vectors depend on the batch: use elmokit.Embedder"
            )
        found: list[np.ndarray] = [np.empty(0)] * len(sentences)
        longest_first = sorted(range(len(sentences)), key=lambda number: -len(sentences[number]))
        for begin in range(0, len(sentences), self.batch_size):
            batch = longest_first[begin : begin + self.batch_size]
            for number, vectors in zip(batch, self._batch([sentences[number] for number in batch]), strict=True):
                found[number] = vectors[1 : len(sentences[number]) + 1]
        return found

    @torch.no_grad()
    def _batch(self, sentences: list[list[str]]) -> np.ndarray:
        """(B, T+2, 2D) of one batch."""
        config, device = self._config, self._embedder.device
        bilm = self._embedder.model.bilm.to(device)
        encoder = config.efml
        assert encoder is not None
        lengths = np.array([len(sentence) + 2 for sentence in sentences])
        ids = bilm.token_encoder.ids(list(chain.from_iterable((BOS, *sentence, EOS) for sentence in sentences)))
        padding = torch.from_numpy(padding_ids(ids.shape[1], encoder))
        padded = padding.expand(len(sentences), int(lengths.max()), -1).clone()
        padded[torch.from_numpy(np.arange(lengths.max()) < lengths[:, None])] = ids
        everywhere = torch.ones(padded.shape[:2], dtype=torch.bool)
        return bilm(padded.to(device), everywhere.to(device)).layers[0].cpu().numpy()
