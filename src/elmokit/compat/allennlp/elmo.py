"""AllenNLP's `batch_to_ids`, `Elmo`, `_ElmoBiLm` and `_ElmoCharacterEncoder` (modules/elmo.py)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from elmokit.checkpoints.formats.allennlp_weights import translate
from elmokit.compat.allennlp.boundaries import remove_sentence_boundaries
from elmokit.compat.allennlp.configuration import ConfigurationError, FromParams
from elmokit.compat.allennlp.indexer import ELMoCharacterMapper, ELMoTokenCharactersIndexer
from elmokit.compat.allennlp.scalar_mix import ScalarMix
from elmokit.compat.carried import CarriedStates
from elmokit.compat.notice import warn_of_strings, warn_of_truncated, warn_once
from elmokit.compat.weights import open_bilm
from elmokit.compat.zero_characters import encode_words, run_bilm
from elmokit.config import LSTMConfig
from elmokit.nn.bilm import BiLM, BiLMState, in_full_width
from elmokit.nn.elmo import add_boundaries
from elmokit.nn.inference import Frozen
from elmokit.nn.token_encoders import CharCNN, TokenEncoder
from elmokit.text.characters import MAX_CHARACTERS, encode_sentences
from elmokit.text.characters import encode_words as encode_words_as_ids

# `from allennlp.modules.elmo import ...` found these there too.
__all__ = [
    "ConfigurationError",
    "ELMoCharacterMapper",
    "ELMoTokenCharactersIndexer",
    "Elmo",
    "ScalarMix",
    "_ElmoBiLm",
    "_ElmoCharacterEncoder",
    "batch_to_ids",
    "remove_sentence_boundaries",
]


def batch_to_ids(batch: Sequence[Sequence[str]]) -> Tensor:
    """Tokenized sentences -> character ids (B, T, 50) int64, without boundaries, zeros for padding."""
    return ids_of_width(batch, MAX_CHARACTERS)


def ids_of_width(batch: Sequence[Sequence[str]], max_characters: int) -> Tensor:
    """`batch_to_ids` for models that read another number of characters: (B, T, max_characters) int64."""
    warn_of_strings(batch)
    warn_of_truncated(chain.from_iterable(batch), max_characters, "AllenNLP")
    return torch.from_numpy(encode_sentences(batch, max_characters)).long()


def _check_width(ids: Tensor, max_characters: int) -> None:
    """ConfigurationError for ids with more characters than the model reads, which failed in AllenNLP, too."""
    if ids.shape[-1] > max_characters:
        raise ConfigurationError(
            f"this model reads {max_characters} characters of a word, not {ids.shape[-1]}: use "
            f"elmokit.batch_to_ids(sentences, {max_characters}) in place of AllenNLP's batch_to_ids"
        )


class _CharacterEncoder(nn.Module):
    """The token layer of a biLM: character ids without boundaries -> token vectors with boundaries."""

    def __init__(self, encoder: CharCNN) -> None:
        super().__init__()
        self._encoder = encoder
        self.output_dim = encoder.config.num_filters if encoder.projection is None else encoder.projection.out_features

    def get_output_dim(self) -> int:
        """D."""
        return self.output_dim

    def forward(self, inputs: Tensor) -> dict[str, Tensor]:
        """inputs (B, T, 50) -> {"token_embedding": (B, T+2, D), zero at padding, "mask": (B, T+2) bool}."""
        _check_width(inputs, self._encoder.config.max_characters)
        ids = add_boundaries(inputs, cast(TokenEncoder, self._encoder))
        mask = self._encoder.is_word(ids)
        words = encode_words(self._encoder, in_full_width(ids[mask], self._encoder.config))
        return {"token_embedding": words.new_zeros(*mask.shape, words.shape[1]).index_put((mask,), words), "mask": mask}


class _ElmoCharacterEncoder(_CharacterEncoder):
    """AllenNLP's character encoder, from files."""

    def __init__(
        self, options_file: str | Path | None, weight_file: str | Path | None, requires_grad: bool = False
    ) -> None:
        encoder = _open_characters(options_file, weight_file).token_encoder
        super().__init__(cast(CharCNN, encoder).requires_grad_(requires_grad))


def _open_characters(options_file: str | Path | None, weight_file: str | Path | None) -> BiLM:
    bilm = open_bilm(options_file, weight_file)
    if bilm.config.char_cnn is None:
        raise ConfigurationError(
            "AllenNLP's ELMo reads the UTF-8 bytes of words but this biLM does not: use elmokit.Embedder, or for word "
            "ids compat.bilm_tf"
        )
    if bilm.config.lstm is None:
        raise ConfigurationError(
            f"AllenNLP's ELMo has LSTMs but this biLM has {bilm.config.encoder_name}: use elmokit.Elmo"
        )
    return bilm


class _ElmoLstm(CarriedStates):
    """The state and the sizes of AllenNLP's `ElmoLstm`; its weights are in the biLM."""

    def __init__(self, config: LSTMConfig) -> None:
        super().__init__()
        self.input_size = self.hidden_size = config.projection_dim
        self.cell_size, self.num_layers = config.cell_dim, config.num_layers

    @property
    def _states(self) -> tuple[Tensor, Tensor] | None:
        """The state in AllenNLP's format, (L, B, 2D) and (L, B, 2H), forward and backward side by side; None for zeros.

        It can be set, and its tensors can be changed in place: the state is a view of them.
        """
        if self._current is None:
            return None
        h, c = (part.permute(1, 2, 0, 3).flatten(-2) for part in (self._current.h, self._current.c))
        self._states = h, c
        return h, c

    @_states.setter
    def _states(self, states: Sequence[Tensor] | None) -> None:
        self._current = None
        if states is not None:
            h, c = (part.unflatten(-1, (2, -1)).permute(2, 0, 1, 3) for part in states)
            self._current = BiLMState(h, c)


class _ElmoBiLm(nn.Module):
    """AllenNLP's biLM: character ids without boundaries -> all layers with boundaries. State is carried between calls.

    As in AllenNLP, `_elmo_lstm.stateful = False`, `_elmo_lstm.reset_states()` and `_elmo_lstm._states` control the
    state, `_token_embedder` is the token layer, and `num_layers` is L + 1.
    """

    def __init__(
        self,
        options_file: str | Path | None,
        weight_file: str | Path | None,
        requires_grad: bool = False,
        vocab_to_cache: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        self._bilm = _open_characters(options_file, weight_file).requires_grad_(requires_grad)
        self._lstm_config = self._bilm.config.lstm_for("AllenNLP's ELMo is")
        self.max_characters = cast(CharCNN, self._bilm.token_encoder).config.max_characters
        self._elmo_lstm = _ElmoLstm(self._lstm_config)
        self._frozen = Frozen()
        self.num_layers = self._bilm.config.num_representations
        self.register_buffer("_cached_words", None, persistent=False)
        if vocab_to_cache is not None:
            self.create_cached_cnn_embeddings(vocab_to_cache)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        translate(state_dict, prefix, "_bilm", self._lstm_config.forget_bias)
        super()._load_from_state_dict(state_dict, prefix, *others)

    @property
    def _token_embedder(self) -> _CharacterEncoder:
        return _CharacterEncoder(cast(CharCNN, self._bilm.token_encoder))

    def create_cached_cnn_embeddings(self, tokens: Sequence[str]) -> None:
        """Let `word_inputs` of `forward` be indices into `tokens`, of which the first stands for padding."""
        # Each distinct word of a batch is encoded once anyway, so the cache holds character ids instead of vectors,
        # which would become stale when the weights change.
        warn_of_truncated(tokens, self.max_characters, "AllenNLP")
        ids = encode_words_as_ids(tokens, self.max_characters)
        self._cached_words = torch.from_numpy(ids).to(self._bilm.device)

    def get_output_dim(self) -> int:
        """2D."""
        return self._bilm.config.output_dim

    def forward(self, inputs: Tensor, word_inputs: Tensor | None = None) -> dict[str, Any]:
        """inputs (B, T, 50), word_inputs (B, T) -> {"activations": L+1 times (B, T+2, 2D), "mask": (B, T+2) bool}.

        With a cached vocabulary, `inputs` are read only if a word is not in it; otherwise they may be any tensor, such
        as the word ids again.
        """
        ids = add_boundaries(self._character_ids(inputs, word_inputs), self._bilm.token_encoder)
        out = run_bilm(self._frozen, self._bilm, ids, self._elmo_lstm.initial(len(ids), ids.device))
        self._elmo_lstm.update(out.state)
        return {"activations": list(out.layers), "mask": out.mask}

    def _character_ids(self, inputs: Tensor, word_inputs: Tensor | None) -> Tensor:
        cached, words, missing = cast("Tensor | None", self._cached_words), inputs.shape[:2], ""
        if word_inputs is not None and cached is not None:
            if bool((word_inputs < len(cached)).all()):
                return cached[word_inputs].long() * (word_inputs > 0).unsqueeze(-1)
            words, missing = word_inputs.shape, ", as a word is not in the cached vocabulary"
        if inputs.dim() != 3 or inputs.shape[:2] != words:
            raise ConfigurationError(
                f"ELMo needs character ids (B, T, 50), not {tuple(inputs.shape)}{missing}: pass batch_to_ids(sentences)"
            )
        _check_width(inputs, self.max_characters)
        return inputs


class Elmo(nn.Module, FromParams):
    """AllenNLP's `Elmo`, with all its arguments: mixes of the biLM's layers. State is carried between calls.

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
            raise ConfigurationError("module excludes options_file and weight_file: set them to None")
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
        out = self._elmo_lstm(inputs.flatten(0, -3) if inputs.dim() > 3 else inputs, words)
        layers, mask = torch.stack(out["activations"]), out["mask"]
        mixed = [mix(layers, mask) for mix in self._scalar_mixes]  # layer norm includes the boundaries
        if self._keep_sentence_boundaries:
            mixed = [representation * mask.unsqueeze(-1) for representation in mixed]
        else:
            mixed, mask = [remove_sentence_boundaries(representation, mask)[0] for representation in mixed], mask[:, 2:]
        rows = inputs.shape[:-2] if word_inputs is None else word_inputs.shape[:-1]
        return {
            "elmo_representations": [self._dropout(representation).unflatten(0, rows) for representation in mixed],
            "mask": mask.unflatten(0, rows),
        }
