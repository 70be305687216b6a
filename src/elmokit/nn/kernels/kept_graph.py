"""Whether a backward pass is the last one over its graph, and may write over what was saved for it."""

from __future__ import annotations

import torch


def graph_is_kept() -> bool:
    """Whether the backward pass that runs leaves its graph for another one. True where torch does not say."""
    autograd = getattr(torch._C, "_autograd", None)
    return getattr(autograd, "_get_current_graph_task_keep_graph", lambda: True)()
