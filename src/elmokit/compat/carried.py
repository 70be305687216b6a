"""The hidden LSTM state that the original libraries carry between calls. In the rest of elmokit, state is explicit."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from elmokit.nn.bilm import BiLMState


def _with_rows(state: Tensor, rows: int, device: torch.device) -> Tensor:
    """Truncate a state (2, L, B, .) to `rows` rows, or extend it with zeros."""
    zeros = state.new_zeros(*state.shape[:2], max(0, rows - state.shape[2]), state.shape[3])
    return torch.cat([state, zeros], dim=2)[:, :, :rows].to(device)


class CarriedStates(nn.Module):
    """The state carried between calls (AllenNLP, encoder_base.py; bilm-tf, model.py).

    Row k of a call starts from the final state of row k of the previous call. Rows that a call does not use keep their
    state. With `stateful=False`, every call starts from zeros. This is a module because AllenNLP's trainers look for
    `stateful` and `reset_states` among `model.modules()`.
    """

    def __init__(self, stateful: bool = True) -> None:
        super().__init__()
        self.stateful = stateful
        self._current: BiLMState | None = None

    def initial(self, rows: int, device: torch.device) -> BiLMState | None:
        """The initial state of a call with `rows` rows; None for zeros."""
        if not self.stateful or self._current is None:
            return None
        return BiLMState(_with_rows(self._current.h, rows, device), _with_rows(self._current.c, rows, device))

    def update(self, final: BiLMState) -> None:
        """Store the final state of a call, detached from the graph."""
        if not self.stateful:
            return
        h, c = final.h.detach(), final.c.detach()
        if self._current is not None:
            rows, previous = h.shape[2], self._current
            h = torch.cat([h, previous.h[:, :, rows:].to(h.device)], dim=2)
            c = torch.cat([c, previous.c[:, :, rows:].to(c.device)], dim=2)
        self._current = BiLMState(h, c)

    def reset_states(self, mask: Tensor | None = None) -> None:
        """Reset the state of all rows to zeros, or of those where `mask` (B,) is True."""
        if mask is None or self._current is None:
            self._current = None
            return
        kept = ~mask.bool().to(self._current.h.device).view(1, 1, self._current.h.shape[2], 1)
        self._current = BiLMState(self._current.h * kept, self._current.c * kept)


def without_boundaries(layers: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Remove <S> and </S> from layers (..., T+2, D), and from a mask that broadcasts to (..., T+2).

    Returns:
        The layers (..., T, D), zero where the mask is False, and the mask.
    """
    inner = mask[..., 2:]
    return layers[..., 1:-1, :] * inner.unsqueeze(-1), inner
