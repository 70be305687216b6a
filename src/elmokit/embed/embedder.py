"""The only way vectors are made: sentences in, contextual word vectors out."""

from __future__ import annotations

import copy
import operator
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from elmokit.config import PAD_CHARACTER, BiLMConfig
from elmokit.data.streams import Block, blocks_of, deal_evenly, embedding_block, word_ids
from elmokit.io.checkpoint import load
from elmokit.io.pretrained import Pretrained
from elmokit.nn.bilm import BiLMState
from elmokit.runtime import pick_device, pick_dtype
from elmokit.text.characters import count_truncated
from elmokit.text.tokenizers import get_tokenizer

Sentence = str | Sequence[str]
WORDS_AT_ONCE = 8192
WORDS_TOGETHER, CHARACTERS_TOGETHER = 128, 8
DEFAULT_ROWS = 64
POOLINGS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "mean": lambda vectors: vectors.mean(axis=0),
    "max": lambda vectors: vectors.max(axis=0),
}


class TruncationWarning(UserWarning):
    """Words have more bytes than the model reads: their ends are lost."""


@dataclass(frozen=True)
class Pooling:
    """How the vectors of a text's words become one: "mean" or "max", of length one where `normalize` says so."""

    name: str = "mean"
    normalize: bool = False

    def __post_init__(self) -> None:
        if self.name not in POOLINGS:
            raise ValueError(f"pooling must be one of {', '.join(POOLINGS)}, not {self.name!r}")

    def __call__(self, vectors: np.ndarray) -> np.ndarray:
        """(T, 2D) -> (1, 2D); zeros where there are no words."""
        pooled = POOLINGS[self.name](vectors) if len(vectors) else np.zeros(vectors.shape[1], vectors.dtype)
        if self.normalize:
            pooled = pooled / max(float(np.linalg.norm(pooled)), 1e-12)
        return pooled[None]


class Embeddings(list[np.ndarray]):
    """One array a sentence; the state after the last one where it was carried; how many words were too long."""

    state: BiLMState | None = None
    truncated_words: int = 0


def _by_sentence(layers: Tensor, lengths: Iterable[int]) -> Iterator[np.ndarray]:
    """(1 or L+1, N, 2D) in text order -> each sentence's own array, without the boundaries."""
    vectors, begin = layers.float().cpu().numpy(), 0
    for length in lengths:
        words = vectors[:, begin + 1 : begin + length - 1].copy()
        yield words[0] if len(words) == 1 else words
        begin += length


def _in_few_shapes(ids: Tensor, config: BiLMConfig) -> Tensor:
    """Distinct words with a few more rows, and characters with more padding, which change no vector.

    For every new shape of a bfloat16 product oneDNN compiles a program and keeps it: without this, memory grows with
    the text by about 80 MB for every 85,000 words.
    """
    if config.char_cnn is not None:
        missing = min(-ids.shape[1] % CHARACTERS_TOGETHER, config.char_cnn.max_characters - ids.shape[1])
        ids = F.pad(ids, (0, missing), value=PAD_CHARACTER)
    return torch.cat([ids, ids[:1].expand(-len(ids) % WORDS_TOGETHER, *ids.shape[1:])])


class Embedder:
    """A pretrained biLM that turns sentences into vectors, the same ones whatever comes before or beside them."""

    def __init__(self, model: Pretrained, device: str | None = None, dtype: str | None = None) -> None:
        """`dtype` is that of the products: float32 (exact, the default), bfloat16, or auto. Vectors are float32."""
        self.model = model
        self.device = pick_device(device)
        self.dtype = pick_dtype(dtype, self.device)
        bilm = model.bilm
        if bilm.layers[0].recurrent_weight.dtype != self.dtype or next(bilm.parameters()).device != self.device:
            bilm = copy.deepcopy(bilm).to(self.device, self.dtype)
        self._bilm = bilm.eval()
        self._tokenizer = get_tokenizer(model.tokenizer or "whitespace-1")

    @classmethod
    def load(cls, path: str | Path | None = None, device: str | None = None, dtype: str | None = None) -> Embedder:
        """The model of a directory, or of a bundled name; the bundled English one when none is given."""
        return cls(load(path), device, dtype)

    @property
    def dim(self) -> int:
        """Width of a vector."""
        return self.model.bilm.config.output_dim

    @property
    def num_layers(self) -> int:
        """L + 1: the token layer and every LSTM layer."""
        return self.model.bilm.config.num_representations

    def tokenize(self, text: str) -> list[str]:
        """Split as the model's training text was; at white space where its tokenizer is not known."""
        return self._tokenizer.tokenize(text)

    def embed(
        self,
        sentences: Sequence[Sentence],
        layers: str | int = "mix",
        state: str | BiLMState | None = None,
        batch_size: int | None = None,
        tokenize: bool = True,
    ) -> Embeddings:
        """Vectors of every word: for each sentence (T, 2D) float32, or (L+1, T, 2D) with layers="all".

        A sentence is a list of tokens, or a string, which is split as the model's training text was, or at white
        space with tokenize=False. `layers` is "mix" (the model's own weights, equal ones where it has none), "average",
        "top", "all", or the number of a layer (0: the tokens; -1: the last).
        `state` is what the LSTMs start from: "zeros" or "warm" at each sentence; "carry", where sentence i goes on
        from sentence i - `batch_size` (1 when not given); or a state to carry on from, with a row for each of
        `batch_size` sentences. The carried state comes back as `.state` of the result. Without carried state
        `batch_size` only sets how many rows are computed side by side.
        """
        if batch_size is not None and batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {batch_size}")
        tokens = self._tokens(sentences, tokenize)
        choose = self._layer_choice(layers)
        found = Embeddings()
        state = self.model.state_policy if state is None else state
        if isinstance(state, BiLMState) or state == "carry":
            blocks = self._carried(tokens, state, batch_size, found)
        else:
            blocks = self._fresh(tokens, state, batch_size)
        for block, streams in blocks:
            found += _by_sentence(choose(streams, block), block.lengths)
            found.truncated_words += self._count_truncated(block)
        if found.truncated_words:
            warnings.warn(f"{found.truncated_words} words are too long and were cut", TruncationWarning, stacklevel=2)
        return found

    def encode(
        self,
        texts: str | Sequence[Sentence],
        pooling: str = "mean",
        normalize_embeddings: bool = False,
        layers: str | int = "mix",
        state: str | BiLMState | None = None,
        tokenize: bool = True,
    ) -> np.ndarray:
        """One vector a text, (N, 2D) float32, or (2D,) of one string: the mean or max over its words, or zeros.

        `layers` ("all" is not one vector), `state` and `tokenize` are those of `embed`.
        """
        if layers == "all":
            raise ValueError('one vector a text needs one representation: layers="all" is not one')
        pool = Pooling(pooling, normalize_embeddings)
        if isinstance(texts, str):
            return pool(self.embed([texts], layers, state, tokenize=tokenize)[0])[0]
        pooled = map(pool, self.embed(texts, layers, state, tokenize=tokenize))
        return np.concatenate([np.zeros((0, self.dim), np.float32), *pooled])

    def _tokens(self, sentences: Sequence[Sentence], tokenize: bool) -> list[Sequence[str]]:
        if isinstance(sentences, str):
            raise ValueError("embed takes a list of sentences, not a single string: write embed([text])")
        split = self.tokenize if tokenize else str.split
        tokens = [split(sentence) if isinstance(sentence, str) else sentence for sentence in sentences]
        for number, sentence in enumerate(tokens):
            if not isinstance(sentence, Sequence) or not all(isinstance(word, str) for word in sentence):
                raise ValueError(f"sentence {number} is neither a string nor a list of strings: {str(sentence)[:60]!r}")
        return tokens

    def _layer_choice(self, layers: str | int) -> Callable[[Tensor, Block], Tensor]:
        """From the layers of a block's streams (L+1, 2, N, D) to what was asked for in text order (1 or L+1, N, 2D)."""
        if layers == "all":
            return lambda streams, block: torch.stack([block.text.to_text(stream) for stream in streams])
        weights = self._layer_weights(layers).to(self.device)
        return lambda streams, block: block.text.to_text(torch.tensordot(weights, streams, dims=1))[None]

    def _layer_weights(self, layers: str | int) -> Tensor:
        count = self.num_layers
        if layers == "mix" and self.model.mix is not None:
            return self.model.mix.gamma * torch.softmax(torch.tensor(self.model.mix.weights), dim=0)
        if layers in ("mix", "average"):
            return torch.full((count,), 1 / count)
        number = count - 1 if layers == "top" else layers
        if isinstance(number, bool | str) or not -count <= operator.index(number) < count:
            choices = f"mix, average, top, all, or a number from 0 to {count - 1}"
            raise ValueError(f"layers must be {choices}, not {layers!r}")
        return torch.eye(count)[operator.index(number)]

    def _fresh(self, tokens: list[Sequence[str]], state: str, batch_size: int | None) -> Iterator[tuple[Block, Tensor]]:
        """Every sentence from the same state, so that rows can be filled as suits the machine."""
        if state not in ("zeros", "warm"):
            raise ValueError(f"state must be zeros, warm, carry or a BiLMState, not {state!r}")
        if state == "warm" and self.model.warm_state is None:
            raise ValueError("this model has no warm state stored; use state='zeros' or 'carry'")
        start = self._on_device(self.model.warm_state) if state == "warm" else None
        for group in blocks_of(tokens, WORDS_AT_ONCE):
            rows = min(batch_size or DEFAULT_ROWS, len(group))
            block = embedding_block(group, deal_evenly([len(words) + 2 for words in group], rows), rows, reset=True)
            yield block, self._run(block, None, start)[0]

    def _carried(
        self, tokens: list[Sequence[str]], state: str | BiLMState, batch_size: int | None, found: Embeddings
    ) -> Iterator[tuple[Block, Tensor]]:
        """Sentence i in row i mod batch_size, whose state runs on (AllenNLP's and bilm-tf's way)."""
        if isinstance(state, BiLMState):
            batch_size = batch_size or state.h.shape[2]
            if state.h.shape[2] != batch_size:
                raise ValueError(f"the given state has {state.h.shape[2]} rows, but batch_size is {batch_size}")
            carried = self._on_device(state)
        else:
            batch_size = batch_size or 1
            carried = self._bilm.initial_state(batch_size)
        count = 0
        for group in blocks_of(tokens, WORDS_AT_ONCE):
            rows = np.arange(count, count + len(group)) % batch_size
            block = embedding_block(group, rows, batch_size, reset=False)
            streams, carried = self._run(block, carried, None)
            count += len(group)
            yield block, streams
        found.state = carried

    @torch.no_grad()
    def _run(self, block: Block, state: BiLMState | None, start: BiLMState | None) -> tuple[Tensor, BiLMState]:
        ids = _in_few_shapes(word_ids(block.words, self._bilm.config, self.model.vocab), self._bilm.config)
        words = self._bilm.encode_words(ids.to(self.device))
        return self._bilm.run_packed(words, block.tokens.to(self.device), block.text.packing, state, start)

    def _count_truncated(self, block: Block) -> int:
        """How many words of the text, not only distinct ones, have more bytes than the model reads."""
        char_cnn = self._bilm.config.char_cnn
        if char_cnn is None or not count_truncated(block.words, char_cnn.max_characters):
            return 0
        long = [number for number, word in enumerate(block.words) if count_truncated([word], char_cnn.max_characters)]
        return int(np.isin(block.tokens[0].numpy(), long).sum())

    def _on_device(self, state: BiLMState | None) -> BiLMState | None:
        return None if state is None else BiLMState(state.h.to(self.device), state.c.to(self.device))
