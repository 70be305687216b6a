"""TensorFlow Hub's `google/elmo` without TensorFlow: `Module`, and `load` with its signatures.

A handle is a path or name that `elmokit.load` accepts, or a URL whose module is in TensorFlow Hub's cache. Results are
torch tensors; there are no sessions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from elmokit.compat.carried import without_boundaries
from elmokit.compat.notice import warn_once
from elmokit.compat.weights import open_hub_module
from elmokit.nn.elmo import add_boundaries
from elmokit.nn.inference import Frozen
from elmokit.nn.scalar_mix import ScalarMix
from elmokit.text.characters import count_truncated, encode_sentences


def _strings(values: Any, dimensions: int, name: str) -> list[Any]:
    """Convert lists, NumPy arrays or eager tensors of str or UTF-8 bytes to nested lists of str."""
    array = np.asarray(values, dtype=object)
    if array.ndim != dimensions:
        raise ValueError(f"{name} must be strings in {dimensions} dimensions, not {array.ndim}: pass a list")
    decoded = [value.decode() if isinstance(value, bytes) else str(value) for value in array.ravel()]
    return np.array(decoded, dtype=object).reshape(array.shape).tolist()


def _split(texts: Any) -> list[list[str]]:
    """Split texts as the signature `default` does: at spaces only."""
    return [[word for word in text.split(" ") if word] for text in _strings(texts, 1, "texts")]


def _rows(tokens: Any, sequence_len: Any) -> list[list[str]]:
    """The words of the signature `tokens`: the first `sequence_len` strings of each row."""
    rows, lengths = _strings(tokens, 2, "tokens"), np.asarray(sequence_len).reshape(-1).tolist()
    if len(rows) != len(lengths) or any(length > len(row) for row, length in zip(rows, lengths, strict=True)):
        raise ValueError(f"sequence_len is {lengths}: give the number of words of each of the {len(rows)} rows")
    return [row[:length] for row, length in zip(rows, lengths, strict=True)]


class Module(nn.Module):
    """The module of a handle. With `trainable`, the weights and gamma of the mix are trainable parameters.

    Every sentence starts from zeros, so that results do not depend on the batch.
    """

    def __init__(self, spec: str | Path, trainable: bool = False, name: str = "module") -> None:
        super().__init__()
        model = open_hub_module(spec)
        if model.config.char_cnn is None:
            raise ValueError(f"{spec} reads word ids, but google/elmo reads characters: use another model")
        self.name, self.max_characters = name, model.config.char_cnn.max_characters
        self.bilm = model.bilm.requires_grad_(False)
        self._frozen = Frozen()
        self.mix = ScalarMix(model.config.num_representations)
        if model.mix is not None:
            self.mix.weights.data = torch.tensor(model.mix.weights)
            self.mix.gamma.data = torch.tensor(model.mix.gamma)
        self.mix.requires_grad_(trainable)

    @property
    def signatures(self) -> Mapping[str, Callable[..., dict[str, Tensor]]]:
        """As in `hub.load(handle).signatures`: `default(texts)` and `tokens(tokens=..., sequence_len=...)`."""
        return {"default": self._default, "tokens": self._tokens}

    def get_signature_names(self) -> list[str]:
        """The names of the signatures."""
        return list(self.signatures)

    def forward(self, inputs: Any, signature: str = "default", as_dict: bool = False) -> Any:
        """Embed sentences.

        Args:
            inputs: Strings (B,); or with signature="tokens", {"tokens": (B, T), "sequence_len": (B,)}.
            signature: "default" or "tokens".
            as_dict: Return all outputs.

        Returns:
            With `as_dict`: word_emb (B, T, D), lstm_outputs1, lstm_outputs2 and elmo (B, T, 2D), zero at padding,
            default (B, 2D), the mean of elmo over the words, and sequence_len (B,). Otherwise default.

        Raises:
            ValueError: There is no such signature, or the inputs do not have its form.
        """
        if signature not in self.signatures:
            raise ValueError(f"signature must be one of {', '.join(self.signatures)}, not {signature!r}")
        call = self.signatures[signature]
        outputs = call(**inputs) if isinstance(inputs, Mapping) else call(inputs)
        return outputs if as_dict else outputs["default"]

    def _default(self, text: Any) -> dict[str, Tensor]:
        sentences = _split(text)
        return self._outputs(sentences, max(map(len, sentences), default=0))

    def _tokens(self, tokens: Any, sequence_len: Any) -> dict[str, Tensor]:
        return self._outputs(_rows(tokens, sequence_len), np.asarray(tokens, dtype=object).shape[1])

    def _outputs(self, sentences: list[list[str]], width: int) -> dict[str, Tensor]:
        """All outputs for sentences padded to `width` words."""
        layers, mask = self._layers(sentences, width)
        mixed, lengths = self.mix(layers), mask.sum(dim=1)
        outputs = {f"lstm_outputs{number}": layer for number, layer in enumerate(layers[1:], start=1)}
        return outputs | {
            "word_emb": layers[0].chunk(2, dim=-1)[0],
            "elmo": mixed,
            "default": mixed.sum(dim=1) / lengths.clamp(min=1).unsqueeze(1),
            "sequence_len": lengths,
        }

    @torch.no_grad()
    def _layers(self, sentences: list[list[str]], width: int) -> tuple[Tensor, Tensor]:
        """Layers (L+1, B, T, 2D), zero at padding, and mask (B, T)."""
        limit = self.max_characters - 2
        if count_truncated(list(chain.from_iterable(sentences)), self.max_characters):
            warn_once(f"some words have more than {limit} bytes: as in google/elmo, only the first {limit} are read")
        ids = np.zeros((len(sentences), width, self.max_characters), dtype=np.int64)
        encoded = encode_sentences(sentences, self.max_characters)
        ids[:, : encoded.shape[1]] = encoded
        device = self.mix.weights.device
        out = self._frozen.run(self.bilm, add_boundaries(torch.from_numpy(ids).to(device), self.bilm.token_encoder))
        return without_boundaries(out.layers, out.mask)


def load(handle: str | Path) -> Module:
    """`hub.load(handle)`; `load(handle).signatures["default"](texts)` returns all outputs."""
    return Module(handle)
