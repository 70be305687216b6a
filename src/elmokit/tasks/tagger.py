"""The sequence tagger of the ELMo paper: a bidirectional LSTM on [x; ELMo], optionally [h; ELMo] at its output."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from elmokit.config import CharCNNConfig
from elmokit.nn.crf import CRF, Transitions
from elmokit.nn.elmo import Elmo
from elmokit.nn.token_encoders import CharCNN
from elmokit.tasks.config import TaggerConfig
from elmokit.tasks.examples import PADDING, UNKNOWN, Batch

# The character CNN that a tagger learns from its own training set: small, as there is little to learn from.
CHARACTERS = CharCNNConfig(embedding_dim=16, filters=((1, 16), (2, 32), (3, 48), (4, 48), (5, 48)), num_highway=1)


def word_vectors(num_words: int, dim: int) -> nn.Embedding:
    """Word vectors to be learned, of length about 1 at first (Ma and Hovy, 2016)."""
    vectors = nn.Embedding(num_words, dim, padding_idx=PADDING)
    with torch.no_grad():
        vectors.weight[PADDING + 1 :].uniform_(-math.sqrt(3 / dim), math.sqrt(3 / dim))
    return vectors


class Tagger(nn.Module):
    """Word vectors, character CNN and ELMo side by side -> LSTM -> scores of K tags, with a CRF on top or a softmax.

    `elmo` mixes the layers that a batch brings (computed beforehand, the biLM frozen), or runs its biLM on the batch's
    characters where the configuration says `finetune`. Words from number `num_frequent` on occur once in training.
    """

    def __init__(
        self,
        config: TaggerConfig,
        *,
        num_words: int,
        num_frequent: int,
        num_tags: int,
        elmo: Elmo | None = None,
        allowed: Transitions | None = None,
    ):
        super().__init__()
        if config.elmo != (elmo is not None):
            raise ValueError("give an Elmo where the configuration says elmo, and only there")
        self.config, self.num_frequent = config, num_frequent
        self.words = word_vectors(num_words, config.word_dim) if config.word_dim else None
        self.characters = CharCNN(CHARACTERS, config.character_dim) if config.character_dim else None
        self.elmo = elmo
        elmo_dim = 0 if elmo is None else elmo.bilm.config.output_dim
        self.dropout = nn.Dropout(config.dropout)
        self.lstm = nn.LSTM(
            config.word_dim + config.character_dim + elmo_dim,
            config.hidden_dim,
            config.num_layers,
            batch_first=True,
            bidirectional=True,
            dropout=config.dropout if config.num_layers > 1 else 0,
        )
        self.output = nn.Linear(2 * config.hidden_dim + (elmo_dim if config.elmo_at_output else 0), num_tags)
        self.crf = CRF(num_tags, allowed) if config.crf else None

    def forward(self, batch: Batch) -> Tensor:
        """Scores of every tag at every token, (B, T, K)."""
        mixes = self._mixes(batch)
        parts = []
        if self.words is not None:
            parts.append(self.dropout(self.words(self._hide_rare(batch.words))))
        if self.characters is not None:
            parts.append(self.dropout(self._spell(batch)))
        x = torch.cat(parts + mixes[:1], dim=2)  # the mixes have a dropout of their own
        packed = pack_padded_sequence(x, batch.mask.sum(1).cpu(), batch_first=True, enforce_sorted=False)
        hidden, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        return self.output(torch.cat([self.dropout(hidden), *mixes[1:]], dim=2))

    def loss(self, batch: Batch) -> Tensor:
        """Mean negative log-likelihood a token of the gold tags, and the penalty on the mix weights."""
        assert batch.tags is not None
        scores = self(batch)
        if self.crf is None:
            loss = F.cross_entropy(scores[batch.mask], batch.tags[batch.mask])
        else:
            loss = -self.crf.log_likelihood(scores, batch.tags, batch.mask).sum() / batch.mask.sum()
        return loss if self.elmo is None else loss + self.elmo.penalty(self.config.mix_l2)

    @torch.no_grad()
    def decode(self, batch: Batch) -> Tensor:
        """The best tags, (B, T) int64; what stands at padding means nothing."""
        scores = self(batch)
        return scores.argmax(dim=2) if self.crf is None else self.crf.decode(scores, batch.mask)

    def _hide_rare(self, words: Tensor) -> Tensor:
        """In training some of the words seen once become the unknown word, which would else never be learned."""
        if not self.training:
            return words
        hidden = torch.rand(words.shape, device=words.device) < self.config.rare_word_dropout
        return words.masked_fill(hidden & (words > UNKNOWN + self.num_frequent), UNKNOWN)

    def _spell(self, batch: Batch) -> Tensor:
        assert self.characters is not None and batch.characters is not None and batch.places is not None
        vectors = self.characters(batch.characters)[batch.places]
        padded = vectors.new_zeros(*batch.mask.shape, vectors.shape[1])
        return padded.masked_scatter(batch.mask[..., None], vectors)

    def _mixes(self, batch: Batch) -> list[Tensor]:
        """ELMo's vectors for the input and, where wanted, the output: each (B, T, 2D)."""
        if self.elmo is None:
            return []
        if not self.config.finetune:
            assert batch.layers is not None
            return self.elmo.mix(batch.layers, batch.mask)
        assert batch.characters is not None and batch.places is not None
        ids = batch.characters.new_zeros(*batch.mask.shape, batch.characters.shape[1])
        ids[batch.mask] = batch.characters[batch.places]
        return self.elmo(ids).representations
