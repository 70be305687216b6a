"""A pretrained model in memory: the biLM and everything that belongs to it."""

from __future__ import annotations

import copy
import hashlib
import json
import math
from dataclasses import KW_ONLY, asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from elmokit.config import BiLMConfig
from elmokit.nn.bilm import BiLM, BiLMState
from elmokit.nn.softmax import FullSoftmax
from elmokit.settings import StatePolicy, conform
from elmokit.text.vocab import Vocab


def _as_float(number: Any) -> float:
    """A number of a ScalarMix or of NumPy as a Python float."""
    return float(number.detach() if isinstance(number, torch.Tensor) else number)


@dataclass(frozen=True)
class MixWeights:
    """A fixed mix of layers, gamma * sum_j softmax(weights)_j h_j: L+1 weights, before the softmax, and gamma."""

    weights: tuple[float, ...]
    gamma: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", tuple(map(_as_float, self.weights)))
        object.__setattr__(self, "gamma", _as_float(self.gamma))
        # Minus infinity leaves a layer out. No weight at all is refused elsewhere, with the number that there must be.
        is_finite = math.isfinite(self.gamma) and math.isfinite(max(self.weights, default=0.0))
        if not is_finite or any(map(math.isnan, self.weights)):
            raise ValueError(f"the weights and gamma of a mix must be finite, not {self.weights} and {self.gamma}")


@dataclass(eq=False)
class Pretrained:
    """A biLM with everything that belongs to it.

    Attributes:
        bilm: The network.
        softmax: The output layer of the language model, over the words of `vocab`; None if the model has none, or was
            loaded without it.
        vocab: The words of the softmax, and of the word table of a biLM that reads word ids.
        card: The model card, in Markdown.
        tokenizer: Name of the tokenizer of the training text; None if it is not known.
        state_policy: The state that a sentence starts from by default.
        mix: Fixed weights of the layers; None: layers are averaged.
        warm_state: A state of one row, reached after some text, for `state_policy` "warm".

    Raises:
        ValueError: The parts do not fit each other.
    """

    bilm: BiLM
    _: KW_ONLY
    softmax: FullSoftmax | None = None
    vocab: Vocab | None = None
    card: str = ""
    tokenizer: str | None = None
    state_policy: StatePolicy = "zeros"
    mix: MixWeights | None = None
    warm_state: BiLMState | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.bilm, BiLM):
            raise ValueError(f"Pretrained holds a BiLM, not {type(self.bilm).__name__}: elmokit.load reads a model")
        config = self.config
        self.start(self.state_policy)
        if self.warm_state is not None and not config.sequence_encoder.carries_state:
            raise ValueError(f"the sequence encoder {config.encoder_name} carries no state: leave out the warm state")
        if self.warm_state is not None:
            self.warm_state.check(config.sequence_encoder, rows=1)
        if self.mix is not None and len(self.mix.weights) != config.num_representations:
            raise ValueError(f"the mix has {len(self.mix.weights)} weights for {config.num_representations} layers")
        if self.vocab is not None and config.num_words not in (None, len(self.vocab)):
            raise ValueError(f"the vocabulary has {len(self.vocab)} words, the biLM's word table {config.num_words}")
        if self.vocab is not None and config.num_words is not None:
            rows = self.vocab.bos, self.vocab.eos
            if config.boundary_words != rows:
                raise ValueError(
                    f"<S> and </S> are words {rows} of the vocabulary, and boundary_words of the biLM are "
                    f"{config.boundary_words}: set these to {rows}"
                )
        if self.softmax is not None:
            self._check_softmax(self.softmax)

    def _check_softmax(self, softmax: FullSoftmax) -> None:
        words, dim = softmax.weight.shape
        if self.vocab is not None and words != len(self.vocab):
            raise ValueError(
                f"the softmax has {words} words but the vocabulary {len(self.vocab)}: use the vocabulary that the "
                "softmax was trained with"
            )
        if dim != (width := self.config.sequence_encoder.projection_dim):
            raise ValueError(f"the softmax reads vectors of {dim} numbers, and the biLM makes vectors of {width}")

    @property
    def single_sentence_state(self) -> StatePolicy:
        """The state policy for sentences that must not depend on each other: "zeros" in place of "carry"."""
        return "zeros" if self.state_policy == "carry" else self.state_policy

    @classmethod
    def from_pretrained(cls, model: str | Path | None = None, **options: Any) -> Pretrained:
        """Load a model: `elmokit.load`, with its arguments."""
        from elmokit.checkpoints.loading import load

        return load(model, **options)

    def save_pretrained(
        self,
        save_directory: str | Path,
        *,
        storage_dtype: str = "float32",
        push_to_hub: bool = False,
        repo_id: str | None = None,
        **options: Any,
    ) -> None:
        """Write the model to a directory, replacing a model that is there.

        Args:
            save_directory: As for `elmokit.save`.
            storage_dtype: As for `elmokit.save`.
            push_to_hub: Push it to the Hugging Face Hub, too.
            repo_id: OWNER/NAME on the Hub; required with `push_to_hub`.
            options: Further arguments of `push_to_hub`.

        Raises:
            TypeError: There are options without `push_to_hub`.
            ValueError, OSError: As `elmokit.save` and `push_to_hub`.
        """
        from elmokit.checkpoints.loading import save

        if push_to_hub and repo_id is None:
            raise ValueError("push_to_hub=True needs the name of the repository: repo_id='OWNER/NAME'")
        if options and not push_to_hub:
            raise TypeError(f"without push_to_hub=True, save_pretrained has no argument {', '.join(options)}")
        save(self, save_directory, overwrite=True, storage_dtype=storage_dtype)
        if push_to_hub and repo_id is not None:
            self.push_to_hub(repo_id, storage_dtype=storage_dtype, **options)

    def push_to_hub(self, repo_id: str, **options: Any) -> str:
        """Push the model to the Hugging Face Hub: `elmokit.push_to_hub`, with its arguments."""
        from elmokit.checkpoints.push import push_to_hub

        return push_to_hub(self, repo_id, **options)

    @property
    def config(self) -> BiLMConfig:
        """The configuration of the biLM."""
        return self.bilm.config

    def start(self, state: str) -> BiLMState | None:
        """The state of one row that every sentence starts from under a policy; None for "zeros" and "carry".

        Raises:
            ValueError: There is no such policy, it is "warm" and the model has no warm state, or it is "carry" and the
                sequence encoder carries no state.
        """
        conform(StatePolicy, state, "state")
        if state == "carry" and not self.config.sequence_encoder.carries_state:
            raise ValueError(f"the sequence encoder {self.config.encoder_name} carries no state: use state='zeros'")
        if state == "warm" and self.warm_state is None:
            raise ValueError("state='warm' needs a model with a warm state: use state='zeros'")
        return self.warm_state if state == "warm" else None

    def __repr__(self) -> str:
        size = sum(parameter.numel() for parameter in self.bilm.parameters())
        parts = [
            f"{self.config.num_representations} layers of {self.config.output_dim} dimensions",
            f"{size:,} parameters" if size else "prepacked weights",
            "no softmax" if self.softmax is None else f"softmax over {len(self.softmax.weight):,} words",
            f"reads {self.bilm.token_encoder.input}",
            f"tokenizer {self.tokenizer or 'unknown'}",
            f"state {self.state_policy}",
        ]
        return f"Pretrained({', '.join(parts)})"


def on_device(model: Pretrained, device: torch.device) -> Pretrained:
    """The model itself, or one with copies on `device` of the parts that are on another device.

    Raises:
        ValueError: The biLM is prepacked on another device, so that it cannot be moved.
    """
    moved: dict[str, Any] = {}
    if model.bilm.device != device:
        moved["bilm"] = copy.deepcopy(model.bilm).to(device)
    if model.softmax is not None and model.softmax.weight.device != device:
        moved["softmax"] = copy.deepcopy(model.softmax).to(device)
    if model.warm_state is not None and model.warm_state.h.device != device:
        moved["warm_state"] = model.warm_state.to(device)
    return replace(model, **moved) if moved else model


def fingerprint(model: Pretrained) -> str:
    """The SHA-256, in hexadecimal, of all that vectors depend on: configuration, weights, words, tokenizer, mix, state.

    Raises:
        ValueError: The biLM is prepacked: see `Embedder.fingerprint`.
    """
    settings = [model.config.to_dict(), model.mix and asdict(model.mix), model.state_policy, model.tokenizer]
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    tensors = dict(sorted(model.bilm.state_dict().items()))
    if model.warm_state is not None:
        tensors |= {"state.h": model.warm_state.h, "state.c": model.warm_state.c}
    for name, tensor in tensors.items():
        digest.update(name.encode())
        digest.update(tensor.detach().float().cpu().contiguous().numpy().data)
    if model.vocab is not None and model.config.num_words is not None:  # they give the rows of the table their meaning
        digest.update("\n".join(model.vocab.words).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
