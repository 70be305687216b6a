"""The softmax over words of both directions: exact, and sampled (training.py:455-527)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elmokit.ops import linear_logsumexp
from elmokit.runtime import accumulation_dtype

# --- Negative classes -----------------------------------------------------------------------------
#
# Drawn from P(c) = (log(c+2) - log(c+1)) / log(V+1), Zipf's law for a vocabulary sorted by
# frequency, until there are enough distinct ones (TensorFlow's log_uniform_candidate_sampler with
# unique=True).


# Drawn once for a whole batch: distinct classes (S,) int32, and the draws that it took.
Samples = tuple[Tensor, int]


def draw_log_uniform(num_classes: int, num_samples: int, generator: torch.Generator) -> Samples:
    """Draw `num_samples` distinct classes of `num_classes`, on the CPU."""
    draws = torch.empty(0, dtype=torch.int64, device="cpu")
    while True:
        uniform = torch.rand(
            4 * num_samples,
            dtype=torch.float64,
            generator=generator,
            device="cpu",
        )
        ranks = torch.exp(uniform * math.log(num_classes + 1)).long()  # from 1
        more = (ranks - 1).clamp_(max=num_classes - 1)
        draws = torch.cat([draws, more])
        # A draw is new if it is where its class was drawn first: of 7 2 7 0 2 the 1st, 2nd and 4th.
        classes = draws.numpy()
        positions = np.arange(len(classes))
        first = np.empty(num_classes, dtype=np.int64)
        first[classes[::-1]] = positions[::-1]  # the last assignment to an index remains
        new = np.flatnonzero(first[classes] == positions)[:num_samples]
        if len(new) == num_samples:
            distinct = draws[torch.from_numpy(new)]
            return distinct.int(), int(new[-1]) + 1


def log_expected_count(ids: Tensor, num_tries: int, num_classes: int) -> Tensor:
    """log of the probability that `num_tries` draws contain a class, 1 - (1 - P(c))^num_tries."""
    c = ids.double()
    probability = torch.log1p(1 / (c + 1)) / math.log(num_classes + 1)
    log_never = num_tries * torch.log1p(-probability)
    return torch.log(-torch.expm1(log_never))


# --- The softmax ----------------------------------------------------------------------------------


def _gather(table: Tensor, sets: Sequence[Tensor]) -> Sequence[Tensor]:
    """Rows of a table for sets of ids, in one gather, whose gradient is as large as the table."""
    ids = torch.cat([*sets])
    # The gradient of F.embedding takes three times as long on a CPU; the one of index_select is not
    # reproducible on a GPU.
    is_cpu = table.device.type == "cpu"
    rows = table.index_select(0, ids) if is_cpu else F.embedding(ids, table)
    return rows.split([len(ids) for ids in sets])


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The logit of one class a row: hidden, weight (N, D), bias (N,) -> (N,), float32 at least."""
    wide = accumulation_dtype(hidden.dtype)
    return (hidden.to(wide) * weight).sum(dim=1) + bias


class FullSoftmax(nn.Module):
    """The output layer, `weight` (V, D) and `bias` (V,): logits of the next or previous word."""

    def __init__(self, num_words: int, dim: int) -> None:
        super().__init__()
        weight = torch.empty(num_words, dim).normal_(0, math.sqrt(1 / dim))
        self.weight = nn.Parameter(weight)
        self.bias = nn.Parameter(torch.zeros(num_words))

    def log_losses(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Exact -log p: hidden (N, D), targets (N,) -> (N,), without storing (N, V) logits."""
        (weights,) = _gather(self.weight, [targets])
        logits = _logits(hidden, weights, self.bias[targets])
        return linear_logsumexp(hidden, self.weight, self.bias) - logits

    def sample(self, count: int, generator: torch.Generator) -> Samples:
        """Draw `count` distinct negative classes for `sampled_losses`."""
        return draw_log_uniform(len(self.weight), count, generator)

    def sampled_losses(self, hidden: Tensor, targets: Tensor, samples: Sequence[Samples]) -> Tensor:
        """Sampled -log p (tf.nn.sampled_softmax_loss): logits minus the log of their expected
        counts.

        hidden (K, N, D), targets (K, N), K sets of samples -> (K, N). A sample that is the target
        of a position is excluded there.
        """
        count, device = len(samples), targets.device
        num_classes = len(self.weight)
        # The rows of all samples, then those of all targets, in one gather each.
        ids = [*(sampled.to(device) for sampled, _ in samples), *targets]
        weights = _gather(self.weight, ids)
        biases = [bias[:, 0] for bias in _gather(self.bias[:, None], ids)]
        losses = []
        for k, (_, num_tries) in enumerate(samples):
            sampled, target = ids[k], ids[count + k]
            # The logit of the target, one for each position.
            true = _logits(hidden[k], weights[count + k], biases[count + k])
            expected = log_expected_count(target, num_tries, num_classes)
            true = true - expected.to(true.dtype)
            # The logits of the samples; the correction goes into their bias.
            expected = log_expected_count(sampled, num_tries, num_classes)
            bias = biases[k] - expected.to(biases[k].dtype)
            # Where each class is among the samples, -1 for nowhere.
            position = torch.full((num_classes,), -1, dtype=torch.int64, device=device)
            position[sampled] = torch.arange(len(sampled), device=device)
            rest = linear_logsumexp(hidden[k], weights[k], bias, excluded=position[target])
            # -log(e^true / (e^true + e^rest))
            losses.append(torch.logaddexp(true, rest) - true)
        return torch.stack(losses)
