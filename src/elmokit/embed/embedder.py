"""Sentences in, contextual word vectors out."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count, islice, tee
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from elmokit.checkpoints import ModelSource, Pretrained, load
from elmokit.data import chunks
from elmokit.embed.outputs import OutputSpec, Pooling, PoolingName
from elmokit.embed.pipeline import Pipeline
from elmokit.nn import BiLM, BiLMState
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
    Sentence,
    TruncationWarning,
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
    """A pretrained biLM that turns sentences into vectors.

    A vector depends on its sentence alone, not on the batch or earlier calls; but with
    state="carry", which is the policy of some models, on the sentences before.
    """

    def __init__(
        self,
        model: ModelSource = None,
        device: str | None = None,
        dtype: str | None = None,
        *,
        softmax: bool = False,
        **options: Any,
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
            options: Those of `elmokit.load` for models on the Hugging Face Hub: revision, token,
                ...

        Raises:
            ValueError: If the device or the number type is not available here, or the model is
                prepacked for another one.
            FileNotFoundError, CheckpointError: As `elmokit.load`.
        """
        self.device = pick_device(device)
        self.dtype = pick_dtype(dtype, self.device, INFERENCE_DTYPES)
        if isinstance(model, str | Path) and Path(model).expanduser().exists():
            model = Path(model).expanduser().absolute()  # found from any working directory
        self._load = partial(load, model, **options)
        loaded = self._load(softmax=softmax)
        self._sample = _sample(loaded.bilm)
        self._fingerprint: tuple[Any, str] = None, ""
        self.pipeline = Pipeline(loaded, self.device, self.dtype)
        if loaded is not model:  # weights of files are not kept
            self.pipeline.model = replace(loaded, bilm=self.pipeline.bilm).to(self.device)
            del loaded
            release_freed_memory()

    @classmethod
    def of(
        cls,
        model: Embedder | ModelSource = None,
        device: str | None = None,
        dtype: str | None = None,
        **options: Any,
    ) -> Embedder:
        """The embedder itself, or a new one for a model."""
        return model if isinstance(model, Embedder) else cls(model, device, dtype, **options)

    def fingerprint(self) -> str:
        """The fingerprint of the model (docs/formats.md); at first use its files are read again.

        Raises:
            ValueError: The model was given prepacked, so that its weights are not known; or they
                have changed since.
        """
        settings = self.model.mix, self.model.state_policy, self.model.tokenizer
        if self._fingerprint[0] != settings:
            bilm = self._load(softmax=False).bilm
            name = replace(self.model, bilm=bilm, softmax=None).fingerprint()
            if _sample(bilm) != self._sample:
                raise ValueError(
                    "the weights of the model have changed since the embedder was made: make a new "
                    "one"
                )
            self._fingerprint = settings, name
        return self._fingerprint[1]

    @property
    def model(self) -> Pretrained:
        """The model; its `bilm` is prepacked unless the model was given loaded."""
        return self.pipeline.model

    @property
    def dim(self) -> int:
        """Width of a vector."""
        return self.model.config.output_dim

    def text_dim(self, pooling: Pooling = Pooling(), layers: str | int | None = None) -> int:  # noqa: B008
        """Width of the vector of a text, as `encode` computes it.

        Raises:
            ValueError: As `encode`.
        """
        return OutputSpec.of(self.model, layers, pooling).dim

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
        return self.model.split(text)

    def embed(
        self,
        sentences: Sequence[Sentence],
        layers: str | int | None = "mix",
        state: StatePolicy | BiLMState | None = None,
        batch_size: int | None = None,
        tokenize: bool = True,
    ) -> Embeddings:
        """Embed sentences: a vector for every word.

        Args:
            sentences: Each a list of tokens, or a string, which is split as the model's training
                text was.
            layers: "mix" or None (the model's own weights, equal ones where it has none),
                "average", "sum", "top", "all", or the number of a layer (0: the tokens; -1: the
                last).
            state: The state that sentences start from: "zeros" or "warm" at each sentence; "carry",
                where sentence i starts from the final state of sentence i - `batch_size`; or a
                state to carry on from, with `batch_size` rows. None: the model's own policy.
            batch_size: Rows that are computed side by side; None: 1 with "carry", those of a given
                state, else 128. Without carried state no vector depends on it.
            tokenize: Split strings as the model's training text was; else at white space.

        Returns:
            For each sentence (T, 2D) float32, or (L+1, T, 2D) with layers="all"; the words as
            `.tokens`, the final state, if carried, as `.state`.

        Raises:
            ValueError: If a sentence, `layers`, `state` or `batch_size` is not as described.
        """
        check_list(sentences)
        spec, given = OutputSpec.of(self.model, layers), list(sentences)
        embeddings = self._embed(list(self._split(given, tokenize)), spec, state, batch_size)
        embeddings.sentences = given
        return embeddings

    def embed_stream(
        self,
        sentences: Iterable[Sentence],
        layers: str | int | None = "mix",
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
        split = self._split(sentences, tokenize)
        batches, again = tee(chunks(split, self.pipeline.batch_words))
        spec, start = OutputSpec.of(self.model, layers), self.pipeline.start(state)
        results = self.pipeline.embed_all(batches, spec, start)
        # The results first, whose batches are taken ahead.
        pairs = zip(results, again, strict=False)
        return (
            Embeddings(result.vectors, tokens, islice(given, len(tokens)), result.truncated_words)
            for result, tokens in pairs
        )

    def encode(
        self,
        texts: str | Sequence[Sentence],
        pooling: PoolingName | None = None,
        normalize_embeddings: bool = False,
        layers: str | int | None = None,
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
            pooling: "mean" or "max" of one representation of the words; "text", the map that the
                model learned from another model's vectors of texts (docs/tutorials/texts.md); None:
                "text" where the model has a map and `layers` is not given, else "mean".
            normalize_embeddings: Scale every vector to length one.
            layers: See `embed`, of "mean" and "max"; None: "mix". "all" is refused, as it is not
                one vector.
            state: See `embed`.
            tokenize: See `embed`.
            batch_size: See `embed`.
            show_progress_bar: Show how many texts are done: a bar on a terminal, else a line every
                half minute.
            convert_to_tensor: Return a tensor, on the embedder's device.

        Returns:
            (N, D') float32, or (D',) for one string; zeros where there are no words. D' is 2D, or
            the width of the map. A NumPy array unless `convert_to_tensor` is set.

        Raises:
            ValueError: As `embed`, and for an unknown pooling.
        """
        spec = OutputSpec.of(self.model, layers, Pooling(pooling, normalize_embeddings))
        sentences = [texts] if isinstance(texts, str) else texts
        check_list(sentences)
        tokens, is_hidden = list(self._split(sentences, tokenize)), not show_progress_bar
        with ProgressBar(total=len(tokens), desc="encode", unit=" texts", disable=is_hidden) as bar:
            pooled = self._embed(tokens, spec, state, batch_size, bar)
        vectors = np.asarray(pooled, np.float32).reshape(
            spec.dim if isinstance(texts, str) else (-1, spec.dim)
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
        """The tokens of each sentence, split lazily."""

        def words_of(number: int, sentence: Sentence) -> Sequence[str]:
            if isinstance(sentence, np.ndarray):  # as pandas reads lists of words from Parquet
                sentence = sentence.tolist()
            is_sentence = isinstance(sentence, str) or (
                isinstance(sentence, Sequence) and all(isinstance(word, str) for word in sentence)
            )
            if not is_sentence:
                raise ValueError(
                    f"sentence {number} is neither a string nor a list of strings: {sentence!r:.60}"
                )
            words = self.model.split(sentence, tokenize)
            check_length(len(words), f"sentence {number}")
            return words

        return map(words_of, count(), sentences)

    def _embed(
        self,
        tokens: list[Sequence[str]],
        spec: OutputSpec,
        state: StatePolicy | BiLMState | None,
        batch_size: int | None,
        bar: ProgressBar | None = None,
    ) -> Embeddings:
        rows, pipeline = conform(Count | None, batch_size, "batch_size"), self.pipeline
        start, embeddings = pipeline.start(state, rows), Embeddings(tokens=tokens)
        embeddings.state = start.state if start.is_carried else None
        order = list(range(len(tokens)))
        if not start.is_carried and pipeline.are_long(tokens):
            # Each sentence is a row of a batch: sorted by length, those of a batch end together.
            order.sort(key=lambda number: len(tokens[number]))
        batches = pipeline.split_evenly([tokens[number] for number in order])
        vectors: list[np.ndarray] = []
        for result in pipeline.embed_all(batches, spec, start, rows):
            vectors.extend(result.vectors if spec.pooling is None else result.vectors[0])
            embeddings.truncated_words += result.truncated_words
            if start.is_carried:
                embeddings.state = result.state
            if bar is not None:
                bar.update(len(vectors) - bar.n)
        embeddings += (vectors[number] for number in np.argsort(order))
        if embeddings.truncated_words:
            warning = TruncationWarning.in_sentences(tokens, self.count_truncated, self.word_limit)
            warnings.warn(warning, stacklevel=3)
        return embeddings


def _sample(bilm: BiLM) -> list[list[float]]:
    """First values of every weight, to detect later training."""
    if bilm.is_prepacked:
        return []
    return [weight.flatten()[:8].tolist() for weight in bilm.state_dict().values()]
