"""Sentences in, contextual word vectors out."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import count, tee
from pathlib import Path
from typing import cast
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from elmokit.checkpoints.detect import Detected
from elmokit.checkpoints.loading import ModelSource, load, locate
from elmokit.checkpoints.pretrained import Pretrained, fingerprint, on_device
from elmokit.config import StatePolicy, check_count
from elmokit.data.text_checks import has_attached_mark
from elmokit.embed.outputs import LayerSelection, OutputSpec, Pooling, layer_weights, select_layers
from elmokit.embed.pipeline import (
    BatchResult,
    Pipeline,
    Sizes,
    WindowResult,
    running_order,
    split_batches,
    split_evenly,
)
from elmokit.nn.bilm import BiLMState
from elmokit.progress import ProgressBar
from elmokit.runtime import INFERENCE_DTYPES, pick_device, pick_dtype, release_freed_memory
from elmokit.text.characters import TruncationWarning, truncation_in
from elmokit.text.tokenizer import Sentence, refuse_table
from elmokit.text.tokenizers import TOKENIZED, get_tokenizer


class Embeddings(list[np.ndarray]):
    """The vectors of some sentences: a list with one array for each.

    Attributes:
        tokens: The words of each sentence, in the order of their vectors.
        state: The state after the last sentence, where state was carried; else None.
        truncated_words: How many words were longer than the model reads.
    """

    def __init__(
        self, vectors: Iterable[np.ndarray] = (), tokens: Iterable[Sequence[str]] = (), truncated_words: int = 0
    ) -> None:
        super().__init__(vectors)
        self.tokens = list(map(list, tokens))
        self.state: BiLMState | None = None
        self.truncated_words = truncated_words

    def __repr__(self) -> str:
        if not self:
            return "Embeddings(no sentences)"
        words, (*layers, _, dim) = sum(vectors.shape[-2] for vectors in self), self[0].shape
        of_layers = f"{layers[0]} layers of " if layers else ""
        return f"Embeddings({len(self)} sentences, {words} words, {of_layers}{dim} dimensions in {self[0].dtype})"


def _version_of(source: Pretrained | Detected) -> Sequence[object]:
    """Values that change when the weights of a model do: sizes and times of its files, or checksums of its tensors."""
    if isinstance(source, Detected):
        return source.file_states()
    return [
        crc32(weight.detach().cpu().flatten().view(torch.uint8).numpy().data) for weight in source.bilm.parameters()
    ]


def _words_of(sentences: Iterable[Sentence], split: Callable[[str], list[str]] | None) -> Iterator[Sequence[str]]:
    """The words of each sentence, lazily. ValueError for strings if `split` is None, and for all but lists of words."""
    if isinstance(sentences, str):
        raise ValueError("give a list of sentences, not a single string: write embed([text])")
    refuse_table(sentences)
    if not isinstance(sentences, Iterable) or (isinstance(sentences, np.ndarray) and sentences.ndim == 0):
        raise ValueError(f"give a list of sentences, not {sentences!r:.60}")
    expected = "neither a string nor a list of strings" if split else "not a list of words, and is not split here"

    def words_of(number: int, sentence: Sentence) -> Sequence[str]:
        words = split(sentence) if split and isinstance(sentence, str) else sentence
        if isinstance(words, np.ndarray):  # as pandas reads lists of words from a Parquet file
            words = words.tolist()
        is_sequence = isinstance(words, Sequence) and not isinstance(words, str)
        if not is_sequence or not all(isinstance(word, str) for word in words):
            raise ValueError(f"sentence {number} is {expected}: {str(words)[:60]!r}")
        return words

    return map(words_of, count(), sentences)


class Embedder:
    """A pretrained biLM that turns sentences into vectors, which depend on neither the batch nor earlier calls.

    Only with state="carry", which is also the policy of some models, do they depend on the sentences before.
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
            model: A loaded model, which is not changed; or whatever `elmokit.load` takes, of which only the prepacked
                weights stay in memory, as `model.bilm`.
            device: "cpu", "cuda" or "cuda:N"; None: a GPU if there is one.
            dtype: The number type to compute in: "float32" (exact, the default), "bfloat16", "float16" (on a GPU),
                "int8", or "auto", which is bfloat16 where the machine multiplies it, else float32. int8, the fastest,
                quantises the weights, and the activations that are multiplied by them: it needs a CPU and the compiled
                kernels. Vectors are float32 in any case.
            softmax: Load the output layer of the language model too, as in `elmokit.load`.
            sizes: How much is computed at a time; vectors depend on it by rounding at most.

        Raises:
            ValueError: If the device or the number type is not available here, or the model is prepacked for another
                one.
            FileNotFoundError, CheckpointError: As `elmokit.load`.
        """
        self.device = pick_device(device)
        self.dtype = pick_dtype(dtype, self.device, INFERENCE_DTYPES)
        self._source = model if isinstance(model, Pretrained) else locate(model).absolute()
        self._source_version = _version_of(self._source)  # before it is read, so that a change meanwhile shows
        self.model = self._source if isinstance(self._source, Pretrained) else load(self._source.path, softmax=softmax)
        self._fingerprints: dict[tuple[object, ...], str] = {}
        self._pipeline = Pipeline(self.model, self.device, self.dtype, sizes)
        self._warned = False
        if self.model is not model:  # weights of files are not kept
            self.model = on_device(replace(self.model, bilm=self._pipeline.bilm), self.device)
            release_freed_memory()

    @classmethod
    def load(
        cls,
        model: str | Path | None = None,
        device: str | None = None,
        dtype: str | None = None,
        *,
        softmax: bool = False,
        revision: str | None = None,
        local_files_only: bool = False,
        token: str | bool | None = None,
        cache_dir: str | Path | None = None,
        force_download: bool = False,
    ) -> Embedder:
        """Load a model and prepack it.

        `device` and `dtype` are those of `Embedder`, all other arguments and the errors those of `elmokit.load`.
        `from_pretrained` is an alias.
        """
        source = locate(
            model,
            revision=revision,
            local_files_only=local_files_only,
            token=token,
            cache_dir=cache_dir,
            force_download=force_download,
        ).path
        return cls(source, device, dtype, softmax=softmax)

    from_pretrained = load  # as transformers calls it

    def fingerprint(self) -> str:
        """The fingerprint of the model, which names it by content; weights that were not kept are read again from disk.

        Raises:
            ValueError: The weights have changed, in memory or in the files, since they were prepacked.
            FileNotFoundError, CheckpointError: The files are gone or damaged.
        """
        model = self.model
        settings = (repr(model.mix), model.state_policy, model.tokenizer, model.warm_state, model.vocab)
        if settings not in self._fingerprints:
            source = self._source if isinstance(self._source, Pretrained) else load(self._source.path, softmax=False)
            if source.bilm.is_prepacked:
                raise ValueError(
                    "another embedder has prepacked this model, and without the original weights it cannot be "
                    "identified: give that embedder itself, or the name or path of its model"
                )
            if _version_of(self._source) != self._source_version:
                place = self._source.path if isinstance(self._source, Detected) else "the model"
                raise ValueError(f"{place} has changed since this embedder prepacked its weights: make a new embedder")
            self._fingerprints[settings] = fingerprint(replace(model, bilm=source.bilm))
        return self._fingerprints[settings]

    @property
    def sizes(self) -> Sizes:
        """How much it computes at a time."""
        return self._pipeline.sizes

    @property
    def dim(self) -> int:
        """Width of a vector."""
        return self.model.config.output_dim

    @property
    def num_layers(self) -> int:
        """Number of layers: L + 1, the token layer and those above; 1 for a model that has only the top one."""
        return self.model.config.num_representations

    def __repr__(self) -> str:
        tokenizer, state = self.model.tokenizer or "white space", self.model.state_policy
        vectors = f"{self.num_layers} layers of {self.dim} dimensions"
        return f"Embedder({vectors}, state {state}, tokenizer {tokenizer}, {self._pipeline.bilm!r})"

    def clear_word_cache(self) -> None:
        """Empty the cache of word vectors, which holds those of several thousand recent words."""
        if self._pipeline.cache is not None:
            self._pipeline.cache.clear()

    def count_truncated(self, words: Sequence[str]) -> int:
        """How many of the words are longer than the model reads, so that it sees their beginning only."""
        return self._pipeline.bilm.token_encoder.count_truncated(words)

    @property
    def word_limit(self) -> str:
        """How much of a word the model reads, as "48 bytes"."""
        return self._pipeline.bilm.token_encoder.word_limit

    @property
    def longest_sentence(self) -> int | None:
        """The number of words that a model reads at once if its sequence encoder carries no state; None: any number."""
        return self._pipeline.longest_sentence

    def check_length(self, words: int, name: str) -> None:
        """ValueError, which names the sentence, if it has more words than `longest_sentence`."""
        self._pipeline.check_length(words, name)

    def tokenize(self, text: str) -> list[str]:
        """Split a text as the model's training text was; at white space if the model names no tokenizer."""
        # Here, as a tokenizer may need a library that is not installed, and lists of words need no tokenizer.
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
            sentences: Each a list of tokens, or a string, which is split as the model's training text was.
            layers: "mix" (the model's own weights, equal ones where it has none), "average", "sum", "top", "all", or
                the number of a layer (0: the tokens; -1: the last).
            state: The state that sentences start from: "zeros" or "warm" at each sentence; "carry", where sentence i
                starts from the final state of sentence i - `batch_size`; or a state to carry on from, with
                `batch_size` rows. None: the model's own policy.
            batch_size: Rows that are computed side by side; None: 1 with "carry", those of a given state, else
                `Sizes.rows`. Without carried state no vector depends on it.
            tokenize: Split strings as the model's training text was; else at white space.

        Returns:
            For each sentence (T, 2D) float32, or (L+1, T, 2D) with layers="all"; the words as `.tokens`, the final
            state, if carried, as `.state`.

        Raises:
            ValueError: If a sentence, `layers`, `state` or `batch_size` is not as described.
        """
        spec = OutputSpec(select_layers(self.model, layers))
        return self._embed(list(self._split(sentences, tokenize)), spec, state, batch_size)

    def embed_stream(
        self,
        sentences: Iterable[Sentence],
        layers: str | int = "mix",
        state: StatePolicy | None = None,
        tokenize: bool = True,
    ) -> Iterator[Embeddings]:
        """Embed a stream of sentences, in order, in batches of several thousand words, some computed ahead.

        Args:
            sentences: See `embed`.
            layers: See `embed`.
            state: See `embed`; state is not carried.
            tokenize: See `embed`.

        Returns:
            An iterator over the vectors of each batch, with the words as `.tokens`. Words that are too long are counted
            as `.truncated_words`, without a warning.

        Raises:
            ValueError: As `embed`, and if the state should be carried.
        """
        if isinstance(state, BiLMState) or self._carried(state, 1) is not None:
            raise ValueError("a stream carries no state: use `embed`, which returns it, or another state policy")
        batches, again = tee(split_batches(self._split(sentences, tokenize), self._pipeline.sizes.batch_words))
        results = self._results(batches, OutputSpec(select_layers(self.model, layers)), state)
        pairs = zip(results, again, strict=False)  # the results first, whose batches are taken ahead
        return (Embeddings(result.vectors, tokens, result.truncated_words) for result, (tokens, _) in pairs)

    def embed_batches(
        self,
        batches: Iterable[Sequence[Sequence[str]]],
        layers: str | int = "mix",
        state: StatePolicy | BiLMState | None = None,
        storage_dtype: str = "float32",
        pooling: Pooling | None = None,
    ) -> Generator[BatchResult, None, None]:
        """Embed batches of sentences into the arrays that a store holds; some batches are computed ahead.

        Args:
            batches: Lists of sentences, each a list of tokens; a batch is run at once, however large.
            layers: See `embed`.
            state: See `embed`, with one row.
            storage_dtype: "float32" or "float16"; ignored with a pooling.
            pooling: One vector for each sentence; None: for each word.

        Returns:
            The vectors of each batch as one array (N, 2D) for its N words, or (N, L+1, 2D) for all layers; with a
            pooling one array (1, 2D) float32 for each sentence. `truncated_words` is counted with a pooling only;
            `count_truncated` counts them in any text.

        Raises:
            ValueError: As `embed`, for a sentence that is a string, for all layers with a pooling, for another
                `storage_dtype`, and if numbers are too large for float16.
        """
        if pooling is None:
            spec = OutputSpec(select_layers(self.model, layers), storage_dtype=storage_dtype)
        else:
            spec = OutputSpec(LayerSelection(1, layer_weights(self.model, layers)), pooling)
        return self._results(((list(_words_of(batch, None)), False) for batch in batches), spec, state)

    def embed_windows(
        self, words: Sequence[str], layers: str | int = "mix", state: StatePolicy | BiLMState | None = None
    ) -> Iterator[WindowResult]:
        """Embed one sentence of any length, of which only a window is held in memory.

        Args:
            words: The words; only their number and slices of them are read, so that they may be on disk.
            layers: See `embed`.
            state: See `embed`, with one row.

        Returns:
            For each window the forward halves of the vectors of some words and the backward halves of others, and the
            state after it. Words that are too long are not counted. A model whose sequence encoder carries no
            state reads the whole sentence at once, up to a length that fits into memory (`Sizes.max_whole_bytes`).

        Raises:
            ValueError: As `embed`.
        """
        if isinstance(words, str):
            raise ValueError("embed_windows takes a list of words, not a string: split it with `tokenize` first")
        if isinstance(words, list):  # others may be on disk
            list(_words_of([words], None))
        if (start := self._carried(state, 1)) is None:
            start = self._start(state)
        return self._pipeline.embed_windows(words, select_layers(self.model, layers), start)

    def encode(
        self,
        texts: str | Sequence[Sentence],
        pooling: str = "mean",
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
            show_progress_bar: Show how many texts are done: a bar on a terminal, else a line every half minute.
            convert_to_tensor: Return a tensor, on the embedder's device.

        Returns:
            (N, 2D) float32, or (2D,) for one string; zeros where there are no words. A NumPy array unless
            `convert_to_tensor` is set.

        Raises:
            ValueError: As `embed`, and for an unknown pooling.
        """
        if layers == "all":
            raise ValueError('one vector per text needs one representation: choose layers other than "all"')
        pool = Pooling(pooling, normalize_embeddings)
        tokens = list(self._split([texts] if isinstance(texts, str) else texts, tokenize))
        spec = OutputSpec(select_layers(self.model, layers), pool)
        with ProgressBar(total=len(tokens), desc="encode", unit=" texts", disable=not show_progress_bar) as bar:
            pooled = self._embed(tokens, spec, state, batch_size, bar)
        vectors = np.concatenate([np.zeros((0, self.dim), np.float32), *pooled])
        vectors = vectors[0] if isinstance(texts, str) else vectors
        return torch.from_numpy(vectors).to(self.device) if convert_to_tensor else vectors

    def _split(self, sentences: Iterable[Sentence], tokenize: bool) -> Iterator[Sequence[str]]:
        """The tokens of each sentence, split lazily."""
        return _words_of(sentences, self._split_raw if tokenize else str.split)

    def _split_raw(self, text: str) -> list[str]:
        """`tokenize`, and warn once if text that looks raw is split at white space alone."""
        tokens = self.tokenize(text)
        if not (self.model.tokenizer or self._warned) and has_attached_mark(tokens):
            self._warned = True
            warnings.warn(
                f"the model does not record its tokenizer, so {text[:40]!r} is split at white space, which leaves "
                "punctuation attached to words: give lists of words, or set tokenize=False if this is intended",
                stacklevel=5,
            )
        return tokens

    def _start(self, state: StatePolicy | BiLMState | None) -> BiLMState | None:
        """The state that every sentence starts from where state is not carried; None: zeros."""
        start = self.model.start(cast(StatePolicy, state or self.model.state_policy))
        return start and start.to(self.device)

    def _carried(self, state: StatePolicy | BiLMState | None, batch_size: int | None) -> BiLMState | None:
        """The state that the rows continue from; None where state is not carried."""
        state = self.model.state_policy if state is None else state
        if not isinstance(state, BiLMState):
            self.model.start(state)  # raises where there is none to carry
            return self._pipeline.bilm.initial_state(batch_size or 1) if state == "carry" else None
        if batch_size not in (None, state.h.shape[2]):
            raise ValueError(
                f"the given state has {state.h.shape[2]} rows, not {batch_size}: give one row for each sentence of a "
                "batch"
            )
        return state.to(self.device)

    def _results(
        self,
        batches: Iterable[tuple[Sequence[Sequence[str]], bool]],
        spec: OutputSpec,
        state: StatePolicy | BiLMState | None,
        batch_size: int | None = None,
    ) -> Generator[BatchResult, None, None]:
        """The result of each batch, as `split_batches` yields them."""
        if (carried := self._carried(state, batch_size)) is not None:
            return self._pipeline.embed_all_carrying(batches, spec, carried)
        return self._pipeline.embed_all(batches, spec, self._start(state), batch_size)

    def _embed(
        self,
        tokens: list[Sequence[str]],
        spec: OutputSpec,
        state: StatePolicy | BiLMState | None,
        batch_size: int | None,
        bar: ProgressBar | None = None,
    ) -> Embeddings:
        if batch_size is not None:
            check_count("batch_size", batch_size)
        embeddings = Embeddings(tokens=tokens)
        embeddings.state = self._carried(state, batch_size)
        order, sizes = range(len(tokens)), self._pipeline.sizes
        words = sizes.batch_words
        if embeddings.state is None:
            order, words = running_order(tokens, sizes), sizes.words_of(tokens)
        batches = split_evenly([tokens[number] for number in order], sizes.batch_words, words)
        vectors: list[np.ndarray] = []
        for result in self._results(batches, spec, state, batch_size):
            vectors += result.vectors
            embeddings.truncated_words += result.truncated_words
            if embeddings.state is not None:
                embeddings.state = result.state
            if bar is not None:
                bar.update(len(result.vectors))
        embeddings += (vectors[place] for place in np.argsort(order))
        if embeddings.truncated_words:
            message = truncation_in(tokens, self.count_truncated, self.word_limit)
            warnings.warn(message, TruncationWarning, stacklevel=3)
        return embeddings


def resolve_embedder(
    model: Embedder | ModelSource = None, device: str | None = None, dtype: str | None = None, *, softmax: bool = False
) -> Embedder:
    """The embedder itself, or a new one for a model, which is loaded or whatever `elmokit.load` takes."""
    return model if isinstance(model, Embedder) else Embedder(model, device, dtype, softmax=softmax)
