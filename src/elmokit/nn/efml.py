"""The token encoder of ELMoForManyLangs: ids of a word and of its characters in dictionaries.

Sources: ELMoForManyLangs, `elmo.py` (read_list), `frontend.py` (create_one_batch) and
`modules/token_embedder.py` (ConvTokenEmbedder).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elmokit.config import CHARACTER_SHIFT, CharCNNConfig, EfmlEncoderConfig
from elmokit.nn.token_encoders import CharCNN, Projection, TokenEncoder
from elmokit.text import BOS, EOS

if TYPE_CHECKING:
    from elmokit.text import Vocab

# Entries of the dictionaries. Training swapped the two marks around a word (frontend.py:51), so
# that its models know them swapped.
BEGIN_WORD, END_WORD = "<eow>", "<bow>"
UNKNOWN, PADDING = "<oov>", "<pad>"
BOUNDARIES = {BOS: "<bos>", EOS: "<eos>", "<bos>": "<bos>", "<eos>": "<eos>"}


class EfmlEncoder(TokenEncoder):
    """A table of word vectors, a CNN over characters, or both, and a projection."""

    def __init__(self, config: EfmlEncoderConfig, output_dim: int) -> None:
        super().__init__()
        self.config, limit = config, config.max_characters
        self.limit = None if limit is None else limit - 2  # without the marks around a word
        tables = {"words": config.words, "characters": config.characters}
        self.input = " and ".join(name for name, table in tables.items() if table)
        self.word_embedding = self.char_cnn = None
        if config.words:
            table = torch.empty(len(config.words), config.word_dim)
            self.word_embedding = nn.Parameter(table.uniform_(-0.25, 0.25))
        if config.char_cnn is not None:  # as wide as its filters: without a projection of its own
            self.char_cnn = CharCNN(config.char_cnn, config.char_cnn.num_filters)
        self.projection = Projection(config.num_features, output_dim)

    def forward(self, ids: Tensor) -> Tensor:
        """ids (U, 1 + C), of the word and of its characters, as far as it reads them -> (U, D)."""
        features = []
        if self.word_embedding is not None:
            features.append(F.embedding(ids[:, 0] - 1, self.word_embedding))
            ids = ids[:, 1:]
        if self.char_cnn is not None:
            features.append(self.char_cnn(ids))
        return self.projection(torch.cat(features, dim=1))

    def ids(self, words: Sequence[str], vocab: Vocab | None = None) -> Tensor:
        """Rows of the dictionaries plus one, (U, 1 + C); <bos> and <eos> are boundaries, too."""
        words = [BOUNDARIES.get(word) or word[: self.limit] for word in words]
        columns = []
        if self.config.words:
            rows = self.config.word_rows
            columns.append([[rows.get(word, rows[UNKNOWN])] for word in words])
        if self.config.char_cnn is not None:
            columns.append(self._spelled(words, self.config.char_cnn))
        arrays = [np.array(rows, dtype=np.int64).reshape(len(words), -1) for rows in columns]
        return torch.from_numpy(np.concatenate(arrays, axis=1) + CHARACTER_SHIFT)

    def _spelled(self, words: Sequence[str], char_cnn: CharCNNConfig) -> list[list[int]]:
        """For each word begin-word, its characters, end-word, and padding."""
        rows = self.config.character_rows
        spelled = []
        for word in words:
            characters = [word] if word in BOUNDARIES else word
            inside = [rows.get(character, rows[UNKNOWN]) for character in characters]
            spelled.append([rows[BEGIN_WORD], *inside, rows[END_WORD]])
        # As in `encode_words`, every filter must see a window of padding only.
        width = max(map(len, spelled), default=2) + char_cnn.widest_filter
        width = min(char_cnn.max_characters, width)
        return [ids + [rows[PADDING]] * (width - len(ids)) for ids in spelled]

    def boundary_ids(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """See `TokenEncoder`; padded as ELMoForManyLangs pads, by the rows of <pad>."""
        padding = 0
        if self.config.characters:
            padding = self.config.character_rows[PADDING] + CHARACTER_SHIFT
        ids = self.ids([BOS, EOS])
        width = like.shape[-1]
        missing = max(0, width - ids.shape[1])
        begin, end = F.pad(ids, (0, missing), value=padding)[:, :width].to(like)
        return begin, end

    @property
    def word_limit(self) -> str:
        return "no limit" if self.limit is None else f"{self.limit} characters"

    def count_truncated(self, words: Sequence[str]) -> int:
        return sum(word[: self.limit] != word and word not in BOUNDARIES for word in words)
