"""The hidden states of a Hugging Face encoder as frozen word vectors next to ELMo's (extra `transformers`)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from elmokit.storage.shard import nothing_overflows
from elmokit.tasks.fitting.cache import Words

SubwordPooling = Literal["first", "mean"]
BATCH_WINDOWS = 32
# Entries of a configuration that do not change the vectors: where it was read from, and by which library.
NOT_DECISIVE = {"_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version"}
MAX_SUBWORDS = 512  # of a window, special tokens included, if neither tokenizer nor model says less


class TransformerEncoder:
    """All hidden states of an encoder, (M, D) per word, M its layers + 1, as a `FrozenEncoder`.

    Args:
        model: An encoder, as `transformers.AutoModel` loads it.
        tokenizer: Its tokenizer, a fast one, which can map subwords to words.
        pooling: "first": the vector of a word is that of its first subword; "mean": the mean over its subwords.
        device: Device to compute on.
    """

    def __init__(self, model: Any, tokenizer: Any, pooling: SubwordPooling = "first", device: str = "cpu") -> None:
        self.model, self.tokenizer, self.pooling = model.eval().to(device), tokenizer, pooling
        config = model.config
        self.max_subwords = min(MAX_SUBWORDS, tokenizer.model_max_length, _positions(model))
        self.shape = (config.num_hidden_layers + 1, config.hidden_size)
        self.name = f"transformer-{_fingerprint(model, tokenizer, self.max_subwords)}-{pooling}"

    @classmethod
    def load(cls, source: str | Path, pooling: SubwordPooling = "first", device: str = "cpu") -> TransformerEncoder:
        """Load a directory, or a model of the Hugging Face Hub.

        Raises:
            ValueError: transformers is not installed.
            OSError: There is no such model.
        """
        try:
            from transformers import AutoModel, AutoTokenizer
        except ImportError as error:
            raise ValueError("an encoder needs transformers: pip install transformers (elmokit's extra)") from error
        tokenizer = AutoTokenizer.from_pretrained(source, add_prefix_space=True)  # of byte-level ones
        return cls(AutoModel.from_pretrained(source), tokenizer, pooling, device)

    def save(self, directory: Path) -> None:
        """Write the model and its tokenizer, as `load` reads them."""
        self.model.save_pretrained(directory)
        self.tokenizer.save_pretrained(directory)

    @torch.no_grad()
    def vectors(self, sentences: Sequence[Words], dtype: str) -> np.ndarray:
        """The vectors of all words of the sentences, concatenated, (N, M, D) in `dtype`."""
        windows = [window for words in sentences for window in self._windows(words)]
        starts = np.cumsum([0, *map(len, windows)])
        vectors = np.empty((starts[-1], *self.shape), dtype)
        by_length = np.argsort([len(window) for window in windows], kind="stable")
        with nothing_overflows(vectors.dtype):
            for first in range(0, len(windows), BATCH_WINDOWS):
                chosen = by_length[first : first + BATCH_WINDOWS]
                pooled = self._run([windows[number] for number in chosen])
                for number, of_window in zip(chosen, pooled, strict=True):
                    vectors[starts[number] : starts[number + 1]] = of_window.numpy()
        return vectors

    def _windows(self, words: Words) -> Iterator[list[str]]:
        """Cut a sentence, between words, into windows that the encoder can read at once."""
        encoded = self.tokenizer(list(words), is_split_into_words=True, add_special_tokens=False, truncation=False)
        counts = np.bincount([n for n in encoded.word_ids() if n is not None], minlength=len(words))
        free = self.max_subwords - self.tokenizer.num_special_tokens_to_add()
        window: list[str] = []
        subwords = 0
        for word, count in zip(words, counts.tolist(), strict=True):
            if window and subwords + count > free:
                yield window
                window, subwords = [], 0
            window.append(word)
            subwords += count
        if window:
            yield window

    def _run(self, windows: list[list[str]]) -> Iterator[Tensor]:
        """For each window the vectors of its words, (T, M, D); zeros for a word without subwords."""
        batch = self.tokenizer(
            windows,
            is_split_into_words=True,
            truncation=True,
            max_length=self.max_subwords,
            padding=True,
            return_tensors="pt",
        )
        states = self.model(**batch.to(self.model.device), output_hidden_states=True).hidden_states
        layers = torch.stack(states, dim=2).float().cpu()  # (B, subwords, M, D)
        for row, window in enumerate(windows):
            pairs = [(place, word) for place, word in enumerate(batch.word_ids(row)) if word is not None]
            if self.pooling == "first":
                pairs = list({word: (place, word) for place, word in reversed(pairs)}.values())
            places, words = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).unbind(1)
            counts = torch.bincount(words, minlength=len(window)).clamp(min=1)
            sums = layers.new_zeros(len(window), *self.shape).index_add(0, words, layers[row][places])
            yield sums / counts[:, None, None]


def _positions(model: Any) -> int:
    """The number of positions for subwords, special tokens included, that a model has."""
    positions = getattr(model.config, "max_position_embeddings", MAX_SUBWORDS)
    table = getattr(getattr(model, "embeddings", None), "position_embeddings", None)
    padding = getattr(table, "padding_idx", None)
    return positions if padding is None else positions - padding - 1  # RoBERTa's begin after that of padding


def _fingerprint(model: Any, tokenizer: Any, max_subwords: int) -> str:
    """A hash of all that the vectors depend on: weights and their names, configuration, tokenizer, longest window."""
    config = {name: value for name, value in model.config.to_dict().items() if name not in NOT_DECISIVE}
    subwords = json.loads(tokenizer.backend_tokenizer.to_str())
    subwords.update(truncation=None, padding=None)  # left over from its last call
    described = json.dumps([config, subwords, max_subwords], sort_keys=True, default=str)
    content = blake2b(described.encode(), digest_size=8)
    for name, tensor in sorted(model.state_dict().items()):
        content.update(name.encode())
        content.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return content.hexdigest()
