"""The objectives of training: the text that a step reads, and the words that are predicted from its
outputs.

There is one for each kind of sequence encoder:

- Encoders that carry a state read windows of endless rows, and each direction predicts its next
  word (bilm-tf, training.py; truncated backpropagation through time).
- Encoders that carry none, with independent directions, read whole sentences, and predict the same
  words.
- Where the directions are merged, a position has seen its own word. Some words of each sentence are
  hidden, and predicted from all others (Devlin et al. 2019, section 3.1; here a hidden word is
  always replaced by one vector).

Each has the names of its K `losses`, a `stream` of text, and these methods:

- `read_from(sentences, pending)` sets the text of the next steps: the pending text, if any, and
  then the sentences.
- `next_part(draws)` gives what this process computes of the next batch.
- `outputs(bilm, vectors, part, dropout)` runs the model, given the vectors of the words (U, D), and
  updates the state of the rows, if any. It returns the input of the softmax for the targets, (K, M,
  D).
- `tensors()` gives what is carried from step to step, of the batch in all processes;
  `restore(tensors)` sets it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from elmokit.data import (
    PendingText,
    SentenceStream,
    TrainingStream,
    assign_rows,
    draw_hidden,
    embedding_batch,
    scoring_batch,
)
from elmokit.nn import BiLM, BiLMState
from elmokit.ops import Packing
from elmokit.text import Vocab
from elmokit.train.config import PretrainConfig
from elmokit.train.processes import Processes

HIDDEN_SHARE = 0.15  # of the words of a sentence (Devlin et al. 2019, section 3.1)


@dataclass(frozen=True)
class Part:
    """Rows or sentences of a step's batch that one process computes.

    Attributes:
        share: The fraction of the batch's predictions that are this part's; 0 if it has no text.
        words: The distinct words.
        tokens: Index into `words` at each slot of each direction, (2, N).
        packing: The shape of the streams.
        targets: Vocabulary ids to predict, (K, M), for K losses.
        hidden: Slots of the words to predict in each direction, (2, M); None: each slot predicts.
    """

    share: float
    words: list[str]
    tokens: Tensor
    packing: Packing
    targets: Tensor
    hidden: Tensor | None = None


class WindowLikelihood:
    """Each direction predicts the next word of its rows, whose state is carried from window to
    window.
    """

    losses: tuple[str, ...] = ("forward", "backward")

    def __init__(
        self,
        settings: PretrainConfig,
        vocab: Vocab,
        processes: Processes,
        fresh_starts: float,
        state: BiLMState,
    ) -> None:
        """`fresh_starts` is the fraction of sentences that start from zeros; `state` is that of all
        rows.
        """
        self._batch_size, self._steps = settings.batch_size, settings.unroll_steps
        self._vocab, self._fresh_starts, self._processes = vocab, fresh_starts, processes
        self._rows = processes.rows(settings.batch_size)
        self._state = BiLMState(state.h[:, :, self._rows], state.c[:, :, self._rows])

    def read_from(
        self, sentences: Iterator[list[str]], pending: list[list[list[str]]] | None
    ) -> None:
        self.stream = TrainingStream(sentences, self._vocab, self._batch_size, self._steps, pending)

    def next_part(self, draws: torch.Generator) -> Part:
        window, count = self.stream.next_window(self._rows), self._rows.stop - self._rows.start
        packing = Packing.rectangle(self._steps, count)
        if self._fresh_starts:
            drawn = torch.rand(self._steps, self._batch_size, generator=draws, device="cpu")[
                :, self._rows
            ]
            packing = replace(
                packing, resets=window.begins & (drawn < self._fresh_starts).flatten()
            )
        return Part(count / self._batch_size, window.words, window.tokens, packing, window.targets)

    def outputs(self, bilm: BiLM, vectors: Tensor, part: Part, dropout: float) -> Tensor:
        layers, state = bilm.run(vectors, part.tokens, part.packing, self._state, dropout=dropout)
        self._state = BiLMState(state.h.detach(), state.c.detach())
        return layers[-1]

    def tensors(self) -> dict[str, Tensor]:
        states = self._processes.gather(BiLMState(self._state.h.cpu(), self._state.c.cpu()))
        return {
            name: torch.cat([getattr(state, name) for state in states], dim=2)
            for name in ("h", "c")
        }

    def restore(self, tensors: dict[str, Tensor]) -> None:
        h, c = (tensors[name][:, :, self._rows] for name in ("h", "c"))
        self._state = BiLMState(h, c).to(self._state.h.device)


class _WholeSentences:
    """The text of objectives that read whole sentences, batch_size * unroll_steps positions of them
    in a batch.
    """

    def __init__(self, settings: PretrainConfig, vocab: Vocab, processes: Processes) -> None:
        self._num_rows, self._size = (
            settings.batch_size,
            settings.batch_size * settings.unroll_steps,
        )
        self._vocab, self._processes = vocab, processes

    def read_from(self, sentences: Iterator[list[str]], pending: dict[str, Any] | None) -> None:
        self.stream = SentenceStream(
            sentences, self._size, None if pending is None else PendingText(**pending)
        )

    def tensors(self) -> dict[str, Tensor]:
        return {}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        assert not tensors

    def _own(self, sentences: Sequence[list[str]]) -> np.ndarray:
        """The indices of the sentences that this process computes; those of all processes have
        about equal lengths.
        """
        lengths = [len(sentence) + 1 for sentence in sentences]
        return np.flatnonzero(assign_rows(lengths, self._processes.count) == self._processes.rank)

    def _rows_of(self, lengths: Sequence[int]) -> tuple[np.ndarray, int]:
        """The row of each sentence in packed streams, and the number of rows."""
        rows = max(1, min(self._num_rows, len(lengths)))
        return assign_rows(lengths, rows), rows


class SentenceLikelihood(_WholeSentences):
    """Each direction predicts the next word of whole sentences, which are independent of each
    other.
    """

    losses: tuple[str, ...] = ("forward", "backward")

    def next_part(self, draws: torch.Generator) -> Part:
        batch = next(self.stream)
        sentences = [batch[number] for number in self._own(batch)]
        packed = scoring_batch(
            sentences, *self._rows_of([len(sentence) + 1 for sentence in sentences]), reset=True
        )
        targets = packed.text.to_streams(torch.from_numpy(self._vocab.targets(sentences)))
        share = targets.shape[1] / (sum(map(len, batch)) + len(batch))
        return Part(share, packed.words, packed.tokens, packed.text.packing, targets)

    def outputs(self, bilm: BiLM, vectors: Tensor, part: Part, dropout: float) -> Tensor:
        return bilm.run(vectors, part.tokens, part.packing, dropout=dropout)[0][-1]


class MaskedWords(_WholeSentences):
    """Hidden words of whole sentences are predicted from the sum of the two halves of the top
    layer.
    """

    losses: tuple[str, ...] = ("masked",)

    def next_part(self, draws: torch.Generator) -> Part:
        batch = next(self.stream)
        drawn = draw_hidden(list(map(len, batch)), HIDDEN_SHARE, draws)
        own = self._own(batch)
        sentences, hidden = [batch[number] for number in own], [drawn[number] for number in own]
        lengths = np.array([len(sentence) + 2 for sentence in sentences], dtype=np.int64)
        packed = embedding_batch(sentences, *self._rows_of(lengths.tolist()), reset=True)
        words = [
            sentence[position]
            for sentence, places in zip(sentences, hidden, strict=True)
            for position in places
        ]
        begins = np.cumsum(lengths) - lengths
        places = [
            begin + 1 + place for begin, place in zip(begins, hidden, strict=True)
        ]  # after <S>
        slots = packed.text.slots[
            :, torch.from_numpy(np.concatenate([np.zeros(0, dtype=np.int64), *places]))
        ]
        share, targets = (
            len(words) / sum(map(len, drawn)),
            torch.from_numpy(self._vocab.ids(words))[None],
        )
        return Part(share, packed.words, packed.tokens, packed.text.packing, targets, slots)

    def outputs(self, bilm: BiLM, vectors: Tensor, part: Part, dropout: float) -> Tensor:
        assert part.hidden is not None
        return bilm.masked_outputs(vectors, part.tokens, part.packing, part.hidden, dropout)[None]


Objective: TypeAlias = WindowLikelihood | SentenceLikelihood | MaskedWords
