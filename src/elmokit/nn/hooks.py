"""What a user may have hung on a module."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.module import _has_any_global_hook

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def is_hooked(module: nn.Module) -> bool:
    """Whether calling it does more, or something else, than its class says."""
    own = "forward" in vars(module) or any(getattr(module, hooks) for hooks in HOOKS)
    return own or bool(_has_any_global_hook())
