"""The word vectors that a task's network reads: learned ones, pretrained ones, a character CNN, ELMo, an encoder."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elmokit.config import CharCNNConfig
from elmokit.nn.elmo import Elmo
from elmokit.nn.lstm import BiLMState
from elmokit.nn.scalar_mix import ScalarMix
from elmokit.nn.token_encoders import CharCNN
from elmokit.tasks.config import WordsConfig
from elmokit.tasks.word_batches import PADDING, UNKNOWN, WordBatch, WordTable

# The character CNN that a network learns from its own training set: small, because training sets are.
CHARACTERS = CharCNNConfig(embedding_dim=16, filters=((1, 16), (2, 32), (3, 48), (4, 48), (5, 48)), num_highway=1)
EXCLUDED = -1e4  # weight, before the softmax, of a layer that a mix excludes


def mix_weights(mix: str, num_layers: int) -> list[float] | None:
    """The weights before the softmax, (L+1,), of the mix "top" or "uniform"; None for "learned"."""
    if mix == "learned":
        return None
    return [EXCLUDED if mix == "top" else 0.0] * (num_layers - 1) + [0.0]


def random_vectors(num_words: int, dim: int) -> nn.Embedding:
    """Trainable word vectors, initialized to a length of about 1 (Ma and Hovy, 2016)."""
    vectors = nn.Embedding(num_words, dim, padding_idx=PADDING)
    with torch.no_grad():
        vectors.weight[PADDING + 1 :].uniform_(-math.sqrt(3 / dim), math.sqrt(3 / dim))
    return vectors


class EncodedWords(NamedTuple):
    """The input of a network, `vectors` (B, T, dim); and ELMo's vectors for its output (B, T, output_dim), or None."""

    vectors: Tensor
    at_output: Tensor | None
    mask: Tensor  # (B, T) bool

    def join(self, hidden: Tensor) -> Tensor:
        """[h; ELMo] if ELMo enters at the output, otherwise h: (B, T, H) -> (B, T, H + output_dim)."""
        return hidden if self.at_output is None else torch.cat([hidden, self.at_output], dim=-1)


class WordEncoder(nn.Module):
    """Words -> vectors of each kind that the configuration names, concatenated.

    Args:
        config: Which of them to use, and their dropout.
        table: The words of the training set, and pretrained vectors.
        elmo: The biLM and its mixes, one for each place that `config.elmo` names; None with elmo "none".
        start: The state of one row that ELMo reads every sentence from; None: zeros.
        encoder_shape: Number and width (M, D) of the hidden states of another encoder, of which a mix is learned.

    Attributes:
        dim: Width of `EncodedWords.vectors`.
        output_dim: Width of ELMo at the output of the network, 0 if it does not enter there.
    """

    def __init__(
        self,
        config: WordsConfig,
        table: WordTable,
        elmo: Elmo | None = None,
        start: BiLMState | None = None,
        encoder_shape: tuple[int, int] | None = None,
    ) -> None:
        super().__init__()
        if (config.elmo != "none") != (elmo is not None):
            raise ValueError("give an Elmo if, and only if, the configuration uses ELMo")
        self.config, self.num_frequent = config, table.num_frequent
        self.words = random_vectors(table.size, config.word_dim) if config.word_dim else None
        self.characters = CharCNN(CHARACTERS, config.character_dim) if config.character_dim else None
        self.elmo, self._start = elmo, start
        self.encoder_mix = ScalarMix(encoder_shape[0]) if encoder_shape is not None else None
        self.dropout = nn.Dropout(config.word_dropout)
        vectors = np.zeros((0, 0), np.float32) if table.vectors is None else table.vectors.vectors
        # Row 0, zeros, is for words without a vector. Not persistent, since the vectors are stored with the table.
        self.register_buffer("vectors", torch.from_numpy(np.pad(vectors, ((1, 0), (0, 0)))), persistent=False)
        elmo_dim = 0 if elmo is None else elmo.bilm.config.output_dim
        at_input = elmo_dim if config.elmo in ("input", "both") else 0
        encoder_dim = encoder_shape[1] if encoder_shape is not None else 0
        self.dim = config.word_dim + config.character_dim + vectors.shape[1] + encoder_dim + at_input
        self.output_dim = elmo_dim if config.elmo in ("output", "both") else 0

    def forward(self, batch: WordBatch) -> EncodedWords:
        mixes = self._mixes(batch)  # Elmo applies its own dropout
        parts = []
        if self.words is not None:
            parts.append(self.dropout(self.words(self._replace_rare(batch.words))))
        if self.characters is not None:
            parts.append(self.dropout(self._character_vectors(batch)))
        if batch.vectors is not None:
            parts.append(self.dropout(F.embedding(batch.vectors, self.get_buffer("vectors"))))
        if self.encoder_mix is not None:
            assert batch.states is not None
            parts.append(self.dropout(self.encoder_mix(batch.states)))
        if self.config.elmo in ("input", "both"):
            parts.append(mixes[0])
        at_output = mixes[-1] if self.output_dim else None
        return EncodedWords(torch.cat(parts, dim=2), at_output, batch.mask)

    def penalty(self) -> Tensor | float:
        """The L2 penalty on the mix weights, to be added to the loss."""
        return 0.0 if self.elmo is None or not self.config.mix_l2 else self.elmo.penalty(self.config.mix_l2)

    def _replace_rare(self, words: Tensor) -> Tensor:
        """In training, replace some words that occur once by the unknown word, so that its vector is trained."""
        if not self.training or not self.config.rare_word_dropout:
            return words
        hidden = torch.rand(words.shape, device=words.device) < self.config.rare_word_dropout
        return words.masked_fill(hidden & (words > UNKNOWN + self.num_frequent), UNKNOWN)

    def _character_vectors(self, batch: WordBatch) -> Tensor:
        assert self.characters is not None and batch.characters is not None and batch.places is not None
        vectors = self.characters(batch.characters)[batch.places]
        padded = vectors.new_zeros(*batch.mask.shape, vectors.shape[1])
        return padded.masked_scatter(batch.mask[..., None], vectors)

    def _mixes(self, batch: WordBatch) -> list[Tensor]:
        """ELMo's vectors, one (B, T, 2D) for each place where they enter."""
        if self.elmo is None:
            return []
        if batch.layers is not None:
            return self.elmo.mix(batch.layers, batch.mask)
        assert batch.characters is not None and batch.places is not None
        ids = batch.characters.new_zeros(*batch.mask.shape, batch.characters.shape[1])
        ids[batch.mask] = batch.characters[batch.places]
        start = None if self._start is None else self._start.to(ids.device).repeated(len(ids))
        return self.elmo(ids, start).representations
