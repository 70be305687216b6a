"""bilm-tf: batchers, `BidirectionalLanguageModel`, `weight_layers`, the dumps, and training.

There are no TensorFlow graphs: models take ids (NumPy or torch) and return torch tensors, under
bilm-tf's keys.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, cast

import h5py
import numpy as np
import torch
from torch import Tensor, nn

from elmokit.compat.bilm_tf.data import Batcher, TokenBatcher, Vocabulary
from elmokit.compat.shared import CarriedStates, open_model, warn_of_truncated, without_boundaries
from elmokit.embed import Embedder
from elmokit.fs import atomic_path, check_output, read_lines
from elmokit.nn import BiLM, ScalarMix, prepack
from elmokit.runtime import init_on_meta

__all__ = [
    "Batcher",
    "BidirectionalLanguageModel",
    "TokenBatcher",
    "dump_bilm_embeddings",
    "dump_token_embeddings",
    "weight_layers",
]

WORDS_AT_ONCE = 8192


def _with_word_embedding(bilm: BiLM, embedding_weight_file: str | Path) -> BiLM:
    """A biLM with the same LSTMs that reads token vectors written by `dump_token_embeddings`."""
    with h5py.File(embedding_weight_file) as file:
        table = torch.from_numpy(np.asarray(file["embedding"], dtype=np.float32))
    config = replace(bilm.config, char_cnn=None, num_words=len(table))
    with init_on_meta():
        by_words = BiLM(config)
    by_words.sequence_encoder = bilm.sequence_encoder
    by_words.token_encoder.weight = nn.Parameter(table)
    return by_words


class BidirectionalLanguageModel:
    """Ids with boundaries -> all layers without; rows carry their state from call to call.

    `mixes` has the variables of `weight_layers`, by name. `states.reset_states()` resets the state
    to zeros; with `states.stateful = False`, every call starts from zeros.
    """

    def __init__(
        self,
        options_file: str | Path,
        weight_file: str | Path,
        use_character_inputs: bool = True,
        embedding_weight_file: str | Path | None = None,
        max_batch_size: int = 128,
    ) -> None:
        bilm = open_model(options_file, weight_file).bilm
        if use_character_inputs:
            encoder = bilm.get_submodule(
                "token_encoder"
            )  # with a row of zeros for ids that are 0 inside a word
            table = encoder.get_parameter("char_embedding").data
            encoder.register_parameter(
                "char_embedding", nn.Parameter(torch.cat([table, torch.zeros_like(table[:1])]))
            )
        else:
            bilm = _with_word_embedding(bilm, cast(str, embedding_weight_file))
        self.bilm = prepack(bilm, None)
        self.max_batch_size = max_batch_size
        self.states = CarriedStates()
        self.mixes = nn.ParameterDict()

    @torch.no_grad()
    def __call__(self, ids: np.ndarray | Tensor) -> dict[str, Any]:
        """Run the model.

        Args:
            ids: Character ids (B, T+2, C) or word ids (B, T+2), with boundaries.

        Returns:
            The values of bilm-tf's ops: lm_embeddings (B, L+1, T, 2D) and mask (B, T), without
            boundaries; lengths (B,), also without; token_embeddings (B, T+2, D), with boundaries.
            In addition, `mixes`.

        Raises:
            ValueError: There are more rows than `max_batch_size`, or more characters in a word than
                the model reads.
            IndexError: An id is outside the vocabulary.
            RuntimeError: `ids` are no array, such as a placeholder of a graph.
        """
        ids = torch.as_tensor(ids).long()
        if len(ids) > self.max_batch_size:
            raise ValueError(
                f"{len(ids)} rows are more than max_batch_size={self.max_batch_size}: raise it"
            )
        mask, char_cnn = self.bilm.token_encoder.is_word(ids), self.bilm.config.char_cnn
        if char_cnn is not None:
            ids = ids.masked_fill((ids == 0) & mask.unsqueeze(-1), char_cnn.num_characters + 1)
        out = self.bilm(ids, mask, self.states.initial(len(ids), ids.device))
        self.states.update(out.state)
        layers, mask = without_boundaries(out.layers, out.mask)
        return {
            "lm_embeddings": layers.transpose(0, 1),
            "lengths": mask.sum(dim=1),
            "token_embeddings": out.layers[0].chunk(2, dim=-1)[0],
            "mask": mask,
            "mixes": self.mixes,
        }


def _variable(name: str, bilm_ops: dict[str, Any], start: Tensor) -> nn.Parameter:
    """The variable with this name, which is created when it is first used."""
    key = name.replace(
        ".", ":"
    )  # TensorFlow's names may have dots and no colons, PyTorch's the reverse
    if key not in bilm_ops["mixes"]:
        bilm_ops["mixes"][key] = nn.Parameter(start.to(bilm_ops["lm_embeddings"].device))
    return bilm_ops["mixes"][key]


def weight_layers(
    name: str,
    bilm_ops: dict[str, Any],
    l2_coef: float | None = None,
    use_top_only: bool = False,
    do_layer_norm: bool = False,
) -> dict[str, Tensor]:
    """Mix the layers with trainable weights (bilm/elmo.py).

    Args:
        name: Name of the mix. It is created with equal weights when it is first used, and shared
            afterwards, as with bilm-tf's `reuse=True`.
        bilm_ops: Output of `BidirectionalLanguageModel`.
        l2_coef: Weight of the L2 penalty on the mix weights.
        use_top_only: Use the top layer, multiplied by gamma, the only variable of the mix.
        do_layer_norm: Normalize the layers over all words, without boundaries.

    Returns:
        "weighted_op", (B, T, 2D), zero at padding unless layers are normalized; and
        "regularization_op", the penalty.
    """
    layers, gamma = (
        bilm_ops["lm_embeddings"].transpose(0, 1),
        _variable(f"{name}_ELMo_gamma", bilm_ops, torch.ones(1)),
    )
    if use_top_only:
        return {"weighted_op": gamma * layers[-1], "regularization_op": torch.zeros(())}
    weights = _variable(f"{name}_ELMo_W", bilm_ops, torch.zeros(len(layers)))
    weighted = ScalarMix.mix(
        layers, gamma * torch.softmax(weights, dim=0), bilm_ops["mask"], do_layer_norm
    )
    return {"weighted_op": weighted, "regularization_op": (l2_coef or 0.0) * weights.square().sum()}


def dump_token_embeddings(
    vocab_file: str | Path, options_file: str | Path, weight_file: str | Path, outfile: str | Path
) -> None:
    """Write the token vectors of a vocabulary to the HDF5 dataset `embedding`, (V, D), atomically.

    Args:
        vocab_file: One word per line.
        options_file: options.json of the model.
        weight_file: HDF5 weights of the model.
        outfile: HDF5 file to write.

    Raises:
        ValueError: The model reads word ids.
    """
    check_output(outfile, [vocab_file, options_file, weight_file], overwrite=True)
    words, bilm = Vocabulary(vocab_file).words, open_model(options_file, weight_file).bilm
    if bilm.config.char_cnn is not None:
        warn_of_truncated(words, bilm.config.char_cnn.max_characters, "bilm-tf")
    shape = (len(words), bilm.config.sequence_encoder.projection_dim)
    with torch.no_grad(), atomic_path(outfile) as partial, h5py.File(partial, "w") as file:
        embedding = file.create_dataset("embedding", shape, dtype="float32")
        for begin in range(0, len(words), WORDS_AT_ONCE):
            part = words[begin : begin + WORDS_AT_ONCE]
            embedding[begin : begin + len(part)] = bilm.word_vectors(part)[: len(part)]


def dump_bilm_embeddings(
    vocab_file: str | Path | None,
    dataset_file: str | Path,
    options_file: str | Path,
    weight_file: str | Path,
    outfile: str | Path,
) -> None:
    """Write all layers of every line to an HDF5 dataset `str(line)`, (L+1, T, 2D) float32.

    Lines are split at white space. As in bilm-tf, state is carried from line to line, and blank
    lines have length 0.

    Args:
        vocab_file: Only for a model of word ids, whose words they are.
        dataset_file: One tokenized sentence per line.
        options_file: options.json of the model.
        weight_file: HDF5 weights of the model.
        outfile: HDF5 file to write.
    """
    inputs = [
        dataset_file,
        options_file,
        weight_file,
        *([] if vocab_file is None else [vocab_file]),
    ]
    check_output(outfile, inputs, overwrite=True)
    embedder = Embedder(open_model(options_file, weight_file, vocab_file))
    lines, numbers = (line.split() for line in read_lines(dataset_file)), count()
    with atomic_path(outfile) as partial, h5py.File(partial, "w") as file:
        for embeddings in embedder.embed_stream(lines, "all", "carry"):
            for layers, number in zip(embeddings, numbers, strict=False):
                file.create_dataset(str(number), data=layers, dtype="float32")
