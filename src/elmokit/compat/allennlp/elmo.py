"""AllenNLP's `batch_to_ids`, `Elmo`, `ElmoTokenEmbedder` and `_ElmoBiLm` (modules/elmo.py)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from elmokit.compat.allennlp.scalar_mix import ScalarMix
from elmokit.compat.allennlp.state_dict import translate
from elmokit.compat.carried import CarriedStates, without_boundaries
from elmokit.compat.notice import warn_once
from elmokit.compat.weights import open_bilm
from elmokit.nn.elmo import add_boundaries
from elmokit.nn.inference import Frozen
from elmokit.text.characters import count_truncated, encode_sentences, encode_words

ORIGINAL = (
    "https://allennlp.s3.amazonaws.com/models/elmo/2x4096_512_2048cnn_2xhighway/elmo_2x4096_512_2048cnn_2xhighway"
)
DEFAULT_OPTIONS_FILE = f"{ORIGINAL}_options.json"
DEFAULT_WEIGHT_FILE = f"{ORIGINAL}_weights.hdf5"


def batch_to_ids(batch: Sequence[Sequence[str]]) -> Tensor:
    """Tokenized sentences -> character ids (B, T, 50) int64, without boundaries, zeros for padding."""
    if any(isinstance(sentence, str) for sentence in batch):
        warn_once("a sentence is a string instead of a list of tokens: each of its characters is read as a token")
    if count_truncated(list(chain.from_iterable(batch))):
        warn_once("some words have more than 48 bytes: as in AllenNLP, only the first 48 are read")
    return torch.from_numpy(encode_sentences(batch)).long()


class _ElmoBiLm(nn.Module):
    """AllenNLP's biLM: character ids without boundaries -> all layers with boundaries; its state is carried.

    As in AllenNLP, `_elmo_lstm.stateful = False` and `_elmo_lstm.reset_states()` control the state, and `num_layers` is
    L + 1.
    """

    def __init__(
        self,
        options_file: str | Path | None,
        weight_file: str | Path | None,
        requires_grad: bool = False,
        vocab_to_cache: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        self._bilm = open_bilm(options_file, weight_file).requires_grad_(requires_grad)
        if self._bilm.token_encoder.input != "characters":
            raise ValueError("AllenNLP's ELMo reads characters but this biLM reads word ids: use compat.bilm_tf")
        self._elmo_lstm = CarriedStates()
        self._frozen = Frozen()
        self.num_layers = self._bilm.config.num_representations
        # Each distinct word of a batch is encoded once anyway, so the cache holds character ids instead of vectors,
        # which would become stale when the weights change.
        words = None if vocab_to_cache is None else torch.from_numpy(encode_words(vocab_to_cache))
        self.register_buffer("_cached_words", words, persistent=False)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        translate(state_dict, prefix, "_bilm", self._bilm.config.lstm.forget_bias)
        super()._load_from_state_dict(state_dict, prefix, *others)

    def get_output_dim(self) -> int:
        """2D."""
        return self._bilm.config.output_dim

    def forward(self, inputs: Tensor, word_inputs: Tensor | None = None) -> dict[str, Any]:
        """inputs (B, T, 50), word_inputs (B, T) -> {"activations": L+1 times (B, T+2, 2D), "mask": (B, T+2) bool}."""
        ids = add_boundaries(self._character_ids(inputs, word_inputs), self._bilm.token_encoder)
        out = self._frozen.run(self._bilm, ids, self._elmo_lstm.initial(len(ids), ids.device))
        self._elmo_lstm.update(out.state)
        return {"activations": list(out.layers), "mask": out.mask}

    def _token_embedder(self, inputs: Tensor) -> dict[str, Tensor]:
        """inputs (B, T, 50) -> the token layer: {"token_embedding": (B, T+2, D), "mask": (B, T+2)}."""
        ids = add_boundaries(inputs, self._bilm.token_encoder)
        mask = self._bilm.token_encoder.is_word(ids)
        words = self._bilm.token_encoder(ids[mask])
        return {"token_embedding": words.new_zeros(*mask.shape, words.shape[1]).index_put((mask,), words), "mask": mask}

    def _character_ids(self, inputs: Tensor, word_inputs: Tensor | None) -> Tensor:
        cached = cast("Tensor | None", self._cached_words)
        if word_inputs is None or cached is None:
            return inputs
        if bool((word_inputs >= len(cached)).any()):  # a word is not in the cache
            return inputs
        return cached[word_inputs].long() * (word_inputs > 0).unsqueeze(-1)


class Elmo(nn.Module):
    """AllenNLP's `Elmo`, with all its arguments: mixes of the biLM's layers; the state is carried from call to call.

    The mixes are `scalar_mix_0`, `scalar_mix_1`, ...; with `scalar_mix_parameters` (before the softmax) they are fixed.
    `module` may be any biLM with `num_layers` and the outputs of `_ElmoBiLm`; then the files must be None.
    """

    def __init__(
        self,
        options_file: str | Path | None,
        weight_file: str | Path | None,
        num_output_representations: int,
        requires_grad: bool = False,
        do_layer_norm: bool = False,
        dropout: float = 0.5,
        vocab_to_cache: Sequence[str] | None = None,
        keep_sentence_boundaries: bool = False,
        scalar_mix_parameters: Sequence[float] | None = None,
        module: nn.Module | None = None,
    ) -> None:
        super().__init__()
        if module is not None and not (options_file is None and weight_file is None):
            raise ValueError("module excludes options_file and weight_file: set them to None")
        if module is None:
            module = _ElmoBiLm(options_file, weight_file, requires_grad, vocab_to_cache)
        self._elmo_lstm = module
        self._has_cached_vocab = vocab_to_cache is not None
        self._keep_sentence_boundaries = keep_sentence_boundaries
        self._dropout = nn.Dropout(dropout)
        self._num_mixes = num_output_representations
        for k in range(num_output_representations):
            mix = ScalarMix(
                cast(int, module.num_layers), do_layer_norm, scalar_mix_parameters, scalar_mix_parameters is None
            )
            self.add_module(f"scalar_mix_{k}", mix)

    @property
    def _scalar_mixes(self) -> list[nn.Module]:
        """The mixes, looked up by name: in a replica of the module, a list would still hold the original's mixes."""
        return [self.get_submodule(f"scalar_mix_{k}") for k in range(self._num_mixes)]

    def get_output_dim(self) -> int:
        """2D."""
        return cast(_ElmoBiLm, self._elmo_lstm).get_output_dim()

    def forward(self, inputs: Tensor, word_inputs: Tensor | None = None) -> dict[str, Any]:
        """inputs (B, ..., T, 50), word_inputs (B, ..., T) -> {"elmo_representations": [(B, ..., T, 2D)], "mask": bool}.

        `word_inputs` are indices into `vocab_to_cache`, 0 for padding; if given, they replace `inputs`.
        """
        if word_inputs is not None and not self._has_cached_vocab:
            warn_once("word_inputs is ignored without vocab_to_cache: the character ids are read instead")
            word_inputs = None
        words = None if word_inputs is None else word_inputs.flatten(0, -2)
        out = self._elmo_lstm(inputs.flatten(0, -3), words)
        layers, mask = torch.stack(out["activations"]), out["mask"]
        mixed = [mix(layers, mask) for mix in self._scalar_mixes]  # layer norm includes the boundaries
        if self._keep_sentence_boundaries:
            mixed = [representation * mask.unsqueeze(-1) for representation in mixed]
        else:
            mixed, mask = [without_boundaries(representation, mask)[0] for representation in mixed], mask[:, 2:]
        rows = inputs.shape[:-2] if word_inputs is None else word_inputs.shape[:-1]
        return {
            "elmo_representations": [self._dropout(representation).unflatten(0, rows) for representation in mixed],
            "mask": mask.unflatten(0, rows),
        }


class ElmoTokenEmbedder(nn.Module):
    """AllenNLP's `ElmoTokenEmbedder`: one representation, projected to `projection_dim` if given."""

    def __init__(
        self,
        options_file: str | Path | None = DEFAULT_OPTIONS_FILE,
        weight_file: str | Path | None = DEFAULT_WEIGHT_FILE,
        do_layer_norm: bool = False,
        dropout: float = 0.5,
        requires_grad: bool = False,
        projection_dim: int | None = None,
        vocab_to_cache: Sequence[str] | None = None,
        scalar_mix_parameters: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        self._elmo = Elmo(
            options_file,
            weight_file,
            1,
            requires_grad,
            do_layer_norm,
            dropout,
            vocab_to_cache,
            scalar_mix_parameters=scalar_mix_parameters,
        )
        dim = self._elmo.get_output_dim()
        self._projection = nn.Linear(dim, projection_dim) if projection_dim else None
        self.output_dim = projection_dim or dim

    def get_output_dim(self) -> int:
        """`projection_dim`, or 2D without a projection."""
        return self.output_dim

    def forward(self, elmo_tokens: Tensor, word_inputs: Tensor | None = None) -> Tensor:
        """elmo_tokens (B, ..., T, 50), word_inputs (B, ..., T) -> (B, ..., T, output dim)."""
        representation = self._elmo(elmo_tokens, word_inputs)["elmo_representations"][0]
        return representation if self._projection is None else self._projection(representation)
