"""The language model's softmax over words, shared by both directions: exact, and sampled
(training.py:455-527).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elmokit.ops import linear_logsumexp


@dataclass(frozen=True)
class Samples:
    """Negative classes drawn once for a whole batch: distinct `ids` (S,) int32, after `num_tries`
    draws.
    """

    ids: Tensor
    num_tries: int


def _first_occurrences(draws: Tensor, num_classes: int) -> Tensor:
    """The positions in `draws` at which a class appears for the first time, in order."""
    positions = np.arange(len(draws))
    first = np.empty(num_classes, dtype=np.int64)
    first[draws.numpy()[::-1]] = positions[
        ::-1
    ]  # with repeated indices, the last assignment remains
    return torch.from_numpy(np.flatnonzero(first[draws.numpy()] == positions))


class LogUniformSampler:
    """Distinct classes from P(c) = (log(c+2) - log(c+1)) / log(V+1), Zipf's law for a vocabulary
    sorted by frequency.

    (TensorFlow's log_uniform_candidate_sampler with unique=True: draw until there are enough
    distinct classes.)
    """

    def __init__(self, num_classes: int, num_samples: int) -> None:
        self.num_classes, self.num_samples = num_classes, num_samples

    def sample(self, generator: torch.Generator) -> Samples:
        """Draw `num_samples` distinct classes, on the CPU, in the order in which they were
        drawn.
        """
        draws = torch.empty(0, dtype=torch.int64, device="cpu")
        while True:
            uniform = torch.rand(
                4 * self.num_samples, dtype=torch.float64, generator=generator, device="cpu"
            )
            more = torch.exp(uniform * math.log(self.num_classes + 1)).long() - 1
            draws = torch.cat([draws, more.clamp_(max=self.num_classes - 1)])
            first = _first_occurrences(draws, self.num_classes)
            if len(first) >= self.num_samples:
                first = first[: self.num_samples]
                return Samples(draws[first].int(), int(first[-1]) + 1)

    def log_expected_count(self, ids: Tensor, num_tries: int) -> Tensor:
        """log(1 - (1 - P(c))^num_tries) in float64: of the probability that `num_tries` draws
        contain class c.
        """
        c = ids.double()
        probability = torch.log1p(1 / (c + 1)) / math.log(self.num_classes + 1)
        return torch.log(-torch.expm1(num_tries * torch.log1p(-probability)))


def _gather(table: Tensor, sets: Sequence[Tensor]) -> Sequence[Tensor]:
    """Rows of a table for several sets of ids, gathered at once: each gather has a gradient as
    large as the table.
    """
    ids = torch.cat([*sets])
    # The gradient of F.embedding takes three times as long on a CPU; that of index_select is not
    # reproducible on a GPU.
    rows = F.embedding(ids, table) if table.device.type != "cpu" else table.index_select(0, ids)
    return rows.split([len(ids) for ids in sets])


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The logit of one class per row: hidden (N, D), weight (N, D), bias (N,) -> (N,), float32 at
    least.
    """
    wide = torch.promote_types(hidden.dtype, torch.float32)
    return (hidden.to(wide) * weight).sum(dim=1) + bias


class FullSoftmax(nn.Module):
    """The output layer, `weight` (V, D) and `bias` (V,): logits of the next (forward) or previous
    (backward) word.
    """

    def __init__(self, num_words: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_words, dim).normal_(0, math.sqrt(1 / dim)))
        self.bias = nn.Parameter(torch.zeros(num_words))

    def log_losses(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Exact -log p of each target: hidden (N, D), targets (N,) -> (N,), without ever holding
        all (N, V) logits.
        """
        logits = _logits(hidden, _gather(self.weight, [targets])[0], self.bias[targets])
        return linear_logsumexp(hidden, self.weight, self.bias) - logits

    def sampled_losses(
        self,
        hidden: Tensor,
        targets: Tensor,
        samples: Sequence[Samples],
        sampler: LogUniformSampler,
    ) -> Tensor:
        """Sampled -log p (tf.nn.sampled_softmax_loss): logits minus the log of their expected
        counts.

        hidden (K, N, D), targets (K, N), K sets of samples -> (K, N). A sample that is the target
        of a position is excluded there.
        """
        ids = [*(drawn.ids.to(targets.device) for drawn in samples), *targets]
        weights, biases = _gather(self.weight, ids), _gather(self.bias[:, None], ids)
        losses = []
        for k, drawn in enumerate(samples):
            others, own = k, len(samples) + k
            true = _logits(hidden[k], weights[own], biases[own][:, 0])
            true = true - sampler.log_expected_count(ids[own], drawn.num_tries).to(true.dtype)
            place = torch.full((len(self.weight),), -1, dtype=torch.int64, device=targets.device)
            place[ids[others]] = torch.arange(len(drawn.ids), device=targets.device)
            bias = biases[others][:, 0]
            bias = bias - sampler.log_expected_count(ids[others], drawn.num_tries).to(bias.dtype)
            rest = linear_logsumexp(hidden[k], weights[others], bias, excluded=place[targets[k]])
            losses.append(torch.logaddexp(true, rest) - true)
        return torch.stack(losses)
