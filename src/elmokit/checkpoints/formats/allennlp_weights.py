"""The names and arrangement of weights in the `state_dict` of AllenNLP's biLM, and in that of a `BiLM`."""

from __future__ import annotations

import re

import torch
from torch import Tensor

PATTERNS = {
    r"_token_embedder\._char_embedding_weights": "token_encoder.char_embedding",
    r"_token_embedder\.char_conv_(\d+)\.(weight|bias)": r"token_encoder.convolutions.\1.\2",
    r"_token_embedder\._highways\._layers\.(\d+)\.(weight|bias)": r"token_encoder.highways.\1.gates.\2",
    r"_token_embedder\._projection\.(weight|bias)": r"token_encoder.projection.\1",
    r"_elmo_lstm\.forward_layer_(\d+)\.(\w+\.\w+)": r"sequence_encoder.stacks.0.layers.\1.\2",
    r"_elmo_lstm\.backward_layer_(\d+)\.(\w+\.\w+)": r"sequence_encoder.stacks.1.layers.\1.\2",
}
IN_A_LAYER = {
    "input_linearity.weight": "input_weight",
    "state_linearity.weight": "recurrent_weight",
    "state_linearity.bias": "bias",
    "state_projection.weight": "projection_weight",
}
# Derived from weights or the vocabulary: `_word_embedding` holds the token vectors of `vocab_to_cache`.
NOT_WEIGHTS = re.compile(r"_word_embedding\.weight|_token_embedder\._(beginning|end)_of_sentence_characters")


def bilm_name(name: str) -> str | None:
    """The name of the weight of a `BiLM`; None if it is not one of AllenNLP's biLM."""
    for pattern, replacement in PATTERNS.items():
        if match := re.fullmatch(pattern, name):
            translated = match.expand(replacement)
            for theirs, ours in IN_A_LAYER.items():
                translated = translated.replace(theirs, ours)
            return translated
    return None


def rearranged(name: str, tensor: Tensor, forget_bias: float) -> Tensor:
    """A tensor of AllenNLP's, arranged as the `BiLM`'s weight `name`; only that of characters changes its shape."""
    if name.endswith("char_embedding"):
        return tensor[1:]  # its first row is for padding
    if ".gates." in name:  # AllenNLP's gate weights the input, ours the transform: sigmoid(-x) = 1 - sigmoid(x)
        transform, carry = tensor.chunk(2)
        return torch.cat([transform, -carry])
    if name.endswith(("input_weight", "recurrent_weight", ".bias")) and ".layers." in name:
        i, f, g, o = tensor.chunk(4)
        return torch.cat([i, g, f - forget_bias if name.endswith(".bias") else f, o])
    return tensor


def arranged(name: str, tensor: Tensor, forget_bias: float) -> Tensor:
    """The inverse of `rearranged`."""
    if name.endswith("char_embedding"):
        return torch.cat([tensor.new_zeros(1, tensor.shape[1]), tensor])
    if ".layers." in name and name.endswith(".bias"):
        i, g, f, o = tensor.chunk(4)
        return torch.cat([i, f + forget_bias, g, o])
    return rearranged(name, tensor, 0.0)  # its own inverse
