"""The only way vectors are made: sentences in, contextual word vectors out."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from elmokit.data.streams import Block, count_cut_words, deal_evenly, embedding_block
from elmokit.embed.engine import Engine
from elmokit.embed.long import POSITIONS_AT_ONCE, Put, WholeArray, embed_in_windows, long_apart, row_of, with_row
from elmokit.embed.pooling import Pooling, RunningPool
from elmokit.io.checkpoint import load
from elmokit.io.pretrained import Pretrained
from elmokit.nn.bilm import BiLMState
from elmokit.nn.kernels.directions import side_by_side
from elmokit.nn.kernels.text_order import sentence_vectors
from elmokit.runtime import DTYPES_OF_USE, pick_device, pick_dtype
from elmokit.text.tokenizers import get_tokenizer

Sentence = str | Sequence[str]
LayerChoice = Callable[
    [Tensor], Tensor
]  # of layers (L+1, 2, N, D) to those asked for, or their mix (1 or L+1, 2, N, D)
Made = tuple[list[np.ndarray], int]  # of a group of sentences; how many of their words were too long
WORDS_AT_ONCE, FEWEST_WORDS_AT_ONCE = 8192, 1024
DEFAULT_ROWS = 128


class TruncationWarning(UserWarning):
    """Words are longer than the model reads: their ends are lost."""


class Embeddings(list[np.ndarray]):
    """One array a sentence; the state after the last one where it was carried; how many words were too long."""

    state: BiLMState | None = None
    truncated_words: int = 0


@dataclass(frozen=True)
class _Wanted:
    """What is to be made of the layers: one or all of them, of every word or pooled."""

    choose: LayerChoice
    pooling: Pooling | None = None


def _by_sentence(streams: Tensor, block: Block) -> list[np.ndarray]:
    """Chosen layers in stream order -> each sentence's own array, without the boundaries."""
    ends = np.cumsum(block.lengths)
    found = sentence_vectors(streams, block.text.slots, ends - block.lengths + 1, ends - 1)
    return [vectors[0] if len(vectors) == 1 else vectors for vectors in found]


def _words_at_once(sentences: Sequence[Sequence[str]]) -> int:
    """Blocks are smaller where more cores than two would not all have one."""
    each = sum(map(len, sentences)) // torch.get_num_threads() if torch.get_num_threads() > 2 else WORDS_AT_ONCE
    return min(WORDS_AT_ONCE, max(FEWEST_WORDS_AT_ONCE, each))


class Embedder:
    """A pretrained biLM that turns sentences into vectors, the same ones whatever comes before or beside them."""

    def __init__(self, model: Pretrained, device: str | None = None, dtype: str | None = None) -> None:
        """`dtype` is that of the products: float32 (exact, the default), bfloat16, int8, or auto. Vectors are float32.

        int8, the fastest, quantises the weights, and row by row what is multiplied by them. It needs a CPU with
        AVX-512 VNNI: ValueError elsewhere. auto is bfloat16 where the machine multiplies it, else float32.
        """
        self.model = model
        self.device = pick_device(device)
        self.dtype = pick_dtype(dtype, self.device, DTYPES_OF_USE)
        self._engine = Engine(model, self.device, self.dtype)
        self._tokenizer = get_tokenizer(model.tokenizer or "whitespace-1")

    @classmethod
    def load(cls, path: str | Path | None = None, device: str | None = None, dtype: str | None = None) -> Embedder:
        """The model of a directory, a bundled name or the Hub (see `elmokit.load`); the bundled English one by default.

        Where the embedder has its own copy of the weights, those in `model.bilm` are read again if they are asked for.
        """
        embedder = cls(load(path), device, dtype)
        if embedder._engine.has_own_weights:
            embedder.model.let_weights_go()
        return embedder

    @property
    def dim(self) -> int:
        """Width of a vector."""
        return self.model.config.output_dim

    @property
    def num_layers(self) -> int:
        """L + 1: the token layer and every LSTM layer."""
        return self.model.config.num_representations

    def forget_words(self) -> None:
        """Empty the cache of word vectors, which holds the most recent tens of thousands of distinct words."""
        self._engine.forget_words()

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
        return self._embed(self._tokens(sentences, tokenize), _Wanted(self._layer_choice(layers)), state, batch_size)

    def embed_long(
        self, words: Sequence[str], put: Put, layers: str | int = "mix", state: str | BiLMState | None = None
    ) -> BiLMState | None:
        """One sentence of any length, of which only a window is held: `put` receives its vectors as they are made.

        `words` needs a length and slices, no more. put(words, columns, vectors) is called for both directions of every
        window: of which words (a slice), in which columns (forward first), (n, D) or (L+1, n, D). `layers` and `state`
        (one row) are those of `embed`. Returns the state after the sentence where it was carried.
        """
        choose = self._layer_choice(layers)
        state = self.model.state_policy if state is None else state
        if isinstance(state, BiLMState) or state == "carry":
            return self._embed_long(words, choose, self._carried_from(state, 1), put)
        self._embed_long(words, choose, self._start(state), put)
        return None

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
        tokens = self._tokens([texts] if isinstance(texts, str) else texts, tokenize)
        pooled = self._embed(tokens, _Wanted(self._layer_choice(layers), pool), state, batch_size=None)
        if isinstance(texts, str):
            return pooled[0][0]
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

    def _layer_choice(self, layers: str | int) -> LayerChoice:
        if layers == "all":
            return lambda streams: streams
        weights = self._layer_weights(layers).to(self.device)
        return lambda streams: torch.tensordot(weights, streams, dims=1)[None]

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

    def _start(self, state: str) -> BiLMState | None:
        """What every sentence starts from; None: zeros."""
        if state not in ("zeros", "warm"):
            raise ValueError(f"state must be zeros, warm, carry or a BiLMState, not {state!r}")
        if state == "zeros":
            return None
        if self.model.warm_state is None:
            raise ValueError("this model has no warm state stored; use state='zeros' or 'carry'")
        return self._on_device(self.model.warm_state)

    def _embed(
        self,
        tokens: list[Sequence[str]],
        wanted: _Wanted,
        state: str | BiLMState | None,
        batch_size: int | None,
    ) -> Embeddings:
        found = Embeddings()
        state = self.model.state_policy if state is None else state
        if isinstance(state, BiLMState) or state == "carry":
            groups = self._carried(tokens, wanted, state, batch_size, found)
        else:
            groups = self._fresh(tokens, wanted, state, batch_size)
        for vectors, truncated_words in groups:
            found += vectors
            found.truncated_words += truncated_words
        if found.truncated_words:
            warnings.warn(f"{found.truncated_words} words are too long and were cut", TruncationWarning, stacklevel=3)
        return found

    def _fresh(
        self, tokens: list[Sequence[str]], wanted: _Wanted, state: str, batch_size: int | None
    ) -> Iterator[Made]:
        """Every sentence from the same state, so that rows can be filled as suits the machine."""
        start = self._start(state)

        def made(group: tuple[list[Sequence[str]], bool]) -> Made:
            sentences, is_long = group
            if is_long:
                return self._long(sentences[0], wanted, start)[0]
            lengths, rows = [len(words) + 2 for words in sentences], min(batch_size or DEFAULT_ROWS, len(sentences))
            block = embedding_block(sentences, deal_evenly(lengths, rows), rows, reset=True)
            return self._made(block, self._engine.run(block, None, start)[0], wanted)

        yield from side_by_side(made, long_apart(tokens, _words_at_once(tokens)), self.device)

    def _carried_from(self, state: str | BiLMState, batch_size: int | None) -> BiLMState:
        """What the rows of carried state start from."""
        if not isinstance(state, BiLMState):
            return self._engine.initial_state(batch_size or 1)
        if batch_size not in (None, state.h.shape[2]):
            raise ValueError(f"the given state has {state.h.shape[2]} rows, but batch_size is {batch_size}")
        return self._on_device(state)

    def _carried(
        self,
        tokens: list[Sequence[str]],
        wanted: _Wanted,
        state: str | BiLMState,
        batch_size: int | None,
        found: Embeddings,
    ) -> Iterator[Made]:
        """Sentence i in row i mod batch_size, whose state runs on (AllenNLP's and bilm-tf's way)."""
        carried = self._carried_from(state, batch_size)
        num_rows, count = carried.h.shape[2], 0
        for group, is_long in long_apart(tokens, WORDS_AT_ONCE):
            rows = np.arange(count, count + len(group)) % num_rows
            if is_long:
                made, after = self._long(group[0], wanted, row_of(carried, rows[0]))
                carried = with_row(carried, rows[0], after)
            else:
                block = embedding_block(group, rows, num_rows, reset=False)
                streams, carried = self._engine.run(block, carried, None)
                made = self._made(block, streams, wanted)
            count += len(group)
            yield made
        found.state = carried

    def _made(self, block: Block, streams: Tensor, wanted: _Wanted) -> Made:
        vectors = _by_sentence(wanted.choose(streams), block)
        return list(map(wanted.pooling, vectors) if wanted.pooling else vectors), self._count_truncated(block)

    def _long(self, words: Sequence[str], wanted: _Wanted, state: BiLMState | None) -> tuple[Made, BiLMState]:
        """A long sentence, in windows, and the state after it."""
        found = RunningPool(wanted.pooling, self.dim) if wanted.pooling else WholeArray(len(words), self.dim)
        after = self._embed_long(words, wanted.choose, state, found.put)
        return ([found.vectors()], count_cut_words(words, self._engine.config)), after

    def _embed_long(self, words: Sequence[str], choose: LayerChoice, state: BiLMState | None, put: Put) -> BiLMState:
        def run(block: Block, state: BiLMState | None) -> tuple[np.ndarray, BiLMState]:
            streams, after = self._engine.run(block, state, None)
            (vectors,) = sentence_vectors(choose(streams), block.text.slots, np.array([0]), block.lengths)
            return vectors[0] if len(vectors) == 1 else vectors, after

        # Where directions join after each layer, both must have read the whole sentence.
        joined = self._engine.config.lstm.joins_directions
        return embed_in_windows(words, run, state, put, len(words) + 2 if joined else POSITIONS_AT_ONCE)

    def _count_truncated(self, block: Block) -> int:
        """How many words of the text, not only distinct ones, are longer than the model reads."""
        config = self._engine.config
        if not count_cut_words(block.words, config):
            return 0
        long = [number for number, word in enumerate(block.words) if count_cut_words([word], config)]
        return int(np.isin(block.tokens[0].numpy(), long).sum())

    def _on_device(self, state: BiLMState) -> BiLMState:
        return BiLMState(state.h.to(self.device), state.c.to(self.device))
