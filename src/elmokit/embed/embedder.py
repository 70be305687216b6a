"""The only way vectors are made: sentences in, contextual word vectors out."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path

import numpy as np
import torch

from elmokit.checkpoints.loading import load
from elmokit.checkpoints.pretrained import Pretrained
from elmokit.embed.engine import Engine
from elmokit.embed.groups import (
    Made,
    Wanted,
    embed_long,
    end_to_end,
    from_carried_state,
    from_same_state,
    in_even_groups,
    words_at_once,
)
from elmokit.embed.layers import LayerChoice, layer_choice
from elmokit.embed.long import Put, long_apart
from elmokit.embed.pooling import Pooling
from elmokit.nn.bilm import BiLMState
from elmokit.runtime import DTYPES_OF_USE, give_back_freed_memory, pick_device, pick_dtype
from elmokit.text.tokenizers import get_tokenizer

Sentence = str | Sequence[str]


class TruncationWarning(UserWarning):
    """Words are longer than the model reads: their ends are lost."""


class Embeddings(list[np.ndarray]):
    """One array a sentence; the state after the last one where it was carried; how many words were too long."""

    state: BiLMState | None = None
    truncated_words: int = 0


def _embeddings(made: Made) -> Embeddings:
    found = Embeddings(made.vectors)
    found.truncated_words = made.truncated_words
    return found


class Embedder:
    """A pretrained biLM that turns sentences into vectors, the same ones whatever comes before or beside them."""

    def __init__(self, model: Pretrained, device: str | None = None, dtype: str | None = None) -> None:
        """`device` is "cpu", "cuda" or "cuda:N", the best there is when not given. Vectors are float32 in any case.

        `dtype` is that of the products: float32 (exact, the default), bfloat16, float16 (for a GPU), int8, or auto,
        which is bfloat16 where the machine multiplies it, else float32. int8, the fastest, quantises the weights, and
        row by row what is multiplied by them: it needs a CPU with AVX-512 VNNI. ValueError for what is not there.
        The memory that it computes in stays with it: 0.3 GB for a model of the original size with bfloat16 products.
        """
        self.model = model
        self.device = pick_device(device)
        self.dtype = pick_dtype(dtype, self.device, DTYPES_OF_USE)
        self._engine = Engine(model, self.device, self.dtype)
        self._tokenizer = get_tokenizer(model.tokenizer or "whitespace-1")

    @classmethod
    def load(
        cls,
        path: str | Path | None = None,
        device: str | None = None,
        dtype: str | None = None,
        *,
        revision: str | None = None,
        local_files_only: bool = False,
    ) -> Embedder:
        """The model of a directory, a bundled name or the Hub; the bundled English one by default.

        `path`, `revision`, `local_files_only` and the errors are those of `elmokit.load`, `device` and `dtype` those of
        `Embedder`. Where it has its own copy of the weights, those in `model.bilm` are read again if asked for.
        """
        embedder = cls(load(path, revision=revision, local_files_only=local_files_only), device, dtype)
        if embedder._engine.has_own_weights:
            embedder.model.let_weights_go()
            give_back_freed_memory()
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
        """Empty the cache of word vectors, which holds some thousands of the distinct words met last."""
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
        return self._embed(list(self._split(sentences, tokenize)), Wanted(self._choice(layers)), state, batch_size)

    def embed_groups(
        self,
        sentences: Iterable[Sentence],
        layers: str | int = "mix",
        state: str | None = None,
        tokenize: bool = True,
    ) -> Iterator[Embeddings]:
        """`embed` of sentences that need not all be there: some thousand words at a time, in order.

        What follows is begun before it is asked for. `state` is not carried: ValueError where it should be. Words that
        are too long are counted in each item, without a warning.
        """
        wanted, start, split = Wanted(self._choice(layers)), self._same_start(state), self._split(sentences, tokenize)
        return map(_embeddings, from_same_state(self._engine, long_apart(split, self._most_at_once()), wanted, start))

    def embed_end_to_end(
        self,
        groups: Iterable[Sequence[Sequence[str]]],
        layers: str | int = "mix",
        state: str | None = None,
        dtype: str = "float32",
    ) -> Iterator[np.ndarray]:
        """The vectors of all words of each group of sentences (lists of tokens), as a store of vectors has them.

        (N, 2D), or (N, L+1, 2D) for all layers, float32 or float16: ValueError for numbers that it does not hold. A
        group is computed at once, however large. The rest is as with `embed_groups`; too long words are not counted.
        """
        start = self._same_start(state)
        return end_to_end(self._engine, map(list, groups), self._choice(layers), start, dtype)

    def embed_long(
        self, words: Sequence[str], put: Put, layers: str | int = "mix", state: str | BiLMState | None = None
    ) -> BiLMState | None:
        """One sentence of any length, of which only a window is held: `put` receives its vectors as they are made.

        `words` needs a length and slices, no more. put(words, columns, vectors) is called for both directions of every
        window: of which words (a slice), in which columns (forward first), (n, D) or (L+1, n, D). `layers` and `state`
        (one row) are those of `embed`. Returns the state after the sentence where it was carried. Words that are too
        long are not counted. A model whose directions join is computed whole, in memory that grows with the sentence.
        """
        if isinstance(words, str):
            raise ValueError("embed_long takes a list of words, not a string: split it with `tokenize` first")
        choose = self._choice(layers)
        state = self.model.state_policy if state is None else state
        if isinstance(state, BiLMState) or state == "carry":
            return embed_long(self._engine, words, choose, self._carried_from(state, 1), put)
        embed_long(self._engine, words, choose, self._start(state), put)
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
        tokens = list(self._split([texts] if isinstance(texts, str) else texts, tokenize))
        pooled = self._embed(tokens, Wanted(self._choice(layers), pool), state, batch_size=None)
        if isinstance(texts, str):
            return pooled[0][0]
        return np.concatenate([np.zeros((0, self.dim), np.float32), *pooled])

    def _split(self, sentences: Iterable[Sentence], tokenize: bool) -> Iterator[Sequence[str]]:
        """Each sentence as tokens, when it is asked for."""
        if isinstance(sentences, str):
            raise ValueError("embed takes a list of sentences, not a single string: write embed([text])")
        split = self.tokenize if tokenize else str.split

        def tokens_of(number: int, sentence: Sentence) -> Sequence[str]:
            tokens = split(sentence) if isinstance(sentence, str) else sentence
            if not isinstance(tokens, Sequence) or not all(isinstance(word, str) for word in tokens):
                raise ValueError(f"sentence {number} is neither a string nor a list of strings: {str(tokens)[:60]!r}")
            return tokens

        return map(tokens_of, count(), sentences)

    def _most_at_once(self) -> int:
        """How many words a group has."""
        return words_at_once(self.model.config, self.device)

    def _choice(self, layers: str | int) -> LayerChoice:
        return layer_choice(self.model, layers, self.device)

    def _start(self, state: str) -> BiLMState | None:
        """What every sentence starts from; None: zeros."""
        if state not in ("zeros", "warm"):
            raise ValueError(f"state must be zeros, warm, carry or a BiLMState, not {state!r}")
        if state == "zeros":
            return None
        if self.model.warm_state is None:
            raise ValueError("this model has no warm state stored; use state='zeros' or 'carry'")
        return self._on_device(self.model.warm_state)

    def _same_start(self, state: str | None) -> BiLMState | None:
        """As `_start`, by default the model's own; ValueError for one that is carried."""
        state = self.model.state_policy if state is None else state
        if state == "carry":
            raise ValueError("this carries no state: use `embed`, which gives it back, or another state")
        return self._start(state)

    def _embed(
        self,
        tokens: list[Sequence[str]],
        wanted: Wanted,
        state: str | BiLMState | None,
        batch_size: int | None,
    ) -> Embeddings:
        found = Embeddings()
        state = self.model.state_policy if state is None else state
        if isinstance(state, BiLMState) or state == "carry":
            found.state = self._carried_from(state, batch_size)
            groups = from_carried_state(self._engine, tokens, wanted, found.state)
        else:
            start, threads = self._start(state), torch.get_num_threads()
            cores = threads if threads > 2 else 1  # two work on a group together
            apart = in_even_groups(tokens, self._most_at_once(), cores)
            groups = from_same_state(self._engine, apart, wanted, start, batch_size)
        for made in groups:
            found += made.vectors
            found.truncated_words += made.truncated_words
            if found.state is not None:
                found.state = made.state
        if found.truncated_words:
            warnings.warn(f"{found.truncated_words} words are too long and were cut", TruncationWarning, stacklevel=3)
        return found

    def _carried_from(self, state: str | BiLMState, batch_size: int | None) -> BiLMState:
        """What the rows of carried state start from."""
        if not isinstance(state, BiLMState):
            return self._engine.initial_state(batch_size or 1)
        if batch_size not in (None, state.h.shape[2]):
            raise ValueError(f"the given state has {state.h.shape[2]} rows, but batch_size is {batch_size}")
        return self._on_device(state)

    def _on_device(self, state: BiLMState) -> BiLMState:
        return BiLMState(state.h.to(self.device), state.c.to(self.device))
