"""simple_elmo's `ElmoModel`, without TensorFlow sessions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from elmokit.compat.bilm_tf import Batcher
from elmokit.compat.shared import warn_once, word_lists
from elmokit.embed import Embedder
from elmokit.nn import BiLMState
from elmokit.settings import StatePolicy
from elmokit.text import Vocab

Sentences = Sequence[Sequence[str]]
SENTENCES_AT_ONCE = 8


def _weights_in(directory: str | Path, full: bool) -> str | Path:
    """The weights that simple_elmo prefers: the checkpoint with `full`, else model.hdf5."""
    folder = Path(directory).expanduser()
    named = folder / ("checkpoint" if full else "model.hdf5")
    return named if named.is_file() else directory


class ElmoModel:
    """simple_elmo's `ElmoModel`: load a model, then compute vectors, averages or substitutes.

    As in simple_elmo, the sentences of a batch pass their state on to those of the next, and with
    `warmup` the first batch is run once in advance. A call starts from zeros, unless it is given a
    `session` (anything but None): then it starts from the final state of the previous call.
    """

    batch_size = max_chars = vector_size = n_layers = 0
    vocab: Vocab | None = None
    batcher: Batcher | None = None
    _embedder: Embedder  # set by `load`
    _softmax: Any
    _layers: str
    _state: BiLMState | StatePolicy = "carry"

    def load(
        self,
        directory: str | Path,
        max_batch_size: int = 32,
        limit: int = 100,
        full: bool = False,
        top: bool = False,
    ) -> None:
        """Load a model.

        Args:
            directory: Directory or zip archive with options.json and model.hdf5, or any other model
                that `elmokit.load` accepts.
            max_batch_size: Sentences per batch; or `top`, which came second up to version 0.5.
            limit: Ignored.
            full: Load the softmax as well, for substitutes.
            top: Let the top layer be the default of `layers`, as before version 0.6.

        Raises:
            ValueError: The model carries no state, or `full` is set, but it has no softmax or
                vocabulary.
        """
        if isinstance(max_batch_size, bool):
            top, max_batch_size = max_batch_size, 32
        self._layers = "top" if top else "average"
        embedder = Embedder(_weights_in(directory, full), softmax=full)
        model, config = embedder.model, embedder.model.config
        if not config.sequence_encoder.carries_state:
            raise ValueError(
                f"{config.encoder_name} models carry no state, as simple_elmo does: use "
                f"elmokit.Embedder"
            )
        if full and None in (model.softmax, model.vocab):
            raise ValueError(
                f"full=True needs a softmax and a vocabulary, which {directory} lacks: load a "
                f"checkpoint"
            )
        self._embedder, self._softmax, self.vocab = embedder, model.softmax, model.vocab
        self._state, self.batch_size = "carry", max_batch_size
        self.max_chars = 0 if config.char_cnn is None else config.char_cnn.max_characters
        self.batcher = Batcher(None, self.max_chars) if self.max_chars else None
        self.vector_size, self.n_layers = config.output_dim, config.num_representations

    def get_elmo_vectors(
        self, texts: Sentences, warmup: bool = True, layers: str = "", session: Any = None
    ) -> np.ndarray:
        """Sentences -> float64 (N, T, 2D), or (N, L+1, T, 2D) with "all", zeros for padding.

        Args:
            texts: Tokenized sentences.
            warmup: Run the first batch once in advance, so that it does not start from zeros.
            layers: "average", which is the default, "top" or "all".
            session: Anything but None to start from the final state of the previous call.
        """
        texts = word_lists(texts)
        embeddings = self._embed(texts, warmup, layers, session)
        width = max(map(len, texts), default=0)
        shape = (len(texts), self.n_layers, width) if layers == "all" else (len(texts), width)
        vectors = np.zeros((*shape, self.vector_size))
        for row, array in zip(vectors, embeddings, strict=True):
            row[..., : array.shape[-2], :] = array
        return vectors

    def get_elmo_vector_average(
        self, texts: Sentences, warmup: bool = True, layers: str = "", session: Any = None
    ) -> np.ndarray:
        """The mean of each sentence's words, of length one: (N, 2D), or (N, L+1, 2D) with "all".

        With layers="all", as in simple_elmo, all layers of a sentence together have length one, not
        each of them. Arguments are those of `get_elmo_vectors`.
        """
        warn_once(
            "averages exclude padding and are taken per layer, unlike simple_elmo's, which depend "
            "on the batch, and with layers='all' confuse layers and words"
        )
        texts = word_lists(texts)
        shape = (self.n_layers, self.vector_size) if layers == "all" else (self.vector_size,)
        averages = np.zeros((len(texts), *shape))
        for row, array in zip(averages, self._embed(texts, warmup, layers, session), strict=True):
            if array.shape[-2]:
                mean = array.mean(axis=-2, dtype=np.float64)
                row[:] = mean / np.linalg.norm(mean)
        return averages

    @torch.no_grad()
    def get_elmo_substitutes(
        self, data: Sequence[str], topn: int = 3, nodelimiters: bool = True
    ) -> list[list[dict[str, Any]]]:
        """Predict substitutes for all words, in each direction.

        Args:
            data: Sentences, split at white space.
            topn: Number of candidates.
            nodelimiters: Exclude <S> and </S>.

        Returns:
            For each word of each sentence {"word": ..., "forward": {"candidates",
            "candidate_words", "logp"}, "backward": {...}}, the most likely candidate first; an
            unknown word is given as <UNK>.

        Raises:
            ValueError: The model was loaded without `full`, or reads no characters, or `data` is a
                single string.
        """
        vocab, batcher = self.vocab, self.batcher
        if vocab is None or batcher is None or self._softmax is None or isinstance(data, str):
            raise ValueError(
                "substitutes need load(directory, full=True), and a list of sentences, not one "
                "string"
            )
        warn_once(
            "logp is a log-probability given the whole context; simple_elmo's is a logit given a "
            "single word"
        )
        bilm, dim = self._embedder.model.bilm, self.vector_size // 2
        top, substitutes = min(topn, len(vocab) - 2 * nodelimiters), []
        for begin in range(0, len(data), SENTENCES_AT_ONCE):
            sentences = [text.split() for text in data[begin : begin + SENTENCES_AT_ONCE]]
            ids = torch.from_numpy(batcher.batch_sentences(sentences))
            layers = bilm(ids.to(bilm.device)).layers[-1]
            for words, hidden in zip(sentences, layers, strict=True):
                # Position k, after <S> at 0, predicts position k + 1 forward and k - 1 backward.
                forward = self._best(hidden[: len(words), :dim], top, nodelimiters)
                backward = self._best(hidden[2 : len(words) + 2, dim:], top, nodelimiters)
                known = [vocab.words[number] for number in vocab.ids(words)]
                substitutes.append(
                    [
                        {"word": word, "forward": before, "backward": after}
                        for word, before, after in zip(known, forward, backward, strict=True)
                    ]
                )
        return substitutes

    def warmup(self, sess: Any, texts: Sentences) -> None:
        """Run the first batch of `texts`; calls with a session start from its final state."""
        first = word_lists(texts)[: self.batch_size]
        self._state = (
            self._embedder.embed(first, state=self._state, batch_size=self.batch_size).state
            or "carry"
        )

    def _embed(
        self, texts: list[list[str]], warmup: bool, layers: str, session: Any
    ) -> Sequence[np.ndarray]:
        if session is None:
            self._state = "carry"
        if warmup:
            self.warmup(session, texts)
        layers = layers or self._layers
        embeddings = self._embedder.embed(texts, layers, self._state, self.batch_size)
        self._state = embeddings.state or "carry"
        return embeddings

    def _best(
        self, hidden: torch.Tensor, count: int, nodelimiters: bool
    ) -> Iterator[dict[str, Any]]:
        """Yield the `count` most likely words for each row of `hidden`, (M, D)."""
        assert self._softmax is not None and self.vocab is not None
        log_p = torch.log_softmax(hidden @ self._softmax.weight.T + self._softmax.bias, dim=-1)
        if nodelimiters:
            log_p[:, [self.vocab.bos, self.vocab.eos]] = -torch.inf
        values, ids = log_p.topk(count)
        for row, numbers in zip(values.double().cpu().numpy().round(4), ids.tolist(), strict=True):
            words = [self.vocab.words[number] for number in numbers]
            yield {"candidates": numbers, "candidate_words": words, "logp": row.tolist()}
