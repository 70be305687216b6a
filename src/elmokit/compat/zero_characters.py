"""Character id 0 inside a word: the tables of AllenNLP and bilm-tf have a row of zeros for it, elmokit's have none."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from elmokit.nn.bilm import BiLM, BiLMOutput, BiLMState
from elmokit.nn.inference import Frozen

TABLE = "char_embedding"


def _is_zero_inside(ids: Tensor) -> Tensor:
    """Ids (..., C) -> (..., C) bool: True for an id 0 in a word, that is, in a row that has other ids."""
    return (ids == 0) & (ids > 0).any(dim=-1, keepdim=True)


def _with_zero_row(encoder: nn.Module, ids: Tensor, is_zero: Tensor) -> tuple[nn.Module, Tensor]:
    """A copy of the encoder whose character table has a row of zeros appended; and ids, those of `is_zero` set to it.

    The copy shares all other weights. The encoder itself is not changed, which other threads may be using.
    """
    table, copied = encoder.get_parameter(TABLE), copy.copy(encoder)
    with_zeros = torch.cat([table, table.new_zeros(1, table.shape[1])])  # no parameter, so that gradients reach `table`
    copied._parameters = {**encoder._parameters, TABLE: with_zeros}  # pyright: ignore[reportAttributeAccessIssue]
    return copied, ids.masked_fill(is_zero, len(table) + 1)


def encode_words(encoder: nn.Module, ids: Tensor) -> Tensor:
    """Character ids of words (U, C) -> their token vectors (U, D)."""
    is_zero = _is_zero_inside(ids)
    if not is_zero.any():
        return encoder(ids)
    encoder, ids = _with_zero_row(encoder, ids, is_zero)
    return encoder(ids)


def run_bilm(frozen: Frozen, bilm: BiLM, ids: Tensor, state: BiLMState | None) -> BiLMOutput:
    """`frozen.run(bilm, ids, state)`, for character ids that may be 0 inside a word, or for word ids."""
    if ids.dim() < 3 or not (is_zero := _is_zero_inside(ids)).any():
        return frozen.run(bilm, ids, state)
    mask, encoder = bilm.token_encoder.is_word(ids), bilm.get_submodule("token_encoder")
    encoder, ids = _with_zero_row(encoder, ids, is_zero)
    copied = copy.copy(bilm)
    copied._modules = {**bilm._modules, "token_encoder": encoder}
    return copied(ids, mask, state)
