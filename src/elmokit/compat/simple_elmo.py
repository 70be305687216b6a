"""simple_elmo's `ElmoModel`, without TensorFlow sessions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from elmokit.checkpoints.detect import find_prefix
from elmokit.compat.notice import warn_once
from elmokit.config import StatePolicy
from elmokit.data.streams import blocks_of, scoring_block
from elmokit.embed.embedder import Embedder
from elmokit.nn.bilm import BiLMState
from elmokit.nn.softmax import FullSoftmax
from elmokit.text.vocab import Vocab

Sentences = Sequence[Sequence[str]]
WORDS_AT_ONCE = 4096
LOGITS_AT_ONCE = 2**26  # 256 MB


def _weights_in(directory: Path, full: bool) -> Path:
    """What simple_elmo read where there are several: the checkpoint for the language model, otherwise model.hdf5."""
    if full:
        return find_prefix(directory) or directory
    named = directory / "model.hdf5"
    return named if named.is_file() else directory


class ElmoModel:
    """An ELMo model: `load` it, then ask for vectors, averages or substitutes.

    As before, the sentences of a batch carry their state to those of the next, and with `warmup` the first batch is
    run once before. Every call starts from zeros, unless it is given a `session` (anything but None): then it goes on
    from the call before it.
    """

    def __init__(self) -> None:
        self.batch_size = self.max_chars = self.vector_size = self.n_layers = 0
        self.vocab: Vocab | None = None
        self._softmax: FullSoftmax | None = None
        self._embedder: Embedder | None = None
        self._state: BiLMState | StatePolicy = "carry"

    def load(self, directory: str | Path, max_batch_size: int = 32, limit: int = 100, full: bool = False) -> None:
        """Load whatever `elmokit.load` takes, a directory or zip archive with options.json and model.hdf5 among it.

        `full` asks for the language model, for substitutes: ValueError where there is none. `limit` changes nothing.
        """
        embedder = Embedder.load(_weights_in(Path(directory), full), softmax=full)
        model, config = embedder.model, embedder.model.config
        if full and (model.softmax is None or model.vocab is None):
            raise ValueError(
                f"full=True needs a softmax and its vocabulary, which {directory} lacks: load a checkpoint"
            )
        self._embedder, self._softmax, self.vocab = embedder, model.softmax, model.vocab
        self._state = "carry"
        self.batch_size = max_batch_size
        self.max_chars = 0 if config.char_cnn is None else config.char_cnn.max_characters
        self.vector_size, self.n_layers = config.output_dim, config.num_representations

    def get_elmo_vectors(
        self, texts: Sentences, warmup: bool = True, layers: str = "average", session: Any = None
    ) -> np.ndarray:
        """Tokenized sentences -> float64 (N, T, 2D), or (N, L+1, T, 2D) with layers="all", zeros for padding."""
        found = self._embed(texts, warmup, layers, session)
        width = max(map(len, texts), default=0)
        shape = (len(texts), self.n_layers, width) if layers == "all" else (len(texts), width)
        vectors = np.zeros((*shape, self.vector_size))
        for row, array in zip(vectors, found, strict=True):
            row[..., : array.shape[-2], :] = array
        return vectors

    def get_elmo_vector_average(
        self, texts: Sentences, warmup: bool = True, layers: str = "average", session: Any = None
    ) -> np.ndarray:
        """Mean over the words of each sentence, of length one: float64 (N, 2D), or (N, L+1, 2D) with layers="all"."""
        warn_once("averages are over the words alone; simple_elmo's counted padding, so they depended on the batch")
        if layers == "all":
            warn_once("averages are per layer; simple_elmo's mixed layers and words up with layers='all'")
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
        """Sentences, split at white space -> for each word what else could stand there, in each direction.

        [{"word": ..., "forward": {"candidates", "candidate_words", "logp"}, "backward": {...}}], best candidate first;
        `nodelimiters` leaves out <S> and </S>. Words that the vocabulary lacks are called <UNK>.
        """
        if self._embedder is None or self._softmax is None or self.vocab is None:
            raise ValueError("substitutes need the language model: load(directory, full=True)")
        warn_once("logp are log-probabilities given the whole sentence; simple_elmo's were logits that saw one word")
        found = []
        for group in blocks_of((text.split() for text in data), WORDS_AT_ONCE):
            candidates = self._candidates(group, min(topn, len(self.vocab)), nodelimiters)
            for sentence in group:
                names = [self.vocab.words[number] for number in self.vocab.ids(sentence)]
                found.append([{"word": name, **next(candidates)} for name in names])
        return found

    def warmup(self, sess: Any, texts: Sentences) -> None:
        """Run the first batch of `texts`; calls that are given a session go on from there."""
        first = texts[: self.batch_size]
        self._state = self._loaded().embed(first, state=self._state, batch_size=self.batch_size).state or "carry"

    def _loaded(self) -> Embedder:
        if self._embedder is None:
            raise ValueError("no model is loaded yet: call load(directory) first")
        return self._embedder

    def _embed(self, texts: Sentences, warmup: bool, layers: str, session: Any) -> list[np.ndarray]:
        if layers not in ("average", "top", "all"):
            raise ValueError(f"layers must be average, top or all, not {layers!r}")
        if session is None:
            self._state = "carry"
        if warmup:
            self.warmup(session, texts)
        found = self._loaded().embed(texts, layers, self._state, self.batch_size)
        self._state = found.state or "carry"
        return found

    @torch.no_grad()
    def _candidates(self, sentences: Sentences, count: int, nodelimiters: bool) -> Iterator[dict[str, Any]]:
        """What stands at each word in turn: {"forward": ..., "backward": ...}."""
        hidden = self._hidden(sentences)
        # Position k predicts word k + 1 forward and k - 1 backward; the outermost ones predict boundaries.
        ends = np.cumsum([len(sentence) + 1 for sentence in sentences])
        inner = np.ones(int(ends[-1]), dtype=bool)
        inner[ends - 1] = False
        forward = torch.from_numpy(np.flatnonzero(inner))
        best = [self._best(hidden[d][forward + d], count, nodelimiters) for d in range(2)]
        for of_word in zip(*best, strict=True):
            yield dict(zip(("forward", "backward"), of_word, strict=True))

    def _hidden(self, sentences: Sentences) -> Tensor:
        """(2, N, D): the top layer of each direction at every position, in text order."""
        bilm, vocab = self._loaded().model.bilm, self.vocab
        block = scoring_block(sentences, np.arange(len(sentences)), len(sentences), reset=False)
        words = bilm.token_encoder(bilm.token_encoder.ids(block.words, vocab))
        layers, _ = bilm.run(words, block.tokens, block.text.packing)
        return torch.stack(block.text.unpack(layers[-1]).chunk(2, dim=-1))

    def _best(self, hidden: Tensor, count: int, nodelimiters: bool) -> Iterator[dict[str, Any]]:
        """(M, D) -> for each the `count` likeliest words."""
        assert self._softmax is not None and self.vocab is not None
        for some in hidden.split(max(1, LOGITS_AT_ONCE // len(self.vocab))):
            logits = some @ self._softmax.weight.T + self._softmax.bias
            log_p = torch.log_softmax(logits, dim=-1)
            if nodelimiters:
                log_p[:, [self.vocab.bos, self.vocab.eos]] = -torch.inf
            values, ids = log_p.topk(count)
            for row, numbers in zip(values.double().numpy().round(4), ids.tolist(), strict=True):
                words = [self.vocab.words[number] for number in numbers]
                yield {"candidates": numbers, "candidate_words": words, "logp": row.tolist()}
