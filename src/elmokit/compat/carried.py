"""The LSTM state that the old libraries kept between calls without saying so. Nothing else in elmokit hides it."""

from __future__ import annotations

import torch
from torch import Tensor

from elmokit.nn.bilm import BiLMState


def _with_rows(part: Tensor, rows: int, device: torch.device) -> Tensor:
    """(2, L, B, .) cut or grown by zeros to `rows` rows."""
    grown = part.new_zeros(*part.shape[:2], max(0, rows - part.shape[2]), part.shape[3])
    return torch.cat([part, grown], dim=2)[:, :, :rows].to(device)


class CarriedStates:
    """Row k of a call starts from where row k of the call before it ended; rows that were not used keep their state.

    `stateful=False` ends that: every call then starts from zeros. (AllenNLP, encoder_base.py; bilm-tf, model.py.)
    """

    def __init__(self, stateful: bool = True) -> None:
        self.stateful = stateful
        self._states: BiLMState | None = None

    def begin(self, rows: int, device: torch.device) -> BiLMState | None:
        """What a call of so many rows starts from; None for zeros."""
        if not self.stateful or self._states is None:
            return None
        return BiLMState(_with_rows(self._states.h, rows, device), _with_rows(self._states.c, rows, device))

    def keep(self, after: BiLMState) -> None:
        """Remember the state after a call, without its gradients."""
        if not self.stateful:
            return
        h, c = after.h.detach(), after.c.detach()
        if self._states is not None:
            rows, old = h.shape[2], self._states
            h = torch.cat([h, old.h[:, :, rows:].to(h.device)], dim=2)
            c = torch.cat([c, old.c[:, :, rows:].to(c.device)], dim=2)
        self._states = BiLMState(h, c)

    def reset_states(self, mask: Tensor | None = None) -> None:
        """Forget the state of all rows, or of those where `mask` (B,) is True."""
        if mask is None or self._states is None:
            self._states = None
            return
        rows = self._states.h.shape[2]
        if mask.shape != (rows,):
            raise ValueError(f"the mask has shape {tuple(mask.shape)}, but there are states of {rows} rows")
        kept = ~mask.bool().to(self._states.h.device).view(1, 1, rows, 1)
        self._states = BiLMState(self._states.h * kept, self._states.c * kept)


def without_boundaries(layers: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """(..., B, T+2, D) and mask (B, T+2) -> (..., B, T, D), zero at padding, and mask (B, T): less <S> and </S>."""
    inner = mask[..., 2:]
    return layers[..., 1:-1, :] * inner.unsqueeze(-1), inner
