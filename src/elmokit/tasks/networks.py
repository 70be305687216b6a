"""Parts that several task networks share: a bidirectional LSTM, attention and pooling over padded sentences."""

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class BiLSTM(nn.Module):
    """A bidirectional LSTM over padded sentences: (B, T, I) -> (B, T, 2 hidden_dim), zeros at padding.

    Args:
        input_dim: Width I of the input.
        hidden_dim: Width of each direction.
        num_layers: Number of layers, each of which reads both directions of the one below.
        dropout: Dropout between layers.
    """

    def __init__(self, input_dim: int, hidden_dim: int, num_layers: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        between = dropout if num_layers > 1 else 0.0
        self.lstm = nn.LSTM(input_dim, hidden_dim, num_layers, batch_first=True, bidirectional=True, dropout=between)
        self.output_dim = 2 * hidden_dim

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """x (B, T, I) and mask (B, T), True from the first word to the last -> (B, T, 2 hidden_dim)."""
        lengths = mask.sum(1).clamp(min=1).cpu()
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        hidden, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=x.shape[1])
        return hidden * mask[..., None]


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Softmax over the last dimension where `mask` is True; zeros elsewhere, and where nothing is True."""
    weights = scores.masked_fill(~mask, -torch.inf).softmax(dim=-1)
    return weights.masked_fill(~mask, 0.0)  # also where all is masked, and softmax undefined


def masked_mean(vectors: Tensor, mask: Tensor) -> Tensor:
    """Mean of the real words' vectors, (B, D) from (B, T, D); zeros for no words."""
    return (vectors * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)


def masked_max(vectors: Tensor, mask: Tensor) -> Tensor:
    """Maximum of the real words' vectors, (B, D) from (B, T, D); zeros for no words."""
    highest = vectors.masked_fill(~mask[..., None], torch.finfo(vectors.dtype).min).amax(1)
    return highest.masked_fill(~mask.any(1, keepdim=True), 0.0)
