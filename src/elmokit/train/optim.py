"""Training recipes and their optimizers: bilm-tf's AdaGrad, AdamW, and Muon combined with AdamW."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from elmokit.train.muon import Muon
from elmokit.train.schedule import ScheduleName

WEIGHT_DECAY = 0.01
ADAM_BETAS = (0.9, 0.98)
# The state that each optimizer keeps for a parameter: tensors of its shape, or scalars for steps.
STATE_NAMES = {
    torch.optim.Adagrad: {"step", "sum"},
    torch.optim.AdamW: {"step", "exp_avg", "exp_avg_sq"},
    Muon: {"momentum_buffer"},
}


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


def recipe(
    name: str,
    learning_rate: float | None = None,
    fresh_starts: float | None = None,
    schedule: ScheduleName | None = None,
) -> Recipe:
    """The recipe `original`, `modern` or `muon`, with the values that are not None replaced."""
    changes = {"learning_rate": learning_rate, "fresh_starts": fresh_starts, "schedule": schedule}
    return replace(RECIPES[name], **{field: value for field, value in changes.items() if value is not None})


# --- Optimizers -------------------------------------------------------------------------------------------------------


def _fused(parameters: Sequence[nn.Parameter]) -> bool:
    return bool(parameters) and parameters[0].device.type in ("cpu", "cuda")


def _adamw(parameters: Sequence[nn.Parameter], learning_rate: float) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices only."""
    matrices = [parameter for parameter in parameters if parameter.dim() > 1]
    others = [parameter for parameter in parameters if parameter.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=ADAM_BETAS, fused=_fused(parameters))


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

    def parameters(self) -> Iterator[nn.Parameter]:
        """All parameters, in the order in which `tensors` numbers them."""
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                yield from group["params"]

    def tensors(self) -> dict[str, Tensor]:
        """The state by `parameter number.name`; parameters are numbered consecutively across the optimizers."""
        tensors, first = {}, 0
        for optimizer in self.optimizers:
            for number, state in optimizer.state_dict()["state"].items():
                tensors |= {f"{first + number}.{name}": torch.as_tensor(value) for name, value in state.items()}
            first += _num_parameters(optimizer)
        return tensors

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Load the state that `tensors` returned for an optimizer of the same parameters.

        Raises:
            ValueError: The state is for other parameters, or is not what their optimizer keeps.
        """
        states: dict[int, dict[str, Tensor]] = {}
        for key, tensor in tensors.items():
            number, name = key.split(".", 1)
            states.setdefault(int(number), {})[name] = tensor
        parameters = list(self.parameters())
        first = 0
        for optimizer in self.optimizers:
            count = _num_parameters(optimizer)
            own = {number - first: states.pop(number) for number in range(first, first + count) if number in states}
            for number, values in own.items():
                _check_state(optimizer, first + number, parameters[first + number], values)
            optimizer.load_state_dict({"state": own, "param_groups": optimizer.state_dict()["param_groups"]})
            first += count
        if states:
            raise ValueError(f"the optimizer has no parameters {', '.join(map(str, sorted(states)))}")


def _check_state(
    optimizer: torch.optim.Optimizer, number: int, parameter: nn.Parameter, values: dict[str, Tensor]
) -> None:
    """ValueError unless the state of a parameter is what its optimizer keeps for it."""
    expected = STATE_NAMES.get(type(optimizer), values.keys())
    fits = all(value.is_floating_point() and value.shape in (parameter.shape, ()) for value in values.values())
    if values.keys() != expected or not fits:
        shapes = ", ".join(f"{name} {value.dtype} {tuple(value.shape)}" for name, value in sorted(values.items()))
        raise ValueError(f"the optimizer's state of parameter {number} {tuple(parameter.shape)} is {shapes}")


def _num_parameters(optimizer: torch.optim.Optimizer) -> int:
    return sum(len(group["params"]) for group in optimizer.param_groups)


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
        adagrad = torch.optim.Adagrad(
            parameters, lr=learning_rate, initial_accumulator_value=1.0, fused=_fused(parameters)
        )
        return Optimizer([adagrad])
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
