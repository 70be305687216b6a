"""Training recipes, their learning rates by step, and their optimizers: bilm-tf's AdaGrad, AdamW, Muon with AdamW."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from elmokit.train.muon import Muon

WEIGHT_DECAY = 0.01
ADAM_BETAS = (0.9, 0.98)
WARM_UP = 0.05  # the largest fraction of the steps, if their number is known
FINAL_FACTOR = 0.05  # at the end of the cosine

ScheduleName = Literal["cosine", "constant", "none"]


@dataclass(frozen=True)
class Recipe:
    """The hyperparameters of a recipe.

    Attributes:
        learning_rate: Peak learning rate.
        clip_norm: Maximum norm of the gradient.
        multiply_loss_by_steps: Minimize loss * unroll_steps, as bilm-tf does; its learning rate of 0.2 assumes that.
        schedule: Learning rate schedule.
        fresh_starts: Fraction of sentences that start from a zero state, as in embedding.
    """

    learning_rate: float
    clip_norm: float
    multiply_loss_by_steps: bool
    schedule: ScheduleName
    fresh_starts: float


RECIPES = {
    # bilm-tf, bilm/training.py:689-721
    "original": Recipe(0.2, clip_norm=10.0, multiply_loss_by_steps=True, schedule="none", fresh_starts=0.0),
    "modern": Recipe(2e-3, clip_norm=1.0, multiply_loss_by_steps=False, schedule="cosine", fresh_starts=0.1),
    "muon": Recipe(4e-3, clip_norm=1.0, multiply_loss_by_steps=False, schedule="cosine", fresh_starts=0.1),
}


@dataclass(frozen=True)
class Schedule:
    """A schedule: warm-up and cosine decay (`cosine`), warm-up and a constant rate (`constant`), or `none`.

    Attributes:
        name: The kind of schedule.
        total_steps: Steps of the run; None without a planned end (`constant`).
        warm_up_steps: Steps over which the rate rises; at most 5 % of a run with a planned end.
        cool_down: The first step of a linear decay to zero, and the number of its steps. It finishes a run without a
            planned end (Hägele et al. 2024, "Scaling Laws and Compute-Optimal Training Beyond Fixed Training
            Durations").
    """

    name: ScheduleName
    total_steps: int | None
    warm_up_steps: int = 1000
    cool_down: tuple[int, int] | None = None

    @property
    def last_step(self) -> int | None:
        """The planned last step; None: none."""
        return self.total_steps if self.cool_down is None else sum(self.cool_down)

    def factor(self, step: int) -> float:
        """The factor of the learning rate at a step, from 0. After the last step of a cool-down it would reach 0."""
        if self.name == "none":
            return 1.0
        total = None if self.name == "constant" else self.total_steps
        warm_up = self.warm_up_steps if total is None else max(1, min(self.warm_up_steps, round(WARM_UP * total)))
        factor = min(1.0, (step + 1) / warm_up)
        if total is not None and step >= warm_up:
            progress = min(1.0, (step - warm_up) / max(1, total - warm_up))
            factor = FINAL_FACTOR + (1 - FINAL_FACTOR) * 0.5 * (1 + math.cos(math.pi * progress))
        if self.cool_down is not None:
            begin, steps = self.cool_down
            factor *= min(1.0, max(0.0, (begin + steps - step) / (steps + 1)))
        return factor


def _adamw(parameters: Sequence[nn.Parameter], learning_rate: float) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices only."""
    matrices = [parameter for parameter in parameters if parameter.dim() > 1]
    others = [parameter for parameter in parameters if parameter.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=ADAM_BETAS, fused=True)


class Optimizer:
    """One or more PyTorch optimizers with a common learning rate, whose state can be saved as tensors."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self.optimizers = list(optimizers)

    def step(self, learning_rate: float) -> None:
        """Update all parameters from their gradients."""
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate
            optimizer.step()

    def tensors(self) -> dict[str, Tensor]:
        """The state, by `number of the optimizer.number of its parameter.name`."""
        return {
            f"{place}.{number}.{name}": torch.as_tensor(value)
            for place, optimizer in enumerate(self.optimizers)
            for number, state in optimizer.state_dict()["state"].items()
            for name, value in state.items()
        }

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Load the state that `tensors` returned for an optimizer of the same parameters."""
        states: list[dict[int, dict[str, Tensor]]] = [{} for _ in self.optimizers]
        for key, tensor in tensors.items():
            place, number, name = key.split(".")
            states[int(place)].setdefault(int(number), {})[name] = tensor.clone()  # which a step would change
        for optimizer, state in zip(self.optimizers, states, strict=True):
            optimizer.load_state_dict(optimizer.state_dict() | {"state": state})


def make_optimizer(
    name: str,
    parameters: Sequence[nn.Parameter],
    hidden_matrices: Sequence[nn.Parameter],
    learning_rate: float,
    dtype: torch.dtype = torch.float32,
) -> Optimizer:
    """Create the optimizer of a recipe.

    Args:
        name: Name of the recipe.
        parameters: All parameters of the model and its softmax.
        hidden_matrices: Those that Muon updates, (M, N) each: neither embeddings nor softmax (Jordan et al. 2024,
            "Muon: An optimizer for hidden layers in neural networks").
        learning_rate: Initial learning rate.
        dtype: Number type of the run's matrix products, including Muon's.

    Returns:
        The optimizer.
    """
    if name == "original":
        return Optimizer([torch.optim.Adagrad(parameters, learning_rate, initial_accumulator_value=1.0, fused=True)])
    if name == "modern":
        return Optimizer([_adamw(parameters, learning_rate)])
    hidden = {id(parameter) for parameter in hidden_matrices}
    others = [parameter for parameter in parameters if id(parameter) not in hidden]
    muon = Muon(hidden_matrices, learning_rate, WEIGHT_DECAY, dtype)
    return Optimizer([muon, _adamw(others, learning_rate)])


def clip_gradients(parameters: list[nn.Parameter], maximum: float) -> Tensor:
    """Scale all gradients down to a total norm of `maximum`, and return the norm before.

    Equals `nn.utils.clip_grad_norm_`, but on the CPU it skips the multiplication by one when the norm is small enough.
    (On a GPU, testing that would wait for the device.) A norm that is not finite makes all gradients non-finite, so
    that divergence is detected.
    """
    norm = nn.utils.get_total_norm([parameter.grad for parameter in parameters if parameter.grad is not None])
    if norm.device.type != "cpu" or not norm <= maximum:
        nn.utils.clip_grads_with_norm_(parameters, maximum, norm)
    return norm
