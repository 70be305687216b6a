"""ELMoForManyLangs' token encoder: the word's vector in a table, and what a CNN makes of its characters."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elmokit.config import WordsAndCharactersConfig
from elmokit.nn.char_cnn import CharCNN


class WordsAndCharacters(nn.Module):
    """Ids of words and of their characters -> token vectors (its modules/token_embedder.py, ConvTokenEmbedder)."""

    def __init__(self, config: WordsAndCharactersConfig, output_dim: int) -> None:
        super().__init__()
        self.word_embedding = nn.Parameter(torch.empty(len(config.words), config.word_dim)) if config.words else None
        # As wide as its filters, so that it has no projection of its own.
        self.char_cnn = None if config.char_cnn is None else CharCNN(config.char_cnn, config.char_cnn.num_filters)
        self.projection = nn.Linear(config.num_features, output_dim)
        if self.word_embedding is not None:
            nn.init.uniform_(self.word_embedding, -0.25, 0.25)

    def forward(self, ids: Tensor) -> Tensor:
        """ids (U, 1 + C), shifted by one: the word where there is a table, and its characters -> (U, D)."""
        features = []
        if self.word_embedding is not None:
            features.append(F.embedding(ids[:, 0] - 1, self.word_embedding))
            ids = ids[:, 1:]
        if self.char_cnn is not None:
            features.append(self.char_cnn(ids))
        return self.projection(torch.cat(features, dim=1))
