"""The recipes of training, and their optimisers: bilm-tf's AdaGrad, AdamW, and Muon beside AdamW."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from elmokit.train.schedule import ScheduleName

WEIGHT_DECAY = 0.01
ADAM_BETAS = (0.9, 0.98)


@dataclass(frozen=True)
class Recipe:
    """What distinguishes one way of training from another."""

    learning_rate: float
    clip_norm: float
    multiply_loss_by_steps: bool  # bilm-tf's gradient is that of loss * unroll_steps: its rate of 0.2 rests on that
    schedule: ScheduleName
    fresh_starts: float  # share of the sentences that start from zeros, as when text is embedded


RECIPES = {
    # bilm/training.py:689-721
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
    """The recipe of a name (`original`, `modern` or `muon`), with other values where they are given."""
    given = {"learning_rate": learning_rate, "fresh_starts": fresh_starts, "schedule": schedule}
    return replace(RECIPES[name], **{field: value for field, value in given.items() if value is not None})


# --- Optimisers -------------------------------------------------------------------------------------------------------


def _fused(parameters: Sequence[nn.Parameter]) -> bool:
    return bool(parameters) and parameters[0].device.type in ("cpu", "cuda")


def _adamw(parameters: Sequence[nn.Parameter], learning_rate: float) -> torch.optim.AdamW:
    """AdamW in which nothing but matrices decays."""
    matrices = [parameter for parameter in parameters if parameter.dim() > 1]
    others = [parameter for parameter in parameters if parameter.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=ADAM_BETAS, fused=_fused(parameters))


class Optimizer:
    """One or several of PyTorch's optimisers as one: a learning rate for all, tensors to and from a snapshot."""

    def __init__(self, parts: Sequence[torch.optim.Optimizer]) -> None:
        self.parts = list(parts)

    def step(self, learning_rate: float) -> None:
        """One update of all parameters from their gradients."""
        for part in self.parts:
            for group in part.param_groups:
                group["lr"] = learning_rate
            part.step()

    def parameters(self) -> Iterator[nn.Parameter]:
        """All parameters, in the order of their numbers in `tensors`."""
        for part in self.parts:
            for group in part.param_groups:
                yield from group["params"]

    def tensors(self) -> dict[str, Tensor]:
        """Everything the optimisers remember, by `parameter number.name`, numbered through all parts."""
        tensors, first = {}, 0
        for part in self.parts:
            for number, slots in part.state_dict()["state"].items():
                tensors |= {f"{first + number}.{name}": torch.as_tensor(value) for name, value in slots.items()}
            first += _number_of_parameters(part)
        return tensors

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Remember what `tensors` of an optimiser of the same parameters gave."""
        slots: dict[int, dict[str, Tensor]] = {}
        for key, tensor in tensors.items():
            number, name = key.split(".", 1)
            slots.setdefault(int(number), {})[name] = tensor
        first = 0
        for part in self.parts:
            count = _number_of_parameters(part)
            own = {number - first: slots[number] for number in slots if first <= number < first + count}
            part.load_state_dict({"state": own, "param_groups": part.state_dict()["param_groups"]})
            first += count


def _number_of_parameters(optimizer: torch.optim.Optimizer) -> int:
    return sum(len(group["params"]) for group in optimizer.param_groups)


def make_optimizer(
    name: str, parameters: Sequence[nn.Parameter], hidden_matrices: Sequence[nn.Parameter], learning_rate: float
) -> Optimizer:
    """The optimiser of a recipe.

    Args:
        name: The recipe.
        parameters: All parameters of the model and its softmax.
        hidden_matrices: Those among them that Muon is for, (M, N): neither embeddings nor softmax (Jordan et al. 2024,
            "Muon: An optimizer for hidden layers in neural networks").
        learning_rate: That of the first step.
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
    # Updates of the size of AdamW's, so that one learning rate does for both.
    muon = torch.optim.Muon(
        hidden_matrices, lr=learning_rate, weight_decay=WEIGHT_DECAY, adjust_lr_fn="match_rms_adamw"
    )
    return Optimizer([muon, _adamw(others, learning_rate)])


def clip_gradients(parameters: list[nn.Parameter], maximum: float) -> Tensor:
    """Scale all gradients to a common norm of `maximum` where it is larger; returns the norm that it was.

    As `nn.utils.clip_grad_norm_`, which also multiplies by one, so as not to wait for a GPU. A norm that is no number
    spoils all gradients, so that it cannot be missed.
    """
    norm = nn.utils.get_total_norm([parameter.grad for parameter in parameters if parameter.grad is not None])
    if norm.device.type != "cpu" or not norm <= maximum:
        nn.utils.clip_grads_with_norm_(parameters, maximum, norm)
    return norm
