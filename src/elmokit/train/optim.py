"""The two recipes: bilm-tf's AdaGrad, and AdamW with warm-up and cosine decay."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

WARM_UP = 0.05  # part of the steps, at most WARM_UP_STEPS
WARM_UP_STEPS = 1000
LAST_RATE = 0.05  # part of the learning rate left at the end of the cosine


@dataclass(frozen=True)
class Recipe:
    """What distinguishes one way of training from another."""

    learning_rate: float
    clip_norm: float
    multiply_loss_by_steps: bool  # bilm-tf's gradient is that of loss * unroll_steps: its rate of 0.2 rests on that
    decays: bool
    fresh_starts: float  # part of the sentences that start from zeros, as when text is embedded

    def rate(self, step: int, total_steps: int) -> float:
        """Learning rate of a step (from 0)."""
        if not self.decays:
            return self.learning_rate
        warm_up = max(1, min(WARM_UP_STEPS, round(WARM_UP * total_steps)))
        if step < warm_up:
            return self.learning_rate * (step + 1) / warm_up
        done = (step - warm_up) / max(1, total_steps - warm_up)
        return self.learning_rate * (LAST_RATE + (1 - LAST_RATE) * 0.5 * (1 + math.cos(math.pi * min(1.0, done))))


ORIGINAL = Recipe(0.2, clip_norm=10.0, multiply_loss_by_steps=True, decays=False, fresh_starts=0.0)
MODERN = Recipe(2e-3, clip_norm=1.0, multiply_loss_by_steps=False, decays=True, fresh_starts=0.1)


def recipe(name: str, learning_rate: float | None = None, fresh_starts: float | None = None) -> Recipe:
    """`original` (bilm/training.py:689-721) or `modern`, with other values where they are given."""
    given = {"learning_rate": learning_rate, "fresh_starts": fresh_starts}
    chosen = ORIGINAL if name == "original" else MODERN
    return replace(chosen, **{name: value for name, value in given.items() if value is not None})


def _fused(parameters: list[nn.Parameter]) -> bool:
    return parameters[0].device.type in ("cpu", "cuda")


def make_optimizer(name: str, parameters: Iterable[nn.Parameter], learning_rate: float) -> torch.optim.Optimizer:
    """The recipe's optimiser; in `modern` nothing but matrices decays."""
    parameters = list(parameters)
    if name == "original":
        return torch.optim.Adagrad(
            parameters, lr=learning_rate, initial_accumulator_value=1.0, fused=_fused(parameters)
        )
    matrices = [p for p in parameters if p.dim() > 1]
    others = [p for p in parameters if p.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.98), fused=_fused(parameters))


def clip_gradients(parameters: list[nn.Parameter], most: float) -> Tensor:
    """Scale all gradients to a common norm of `most` where it is larger; returns the norm that it was.

    As `nn.utils.clip_grad_norm_`, which also multiplies by one, so as not to wait for a GPU. A norm that is no number
    spoils all gradients, so that it cannot be missed.
    """
    norm = nn.utils.get_total_norm([parameter.grad for parameter in parameters if parameter.grad is not None])
    if norm.device.type != "cpu" or not norm <= most:
        nn.utils.clip_grads_with_norm_(parameters, most, norm)
    return norm


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """The learning rate of the next step."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Everything an optimiser remembers, by `parameter number.name`."""
    state = optimizer.state_dict()["state"]
    return {
        f"{number}.{name}": torch.as_tensor(value) for number, slots in state.items() for name, value in slots.items()
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Let an optimiser of the same parameters remember what `optimizer_tensors` gave."""
    slots: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        number, name = key.split(".", 1)
        slots.setdefault(int(number), {})[name] = tensor
    optimizer.load_state_dict({"state": slots, "param_groups": optimizer.state_dict()["param_groups"]})
