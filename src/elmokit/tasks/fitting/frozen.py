"""Frozen encoders, a biLM or one of Hugging Face: the vectors of a sentence are computed once, and
stored on disk.

There is one directory for each encoder, named by a fingerprint of all that its vectors depend on,
and by the dtype in which they are stored. It holds any number of files `segment-...`, each of which
is written at once: an array of NumPy, (S,) of (digest of a sentence, number of its words), and
after it the vectors of all words, (N, L, D).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from elmokit.data import chunks
from elmokit.embed import Embedder
from elmokit.fs import atomic_path
from elmokit.progress import ProgressBar
from elmokit.settings import StatePolicy

Words = Sequence[str]  # a tokenized sentence

SEGMENT_BYTES = 1 << 26  # of vectors that are computed, held in memory and written at a time
INDEX_DTYPE = np.dtype([("digest", "S16"), ("words", np.int64)])


class FrozenEncoder(Protocol):
    """An encoder whose vectors of a sentence never change."""

    name: str  # identifies its vectors; part of a file name
    shape: tuple[int, int]  # of one word's vectors, (L, D)

    def vectors(self, sentences: Sequence[Words], dtype: str) -> np.ndarray:
        """The vectors of all words of the sentences, concatenated, (N, L, D) in `dtype`."""
        ...


class BiLMLayers:
    """The layers of a biLM as a frozen encoder, (L+1, 2D) per word; every sentence starts from the
    same state.
    """

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._state: StatePolicy = embedder.model.single_sentence_state
        dtype = str(embedder.dtype).removeprefix("torch.")
        self.name = f"bilm-{embedder.fingerprint()[:16]}-{self._state}-{dtype}"
        self.shape = (embedder.num_layers, embedder.dim)

    def vectors(self, sentences: Sequence[Words], dtype: str) -> np.ndarray:
        vectors = np.empty((sum(map(len, sentences)), *self.shape), dtype)
        row = 0
        with np.errstate(over="raise"):  # in float16
            for batch in self._embedder.embed_stream(sentences, "all", self._state, tokenize=False):
                for layers in batch:
                    vectors[row : row + layers.shape[1]] = layers.swapaxes(0, 1)
                    row += layers.shape[1]
        return vectors


def default_cache() -> Path:
    """$ELMOKIT_CACHE, or elmokit in the user's cache directory."""
    if own := os.environ.get("ELMOKIT_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "elmokit"


def sentence_digest(words: Words) -> bytes:
    """A hash of a tokenized sentence, 16 bytes."""
    encoded = [word.encode() for word in words]
    digest = blake2b(
        np.fromiter(map(len, encoded), np.int32, len(encoded)).tobytes(), digest_size=16
    )
    digest.update(b"".join(encoded))
    return digest.digest()


class Place(NamedTuple):
    """Where a sentence's vectors are: in an array of vectors, or from a byte of a file on."""

    segment: Path | np.ndarray
    first: int  # row of the array, or byte of the file
    words: int


class VectorCache:
    """A cache of the vectors of tokenized sentences.

    Args:
        encoder: Computes missing vectors.
        directory: Directory for the caches of all encoders, created if missing; None: keep the
            vectors in memory.
        storage_dtype: "float16" (half the size) or "float32".

    Raises:
        ValueError: A file of the cache is damaged.
    """

    def __init__(
        self,
        encoder: FrozenEncoder,
        directory: str | Path | None = None,
        storage_dtype: str = "float16",
    ) -> None:
        self.encoder, self.dtype = encoder, np.dtype(storage_dtype)
        self._word_bytes = self.dtype.itemsize * int(np.prod(encoder.shape))
        self._places = {
            sentence_digest(()): Place(np.empty((0, *encoder.shape)), 0, 0)
        }  # no words, no vectors
        self.directory = (
            None
            if directory is None
            else Path(directory).expanduser() / f"{encoder.name}-{storage_dtype}"
        )
        for path in self.directory.glob("segment-*") if self.directory is not None else ():
            with path.open("rb") as file:
                index, start = np.load(file), file.tell()
            if path.stat().st_size != start + self._word_bytes * index["words"].sum():
                raise ValueError(
                    f"{path} is damaged: remove it, and the vectors will be computed again"
                )
            self._register(index, path, start, self._word_bytes)

    def add(self, sentences: Iterable[Words]) -> None:
        """Compute and store the vectors of the sentences that are missing. OSError if the disk
        cannot be written.
        """
        distinct = {sentence_digest(words): words for words in sentences}
        missing = [words for digest, words in distinct.items() if digest not in self._places]
        bar = ProgressBar(
            total=sum(map(len, missing)),
            desc="vectors",
            unit=" words",
            disable=self.directory is None,
        )
        with bar:
            for segment in chunks(missing, len, max(1, SEGMENT_BYTES // self._word_bytes)):
                index = np.array(
                    [(sentence_digest(words), len(words)) for words in segment], INDEX_DTYPE
                )
                vectors = self.encoder.vectors(segment, self.dtype.name)
                if self.directory is None:
                    self._register(index, vectors, 0, 1)
                else:
                    name = blake2b(index.tobytes(), digest_size=16).hexdigest()
                    path = self.directory / f"segment-{name}"
                    with atomic_path(path) as partial, partial.open("wb") as file:
                        np.save(file, index)
                        start = file.tell()
                        file.write(vectors.data)
                    self._register(index, path, start, self._word_bytes)
                bar.update(len(vectors))

    def _register(
        self, index: np.ndarray, segment: Path | np.ndarray, start: int, step: int
    ) -> None:
        """Note the places of sentences in a segment whose vectors begin at `start`, `step`
        apart.
        """
        firsts = start + step * (np.cumsum(index["words"]) - index["words"])
        for digest, first, words in zip(
            index["digest"].tolist(), firsts.tolist(), index["words"].tolist(), strict=True
        ):
            self._places[digest.ljust(16, b"\0")] = Place(
                segment, first, words
            )  # NumPy drops zero bytes at the end

    def places(self, sentences: Sequence[Words]) -> list[Place]:
        """The places of sentences' vectors. KeyError if one was not added."""
        return [self._places[sentence_digest(words)] for words in sentences]

    def read(self, places: Sequence[Place]) -> np.ndarray:
        """Read the vectors of sentences, concatenated, (N, L, D) in the storage dtype."""
        vectors = np.empty((sum(place.words for place in places), *self.encoder.shape), self.dtype)
        row = 0
        for segment, first, words in places:
            if isinstance(segment, np.ndarray):
                vectors[row : row + words] = segment[first : first + words]
            # opened anew each time: there may be more segments than a process may hold open files
            else:
                count = words * self._word_bytes // self.dtype.itemsize
                read = np.fromfile(segment, self.dtype, count, offset=first)
                vectors[row : row + words] = read.reshape(words, *self.encoder.shape)
            row += words
        return vectors


# --- Hidden states of a Hugging Face encoder (extra `transformers`) -------------------------------

SubwordPooling = Literal["first", "mean"]
BATCH_WINDOWS = 32
# Entries of a configuration that do not change the vectors: where it was read from, and by which
# library.
NOT_DECISIVE = {"_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version"}
MAX_SUBWORDS = 512  # of a window, special tokens included, if neither tokenizer nor model says less


class TransformerEncoder:
    """All hidden states of an encoder, (M, D) per word, M its layers + 1, as a `FrozenEncoder`.

    Args:
        model: An encoder, as `transformers.AutoModel` loads it.
        tokenizer: Its tokenizer, a fast one, which can map subwords to words.
        pooling: "first": the vector of a word is that of its first subword; "mean": the mean over
            its subwords.
        device: Device to compute on.
    """

    def __init__(
        self, model: Any, tokenizer: Any, pooling: SubwordPooling = "first", device: str = "cpu"
    ) -> None:
        self.model, self.tokenizer, self.pooling = model.eval().to(device), tokenizer, pooling
        config = model.config
        self.max_subwords = min(MAX_SUBWORDS, tokenizer.model_max_length, _positions(model))
        self.shape = (config.num_hidden_layers + 1, config.hidden_size)
        self.name = f"transformer-{_fingerprint(model, tokenizer, self.max_subwords)}-{pooling}"

    @classmethod
    def load(
        cls, source: str | Path, pooling: SubwordPooling = "first", device: str = "cpu"
    ) -> TransformerEncoder:
        """Load a directory, or a model of the Hugging Face Hub.

        Raises:
            ValueError: transformers is not installed.
            OSError: There is no such model.
        """
        try:
            from transformers import AutoModel, AutoTokenizer
        except ImportError as error:
            raise ValueError(
                "an encoder needs transformers: pip install transformers (elmokit's extra)"
            ) from error
        tokenizer = AutoTokenizer.from_pretrained(
            source, add_prefix_space=True
        )  # of byte-level ones
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
        with np.errstate(over="raise"):  # in float16
            for first in range(0, len(windows), BATCH_WINDOWS):
                chosen = by_length[first : first + BATCH_WINDOWS]
                pooled = self._run([windows[number] for number in chosen])
                for number, of_window in zip(chosen, pooled, strict=True):
                    vectors[starts[number] : starts[number + 1]] = of_window.numpy()
        return vectors

    def _windows(self, words: Words) -> Iterator[list[str]]:
        """Cut a sentence, between words, into windows that the encoder can read at once."""
        encoded = self.tokenizer(
            list(words), is_split_into_words=True, add_special_tokens=False, truncation=False
        )
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
        """For each window the vectors of its words, (T, M, D); zeros for a word without
        subwords.
        """
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
            pairs = [
                (place, word) for place, word in enumerate(batch.word_ids(row)) if word is not None
            ]
            if self.pooling == "first":
                pairs = list({word: (place, word) for place, word in reversed(pairs)}.values())
            places, words = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).unbind(1)
            counts = torch.bincount(words, minlength=len(window)).clamp(min=1)
            sums = layers.new_zeros(len(window), *self.shape).index_add(
                0, words, layers[row][places]
            )
            yield sums / counts[:, None, None]


def _positions(model: Any) -> int:
    """The number of positions for subwords, special tokens included, that a model has."""
    positions = getattr(model.config, "max_position_embeddings", MAX_SUBWORDS)
    table = getattr(getattr(model, "embeddings", None), "position_embeddings", None)
    padding = getattr(table, "padding_idx", None)
    return (
        positions if padding is None else positions - padding - 1
    )  # RoBERTa's begin after that of padding


def _fingerprint(model: Any, tokenizer: Any, max_subwords: int) -> str:
    """A hash of all that the vectors depend on: weights and their names, configuration, tokenizer,
    longest window.
    """
    config = {
        name: value for name, value in model.config.to_dict().items() if name not in NOT_DECISIVE
    }
    subwords = json.loads(tokenizer.backend_tokenizer.to_str())
    subwords.update(truncation=None, padding=None)  # left over from its last call
    described = json.dumps([config, subwords, max_subwords], sort_keys=True, default=str)
    content = blake2b(described.encode(), digest_size=8)
    for name, tensor in sorted(model.state_dict().items()):
        content.update(name.encode())
        content.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return content.hexdigest()
