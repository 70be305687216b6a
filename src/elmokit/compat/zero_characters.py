"""Character id 0 inside a word: the tables of AllenNLP and bilm-tf have a row of zeros for it, elmokit's have none."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call

from elmokit.nn.bilm import BiLM, BiLMOutput, BiLMState
from elmokit.nn.inference import Frozen

TABLE = "char_embedding"


def _is_zero_inside(ids: Tensor) -> Tensor:
    """Ids (..., C) -> (..., C) bool: True for an id 0 in a word, that is, in a row that has other ids."""
    return (ids == 0) & (ids > 0).any(dim=-1, keepdim=True)


def _with_zero_row(encoder: nn.Module, ids: Tensor, is_zero: Tensor) -> tuple[Tensor, Tensor]:
    """The encoder's character table with a row of zeros appended, and the ids, with those of `is_zero` set to it."""
    table = encoder.get_parameter(TABLE)
    return torch.cat([table, table.new_zeros(1, table.shape[1])]), ids.masked_fill(is_zero, len(table) + 1)


def encode_words(encoder: nn.Module, ids: Tensor) -> Tensor:
    """Character ids of words (U, C) -> their token vectors (U, D)."""
    is_zero = _is_zero_inside(ids)
    if not is_zero.any():
        return encoder(ids)
    table, ids = _with_zero_row(encoder, ids, is_zero)
    return functional_call(encoder, {TABLE: table}, (ids,))


def run_bilm(frozen: Frozen, bilm: BiLM, ids: Tensor, state: BiLMState | None) -> BiLMOutput:
    """`frozen.run(bilm, ids, state)`, for character ids that may be 0 inside a word, or for word ids."""
    if ids.dim() < 3 or not (is_zero := _is_zero_inside(ids)).any():
        return frozen.run(bilm, ids, state)
    mask, encoder = bilm.token_encoder.is_word(ids), bilm.get_submodule("token_encoder")
    table, ids = _with_zero_row(encoder, ids, is_zero)
    return functional_call(bilm, {f"token_encoder.{TABLE}": table}, (ids, mask, state))
