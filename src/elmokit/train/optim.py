"""Recipes of training, with AdaGrad as bilm-tf, AdamW or Muon, and the learning rate by step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from elmokit.train.config import FinetuneConfig, PretrainConfig

# --- Muon -----------------------------------------------------------------------------------------


class Muon(torch.optim.Muon):
    """PyTorch's Muon, with updates of AdamW's size that are orthogonalized in float32 or bfloat16.

    PyTorch's own are in bfloat16 whatever the processor: where the hardware does not multiply it, a
    step in float32 is a hundred times faster.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        learning_rate: float,
        weight_decay: float,
        dtype: torch.dtype,
    ) -> None:
        # Updates of AdamW's size, so that both can share a learning rate.
        super().__init__(
            parameters, lr=learning_rate, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"
        )
        self.dtype = dtype

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Update all parameters from their gradients."""
        for group in self.param_groups:
            settings = group["ns_coefficients"], group["ns_steps"], group["eps"]
            for parameter in group["params"]:
                if (gradient := parameter.grad) is None:
                    continue
                # Nesterov's average of gradients, as in `torch.optim._muon._single_tensor_muon`.
                state, momentum = self.state[parameter], group["momentum"]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(gradient)
                average = state["momentum_buffer"].lerp_(gradient, 1 - momentum)
                update = orthogonalized(gradient.lerp(average, momentum).to(self.dtype), *settings)
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(update, alpha=-0.2 * group["lr"] * max(parameter.shape) ** 0.5)


def orthogonalized(
    matrix: Tensor, coefficients: tuple[float, float, float], iterations: int, epsilon: float
) -> Tensor:
    """The Newton-Schulz iteration of Muon, in the number type of the matrix (Jordan et al. 2024).

    Args:
        matrix: (M, N).
        coefficients: a, b and c of the polynomial a X + b (X X^T) X + c (X X^T)^2 X.
        iterations: Number of iterations.
        epsilon: Smallest norm to divide by.

    Returns:
        U S V^T, where U D V^T is the singular value decomposition of the matrix, and the diagonal
        of S is between 0.5 and 1.5.
    """
    a, b, c = coefficients
    is_tall = matrix.shape[0] > matrix.shape[1]
    wide = matrix.T if is_tall else matrix
    wide = wide / wide.norm().clamp(min=epsilon)
    for _ in range(iterations):
        gram = wide @ wide.T
        wide = torch.addmm(wide, torch.addmm(gram, gram, gram, beta=b, alpha=c), wide, beta=a)
    return wide.T if is_tall else wide


# --- Recipes, schedules and optimizers ------------------------------------------------------------

WEIGHT_DECAY = 0.01
ADAM_BETAS = (0.9, 0.98)
WARM_UP = 0.05  # the largest fraction of the steps, if their number is known
FINAL_FACTOR = 0.05  # at the end of the cosine

ScheduleName = Literal["cosine", "constant", "none"]


@dataclass(frozen=True)
class Recipe:
    """The hyperparameters of a recipe.

    Attributes:
        name: Its name, which says the optimizer.
        learning_rate: Peak learning rate.
        clip_norm: Maximum norm of the gradient.
        multiply_loss_by_steps: Minimize loss * unroll_steps, as bilm-tf does; its learning rate of
            0.2 assumes that.
        schedule: Learning rate schedule.
        fresh_starts: Fraction of sentences that start from a zero state, as in embedding.
    """

    name: str
    learning_rate: float
    clip_norm: float
    multiply_loss_by_steps: bool
    schedule: ScheduleName
    fresh_starts: float


# bilm-tf, bilm/training.py:689-721
ORIGINAL = Recipe("original", 0.2, 10.0, True, "none", fresh_starts=0.0)
MODERN = Recipe("modern", 2e-3, 1.0, False, "cosine", fresh_starts=0.1)
MUON = Recipe("muon", 4e-3, 1.0, False, "cosine", fresh_starts=0.1)
RECIPES = {recipe.name: recipe for recipe in (ORIGINAL, MODERN, MUON)}


def recipe_of(settings: PretrainConfig | FinetuneConfig) -> Recipe:
    """The recipe that the settings name, with the values that they override."""
    names = "learning_rate", "fresh_starts", "schedule"
    values = {name: getattr(settings, name) for name in names}
    given = {name: value for name, value in values.items() if value is not None}
    return replace(RECIPES[settings.recipe], **given)


@dataclass(frozen=True)
class Schedule:
    """Warm-up and cosine decay ("cosine"), warm-up and a constant rate ("constant"), or neither.

    Attributes:
        name: The kind of schedule.
        total_steps: Steps of the run; None without a planned end (`constant`).
        warm_up_steps: Steps over which the rate rises; at most 5 % of a run with a planned end.
        cool_down: The first step of a linear decay to zero, and the number of its steps. It
            finishes a run without a planned end (Hägele et al. 2024, "Scaling Laws and
            Compute-Optimal Training Beyond Fixed Training Durations").
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
        """The factor of the learning rate at a step, from 0.

        After the last step of a cool-down it would reach 0.
        """
        #   cosine     warm-up, then half a cosine down to 5 %       /''\.__
        #   constant   warm-up, then 1, without an end               /''
        #   cool-down  from its first step on a line towards 0       /\
        if self.name == "none":
            return 1.0
        total, warm_up = None if self.name == "constant" else self.total_steps, self.warm_up_steps
        if total is not None:
            warm_up = max(1, min(warm_up, round(WARM_UP * total)))
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
    vectors = [parameter for parameter in parameters if parameter.dim() <= 1]
    groups = [
        {"params": matrices, "weight_decay": WEIGHT_DECAY},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=ADAM_BETAS, fused=True)


class Optimizer:
    """PyTorch optimizers with a common learning rate, whose state can be saved as tensors."""

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
            f"{index}.{number}.{name}": torch.as_tensor(value)
            for index, optimizer in enumerate(self.optimizers)
            for number, state in optimizer.state_dict()["state"].items()
            for name, value in state.items()
        }

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Load the state that `tensors` returned for an optimizer of the same parameters."""
        states: list[dict[int, dict[str, Tensor]]] = [{} for _ in self.optimizers]
        for key, tensor in tensors.items():
            index, number, name = key.split(".")
            state = states[int(index)].setdefault(int(number), {})
            state[name] = tensor.clone()  # a step changes it in place
        for optimizer, state in zip(self.optimizers, states, strict=True):
            optimizer.load_state_dict(optimizer.state_dict() | {"state": state})


def make_optimizer(
    recipe: Recipe,
    parameters: Sequence[nn.Parameter],
    hidden_matrices: Sequence[nn.Parameter],
    dtype: torch.dtype = torch.float32,
) -> Optimizer:
    """Create the optimizer of a recipe.

    Args:
        recipe: The recipe.
        parameters: All parameters of the model and its softmax.
        hidden_matrices: Those that Muon updates, (M, N) each: neither embeddings nor softmax
            (Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks").
        dtype: Number type of the run's matrix products, including Muon's.

    Returns:
        The optimizer.
    """
    # Fused implementations update all parameters in one call.
    rate = recipe.learning_rate
    if recipe.name == "original":
        adagrad = torch.optim.Adagrad(parameters, rate, initial_accumulator_value=1.0, fused=True)
        return Optimizer([adagrad])
    if recipe.name == "modern":
        return Optimizer([_adamw(parameters, rate)])
    hidden = {id(parameter) for parameter in hidden_matrices}
    rest = [parameter for parameter in parameters if id(parameter) not in hidden]
    return Optimizer([Muon(hidden_matrices, rate, WEIGHT_DECAY, dtype), _adamw(rest, rate)])


def clip_gradients(parameters: list[nn.Parameter], maximum: float) -> Tensor:
    """Scale all gradients down to a total norm of `maximum`, and return the norm before.

    Equals `nn.utils.clip_grad_norm_`, but on the CPU it skips the multiplication by one when the
    norm is small enough. (On a GPU, testing that would wait for the device.) A norm that is not
    finite makes all gradients non-finite, so that divergence is detected.
    """
    norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    if norm.device.type != "cpu" or not norm <= maximum:
        nn.utils.clip_grads_with_norm_(parameters, maximum, norm)
    return norm
