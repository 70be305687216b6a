"""AllenNLP's biLM: `_ElmoBiLm` and `_ElmoCharacterEncoder` (its modules/elmo.py), `ElmoLstm`.

The modules hold the weights under AllenNLP's names and in its arrangement. At every call, a `BiLM`
is made of these weights, which computes, and through which gradients flow to them; a frozen one is
prepacked and kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elmokit.checkpoints import from_allennlp, to_allennlp
from elmokit.compat.allennlp.common import ConfigurationError
from elmokit.compat.shared import (
    CarriedStates,
    local_path,
    open_model,
    warn_of_truncated,
    warn_once,
    without_boundaries,
)
from elmokit.config import PAD_CHARACTER, BiLMConfig, CharCNNConfig, LSTMConfig
from elmokit.fs import read_json
from elmokit.nn import BiLM, BiLMState, prepack
from elmokit.runtime import disable_compile, init_on_meta
from elmokit.text import BOS, EOS, encode_words

CACHED_AT_ONCE, SMALL = 4096, 1 << 16
FORWARDS = (nn.Module.forward, nn.Linear.forward, nn.Conv1d.forward)  # of the modules within


# --- Weights --------------------------------------------------------------------------------------


def _fill(module: nn.Module, prefix: str, bilm: BiLM, requires_grad: bool) -> None:
    """Give a module, which AllenNLP's biLM has under `prefix`, the weights of a biLM."""
    names = [name for name, _ in module.named_parameters()]
    weights = to_allennlp(bilm, [prefix + name for name in names])
    module.load_state_dict(dict(zip(names, weights.values(), strict=True)), assign=True)
    module.requires_grad_(requires_grad)
    module._names = cast(Any, names)


def _has_hooks(module: nn.Module) -> bool:
    kinds = ("forward", "forward_pre", "backward", "backward_pre")
    return any(getattr(module, f"_{kind}_hooks") for kind in kinds)


def _is_original(module: Any, kind: type[nn.Module]) -> bool:
    """Whether the module has the given type and no hooks; others are called."""
    return type(module) is kind and not _has_hooks(module)


def _weights(module: nn.Module, prefix: str) -> dict[str, Tensor]:
    """The weights, as they are now, of a module that AllenNLP's biLM has under `prefix`.

    Raises:
        ConfigurationError: A module within it is not AllenNLP's.
    """
    for name, inner in module.named_modules():
        if not name or "parametrizations" in name:  # parametrizations change the weights
            continue
        if getattr(inner.forward, "__func__", None) not in FORWARDS:
            raise ConfigurationError(
                f"elmokit would not call {prefix}{name}, which is not AllenNLP's: replace all of "
                "_elmo_lstm or _token_embedder"
            )
        if _has_hooks(inner):  # AllenNLP's own trainer hooks all modules
            warn_once(
                "hooks on modules inside _elmo_lstm and _token_embedder are not called, since "
                "elmokit computes these as a whole: hook the whole of either"
            )
    return {prefix + name: attrgetter(name)(module) for name in cast(list[str], module._names)}


def _sample(weight: Tensor) -> Tensor:
    """Values for detecting changes: all of a small weight, else a row and a column."""
    matrix = weight.detach().reshape(len(weight), -1)
    if weight.numel() <= SMALL:
        return matrix.flatten()
    return torch.cat([matrix[0], matrix[:, 0]])


def _open(options_file: str | Path | None, weight_file: str | Path | None) -> BiLM:
    bilm = open_model(options_file, weight_file).bilm
    if bilm.config.char_cnn is None or bilm.config.lstm is None:
        raise ConfigurationError(
            "AllenNLP's ELMo has LSTMs over the UTF-8 bytes of words, unlike this model: use "
            "elmokit.Embedder, or for word ids compat.bilm_tf"
        )
    return bilm


def _config_of(bilm: BiLM) -> BiLMConfig:
    """The configuration for AllenNLP's biases, which contain the forget bias."""
    lstm = cast(LSTMConfig, bilm.config.lstm)
    return replace(bilm.config, lstm=replace(lstm, forget_bias=0.0))


# --- Boundaries (nn/util.py) ----------------------------------------------------------------------


def add_sentence_boundary_token_ids(
    tensor: Tensor, mask: Tensor, sentence_begin_token: Any, sentence_end_token: Any
) -> tuple[Tensor, Tensor]:
    """Put <S> before and </S> after the words of each row.

    Args:
        tensor: Ids or vectors of words, (B, T) or (B, T, D), padded at the right.
        mask: (B, T), True or 1 for a word.
        sentence_begin_token: The id of <S>, or its vector (D,).
        sentence_end_token: The id of </S>, or its vector (D,).

    Returns:
        (B, T+2) or (B, T+2, D), and its mask (B, T+2) bool: an id other than 0, or a vector with
        any value above 0.
    """
    bounded = tensor.new_zeros(tensor.shape[0], tensor.shape[1] + 2, *tensor.shape[2:])
    bounded[:, 1:-1] = tensor
    bounded[:, 0] = sentence_begin_token
    bounded[torch.arange(len(tensor)), mask.sum(dim=1).cpu() + 1] = sentence_end_token
    return bounded, bounded != 0 if bounded.dim() == 2 else (bounded > 0).any(dim=-1)


def remove_sentence_boundaries(tensor: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Remove <S> and </S>: (B, T+2, D), (B, T+2) -> (B, T, D), zero at padding, and mask (B, T)."""
    return without_boundaries(tensor, mask.bool())


# --- Modules --------------------------------------------------------------------------------------


class Highway(nn.Module):
    """The weights of AllenNLP's highway layers."""

    def __init__(self, input_dim: int, num_layers: int) -> None:
        super().__init__()
        self._layers = nn.ModuleList(nn.Linear(input_dim, 2 * input_dim) for _ in range(num_layers))


class _ElmoCharacterEncoder(nn.Module):
    """Character ids without boundaries -> token vectors with boundaries."""

    def __init__(
        self,
        options_file: str | Path | None,
        weight_file: str | Path | None,
        requires_grad: bool = False,
        *,
        bilm: BiLM | None = None,
    ) -> None:
        """`bilm` has the weights, if they have been read before."""
        super().__init__()
        bilm = bilm or _open(options_file, weight_file)
        self._options = None if options_file is None else read_json(local_path(options_file))
        self._weight_file, self.requires_grad = weight_file, requires_grad
        self._config, cnn = _config_of(bilm), cast(CharCNNConfig, bilm.config.char_cnn)
        self.max_characters, self._zero = cnn.max_characters, cnn.num_characters + 1
        self.output_dim = bilm.config.sequence_encoder.projection_dim
        with init_on_meta():
            table = torch.empty(cnn.num_characters + 1, cnn.embedding_dim)
            self._char_embedding_weights = nn.Parameter(table)
            for number, (width, filters) in enumerate(cnn.filters):
                convolution = nn.Conv1d(cnn.embedding_dim, filters, width)
                self.add_module(f"char_conv_{number}", convolution)
            self._highways = Highway(cnn.num_filters, cnn.num_highway)
            if cnn.num_filters != self.output_dim:
                self._projection = nn.Linear(cnn.num_filters, self.output_dim)
        _fill(self, "_token_embedder.", bilm, requires_grad)

    def get_output_dim(self) -> int:
        """D."""
        return self.output_dim

    def weights(self) -> dict[str, Tensor]:
        """The weights as they are now; the characters' row 0 comes last, too: see `words`."""
        weights = _weights(self, "_token_embedder.")
        table = self._char_embedding_weights
        return weights | {"_token_embedder._char_embedding_weights": torch.cat([table, table[:1]])}

    def bounded(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Character ids (B, T, C) between those of <S> and </S>, (B, T+2, C), and the mask.

        Raises:
            ConfigurationError: A word has more characters than the model reads.
            ValueError: There is padding before a word.
        """
        if inputs.dim() != 3 or inputs.shape[-1] > self.max_characters:
            raise ConfigurationError(
                f"ELMo needs character ids (B, T, {self.max_characters}), not "
                f"{tuple(inputs.shape)}: batch_to_ids(sentences, {self.max_characters}) of elmokit"
            )
        mask = (inputs > 0).any(dim=-1)
        if (mask[:, 1:] & ~mask[:, :-1]).any():
            raise ValueError("each row must begin with its words, followed by padding (zeros)")
        marks = torch.from_numpy(encode_words([BOS, EOS], inputs.shape[-1])).to(inputs)
        return add_sentence_boundary_token_ids(inputs, mask, *marks)

    def words(self, encoder: nn.Module, ids: Tensor) -> Tensor:
        """Characters of words (U, C) -> their vectors (U, D) by an encoder with these weights."""
        ids = ids.masked_fill(ids == 0, self._zero)
        return encoder(F.pad(ids, (0, self.max_characters - ids.shape[1]), value=PAD_CHARACTER))

    def forward(self, inputs: Tensor) -> dict[str, Tensor]:
        """inputs (B, T, 50) -> {"token_embedding": (B, T+2, D), "mask": (B, T+2) bool}.

        As in AllenNLP, the vector at padding is that of a word of zeros.
        """
        ids, mask = self.bounded(inputs)
        distinct, positions = torch.unique(ids.flatten(0, 1), dim=0, return_inverse=True)
        encoder = from_allennlp(self._config, self.weights()).token_encoder
        words = self.words(encoder, distinct)
        return {"token_embedding": words[positions].view(*mask.shape, -1), "mask": mask}


class LstmCellWithProjection(nn.Module):
    """The weights of one layer in one direction."""

    def __init__(self, config: LSTMConfig) -> None:
        super().__init__()
        self.input_linearity = nn.Linear(config.projection_dim, 4 * config.cell_dim, bias=False)
        self.state_linearity = nn.Linear(config.projection_dim, 4 * config.cell_dim)
        if config.has_projection:
            self.state_projection = nn.Linear(config.cell_dim, config.projection_dim, bias=False)


class ElmoLstm(CarriedStates):
    """AllenNLP's `ElmoLstm`: the LSTMs of both directions, whose state is carried between calls."""

    def __init__(self, bilm: BiLM, requires_grad: bool) -> None:
        super().__init__()
        config = cast(LSTMConfig, _config_of(bilm).lstm)
        self.input_size = self.hidden_size = config.projection_dim
        self.cell_size, self.num_layers = config.cell_dim, config.num_layers
        self._config = BiLMConfig(config, None, num_words=2)  # its token layer is not used
        with init_on_meta():
            for number in range(config.num_layers):
                for direction in ("forward", "backward"):
                    self.add_module(f"{direction}_layer_{number}", LstmCellWithProjection(config))
        _fill(self, "_elmo_lstm.", bilm, requires_grad)

    def weights(self) -> dict[str, Tensor]:
        """The weights as they are now."""
        return _weights(self, "_elmo_lstm.")

    def forward(self, inputs: Tensor, mask: Tensor) -> Tensor:
        """Token vectors (B, T, D), mask (B, T) -> the layers above them (L, B, T, 2D)."""
        words = inputs[mask.bool()]
        bilm = from_allennlp(self._config, self.weights())
        return self.run(bilm, words, torch.arange(len(words)), mask.bool())[1:]

    def run(self, bilm: BiLM, words: Tensor, tokens: Tensor, mask: Tensor) -> Tensor:
        """`bilm.run_padded` from the carried state, which is updated: (L+1, B, T, 2D)."""
        out = bilm.run_padded(words, tokens, mask, self.initial(len(mask), words.device))
        self.update(out.state)
        return out.layers

    @property
    def _states(self) -> tuple[Tensor, Tensor] | None:
        """The state as AllenNLP has it, fwd and bwd side by side: (L, B, 2D), (L, B, 2H); or None.

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
    """AllenNLP's biLM: character ids without boundaries -> all layers with boundaries.

    State is carried between calls, and controlled by `_elmo_lstm.stateful = False`,
    `_elmo_lstm.reset_states()` and `_elmo_lstm._states`, as in AllenNLP. `_token_embedder` is the
    token layer, `_word_embedding` the vectors of `vocab_to_cache`, and `num_layers` is L + 1.
    """

    def __init__(
        self,
        options_file: str | Path | None,
        weight_file: str | Path | None,
        requires_grad: bool = False,
        vocab_to_cache: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        bilm = _open(options_file, weight_file)
        self._config, self._requires_grad = _config_of(bilm), requires_grad
        self.num_layers = bilm.config.num_representations
        self._token_embedder = _ElmoCharacterEncoder(
            options_file, weight_file, requires_grad, bilm=bilm
        )
        self._elmo_lstm = ElmoLstm(bilm, requires_grad)
        self._prepacked: tuple[Any, Tensor, BiLM] | None = None  # see `_bilm`
        self.register_module("_word_embedding", None)
        for name in ("_bos_embedding", "_eos_embedding"):
            self.register_buffer(name, None, persistent=False)
        if vocab_to_cache:
            self.create_cached_cnn_embeddings(vocab_to_cache)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_prepacked": None}  # copies and pickles prepack anew

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        # Saved by some versions, but no weights; or of a vocabulary that is not cached here.
        marks = ("beginning", "end")
        derived = [f"_token_embedder._{mark}_of_sentence_characters" for mark in marks]
        if self._word_embedding is None:
            derived.append("_word_embedding.weight")
        for name in derived:
            state_dict.pop(prefix + name, None)
        super()._load_from_state_dict(state_dict, prefix, *others)

    @torch.no_grad()
    def create_cached_cnn_embeddings(self, tokens: Sequence[str]) -> None:
        """Let `word_inputs` of `forward` be indices into `tokens`, the first of which is padding.

        As in AllenNLP, their vectors are computed now, and are weights of their own from then on.
        """
        width = self._token_embedder.max_characters
        warn_of_truncated(tokens, width, "AllenNLP")
        encoder = self._bilm().token_encoder
        ids = torch.from_numpy(encode_words([BOS, EOS, *tokens], width))
        parts = ids.to(next(self.parameters()).device).split(CACHED_AT_ONCE)
        vectors = torch.cat([self._token_embedder.words(encoder, part) for part in parts])
        self._bos_embedding, self._eos_embedding = vectors[:1], vectors[1:2]
        vectors[2] = 0.0  # padding
        self._word_embedding = nn.Embedding.from_pretrained(
            vectors[2:], not self._requires_grad, padding_idx=0
        )

    def get_output_dim(self) -> int:
        """2D."""
        return self._config.output_dim

    @disable_compile
    def forward(self, inputs: Tensor, word_inputs: Tensor | None = None) -> dict[str, Any]:
        """inputs (B, T, 50), word_inputs (B, T) -> {"activations": [...], "mask": (B, T+2) bool}.

        The activations are L+1 times (B, T+2, 2D).

        With a cached vocabulary, `inputs` are read only if a word is not in it; otherwise they may
        be any tensor, such as the word ids again.
        """
        lstm, embedder = self._elmo_lstm, cast(Any, getattr(self, "_token_embedder", None))
        cached, bilm = self._cached(inputs, word_inputs), None
        if cached is not None:
            words, tokens, mask = cached
        elif _is_original(embedder, _ElmoCharacterEncoder):
            bilm = self._bilm()
            ids, mask = embedder.bounded(inputs)
            distinct, tokens = torch.unique(ids[mask], dim=0, return_inverse=True)
            words = embedder.words(bilm.token_encoder, distinct)
        else:
            embedded = embedder(inputs)
            mask = embedded["mask"].bool()
            words = embedded["token_embedding"][mask]
            tokens = torch.arange(len(words), device=words.device)
        if not _is_original(lstm, ElmoLstm):
            vectors = words.new_zeros(*mask.shape, words.shape[1]).index_put((mask,), words[tokens])
            layers = [torch.cat([vectors, vectors], dim=-1), *lstm(vectors, mask)]
        else:
            learns = words.requires_grad and torch.is_grad_enabled()
            layers = [*lstm.run(bilm or self._bilm(learns), words, tokens, mask)]
        return {"activations": layers, "mask": mask}

    def _bilm(self, learns: bool = False) -> BiLM:
        """The biLM with the weights as they are now, without a token layer that is not AllenNLP's.

        It is prepacked, and has no gradients, if all weights are frozen, unless `learns`.
        """
        config, weights = self._elmo_lstm._config, self._elmo_lstm.weights()
        embedder = cast(Any, getattr(self, "_token_embedder", None))
        if _is_original(embedder, _ElmoCharacterEncoder):
            config, weights = self._config, weights | embedder.weights()
        device = next(iter(weights.values())).device.type
        learns |= any(weight.requires_grad for weight in weights.values())
        if learns or torch.is_autocast_enabled(device):
            self._prepacked = None
            return from_allennlp(config, weights)
        # PyTorch's counters miss what old programs write through `.data`, which the samples show.
        counts = [0 if weight.is_inference() else weight._version for weight in weights.values()]
        samples, kept = torch.cat([*map(_sample, weights.values())]), self._prepacked
        if kept is None or kept[0] != (counts, samples.device) or not torch.equal(kept[1], samples):
            kept = self._prepacked = None  # frees its memory first
            bilm = prepack(from_allennlp(config, weights), None)
            kept = self._prepacked = (counts, samples.device), samples, bilm
        return kept[2]

    def _cached(
        self, inputs: Tensor, word_inputs: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        """Vectors, tokens and mask (see `run_padded`), if all words are in the vocabulary."""
        embedding = self._word_embedding
        if word_inputs is None or embedding is None:
            return None
        size = embedding.num_embeddings
        if bool((word_inputs < size).all()):
            ids, mask = add_sentence_boundary_token_ids(
                word_inputs, word_inputs > 0, size, size + 1
            )
            distinct, tokens = torch.unique(ids[mask], return_inverse=True)  # the marks come last
            words = [embedding(distinct[:-2]), self._bos_embedding, self._eos_embedding]
            return torch.cat(words), tokens, mask
        if word_inputs.shape != inputs.shape[:2]:
            raise ConfigurationError(
                "a word is not in the cached vocabulary: pass batch_to_ids(sentences) as inputs"
            )
        return None
