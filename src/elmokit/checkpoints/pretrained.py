"""A pretrained model in memory: the biLM and all that belongs to it; and the error for one that
cannot be read.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import KW_ONLY, asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from elmokit.config import MAX_LAYERS, BiLMConfig
from elmokit.nn import BiLM, BiLMState, FullSoftmax, TextMap
from elmokit.settings import StatePolicy, conform
from elmokit.text import TOKENIZED, Sentence, Vocab, get_tokenizer

Shape = tuple[int, ...]
# What shows that a text is in the language of a bundled model, LANGUAGE-small. A few Latin words
# are common in Chinese.
SIGNS = {"en": re.compile(r"(?:[A-Za-z]+\W+){3}"), "zh": re.compile("[\u3400-\u9fff]")}
LETTERS = {"en": re.compile("[A-Za-z]"), "zh": SIGNS["zh"]}


# --- Damaged files --------------------------------------------------------------------------------


class CheckpointError(ValueError):
    """A model cannot be read: its files are damaged, or do not fit each other."""


@contextmanager
def errors_naming(path: str | Path) -> Iterator[None]:
    """Raise CheckpointError that names the file for any failure except a missing file."""
    try:
        yield
    except (CheckpointError, FileNotFoundError):
        raise
    # json, h5py, safetensors, torch.load, zipfile, tarfile and struct raise some twenty kinds for a
    # damaged or hostile file, from AssertionError to zlib.error.
    except Exception as error:
        reason = str(error).strip() or type(error).__name__
        if isinstance(error, KeyError):
            reason += " is missing"
        raise CheckpointError(f"{path} cannot be read: {reason.splitlines()[0]}") from error


def shapes_in(tensors: Mapping[str, Any]) -> dict[str, Shape | None]:
    """The shapes of tensors; None unless it is a float array that its storage holds."""

    def is_weight(value: Any) -> bool:
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return False
        if value.layout != torch.strided or value.device.type != "cpu":
            return False
        # Strides may claim more than the storage holds.
        return value.numel() * value.element_size() <= value.untyped_storage().nbytes()

    return {
        name: tuple(value.shape) if is_weight(value) else None for name, value in tensors.items()
    }


def numbered(shapes: Mapping[str, Any], name: str) -> list[Any]:
    """The shapes of name.format(0), name.format(1), ..., up to the maximum number of layers."""
    names = map(name.format, range(MAX_LAYERS + 1))
    return [shapes[name] for name in names if name in shapes]


def check_shapes(
    source: object, expected: Mapping[str, Shape], actual: Mapping[str, Shape | None]
) -> None:
    """Compare names and shapes of tensors.

    Args:
        source: The file or model, for the message.
        expected: The shapes that the configuration asks for, by name.
        actual: The shapes in `source`, by name; None for non-weights.

    Raises:
        CheckpointError: They differ; the message lists every missing, unexpected and wrong-shaped
            key.
    """
    problems = [f"  missing: {key} {expected[key]}" for key in expected if key not in actual]
    problems += [f"  unexpected: {key} {actual[key]}" for key in actual if key not in expected]
    problems += [
        f"  wrong shape: {key} is {actual[key] or 'no weight'}, the configuration asks for {shape}"
        for key, shape in expected.items()
        if key in actual and actual[key] != shape
    ]
    if problems:
        raise CheckpointError(f"{source} does not fit its configuration:\n" + "\n".join(problems))


def check_finite(source: object, tensors: Mapping[str, Tensor]) -> None:
    """CheckpointError that names every tensor with a number that is not finite."""
    # If a number is not finite, neither is the sum, which takes a fraction of the time; large
    # numbers may overflow it.
    suspects = {name: tensor for name, tensor in tensors.items() if not tensor.sum().isfinite()}
    if wrong := [name for name, tensor in suspects.items() if not tensor.isfinite().all()]:
        raise CheckpointError(
            f"{source} has weights that are not finite: {', '.join(wrong)}; fetch it again"
        )


# --- The model ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MixWeights:
    """A fixed mix of layers, gamma * sum_j softmax(weights)_j h_j: L+1 weights, before the softmax,
    and gamma.

    A weight of minus infinity leaves a layer out.
    """

    weights: tuple[float, ...]
    gamma: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", tuple(map(float, self.weights)))
        object.__setattr__(self, "gamma", float(self.gamma))
        if any(map(math.isnan, self.weights)) or not math.isfinite(
            self.gamma + max(self.weights, default=0.0)
        ):
            raise ValueError(
                f"the weights and gamma of a mix must be finite, not {self.weights} and "
                f"{self.gamma}"
            )


@dataclass(eq=False)
class Pretrained:
    """A biLM with everything that belongs to it.

    Attributes:
        bilm: The network.
        softmax: The output layer of the language model, over the words of `vocab`; None if the
            model has none, or was loaded without it.
        vocab: The words of the softmax, and of the word table of a biLM that reads word ids.
        card: The model card, in Markdown.
        tokenizer: Name of the tokenizer of the training text; None if it is not known.
        language: Code of the language of the training text, such as "de"; None if it is not known.
        state_policy: The state that a sentence starts from by default.
        mix: Fixed weights of the layers; None: layers are averaged.
        warm_state: A state of one row, reached after some text, for `state_policy` "warm".
        text_map: The map to vectors of texts; None: they are means.

    Raises:
        ValueError: The parts do not fit each other.
    """

    bilm: BiLM
    _: KW_ONLY
    softmax: FullSoftmax | None = None
    vocab: Vocab | None = None
    card: str = ""
    tokenizer: str | None = None
    language: str | None = None
    state_policy: StatePolicy = "zeros"
    mix: MixWeights | None = None
    warm_state: BiLMState | None = None
    text_map: TextMap | None = None

    def __post_init__(self) -> None:
        config, vocab = self.config, self.vocab
        self.start(self.state_policy)
        if self.warm_state is not None:
            self.warm_state.check(config.sequence_encoder, rows=1)
        num_words, width = (None, None) if self.softmax is None else self.softmax.weight.shape
        rows = None if vocab is None or config.num_words is None else (vocab.bos, vocab.eos)
        dim = config.sequence_encoder.projection_dim
        mapped = self.text_map and tuple(self.text_map.weight.shape[1:])
        layers = config.num_representations, config.output_dim
        for what, actual, expected in (
            ("weights of the mix", self.mix and len(self.mix.weights), config.num_representations),
            ("words of the vocabulary", vocab and len(vocab), config.num_words),
            ("rows of <S> and </S> in the vocabulary", rows, config.boundary_words),
            ("words of the softmax", num_words, vocab and len(vocab)),
            ("numbers in a vector that the softmax reads", width, dim),
            ("layers and dimensions of the text map", mapped, layers),
        ):
            if None not in (actual, expected) and actual != expected:
                raise ValueError(
                    f"the model does not fit together: {actual} {what}, and {expected} in the rest"
                )

    @property
    def single_sentence_state(self) -> StatePolicy:
        """The state policy for sentences that must not depend on each other: "zeros" in place of
        "carry".
        """
        return "zeros" if self.state_policy == "carry" else self.state_policy

    @property
    def config(self) -> BiLMConfig:
        """The configuration of the biLM."""
        return self.bilm.config

    def split(self, sentence: Sentence, tokenize: bool = True) -> list[str]:
        """The words of a sentence.

        Args:
            sentence: A string, or its words.
            tokenize: Split a string as the training text was; else at white space.

        Returns:
            The words.

        Warns:
            UserWarning: It is in the script of another bundled model. Shown once.
        """
        if isinstance(sentence, str):
            tokenizer = (tokenize and self.tokenizer) or TOKENIZED
            text, words = sentence, get_tokenizer(tokenizer).tokenize(sentence)
        else:
            text, words = " ".join(sentence[:100]), list(sentence)
        if self.language in LETTERS and not LETTERS[self.language].search(text):
            for language, signs in SIGNS.items():
                if language != self.language and signs.search(text):
                    warnings.warn(
                        f"a text is in another script than the model's, {self.language}, and its "
                        f"figures mean little: take {language}-small, or a model of your own",
                        stacklevel=1,
                    )
        return words

    def start(self, state: str) -> BiLMState | None:
        """The state of one row that every sentence starts from under a policy; None for "zeros" and
        "carry".

        Raises:
            ValueError: There is no such policy, it is "warm" and the model has no warm state, or it
                is "carry" and the sequence encoder carries no state.
        """
        conform(StatePolicy, state, "state")
        if state == "carry" and not self.config.sequence_encoder.carries_state:
            raise ValueError(
                f"the sequence encoder {self.config.encoder_name} carries no state: use "
                f"state='zeros'"
            )
        if state == "warm" and self.warm_state is None:
            raise ValueError("state='warm' needs a model with a warm state: use state='zeros'")
        return self.warm_state if state == "warm" else None

    def fingerprint(self) -> str:
        """SHA-256 of all that vectors depend on (docs/formats.md): settings, weights, words, state.

        Two stores, caches or runs belong together if this and their settings are equal. Take it
        once, when something is written.

        Raises:
            ValueError: The biLM is prepacked, so that its weights are not known.
        """
        mix, warm = self.mix and asdict(self.mix), self.warm_state
        settings = [self.config.to_dict(), mix, self.state_policy, self.tokenizer]
        # Not the softmax, the card or the language, on which no vector depends.
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
        state = {} if warm is None else {"state.h": warm.h, "state.c": warm.c}
        if self.text_map is not None:
            state |= self.text_map.state_dict(prefix="text_map.")
        for name, tensor in sorted({**self.bilm.state_dict(), **state}.items()):
            digest.update(name.encode())
            digest.update(tensor.detach().float().cpu().contiguous().numpy().data)
        if self.vocab is not None and self.config.num_words is not None:
            words = "\n".join(self.vocab.words)  # the meaning of the table's rows
            digest.update(words.encode("utf-8", "surrogatepass"))
        return digest.hexdigest()

    def tensors(self) -> dict[str, Tensor]:
        """All weights by name, shared, not copied."""
        softmax = {} if self.softmax is None else self.softmax.state_dict(prefix="softmax.")
        warm = self.warm_state
        state = {} if warm is None else {"state.h": warm.h, "state.c": warm.c}
        text = {} if self.text_map is None else self.text_map.state_dict(prefix="text_map.")
        return {**self.bilm.state_dict(), **softmax, **state, **text}

    def to(self, device: torch.device) -> Pretrained:
        """The model itself, or one with copies on `device` of the parts that are elsewhere.

        Raises:
            ValueError: The biLM is prepacked on another device, so that it cannot be moved.
        """
        moved: dict[str, Any] = {}
        if self.bilm.device != device:
            moved["bilm"] = copy.deepcopy(self.bilm).to(device)
        if self.softmax is not None and self.softmax.weight.device != device:
            moved["softmax"] = copy.deepcopy(self.softmax).to(device)
        if self.text_map is not None and self.text_map.bias.device != device:
            moved["text_map"] = copy.deepcopy(self.text_map).to(device)
        if self.warm_state is not None and self.warm_state.h.device != device:
            moved["warm_state"] = self.warm_state.to(device)
        return replace(self, **moved) if moved else self

    def __repr__(self) -> str:
        size = sum(parameter.numel() for parameter in self.bilm.parameters())
        parts = [
            f"{self.config.num_representations} layers of {self.config.output_dim} dimensions",
            f"{size:,} parameters" if size else "prepacked weights",
            "no softmax"
            if self.softmax is None
            else f"softmax over {len(self.softmax.weight):,} words",
            f"reads {self.bilm.token_encoder.input}",
            f"tokenizer {self.tokenizer or 'unknown'}",
            f"state {self.state_policy}",
        ]
        if self.text_map is not None:
            parts.append(f"vectors of texts of {self.text_map.dim} dimensions")
        return f"Pretrained({', '.join(parts)})"
