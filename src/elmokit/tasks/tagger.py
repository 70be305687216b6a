"""The sequence tagger of Peters et al. (2018): a bidirectional LSTM on [x; ELMo], optionally [h; ELMo] above it."""

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

# The character CNN that is trained with the tagger; small, because tagged training sets are.
CHAR_CNN = CharCNNConfig(embedding_dim=16, filters=((1, 16), (2, 32), (3, 48), (4, 48), (5, 48)), num_highway=1)


def word_vectors(num_words: int, dim: int) -> nn.Embedding:
    """Trainable word vectors, initialized to a length of about 1 (Ma and Hovy, 2016)."""
    vectors = nn.Embedding(num_words, dim, padding_idx=PADDING)
    with torch.no_grad():
        vectors.weight[PADDING + 1 :].uniform_(-math.sqrt(3 / dim), math.sqrt(3 / dim))
    return vectors


class Tagger(nn.Module):
    """[word vectors; character CNN; ELMo] -> LSTM -> scores of K tags, with a CRF or a softmax."""

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
        """Initialize an untrained tagger.

        Args:
            config: The input features and the network.
            num_words: Number of word ids, including padding and the unknown word.
            num_frequent: Number of words that occur more than once in the training set; their ids come first.
            num_tags: K.
            elmo: Mixes the layers of a batch, computed in advance; with `config.finetune`, it runs its biLM instead.
            allowed: Tag transitions that the CRF allows; all by default.
        """
        super().__init__()
        if config.elmo != (elmo is not None):
            raise ValueError("elmo is required if config.elmo is set, and not allowed otherwise")
        self.config, self.num_frequent = config, num_frequent
        self.words = word_vectors(num_words, config.word_dim) if config.word_dim else None
        self.characters = CharCNN(CHAR_CNN, config.character_dim) if config.character_dim else None
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
        """Compute the scores of all tags for every token, (B, T, K)."""
        mixes = self._mixes(batch)
        features = []
        if self.words is not None:
            features.append(self.dropout(self.words(self._hide_rare(batch.words))))
        if self.characters is not None:
            features.append(self.dropout(self._character_features(batch)))
        x = torch.cat(features + mixes[:1], dim=2)  # Elmo applies its own dropout to the mixes
        packed = pack_padded_sequence(x, batch.mask.sum(1).cpu(), batch_first=True, enforce_sorted=False)
        hidden, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        return self.output(torch.cat([self.dropout(hidden), *mixes[1:]], dim=2))

    def loss(self, batch: Batch) -> Tensor:
        """Mean negative log-likelihood of the gold tags per token, plus the penalty on the mix weights."""
        assert batch.tags is not None
        scores = self(batch)
        if self.crf is None:
            loss = F.cross_entropy(scores[batch.mask], batch.tags[batch.mask])
        else:
            loss = -self.crf.log_likelihood(scores, batch.tags, batch.mask).sum() / batch.mask.sum()
        return loss if self.elmo is None else loss + self.elmo.penalty(self.config.mix_l2)

    @torch.no_grad()
    def decode(self, batch: Batch) -> Tensor:
        """The best tags, (B, T) int64; values at padding are undefined."""
        scores = self(batch)
        return scores.argmax(dim=2) if self.crf is None else self.crf.decode(scores, batch.mask)

    def _hide_rare(self, words: Tensor) -> Tensor:
        """Randomly replace rare words by the unknown word during training, which would otherwise never be trained."""
        if not self.training:
            return words
        hidden = torch.rand(words.shape, device=words.device) < self.config.rare_word_dropout
        return words.masked_fill(hidden & (words > UNKNOWN + self.num_frequent), UNKNOWN)

    def _character_features(self, batch: Batch) -> Tensor:
        """Output of the character CNN, (B, T, character_dim)."""
        assert self.characters is not None and batch.characters is not None and batch.types is not None
        vectors = self.characters(batch.characters)[batch.types]
        padded = vectors.new_zeros(*batch.mask.shape, vectors.shape[1])
        return padded.masked_scatter(batch.mask[..., None], vectors)

    def _mixes(self, batch: Batch) -> list[Tensor]:
        """ELMo vectors for the input and, with `elmo_at_output`, the output of the LSTM: (B, T, 2D) each."""
        if self.elmo is None:
            return []
        if not self.config.finetune:
            assert batch.layers is not None
            return self.elmo.mix(batch.layers, batch.mask)
        assert batch.characters is not None and batch.types is not None
        ids = batch.characters.new_zeros(*batch.mask.shape, batch.characters.shape[1])
        ids[batch.mask] = batch.characters[batch.types]
        return self.elmo(ids).representations
