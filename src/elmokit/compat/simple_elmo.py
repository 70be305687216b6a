"""simple_elmo's `ElmoModel`, without TensorFlow sessions."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from elmokit.checkpoints.detect import find_prefix
from elmokit.compat.bilm_tf import Batcher, BidirectionalLanguageModel
from elmokit.compat.bilm_tf import weight_layers as mix_or_top
from elmokit.compat.bilm_tf.elmo import mix_named
from elmokit.compat.notice import warn_of_strings, warn_of_truncated, warn_once
from elmokit.data.streams import scoring_batch, sentence_batches
from elmokit.embed.embedder import Embedder, TruncationWarning
from elmokit.nn.bilm import BiLMState
from elmokit.nn.softmax import FullSoftmax
from elmokit.settings import StatePolicy
from elmokit.text.vocab import Vocab

__all__ = ["Batcher", "BidirectionalLanguageModel", "ElmoModel", "weight_layers"]

Sentences = Sequence[Sequence[str]]
USE_LAYERS = ("average", "top", "all")
BATCH_WORDS = 4096
CHUNK_LOGITS = 2**26  # 256 MB in float32


def _tokenized(texts: Sentences) -> list[list[str]]:
    """The tokens of each sentence; as in simple_elmo, the tokens of a string are its characters."""
    warn_of_strings(texts)
    return [list(text) for text in texts]


def weight_layers(
    name: str,
    bilm_ops: dict[str, Any],
    l2_coef: float | None = None,
    use_layers: str = "average",
    do_layer_norm: bool = False,
) -> dict[str, Tensor]:
    """Mix the layers with trainable weights: bilm-tf's `weight_layers`, with simple_elmo's choice of layers.

    Args:
        name: Name of the mix, as in bilm-tf.
        bilm_ops: Output of `BidirectionalLanguageModel`.
        l2_coef: Weight of the L2 penalty on the mix weights.
        use_layers: "average" for the mix of all layers, "top" for the top layer, "all" for all of them; the last two
            are only multiplied by gamma.
        do_layer_norm: Normalize the layers of the mix over all words, without boundaries.

    Returns:
        "weighted_op", (B, T, 2D), or (B, L+1, T, 2D) for all layers; and "regularization_op", the penalty.

    Raises:
        ValueError: `use_layers` is something else, or "all" with `do_layer_norm`.
    """
    if use_layers not in USE_LAYERS:
        raise ValueError(f"use_layers must be average, top or all, not {use_layers!r}")
    if use_layers == "all" and do_layer_norm:
        raise ValueError("do_layer_norm normalizes what is mixed: set use_layers='average', or do_layer_norm=False")
    if use_layers == "all":
        weighted = mix_named(name, bilm_ops).gamma * bilm_ops["lm_embeddings"]
        return {"weighted_op": weighted, "regularization_op": torch.zeros(())}
    return mix_or_top(name, bilm_ops, l2_coef, use_layers == "top", do_layer_norm)


def _weights_in(directory: str | Path, full: bool) -> str | Path:
    """The weights that simple_elmo prefers in a directory: the checkpoint with `full`, otherwise model.hdf5."""
    folder = Path(directory).expanduser()
    if full:
        return find_prefix(folder) or directory
    named = folder / "model.hdf5"
    return named if named.is_file() else directory


class ElmoModel:
    """simple_elmo's `ElmoModel`: load a model, then compute vectors, averages or substitutes.

    As in simple_elmo, the sentences of a batch pass their state on to those of the next, and with `warmup` the first
    batch is run once in advance. A call starts from zeros, unless it is given a `session` (anything but None): then it
    starts from the final state of the previous call.
    """

    def __init__(self) -> None:
        self.batch_size = self.max_chars = self.vector_size = self.n_layers = 0
        self.vocab: Vocab | None = None
        self.batcher: Batcher | None = None
        self._softmax: FullSoftmax | None = None
        self._embedder: Embedder | None = None
        self._state: BiLMState | StatePolicy = "carry"

    def load(self, directory: str | Path, max_batch_size: int = 32, limit: int = 100, full: bool = False) -> None:
        """Load a model.

        Args:
            directory: Directory or zip archive with options.json and model.hdf5, or any other model that `elmokit.load`
                accepts.
            max_batch_size: Sentences per batch.
            limit: Ignored.
            full: Load the softmax as well, for substitutes.

        Raises:
            ValueError: The model carries no state, or `full` is set, but it has no softmax or vocabulary.
        """
        embedder = Embedder.load(_weights_in(directory, full), softmax=full)
        model, config = embedder.model, embedder.model.config
        if not config.sequence_encoder.carries_state:
            raise ValueError(
                f"simple_elmo carries its state from batch to batch but {config.encoder_name} models have none: use "
                "elmokit.Embedder, or elmokit.substitutes"
            )
        if full and (model.softmax is None or model.vocab is None):
            raise ValueError(
                f"full=True needs a softmax and its vocabulary, which {directory} lacks: load a checkpoint"
            )
        self._embedder, self._softmax, self.vocab = embedder, model.softmax, model.vocab
        self._state = "carry"
        self.batch_size = max_batch_size
        self.max_chars = 0 if config.char_cnn is None else config.char_cnn.max_characters
        self.batcher = Batcher(None, self.max_chars) if self.max_chars else None
        self.vector_size, self.n_layers = config.output_dim, config.num_representations

    def get_elmo_vectors(
        self, texts: Sentences, warmup: bool = True, layers: str = "average", session: Any = None
    ) -> np.ndarray:
        """Tokenized sentences -> float64 (N, T, 2D), or (N, L+1, T, 2D) with layers="all", zeros for padding.

        Args:
            texts: Tokenized sentences.
            warmup: Run the first batch once in advance, so that it does not start from zeros.
            layers: "average", "top" or "all".
            session: Anything but None to start from the final state of the previous call.

        Raises:
            ValueError: No model is loaded, or `layers` is something else.
        """
        embeddings = self._embed(texts, warmup, layers, session)
        width = max(map(len, texts), default=0)
        shape = (len(texts), self.n_layers, width) if layers == "all" else (len(texts), width)
        vectors = np.zeros((*shape, self.vector_size))
        for row, array in zip(vectors, embeddings, strict=True):
            row[..., : array.shape[-2], :] = array
        return vectors

    def get_elmo_vector_average(
        self, texts: Sentences, warmup: bool = True, layers: str = "average", session: Any = None
    ) -> np.ndarray:
        """The mean of each sentence's words, scaled to length one: float64 (N, 2D), or (N, L+1, 2D) with layers="all".

        With layers="all", as in simple_elmo, all layers of a sentence together have length one, not each of them.
        Arguments and errors are those of `get_elmo_vectors`.
        """
        warn_once("averages exclude padding, unlike simple_elmo's, which therefore depend on the batch")
        if layers == "all":
            warn_once(
                "averages are taken over words per layer; simple_elmo's confuse layers and words with layers='all'"
            )
        shape = (self.n_layers, self.vector_size) if layers == "all" else (self.vector_size,)
        averages = np.zeros((len(texts), *shape))
        for row, array in zip(averages, self._embed(texts, warmup, layers, session), strict=True):
            if array.shape[-2]:
                mean = array.mean(axis=-2, dtype=np.float64)
                row[:] = mean / np.linalg.norm(mean)
        return averages

    def get_elmo_substitutes(
        self, data: Sequence[str], topn: int = 3, nodelimiters: bool = True
    ) -> list[list[dict[str, Any]]]:
        """Predict substitutes for all words, in each direction.

        Args:
            data: Sentences, split at white space.
            topn: Number of candidates.
            nodelimiters: Exclude <S> and </S>.

        Returns:
            For each word of each sentence {"word": ..., "forward": {"candidates", "candidate_words", "logp"},
            "backward": {...}}, the most likely candidate first; an unknown word is given as <UNK>.

        Raises:
            ValueError: The model was loaded without `full`, or `data` is a single string.
        """
        if self._embedder is None or self._softmax is None or self.vocab is None:
            raise ValueError("substitutes need the language model: load(directory, full=True)")
        warn_once("logp is a log-probability given the whole context; simple_elmo's is a logit given a single word")
        if isinstance(data, str):
            raise ValueError("give a list of sentences, not a single string, whose letters would be read as sentences")
        substitutes = []
        count = min(topn, len(self.vocab) - 2 * nodelimiters)
        for batch in sentence_batches((text.split() for text in data), BATCH_WORDS):
            if self.max_chars:
                warn_of_truncated(chain.from_iterable(batch), self.max_chars, "simple_elmo")
            candidates = self._candidates(batch, count, nodelimiters)
            for sentence in batch:
                names = [self.vocab.words[number] for number in self.vocab.ids(sentence)]
                substitutes.append([{"word": name, **next(candidates)} for name in names])
        return substitutes

    def warmup(self, sess: Any, texts: Sentences) -> None:
        """Run the first batch of `texts`; calls with a session start from its final state."""
        first = _tokenized(texts[: self.batch_size])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TruncationWarning)  # issued when their vectors are computed
            state = self._loaded().embed(first, state=self._state, batch_size=self.batch_size).state
        self._state = state or "carry"

    def _loaded(self) -> Embedder:
        if self._embedder is None:
            raise ValueError("no model is loaded yet: call load(directory) first")
        return self._embedder

    def _embed(self, texts: Sentences, warmup: bool, layers: str, session: Any) -> list[np.ndarray]:
        if layers not in USE_LAYERS:
            raise ValueError(f"layers must be average, top or all, not {layers!r}")
        if session is None:
            self._state = "carry"
        if warmup:
            self.warmup(session, texts)
        embeddings = self._loaded().embed(_tokenized(texts), layers, self._state, self.batch_size)
        self._state = embeddings.state or "carry"
        return embeddings

    @torch.no_grad()
    def _candidates(self, sentences: Sentences, count: int, nodelimiters: bool) -> Iterator[dict[str, Any]]:
        """Yield the candidates of each word: {"forward": ..., "backward": ...}."""
        hidden = self._hidden(sentences)
        # Position k predicts word k forward and word k - 1 backward; the last and the first predict boundaries.
        ends = np.cumsum([len(sentence) + 1 for sentence in sentences])
        inner = np.ones(int(ends[-1]), dtype=bool)
        inner[ends - 1] = False
        forward = torch.from_numpy(np.flatnonzero(inner))
        best = [self._best(hidden[d][forward + d], count, nodelimiters) for d in range(2)]
        for of_word in zip(*best, strict=True):
            yield dict(zip(("forward", "backward"), of_word, strict=True))

    def _hidden(self, sentences: Sentences) -> Tensor:
        """The top layer of each direction at every position, unpacked, (2, N, D)."""
        bilm, vocab = self._loaded().model.bilm, self.vocab
        batch = scoring_batch(sentences, np.arange(len(sentences)), len(sentences), reset=False)
        vectors, tokens = bilm.word_vectors(batch.words, vocab), batch.tokens.to(bilm.device)
        layers, _ = bilm.run(vectors, tokens, batch.text.packing)
        return torch.stack(batch.text.unpack(layers[-1]).chunk(2, dim=-1))

    def _best(self, hidden: Tensor, count: int, nodelimiters: bool) -> Iterator[dict[str, Any]]:
        """Yield the `count` most likely words for each row of `hidden`, (M, D)."""
        assert self._softmax is not None and self.vocab is not None
        for chunk in hidden.split(max(1, CHUNK_LOGITS // len(self.vocab))):
            logits = chunk @ self._softmax.weight.T + self._softmax.bias
            log_p = torch.log_softmax(logits, dim=-1)
            if nodelimiters:
                log_p[:, [self.vocab.bos, self.vocab.eos]] = -torch.inf
            values, ids = log_p.topk(count)
            for row, numbers in zip(values.double().cpu().numpy().round(4), ids.tolist(), strict=True):
                words = [self.vocab.words[number] for number in numbers]
                yield {"candidates": numbers, "candidate_words": words, "logp": row.tolist()}
