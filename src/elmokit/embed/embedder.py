"""Sentences in, contextual word vectors out."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import count, islice, tee
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from elmokit.checkpoints import (
    ModelSource,
    Pretrained,
    fingerprint,
    load,
    locate,
    on_device,
    weights_digest,
)
from elmokit.data import has_attached_mark, sentence_batches
from elmokit.embed.outputs import OutputSpec, Pooling
from elmokit.embed.pipeline import Pipeline, Sizes
from elmokit.nn import BiLMState, PrepackedBiLM
from elmokit.progress import ProgressBar
from elmokit.runtime import (
    INFERENCE_DTYPES,
    check_length,
    check_list,
    pick_device,
    pick_dtype,
    release_freed_memory,
)
from elmokit.settings import Count, StatePolicy, conform
from elmokit.text import (
    TOKENIZED,
    Sentence,
    TruncationWarning,
    get_tokenizer,
    truncation_in,
    word_offsets,
)


class Embeddings(list[np.ndarray]):
    """The vectors of some sentences: a list with one array for each.

    Attributes:
        tokens: The words of each sentence, in the order of their vectors.
        sentences: The sentences as they were given, strings or lists of words.
        state: The state after the last sentence, where state was carried; else None.
        truncated_words: How many words were longer than the model reads.
    """

    def __init__(
        self,
        vectors: Iterable[np.ndarray] = (),
        tokens: Iterable[Sequence[str]] = (),
        sentences: Iterable[Sentence] = (),
        truncated_words: int = 0,
    ) -> None:
        super().__init__(vectors)
        self.tokens = list(map(list, tokens))
        self.sentences = list(sentences)
        self.state: BiLMState | None = None
        self.truncated_words = truncated_words

    @property
    def offsets(self) -> list[tuple[tuple[int, int], ...]]:
        """The start and end in characters of each word in its sentence as given, or in its words
        joined by spaces.

        A word that the tokenizer changed has length 0.
        """
        return list(map(word_offsets, self.sentences, self.tokens))

    def __repr__(self) -> str:
        if not self:
            return "Embeddings(no sentences)"
        words, (*layers, _, dim) = sum(vectors.shape[-2] for vectors in self), self[0].shape
        of_layers = f"{layers[0]} layers of " if layers else ""
        return (
            f"Embeddings({len(self)} sentences, {words} words, {of_layers}{dim} dimensions in "
            f"{self[0].dtype})"
        )


class Embedder:
    """A pretrained biLM that turns sentences into vectors, which depend on neither the batch nor
    earlier calls.

    Only with state="carry", which is also the policy of some models, do they depend on the
    sentences before.
    """

    def __init__(
        self,
        model: ModelSource = None,
        device: str | None = None,
        dtype: str | None = None,
        *,
        softmax: bool = False,
        sizes: Sizes | None = None,
    ) -> None:
        """Prepack a model for a device and a number type.

        Args:
            model: A loaded model, which is not changed; or whatever `elmokit.load` takes, of which
                only the prepacked weights stay in memory, as `model.bilm`.
            device: "cpu", "cuda" or "cuda:N"; None: a GPU if there is one.
            dtype: The number type to compute in: "float32" (exact, the default), "bfloat16",
                "float16" (on a GPU), "int8", or "auto", which is bfloat16 where the machine
                multiplies it, else float32. int8, the fastest, quantises the weights, and the
                activations that are multiplied by them: it needs a CPU and the compiled kernels.
                Vectors are float32 in any case.
            softmax: Load the output layer of the language model too, as in `elmokit.load`.
            sizes: How much is computed at a time; vectors depend on it by rounding at most.

        Raises:
            ValueError: If the device or the number type is not available here, or the model is
                prepacked for another one.
            FileNotFoundError, CheckpointError: As `elmokit.load`.
        """
        self.device = pick_device(device)
        self.dtype = pick_dtype(dtype, self.device, INFERENCE_DTYPES)
        loaded = model if isinstance(model, Pretrained) else load(model, softmax=softmax)
        # Now, as weights may be replaced later, in memory or in their files.
        is_prepacked = isinstance(loaded.bilm, PrepackedBiLM)
        self._weights = None if is_prepacked else weights_digest(loaded.bilm.state_dict())
        self.pipeline = Pipeline(loaded, self.device, self.dtype, sizes)
        self._warned = False
        if loaded is not model:  # weights of files are not kept
            self.pipeline.model = on_device(replace(loaded, bilm=self.pipeline.bilm), self.device)
            del loaded
            release_freed_memory()

    @classmethod
    def load(
        cls,
        model: str | Path | None = None,
        device: str | None = None,
        dtype: str | None = None,
        *,
        softmax: bool = False,
        **options: Any,
    ) -> Embedder:
        """Load a model and prepack it.

        Args:
            model: As for `elmokit.load`.
            device: As for `Embedder`.
            dtype: As for `Embedder`.
            softmax: As for `Embedder`.
            options: Those of `elmokit.load` for models on the Hugging Face Hub: revision, token,
                ...

        Raises:
            ValueError, FileNotFoundError, CheckpointError: As `Embedder` and `elmokit.load`.
        """
        return cls(locate(model, **options).path, device, dtype, softmax=softmax)

    def fingerprint(self) -> str:
        """The fingerprint of the model, which names it by content.

        Raises:
            ValueError: The model was given prepacked, so that its weights are not known.
        """
        return fingerprint(self.model, self._weights)

    @property
    def model(self) -> Pretrained:
        """The model; its `bilm` is prepacked unless the model was given loaded."""
        return self.pipeline.model

    @property
    def dim(self) -> int:
        """Width of a vector."""
        return self.model.config.output_dim

    @property
    def num_layers(self) -> int:
        """Number of layers: L + 1, the token layer and those above; 1 for a model that has only the
        top one.
        """
        return self.model.config.num_representations

    def __repr__(self) -> str:
        tokenizer, state = self.model.tokenizer or "white space", self.model.state_policy
        vectors = f"{self.num_layers} layers of {self.dim} dimensions"
        return f"Embedder({vectors}, state {state}, tokenizer {tokenizer}, {self.pipeline.bilm!r})"

    def clear_word_cache(self) -> None:
        """Empty the cache of word vectors, which holds those of several thousand recent words."""
        if self.pipeline.cache is not None:
            self.pipeline.cache.clear()

    def count_truncated(self, words: Sequence[str]) -> int:
        """How many of the words are longer than the model reads, so that it sees their beginning
        only.
        """
        return self.pipeline.bilm.token_encoder.count_truncated(words)

    @property
    def word_limit(self) -> str:
        """How much of a word the model reads, as "48 bytes"."""
        return self.pipeline.bilm.token_encoder.word_limit

    def tokenize(self, text: str) -> list[str]:
        """Split a text as the model's training text was; at white space if the model names no
        tokenizer.
        """
        if not isinstance(text, str):
            raise ValueError(
                f"tokenize takes one string, not a {type(text).__name__}: call it for each text"
            )
        # Here, as a tokenizer may need a library that is not installed, and lists of words need no
        # tokenizer.
        return get_tokenizer(self.model.tokenizer or TOKENIZED).split(text)

    def embed(
        self,
        sentences: Sequence[Sentence],
        layers: str | int = "mix",
        state: StatePolicy | BiLMState | None = None,
        batch_size: int | None = None,
        tokenize: bool = True,
    ) -> Embeddings:
        """Embed sentences: a vector for every word.

        Args:
            sentences: Each a list of tokens, or a string, which is split as the model's training
                text was.
            layers: "mix" (the model's own weights, equal ones where it has none), "average", "sum",
                "top", "all", or the number of a layer (0: the tokens; -1: the last).
            state: The state that sentences start from: "zeros" or "warm" at each sentence; "carry",
                where sentence i starts from the final state of sentence i - `batch_size`; or a
                state to carry on from, with `batch_size` rows. None: the model's own policy.
            batch_size: Rows that are computed side by side; None: 1 with "carry", those of a given
                state, else `Sizes.rows`. Without carried state no vector depends on it.
            tokenize: Split strings as the model's training text was; else at white space.

        Returns:
            For each sentence (T, 2D) float32, or (L+1, T, 2D) with layers="all"; the words as
            `.tokens`, the final state, if carried, as `.state`.

        Raises:
            ValueError: If a sentence, `layers`, `state` or `batch_size` is not as described.
        """
        spec = OutputSpec.of(self.model, layers)
        check_list(sentences)
        given = list(sentences)
        embeddings = self._embed(list(self._split(given, tokenize)), spec, state, batch_size)
        embeddings.sentences = given
        return embeddings

    def embed_stream(
        self,
        sentences: Iterable[Sentence],
        layers: str | int = "mix",
        state: StatePolicy | None = None,
        tokenize: bool = True,
    ) -> Iterator[Embeddings]:
        """Embed a stream of sentences, in order, in batches of several thousand words, some
        computed ahead.

        Args:
            sentences: See `embed`.
            layers: See `embed`.
            state: "zeros", "warm", or "carry", in one row, as for `embed`.
            tokenize: See `embed`.

        Returns:
            An iterator over the vectors of each batch, with the words as `.tokens`. Words that are
            too long are counted as `.truncated_words`, without a warning.

        Raises:
            ValueError: As `embed`.
        """
        check_list(sentences)
        sentences, given = tee(sentences)
        batches, again = tee(
            sentence_batches(self._split(sentences, tokenize), self.pipeline.sizes.batch_words)
        )
        results = self.pipeline.embed_all(batches, OutputSpec.of(self.model, layers), state)
        pairs = zip(
            results, again, strict=False
        )  # the results first, whose batches are taken ahead
        return (
            Embeddings(result.vectors, tokens, islice(given, len(tokens)), result.truncated_words)
            for result, tokens in pairs
        )

    def encode(
        self,
        texts: str | Sequence[Sentence],
        pooling: Literal["mean", "max"] = "mean",
        normalize_embeddings: bool = False,
        layers: str | int = "mix",
        state: StatePolicy | BiLMState | None = None,
        tokenize: bool = True,
        *,
        batch_size: int | None = None,
        show_progress_bar: bool = False,
        convert_to_tensor: bool = False,
    ) -> np.ndarray | Tensor:
        """Embed texts: one vector for each, pooled over its words.

        Args:
            texts: Sentences as for `embed`, or one string.
            pooling: "mean" or "max".
            normalize_embeddings: Scale every vector to length one.
            layers: See `embed`; "all" is refused, as it is not one vector.
            state: See `embed`.
            tokenize: See `embed`.
            batch_size: See `embed`.
            show_progress_bar: Show how many texts are done: a bar on a terminal, else a line every
                half minute.
            convert_to_tensor: Return a tensor, on the embedder's device.

        Returns:
            (N, 2D) float32, or (2D,) for one string; zeros where there are no words. A NumPy array
            unless `convert_to_tensor` is set.

        Raises:
            ValueError: As `embed`, and for an unknown pooling.
        """
        spec = OutputSpec.of(self.model, layers, Pooling(pooling, normalize_embeddings))
        tokens = list(self._split([texts] if isinstance(texts, str) else texts, tokenize))
        with ProgressBar(
            total=len(tokens), desc="encode", unit=" texts", disable=not show_progress_bar
        ) as bar:
            pooled = self._embed(tokens, spec, state, batch_size, bar)
        vectors = np.asarray(pooled, np.float32).reshape(
            self.dim if isinstance(texts, str) else (-1, self.dim)
        )
        return torch.from_numpy(vectors).to(self.device) if convert_to_tensor else vectors

    def embed_documents(self, texts: Sequence[str]) -> list[list[float]]:
        """The vectors of texts, as `encode` computes them; with `embed_query`, the interface of
        LangChain.
        """
        return np.asarray(self.encode(texts, state=self.model.single_sentence_state)).tolist()

    def embed_query(self, text: str) -> list[float]:
        """The vector of a text, as `embed_documents` computes it."""
        return self.embed_documents([text])[0]

    def _split(self, sentences: Iterable[Sentence], tokenize: bool) -> Iterator[Sequence[str]]:
        """The tokens of each sentence, split lazily. ValueError for what is no list of
        sentences.
        """
        check_list(sentences)
        split = self._split_raw if tokenize else str.split

        def words_of(number: int, sentence: Sentence) -> Sequence[str]:
            words = split(sentence) if isinstance(sentence, str) else sentence
            if isinstance(words, np.ndarray):  # as pandas reads lists of words from a Parquet file
                words = words.tolist()
            if not isinstance(words, Sequence) or not all(isinstance(word, str) for word in words):
                raise ValueError(
                    f"sentence {number} is neither a string nor a list of strings: {words!r:.60}"
                )
            check_length(len(words), f"sentence {number}")
            return words

        return map(words_of, count(), sentences)

    def _split_raw(self, text: str) -> list[str]:
        """`tokenize`, and warn once if text that looks raw is split at white space alone."""
        tokens = self.tokenize(text)
        if not (self.model.tokenizer or self._warned) and has_attached_mark(tokens):
            self._warned = True
            warnings.warn(
                f"the model does not record its tokenizer, so {text[:40]!r} is split at white "
                "space, which leaves punctuation attached to words: give lists of words, or set "
                "tokenize=False if this is intended",
                stacklevel=5,
            )
        return tokens

    def _embed(
        self,
        tokens: list[Sequence[str]],
        spec: OutputSpec,
        state: StatePolicy | BiLMState | None,
        batch_size: int | None,
        bar: ProgressBar | None = None,
    ) -> Embeddings:
        batch_size = conform(Count | None, batch_size, "batch_size")
        embeddings = Embeddings(tokens=tokens)
        embeddings.state = self.pipeline.carried(state, batch_size)
        order = list(range(len(tokens)))
        if embeddings.state is None and self.pipeline.sizes.are_long(tokens):
            # Each sentence is a row of a batch: sorted by length, those of a batch end together.
            order.sort(key=lambda number: len(tokens[number]))
        batches = self.pipeline.sizes.split_evenly([tokens[number] for number in order])
        vectors: list[np.ndarray] = []
        for result in self.pipeline.embed_all(batches, spec, state, batch_size):
            vectors.extend(result.vectors if spec.pooling is None else result.vectors[0])
            embeddings.truncated_words += result.truncated_words
            if embeddings.state is not None:
                embeddings.state = result.state
            if bar is not None:
                bar.update(len(vectors) - bar.n)
        embeddings += (vectors[place] for place in np.argsort(order))
        if embeddings.truncated_words:
            message = truncation_in(tokens, self.count_truncated, self.word_limit)
            warnings.warn(message, TruncationWarning, stacklevel=3)
        return embeddings


def resolve_embedder(
    model: Embedder | ModelSource = None,
    device: str | None = None,
    dtype: str | None = None,
    *,
    softmax: bool = False,
) -> Embedder:
    """The embedder itself, or a new one for a model, which is loaded or whatever `elmokit.load`
    takes.
    """
    return model if isinstance(model, Embedder) else Embedder(model, device, dtype, softmax=softmax)
