"""When a training is over, when its learning rate is halved, and what an epoch draws at random."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from elmokit.runtime import own_random_state
from elmokit.tasks.config import FitConfig
from elmokit.tasks.report import Epoch
from elmokit.tasks.training import train_epoch, unimproved


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([], 0),
        ([0.5], 0),
        ([0.5, 0.6, 0.6, 0.4], 2),
        ([0.0, 0.0, 0.0], 0),  # not one span is found yet
        ([0.7, 0.7, 0.7, 0.6, 0.7], 2),  # of the changes since the third epoch
        ([0.0, 0.0, 0.3], 0),
        ([1.0, 1.0, 1.0], 2),  # nothing is left to learn
    ],
)
def test_unimproved_epochs_count_from_the_first_change_of_the_score(scores: list[float], expected: int) -> None:
    assert unimproved([Epoch(1.0, {"f1": score}, 0.1, 1.0) for score in scores], "f1") == expected


class NotingNetwork(nn.Module):
    """A network that notes the batches that it reads, and draws a random number for each, as dropout does."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.words = SimpleNamespace(penalty=lambda: 0.0)
        self.batches: list[list[int]] = []
        self.draws: list[float] = []

    def loss(self, batch: list[int]) -> torch.Tensor:
        self.batches.append(batch)
        self.draws.append(torch.rand(()).item())
        return self.weight.square()


def batches_and_draws(seed: int, number: int) -> tuple[list[list[int]], list[float]]:
    """Those of an epoch of 40 examples of one length."""
    network: Any = NotingNetwork()
    examples: Any = SimpleNamespace(lengths=np.full(40, 3), batch=lambda chosen, device: chosen.tolist())
    optimizer = torch.optim.SGD(network.parameters())
    with own_random_state():
        train_epoch(network, examples, optimizer, FitConfig(seed=seed, batch_size=8), number)
    return network.batches, network.draws


def test_batches_and_dropout_of_an_epoch_depend_on_the_seed_and_on_its_number() -> None:
    first, again, next_epoch, other_seed = (batches_and_draws(*each) for each in ((0, 1), (0, 1), (0, 2), (1, 1)))
    assert first == again
    for batches, draws in (next_epoch, other_seed):
        assert sorted(number for batch in batches for number in batch) == [*range(40)]
        assert batches != first[0] and draws != first[1]
