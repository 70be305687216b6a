"""TensorFlow Hub's `google/elmo` without TensorFlow.

A handle is a path or name that `elmokit.load` accepts, or a URL whose module is in TensorFlow Hub's
cache. Results are torch tensors; there are no sessions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from elmokit.compat.shared import open_hub_module, warn_of_truncated, warn_once
from elmokit.nn import Elmo, ScalarMix
from elmokit.text import encode_sentences


class HubTensor(Tensor):
    """A result that NumPy and TensorFlow can read; gradients end there."""

    def numpy(self, *, force: bool = False) -> np.ndarray:
        """The values."""
        if self.requires_grad:
            warn_once(
                "NumPy arrays carry no gradients, so the mix of a trainable module is not trained "
                "through them: use a PyTorch network, or set trainable=False"
            )
        return self.as_subclass(Tensor).detach().cpu().numpy()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.numpy(), dtype=dtype, copy=copy)


def _strings(values: Any, dimensions: int) -> list[Any]:
    """Convert lists, NumPy arrays or eager tensors of str or UTF-8 bytes to nested lists of str."""
    array = np.asarray(values, dtype=object)
    if array.ndim != dimensions or not all(isinstance(value, str | bytes) for value in array.flat):
        raise ValueError(
            f"the module reads strings in {dimensions} dimensions, not {type(values).__name__}: "
            "pass the texts themselves, and train on the vectors"
        )
    decoded = [value.decode() if isinstance(value, bytes) else str(value) for value in array.flat]
    return np.array(decoded, dtype=object).reshape(array.shape).tolist()


class Module(nn.Module):
    """Module for a handle; `trainable` makes the mix learnable.

    Every sentence starts from zeros, so that results do not depend on the batch.
    """

    def __init__(
        self, spec: str | Path, trainable: bool = False, name: str = "module", tags: Any = None
    ) -> None:
        """Load the module.

        Args:
            spec: The handle.
            trainable: Whether the mix is trained.
            name: Kept as `name`.
            tags: Ignored: there is one graph.
        """
        super().__init__()
        model = open_hub_module(spec)
        if model.config.char_cnn is None:
            raise ValueError(
                f"{spec} does not read words as UTF-8 bytes, as google/elmo does: use another model"
            )
        self.name, self.max_characters = name, model.config.char_cnn.max_characters
        self.elmo = Elmo(model.bilm, dropout=0.0)
        if model.mix is not None:
            self.mix.weights.data = torch.tensor(model.mix.weights)
            self.mix.gamma.data = torch.tensor(model.mix.gamma)
        self.mix.requires_grad_(trainable)

    @property
    def mix(self) -> ScalarMix:
        """The mix of the layers."""
        return cast(ScalarMix, self.elmo.mixes[0])

    @property
    def signatures(self) -> Mapping[str, Callable[..., dict[str, Tensor]]]:
        """`default(texts)` and `tokens(tokens=..., sequence_len=...)`, as in `hub.load(handle)`."""
        return {"default": self._default, "tokens": self._tokens}

    def forward(self, inputs: Any, signature: str | None = None, as_dict: bool = False) -> Any:
        """Embed sentences.

        Args:
            inputs: Strings (B,); or with signature="tokens", {"tokens": (B, T), "sequence_len":
                (B,)}.
            signature: "default", which None stands for, or "tokens".
            as_dict: Return all outputs.

        Returns:
            With `as_dict`: word_emb (B, T, D), lstm_outputs1, lstm_outputs2 and elmo (B, T, 2D),
            all zero at padding; default (B, 2D), the mean of elmo over the words; and sequence_len
            (B,). Otherwise default alone.

        Raises:
            KeyError: There is no such signature.
            TypeError: The inputs are not those of the signature.
            ValueError: They are not strings.
        """
        call = self.signatures[signature or "default"]
        outputs = call(**inputs) if isinstance(inputs, Mapping) else call(inputs)
        return outputs if as_dict else outputs["default"]

    def _default(self, text: Any) -> dict[str, Tensor]:
        sentences = [
            [word for word in text.split(" ") if word] for text in _strings(text, 1)
        ]  # at spaces only
        return self._outputs(sentences, max(map(len, sentences), default=0))

    def _tokens(self, tokens: Any, sequence_len: Any) -> dict[str, Tensor]:
        rows, lengths = _strings(tokens, 2), np.asarray(sequence_len).reshape(-1)
        sentences = [row[:length] for row, length in zip(rows, lengths, strict=True)]
        if any(
            sentence and not sentence[0] and any(row)
            for sentence, row in zip(sentences, rows, strict=True)
        ):
            warn_once(
                "tokens are padded at the left, where their first sequence_len are read: pad them "
                "at the right"
            )
        return self._outputs(sentences, max(map(len, rows), default=0))

    def _outputs(self, sentences: list[list[str]], width: int) -> dict[str, Tensor]:
        """All outputs for sentences padded to `width` words."""
        warn_of_truncated(chain.from_iterable(sentences), self.max_characters, "google/elmo")
        ids = torch.zeros(len(sentences), width, self.max_characters, dtype=torch.int64)
        encoded = torch.from_numpy(encode_sentences(sentences, self.max_characters))
        ids[:, : encoded.shape[1]] = encoded
        out = self.elmo.layers(ids.to(self.mix.gamma.device))
        layers, lengths = out.layers, out.mask.sum(dim=1)
        (mixed,) = self.elmo.mix(layers, out.mask)
        outputs = {
            f"lstm_outputs{number}": layer for number, layer in enumerate(layers[1:], start=1)
        }
        outputs |= {
            "word_emb": layers[0].chunk(2, dim=-1)[0],
            "elmo": mixed,
            "default": mixed.sum(dim=1) / lengths.clamp(min=1).unsqueeze(1),
            "sequence_len": lengths,
        }
        return {name: output.as_subclass(HubTensor) for name, output in outputs.items()}


class KerasLayer(nn.Module):
    """`hub.KerasLayer` for strings: a PyTorch module, not a Keras layer."""

    def __init__(
        self,
        handle: str | Path | Module,
        trainable: bool = False,
        *,
        signature: str | None = None,
        signature_outputs_as_dict: bool = False,
        output_key: str | None = None,
        name: str = "keras_layer",
        **ignored: Any,
    ) -> None:
        """Load a module, or take a loaded one.

        Args:
            handle: The module.
            trainable: Whether its mix is trained; ignored if `handle` is a loaded module.
            signature: "default", which None stands for, or "tokens".
            signature_outputs_as_dict: Return all outputs.
            output_key: The output to return; by default "default", unless
                `signature_outputs_as_dict` is set.
            name: Kept as `name`.
            ignored: `input_shape`, `output_shape`, `dtype`, `tags` and others that a graph would
                need.

        Raises:
            ValueError: Both `output_key` and `signature_outputs_as_dict` are set.
        """
        super().__init__()
        if signature_outputs_as_dict and output_key is not None:
            raise ValueError("signature_outputs_as_dict=True excludes output_key: leave one out")
        self.module = handle if isinstance(handle, Module) else Module(handle, trainable)
        self.name, self.trainable, self._signature = name, trainable, signature
        self._output_key = None if signature_outputs_as_dict else output_key or "default"

    def forward(self, inputs: Any, training: bool | None = None) -> Any:
        """Embed sentences; errors are those of `Module.forward`, or KeyError for an output."""
        outputs = self.module(inputs, self._signature, as_dict=True)
        return outputs if self._output_key is None else outputs[self._output_key]


def load(handle: str | Path, tags: Any = None, options: Any = None) -> Module:
    """`hub.load`: `load(handle).signatures["default"](texts)` returns all outputs."""
    return Module(handle)
