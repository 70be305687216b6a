"""AllenNLP's `batch_to_ids`, `Elmo`, `ScalarMix`, `ElmoTokenEmbedder` and token indexer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from elmokit.compat.allennlp.bilm import ElmoLstm as ElmoLstm
from elmokit.compat.allennlp.bilm import _ElmoBiLm, remove_sentence_boundaries
from elmokit.compat.allennlp.bilm import _ElmoCharacterEncoder as _ElmoCharacterEncoder
from elmokit.compat.allennlp.common import ConfigurationError, FromParams
from elmokit.compat.shared import (
    DEFAULT_OPTIONS_FILE,
    DEFAULT_WEIGHT_FILE,
    encode_with_notices,
    warn_of_truncated,
    warn_once,
)
from elmokit.config import (
    BEGIN_SENTENCE,
    BEGIN_WORD,
    CHARACTER_SHIFT,
    END_SENTENCE,
    END_WORD,
    PAD_CHARACTER,
)
from elmokit.nn import ScalarMix as LearnedMix
from elmokit.text import BOS, EOS, encode_words

# --- Indexing (data/token_indexers/elmo_indexer.py) -----------------------------------------------

KEY = "elmo_tokens"
MAX_CHARACTERS = 50  # characters per word, including the marks around it
NO_WORDS: Mapping[str, int] = {}


def _marked(character: int) -> list[int]:
    """The ids of a word of one character, before AllenNLP adds 1 to keep 0 for padding."""
    word = [BEGIN_WORD, character + CHARACTER_SHIFT, END_WORD]
    return [
        number - CHARACTER_SHIFT for number in word + [PAD_CHARACTER] * (MAX_CHARACTERS - len(word))
    ]


class ELMoCharacterMapper:
    """Words -> the ids of their characters, 1 to 261; 0 is reserved for padding."""

    max_word_length = MAX_CHARACTERS
    beginning_of_sentence_character = BEGIN_SENTENCE - CHARACTER_SHIFT
    end_of_sentence_character = END_SENTENCE - CHARACTER_SHIFT
    beginning_of_word_character = BEGIN_WORD - CHARACTER_SHIFT
    end_of_word_character = END_WORD - CHARACTER_SHIFT
    padding_character = PAD_CHARACTER - CHARACTER_SHIFT
    beginning_of_sentence_characters = _marked(beginning_of_sentence_character)
    end_of_sentence_characters = _marked(end_of_sentence_character)
    bos_token, eos_token = BOS, EOS

    def __init__(self, tokens_to_add: Mapping[str, int] | None = None) -> None:
        """`tokens_to_add` maps words that are one character of their own to its number."""
        self.tokens_to_add = dict(tokens_to_add or {})
        self.convert_word_to_char_ids = partial(
            self.convert_word_to_char_ids, tokens_to_add=self.tokens_to_add
        )

    @staticmethod  # AllenNLP 0.9 has it in the class
    def convert_word_to_char_ids(
        word: str, *, tokens_to_add: Mapping[str, int] = NO_WORDS
    ) -> list[int]:
        """The `max_word_length` character ids of a word."""
        if word in tokens_to_add:
            return [number + CHARACTER_SHIFT for number in _marked(tokens_to_add[word])]
        warn_of_truncated([word], MAX_CHARACTERS, "AllenNLP")
        return encode_words([word], MAX_CHARACTERS)[0].tolist()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ELMoCharacterMapper) and self.tokens_to_add == other.tokens_to_add


class ELMoTokenCharactersIndexer(FromParams):
    """Tokens -> character ids, by the methods of AllenNLP 2 and of 0.9 (with `index_name`).

    Tokens are AllenNLP's, other objects with an attribute `text`, or strings.
    """

    def __init__(
        self,
        namespace: str = "elmo_characters",
        tokens_to_add: Mapping[str, int] | None = None,
        token_min_padding_length: int = 0,
    ) -> None:
        self._namespace, self._token_min_padding_length = namespace, token_min_padding_length
        self._mapper = ELMoCharacterMapper(tokens_to_add)

    def count_vocab_items(self, token: Any, counter: dict[str, dict[str, int]]) -> None:
        """Do nothing: characters need no vocabulary."""

    def get_empty_token_list(self) -> dict[str, list[Any]]:
        """The indices of no tokens."""
        return {KEY: []}

    def tokens_to_indices(
        self, tokens: Sequence[Any], vocabulary: Any = None, index_name: str = KEY
    ) -> dict[str, list[list[int]]]:
        """Tokens -> {index_name: the character ids of each}."""
        texts = [getattr(token, "text", token) for token in tokens]
        return {index_name: [self._mapper.convert_word_to_char_ids(text) for text in texts]}

    def get_padding_lengths(self, indexed_tokens: Mapping[str, Sequence[Any]]) -> dict[str, int]:
        """The number of tokens under each name, at least `token_min_padding_length`."""
        return {
            name: max(len(ids), self._token_min_padding_length)
            for name, ids in indexed_tokens.items()
        }

    def as_padded_tensor_dict(
        self, tokens: Mapping[str, Sequence[Sequence[int]]], padding_lengths: Mapping[str, int]
    ) -> dict[str, Tensor]:
        """Indices -> (T, 50) int64 with T of `padding_lengths`, zeros for padding."""
        return {name: _padded(ids, padding_lengths[name]) for name, ids in tokens.items()}

    def as_padded_tensor(
        self,
        tokens: Mapping[str, Sequence[Sequence[int]]],
        desired_num_tokens: Mapping[str, int],
        padding_lengths: Mapping[str, int],
    ) -> dict[str, Tensor]:
        """`as_padded_tensor_dict` of AllenNLP 0.9, with T of `desired_num_tokens`."""
        return self.as_padded_tensor_dict(tokens, desired_num_tokens)


def _padded(ids: Sequence[Sequence[int]], length: int) -> Tensor:
    padded = torch.zeros(length, MAX_CHARACTERS, dtype=torch.int64)
    for row, word in zip(
        padded, ids, strict=False
    ):  # as in AllenNLP, tokens beyond the length are dropped
        row[:] = torch.tensor(word)
    return padded


# --- Modules --------------------------------------------------------------------------------------


def batch_to_ids(batch: Sequence[Sequence[str]]) -> Tensor:
    """Tokenized sentences -> character ids (B, T, 50) int64, zeros for padding."""
    return torch.from_numpy(encode_with_notices(batch, MAX_CHARACTERS, "AllenNLP"))


class ScalarMix(nn.Module, FromParams):
    """`gamma` times the mean of tensors, weighted by the softmax of `scalar_parameters`."""

    def __init__(
        self,
        mixture_size: int,
        do_layer_norm: bool = False,
        initial_scalar_parameters: Sequence[float] | None = None,
        trainable: bool = True,
    ) -> None:
        super().__init__()
        initial = (
            [0.0] * mixture_size if initial_scalar_parameters is None else initial_scalar_parameters
        )
        if len(initial) != mixture_size:
            raise ConfigurationError(
                f"{len(initial)} initial_scalar_parameters for {mixture_size} tensors"
            )
        self.mixture_size, self.do_layer_norm = mixture_size, do_layer_norm
        self.scalar_parameters = nn.ParameterList(
            nn.Parameter(torch.tensor([float(number)]), requires_grad=trainable)
            for number in initial
        )
        self.gamma = nn.Parameter(torch.ones(1), requires_grad=trainable)

    def forward(self, tensors: Sequence[Tensor] | Tensor, mask: Tensor | None = None) -> Tensor:
        """Mix tensors of one shape, in a list or stacked; layer norm needs the `mask` (B, T)."""
        if len(tensors) != self.mixture_size:
            raise ConfigurationError(
                f"{len(tensors)} tensors were passed to a module that mixes {self.mixture_size}"
            )
        layers = tensors if isinstance(tensors, Tensor) else torch.stack(list(tensors))
        weights = torch.softmax(
            torch.cat(list(cast(nn.ParameterList, self.scalar_parameters))), dim=0
        )
        # Like AllenNLP's, the mix of tensors in float64 is in float64, whatever the weights are in.
        dtype = torch.promote_types(weights.dtype, layers.dtype)
        return LearnedMix.mix(layers, (self.gamma * weights).to(dtype), mask, self.do_layer_norm)


class Elmo(nn.Module, FromParams):
    """Mixes of the biLM's layers, with AllenNLP's arguments; state is carried between calls.

    The mixes are `scalar_mix_0`, `scalar_mix_1`, ...; with `scalar_mix_parameters` (before the
    softmax) they are fixed. `module` may be any biLM with `num_layers` and the outputs of
    `_ElmoBiLm`; then the files must be None.
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
        if module is not None and (options_file, weight_file) != (None, None):
            raise ConfigurationError(
                "module excludes options_file and weight_file: set them to None"
            )
        module = module or _ElmoBiLm(options_file, weight_file, requires_grad, vocab_to_cache)
        self._elmo_lstm = module
        self._has_cached_vocab = vocab_to_cache is not None
        self._keep_sentence_boundaries = keep_sentence_boundaries
        self._dropout = nn.Dropout(dropout)
        settings = do_layer_norm, scalar_mix_parameters, scalar_mix_parameters is None
        self._scalar_mixes = [
            ScalarMix(cast(int, module.num_layers), *settings)
            for _ in range(num_output_representations)
        ]
        for k, mix in enumerate(self._scalar_mixes):
            self.add_module(f"scalar_mix_{k}", mix)

    def get_output_dim(self) -> int:
        """2D."""
        return cast(_ElmoBiLm, self._elmo_lstm).get_output_dim()

    def forward(self, inputs: Tensor, word_inputs: Tensor | None = None) -> dict[str, Any]:
        """inputs (B, ..., T, 50), word_inputs (B, ..., T) -> {"elmo_representations": [(B, ..., T,
        2D)], "mask": bool}.

        `word_inputs` are indices into `vocab_to_cache`, 0 for padding; if given, they replace
        `inputs`.
        """
        if word_inputs is not None and not self._has_cached_vocab:
            warn_once(
                "word_inputs is ignored without vocab_to_cache: the character ids are read instead"
            )
            word_inputs = None
        words = None if word_inputs is None else word_inputs.flatten(0, -2)
        out = self._elmo_lstm(inputs.flatten(0, -3) if inputs.dim() > 3 else inputs, words)
        layers, mask = torch.stack(out["activations"]), out["mask"]
        mixes = [self.get_submodule(f"scalar_mix_{k}") for k in range(len(self._scalar_mixes))]
        mixed = [mix(layers, mask) for mix in mixes]  # layer norm includes the boundaries
        if self._keep_sentence_boundaries:
            mixed = [representation * mask.unsqueeze(-1) for representation in mixed]
        else:
            mixed, mask = (
                [remove_sentence_boundaries(representation, mask)[0] for representation in mixed],
                mask[:, 2:],
            )
        rows = inputs.shape[:-2] if word_inputs is None else word_inputs.shape[:-1]
        return {
            "elmo_representations": [
                self._dropout(representation).unflatten(0, rows) for representation in mixed
            ],
            "mask": mask.unflatten(0, rows),
        }


class ElmoTokenEmbedder(nn.Module, FromParams):
    """One representation of `Elmo`, projected to `projection_dim` if given."""

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
        mix = False, scalar_mix_parameters
        self._elmo = Elmo(
            options_file,
            weight_file,
            1,
            requires_grad,
            do_layer_norm,
            dropout,
            vocab_to_cache,
            *mix,
        )
        dim = self._elmo.get_output_dim()
        self._projection = nn.Linear(dim, projection_dim) if projection_dim else None
        self.output_dim = projection_dim or dim

    def get_output_dim(self) -> int:
        """`projection_dim`, or 2D without a projection."""
        return self.output_dim

    def forward(
        self,
        elmo_tokens: Tensor | None = None,
        word_inputs: Tensor | None = None,
        *,
        inputs: Tensor | None = None,
    ) -> Tensor:
        """elmo_tokens (B, ..., T, 50), word_inputs (B, ..., T) -> (B, ..., T, output dim).

        Before version 1.0, AllenNLP called the first argument `inputs`.
        """
        ids = inputs if elmo_tokens is None else elmo_tokens
        representation = self._elmo(ids, word_inputs)["elmo_representations"][0]
        return representation if self._projection is None else self._projection(representation)
