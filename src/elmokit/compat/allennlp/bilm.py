"""AllenNLP's biLM: `_ElmoBiLm`, `_ElmoCharacterEncoder` (modules/elmo.py) and `ElmoLstm`
(modules/elmo_lstm.py).

The modules hold the weights under AllenNLP's names and in AllenNLP's arrangement; of them
`_compute_with` makes elmokit's modules, which compute. Gradients flow through it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from elmokit.checkpoints import arranged, bilm_name, rearranged
from elmokit.compat.allennlp.common import ConfigurationError
from elmokit.compat.shared import (
    CarriedStates,
    local_path,
    open_bilm,
    warn_of_truncated,
    without_boundaries,
)
from elmokit.config import CharCNNConfig, LSTMConfig
from elmokit.fs import read_json
from elmokit.nn import (
    BidirectionalLSTM,
    BiLM,
    BiLMState,
    CharCNN,
    Prepacked,
    PrepackedBiLM,
    TokenEncoder,
    add_boundaries,
    has_hooks,
    in_full_width,
    shapes_only,
    uncompiled,
)
from elmokit.ops import pack_sentences, records_gradients
from elmokit.text import BOS, EOS, encode_words

CACHED_AT_ONCE = 4096

Module = TypeVar("Module", bound=nn.Module)


# --- Weights --------------------------------------------------------------------------------------


def _fill(module: nn.Module, prefix: str, bilm: BiLM, requires_grad: bool) -> None:
    """Give a module, which AllenNLP's biLM has under `prefix`, the weights of a biLM."""
    stored, forget_bias = bilm.state_dict(), bilm.config.lstm_for("AllenNLP's ELMo is").forget_bias
    for name in [name for name, _ in module.named_parameters()]:
        path, _, leaf = name.rpartition(".")
        ours = cast(str, bilm_name(prefix + name))
        tensor = arranged(ours, stored[ours], forget_bias)
        setattr(module.get_submodule(path), leaf, nn.Parameter(tensor, requires_grad))


def _weights(module: nn.Module, prefix: str) -> dict[str, Tensor]:
    """The weights, as they are now, of a module that AllenNLP's biLM has under `prefix`."""
    return {prefix + name: attrgetter(name)(module) for name in cast(list[str], module._names)}


def _compute_with(
    weights: Mapping[str, Tensor], create: Callable[[], Module], prefix: str = ""
) -> Module:
    """A module of elmokit's, which a `BiLM` has under `prefix`, with weights by AllenNLP's
    names.
    """
    with shapes_only():
        module = create()
    for name, tensor in weights.items():
        ours = cast(str, bilm_name(name))
        path, _, leaf = ours.removeprefix(prefix).rpartition(".")
        # The row of characters that are 0 comes first in AllenNLP, and last here: see
        # `_characters`.
        weight = tensor.roll(-1, 0) if leaf == "char_embedding" else rearranged(ours, tensor, 0.0)
        module.get_submodule(path)._parameters[leaf] = cast(nn.Parameter, weight)
    return module


def _characters(ids: Tensor, config: CharCNNConfig) -> Tensor:
    """Character ids of words (U, C) as `CharCNN` reads them with a row for the ids that are 0
    inside a word.
    """
    return in_full_width(ids.masked_fill(ids == 0, config.num_characters + 1), config)


def _open(options_file: str | Path | None, weight_file: str | Path | None) -> BiLM:
    bilm = open_bilm(options_file, weight_file)
    if bilm.config.char_cnn is None or bilm.config.lstm is None:
        raise ConfigurationError(
            "AllenNLP's ELMo has LSTMs over the UTF-8 bytes of words, unlike this model: use "
            "elmokit.Embedder, or for word ids compat.bilm_tf"
        )
    return bilm


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
    """Remove <S> and </S>: (B, T+2, D) and mask (B, T+2) -> (B, T, D), zero at padding, and mask
    (B, T) bool.
    """
    return without_boundaries(tensor, mask.bool())


# --- Modules --------------------------------------------------------------------------------------


class Highway(nn.Module):
    """The weights of AllenNLP's highway layers."""

    def __init__(self, input_dim: int, num_layers: int) -> None:
        super().__init__()
        self._layers = nn.ModuleList(nn.Linear(input_dim, 2 * input_dim) for _ in range(num_layers))


class _ElmoCharacterEncoder(nn.Module):
    """AllenNLP's character encoder: character ids without boundaries -> token vectors with
    boundaries.
    """

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
        self._config = config = cast(CharCNNConfig, bilm.config.char_cnn)
        self.max_characters = config.max_characters
        self.output_dim = bilm.config.sequence_encoder.projection_dim
        with shapes_only():
            self._char_embedding_weights = nn.Parameter(
                torch.empty(config.num_characters + 1, config.embedding_dim)
            )
            for number, (width, filters) in enumerate(config.filters):
                self.add_module(
                    f"char_conv_{number}", nn.Conv1d(config.embedding_dim, filters, width)
                )
            self._highways = Highway(config.num_filters, config.num_highway)
            if config.num_filters != self.output_dim:
                self._projection = nn.Linear(config.num_filters, self.output_dim)
        _fill(self, "_token_embedder.", bilm, requires_grad)
        self._names = [name for name, _ in self.named_parameters()]

    def get_output_dim(self) -> int:
        """D."""
        return self.output_dim

    def check_ids(self, ids: Tensor) -> None:
        """ConfigurationError unless these are ids of words with at most as many characters as the
        model reads.
        """
        if ids.dim() != 3 or ids.shape[-1] > self.max_characters:
            raise ConfigurationError(
                f"ELMo needs character ids (B, T, {self.max_characters}), not {tuple(ids.shape)}: "
                f"pass elmokit.batch_to_ids(sentences, {self.max_characters})"
            )

    def forward(self, inputs: Tensor) -> dict[str, Tensor]:
        """inputs (B, T, 50) -> {"token_embedding": (B, T+2, D), zero at padding, "mask": (B, T+2)
        bool}.
        """
        self.check_ids(inputs)
        weights = _weights(self, "_token_embedder.")
        encoder = _compute_with(
            weights, lambda: CharCNN(self._config, self.output_dim), "token_encoder."
        )
        ids = add_boundaries(inputs, cast(TokenEncoder, encoder))
        mask = encoder.is_word(ids)
        words = encoder(_characters(ids[mask], self._config))
        return {
            "token_embedding": words.new_zeros(*mask.shape, words.shape[1]).index_put(
                (mask,), words
            ),
            "mask": mask,
        }


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

    def __init__(self, config: LSTMConfig) -> None:
        super().__init__()
        self.input_size = self.hidden_size = config.projection_dim
        self.cell_size, self.num_layers, self._config = config.cell_dim, config.num_layers, config
        for number in range(config.num_layers):
            for direction in ("forward", "backward"):
                self.add_module(f"{direction}_layer_{number}", LstmCellWithProjection(config))
        self._names = [name for name, _ in self.named_parameters()]

    def encoder(self) -> BidirectionalLSTM:
        """The LSTMs with their weights as they are now."""
        weights = _weights(self, "_elmo_lstm.")
        return _compute_with(weights, lambda: BidirectionalLSTM(self._config), "sequence_encoder.")

    def forward(self, inputs: Tensor, mask: Tensor) -> Tensor:
        """Token vectors (B, T, D), mask (B, T) -> the layers without the token layer (L, B, T,
        2D).
        """
        words = inputs[mask.bool()]
        return self.run(self.encoder(), words, torch.arange(len(words)), mask.bool())[1:]

    def run(self, encoder: nn.Module, words: Tensor, tokens: Tensor, mask: Tensor) -> Tensor:
        """Run an encoder with these weights from the carried state, and update that.

        Args:
            encoder: The result of `encoder`, or its prepacked form.
            words: Vectors of distinct words (U, D).
            tokens: Index into them for each True of the mask (N,).
            mask: (B, T) bool.

        Returns:
            The layers, the token vectors first, (L+1, B, T, 2D), zero where the mask is False.
        """
        text = pack_sentences(
            mask.sum(dim=1).cpu().numpy(), range(len(mask)), len(mask), reset=False
        )
        streams = text.to_streams(tokens.cpu().expand(2, -1)).to(words.device)
        words = words.to(torch.promote_types(words.dtype, torch.float32))
        initial = self.initial(len(mask), words.device) or BiLMState.zeros(
            self._config, len(mask), words
        )
        outputs, state = encoder(words, streams, text.packing, initial, None, 0.0)
        self.update(state)
        layers = outputs.new_zeros(len(outputs), *mask.shape, 2 * outputs.shape[-1])
        layers[:, mask] = torch.stack([text.unpack(output) for output in outputs])
        return layers

    @property
    def _states(self) -> tuple[Tensor, Tensor] | None:
        """The state in AllenNLP's format, (L, B, 2D) and (L, B, 2H), forward and backward side by
        side; None for zeros.

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


def _is_unchanged(module: Any, kind: type[nn.Module]) -> bool:
    """Whether a module is what it was at first; otherwise it is called, so that hooks and other
    modules have effect.
    """
    return type(module) is kind and not has_hooks([module])


class _ElmoBiLm(nn.Module):
    """AllenNLP's biLM: character ids without boundaries -> all layers with boundaries. State is
    carried between calls.

    As in AllenNLP, `_elmo_lstm.stateful = False`, `_elmo_lstm.reset_states()` and
    `_elmo_lstm._states` control the state, `_token_embedder` is the token layer, `_word_embedding`
    the vectors of `vocab_to_cache`, and `num_layers` is L + 1.
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
        lstm = replace(
            cast(LSTMConfig, bilm.config.lstm), forget_bias=0.0
        )  # AllenNLP's weights contain it
        self._config = replace(bilm.config, lstm=lstm)
        self._requires_grad, self.num_layers = requires_grad, bilm.config.num_representations
        self._token_embedder = _ElmoCharacterEncoder(
            options_file, weight_file, requires_grad, bilm=bilm
        )
        with shapes_only():
            self._elmo_lstm = ElmoLstm(lstm)
        _fill(self._elmo_lstm, "_elmo_lstm.", bilm, requires_grad)
        self._prepacked = Prepacked()
        self.register_module("_word_embedding", None)
        for name in ("_bos_embedding", "_eos_embedding"):
            self.register_buffer(name, None, persistent=False)
        if vocab_to_cache:
            self.create_cached_cnn_embeddings(vocab_to_cache)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        # Not weights: some versions saved these, too; or vectors of a cached vocabulary, which this
        # module has not.
        derived = [
            f"_token_embedder._{mark}_of_sentence_characters" for mark in ("beginning", "end")
        ]
        for name in (
            derived if self._word_embedding is not None else [*derived, "_word_embedding.weight"]
        ):
            state_dict.pop(prefix + name, None)
        super()._load_from_state_dict(state_dict, prefix, *others)

    @torch.no_grad()
    def create_cached_cnn_embeddings(self, tokens: Sequence[str]) -> None:
        """Let `word_inputs` of `forward` be indices into `tokens`, of which the first stands for
        padding.

        As in AllenNLP, their vectors are computed now, and are weights of their own from then on.
        """
        width = self._token_embedder.max_characters
        warn_of_truncated(tokens, width, "AllenNLP")
        ids = torch.from_numpy(encode_words([BOS, EOS, *tokens], width)).to(
            next(self.parameters()).device
        )
        vectors = []
        for part in ids.split(CACHED_AT_ONCE):
            words, positions, _ = self._words(self._bilm(), part.unsqueeze(0), None)
            vectors.append(words[positions[1:-1]])  # without the boundaries
        vectors = torch.cat(vectors)
        self._bos_embedding, self._eos_embedding = vectors[:1], vectors[1:2]
        self._word_embedding = nn.Embedding.from_pretrained(
            vectors[2:], not self._requires_grad, padding_idx=0
        )

    def get_output_dim(self) -> int:
        """2D."""
        return self._config.output_dim

    def forward(self, inputs: Tensor, word_inputs: Tensor | None = None) -> dict[str, Any]:
        """inputs (B, T, 50), word_inputs (B, T) -> {"activations": L+1 times (B, T+2, 2D), "mask":
        (B, T+2) bool}.

        With a cached vocabulary, `inputs` are read only if a word is not in it; otherwise they may
        be any tensor, such as the word ids again.
        """
        return uncompiled(self._forward)(inputs, word_inputs)

    def _forward(self, inputs: Tensor, word_inputs: Tensor | None) -> dict[str, Any]:
        lstm = self._elmo_lstm
        if not _is_unchanged(lstm, ElmoLstm):
            words, tokens, mask = self._words(None, inputs, word_inputs)
            vectors = words.new_zeros(*mask.shape, words.shape[1]).index_put((mask,), words[tokens])
            return {
                "activations": [torch.cat([vectors, vectors], dim=-1), *lstm(vectors, mask)],
                "mask": mask,
            }
        bilm = self._bilm()
        words, tokens, mask = self._words(bilm, inputs, word_inputs)
        learns_words_only = isinstance(bilm, PrepackedBiLM) and records_gradients(
            words
        )  # prepacked LSTMs have no gradients
        encoder = lstm.encoder() if learns_words_only else bilm.sequence_encoder
        return {"activations": list(lstm.run(encoder, words, tokens, mask)), "mask": mask}

    def _bilm(self) -> BiLM:
        """The biLM with the weights as they are now; without the token layer if that is not the
        original one.
        """
        weights, config = _weights(self._elmo_lstm, "_elmo_lstm."), self._config
        if _is_unchanged(getattr(self, "_token_embedder", None), _ElmoCharacterEncoder):
            weights |= _weights(self._token_embedder, "_token_embedder.")
        else:
            config = replace(config, char_cnn=None, num_words=2)
        return self._prepacked.bilm(
            [*weights.values()], lambda: _compute_with(weights, lambda: BiLM(config))
        )

    def _words(
        self, bilm: BiLM | None, inputs: Tensor, word_inputs: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Vectors of distinct words (U, D), the one at each True of the mask (N,), and the mask (B,
        T+2).
        """
        embedding = self._word_embedding
        if (
            word_inputs is not None
            and embedding is not None
            and bool((word_inputs < embedding.num_embeddings).all())
        ):
            begin = embedding.num_embeddings
            ids, mask = add_sentence_boundary_token_ids(
                word_inputs, word_inputs > 0, begin, begin + 1
            )
            distinct, tokens = torch.unique(ids[mask], return_inverse=True)  # the marks come last
            return (
                torch.cat([embedding(distinct[:-2]), self._bos_embedding, self._eos_embedding]),
                tokens,
                mask,
            )
        if (
            word_inputs is not None
            and embedding is not None
            and word_inputs.shape != inputs.shape[:2]
        ):
            raise ConfigurationError(
                "a word is not in the cached vocabulary: pass batch_to_ids(sentences) as inputs"
            )
        embedder = cast(Any, self._token_embedder)
        if bilm is None or bilm.config.char_cnn is None:
            embedded = embedder(inputs)
            mask = embedded["mask"].bool()
            words = embedded["token_embedding"][mask]
            return words, torch.arange(len(words), device=words.device), mask
        embedder.check_ids(inputs)
        ids = add_boundaries(inputs, bilm.token_encoder)
        mask = bilm.token_encoder.is_word(ids)
        distinct, tokens = torch.unique(ids[mask], dim=0, return_inverse=True)
        return bilm.token_encoder(_characters(distinct, bilm.config.char_cnn)), tokens, mask
