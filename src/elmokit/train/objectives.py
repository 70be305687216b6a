"""The objectives of training: the text that a step reads, and the loss of the model's outputs.

There is one for each kind of sequence encoder:

- Encoders that carry a state read windows of endless rows, and each direction predicts its next
  word (bilm-tf, training.py; truncated backpropagation through time).
- Encoders that carry none, with independent directions, read whole sentences, and predict the same
  words.
- Where the directions are merged, a position has seen its own word. Some words of each sentence are
  masked, and predicted from all others (Devlin et al. 2019, section 3.1; here a masked word is
  always replaced by one vector).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from elmokit.data import PackedBatch
from elmokit.nn import BiLM, BiLMState
from elmokit.ops import Packing
from elmokit.text import Vocab
from elmokit.train.corpus import SentenceStream, TrainingStream
from elmokit.train.processes import Processes

MASKED_SHARE = 0.15  # fraction of masked words in a sentence (Devlin et al. 2019, section 3.1)


def draw_masked(
    lengths: Sequence[int], share: float, generator: torch.Generator
) -> list[np.ndarray]:
    """Draw the words of each sentence that are masked, for the model to predict.

    Args:
        lengths: Number of words of each sentence, at least 1.
        share: Fraction of the words of a sentence to mask, rounded to a number of at least 1.
        generator: Generator on the CPU.

    Returns:
        The positions of the masked words of each sentence, from 0, in ascending order.
    """
    draws = torch.rand(sum(lengths), generator=generator, device="cpu").numpy()
    begins = np.cumsum(lengths)[:-1]
    return [
        np.sort(np.argsort(values)[: max(1, round(share * len(values)))])
        for values in np.split(draws, begins)
    ]


@dataclass(frozen=True)
class LocalBatch:
    """The rows or sentences of a step's batch that one process computes.

    Attributes:
        weight: The fraction of the batch's predictions that are here; 0 if there is no text.
        words: The distinct words.
        tokens: Index into `words` at each slot of each direction, (2, N).
        packing: The shape of the streams.
        targets: What is predicted, such as vocabulary ids (K, M), for K losses.
        slots: Of the words to predict in each direction, (2, M); None: each slot predicts.
        lengths: Positions of each sentence, with boundaries; for objectives of your own.
        vectors: Of texts, for an objective that predicts them.
    """

    weight: float
    words: list[str]
    tokens: Tensor
    packing: Packing
    targets: Tensor
    slots: Tensor | None = None
    lengths: Sequence[int] = ()
    vectors: Tensor | None = None


@dataclass(eq=False)
class Objective:
    """Reads the text of a step and computes its loss.

    One of your own derives from `SentenceObjective`, and defines `names`, `next_batch`, and
    `outputs` or `losses`.

    Attributes:
        names: Names of its K losses, for the log.
        weights: Of the losses in their mean, which is minimized; none: all the same.
        stream: The text to come. `pending`: buffered, not yet consumed text; JSON-serializable by
            `to_json`.
        bilm: The model in training.
        vocab: Vocabulary of the softmax.
        processes: The processes that share each batch.
        batch_size, unroll_steps, dropout, fresh_starts: The settings of these names.
    """

    names: ClassVar[tuple[str, ...]]
    weights: ClassVar[tuple[float, ...]] = ()
    stream: Any = field(init=False)
    bilm: BiLM
    vocab: Vocab
    processes: Processes
    batch_size: int
    unroll_steps: int
    dropout: float
    fresh_starts: float

    def __post_init__(self) -> None:
        """Prepare the state between steps."""

    def read_from(self, sentences: Iterator[list[str]], pending: Any) -> None:
        """Read the pending text of a snapshot next, if any, and then the sentences."""
        raise NotImplementedError

    def next_batch(self, generator: torch.Generator) -> LocalBatch:
        """This process's part of the next batch; called on a thread during the step before.

        Every process draws the same numbers.
        """
        raise NotImplementedError

    def outputs(self, vectors: Tensor, batch: LocalBatch) -> Tensor:
        """Run the model: vectors of the words (U, D) -> inputs of the softmax, (K, M, D)."""
        raise NotImplementedError

    def losses(
        self, vectors: Tensor, batch: LocalBatch, predict: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """The K mean losses of a batch; `predict` computes losses of words from `outputs`."""
        return predict(self.outputs(vectors, batch))

    def parameters(self) -> Sequence[nn.Parameter]:
        """Additional weights, trained with the model's."""
        return ()

    def tensors(self) -> dict[str, Tensor]:
        """The state between steps, of the batch in all processes, for a snapshot."""
        return {}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Go on from the `tensors` of a snapshot."""


class WindowLikelihood(Objective):
    """Each direction predicts the next word of its rows, whose state goes from window to window."""

    names = ("forward", "backward")

    def __post_init__(self) -> None:
        self._rows = self.processes.local_rows(self.batch_size)
        self._state = self.bilm.initial_state(self._rows.stop - self._rows.start)

    def read_from(
        self, sentences: Iterator[list[str]], pending: list[list[list[str]]] | None
    ) -> None:
        self.stream = TrainingStream(
            sentences, self.vocab, self.batch_size, self.unroll_steps, pending
        )

    def next_batch(self, generator: torch.Generator) -> LocalBatch:
        rows = self._rows
        window, count = self.stream.next_window(rows), rows.stop - rows.start
        packing = Packing.rectangle(self.unroll_steps, count)
        # Some of the sentences that begin in the window start from zeros, as when they are embedded
        # one by one. Numbers are drawn for the rows of all processes, so that all draw the same.
        #
        #   row 0   a4  a5  <S>  b1  b2  b3        `begins` is True at <S>: the state is reset there
        #   row 1   c2  c3  c4   c5  <S> d1        with probability `fresh_starts`
        if self.fresh_starts:
            shape = self.unroll_steps, self.batch_size
            drawn = torch.rand(shape, generator=generator, device="cpu")[:, rows]
            resets = window.begins & (drawn < self.fresh_starts).flatten()
            packing = replace(packing, resets=resets)
        weight = count / self.batch_size
        return LocalBatch(weight, window.words, window.tokens, packing, window.targets)

    def outputs(self, vectors: Tensor, batch: LocalBatch) -> Tensor:
        layers, state = self.bilm.run(
            vectors, batch.tokens, batch.packing, self._state, dropout=self.dropout
        )
        # Truncated backpropagation: the state goes on to the next window, gradients do not.
        self._state = BiLMState(state.h.detach(), state.c.detach())
        return layers[-1]

    def tensors(self) -> dict[str, Tensor]:
        states = self.processes.all_gather(BiLMState(self._state.h.cpu(), self._state.c.cpu()))
        return {
            name: torch.cat([getattr(state, name) for state in states], dim=2)
            for name in ("h", "c")
        }

    def restore(self, tensors: dict[str, Tensor]) -> None:
        h, c = (tensors[name][:, :, self._rows] for name in ("h", "c"))
        self._state = BiLMState(h, c).to(self._state.h.device)


class SentenceObjective(Objective):
    """The base of objectives that read whole sentences, about as many positions as a window has."""

    def read_from(self, sentences: Iterator[list[str]], pending: dict[str, Any] | None) -> None:
        self.stream = SentenceStream(
            sentences,
            self.batch_size * self.unroll_steps,
            pending,
        )

    def local(self, sentences: Sequence[list[str]]) -> np.ndarray:
        """Indices of this process's sentences; all processes have about equally many words."""
        by_length = np.argsort(list(map(len, sentences)), kind="stable")
        return np.sort(by_length[self.processes.rank :: self.processes.world_size])


class SentenceLikelihood(SentenceObjective):
    """Each direction predicts the next word of whole sentences, independent of each other."""

    names = ("forward", "backward")

    def next_batch(self, generator: torch.Generator) -> LocalBatch:
        batch = next(self.stream)
        sentences = [batch[index] for index in self.local(batch)]
        shares = [sum(map(len, part)) + len(part) for part in (sentences, batch)]
        packed = PackedBatch.to_score(sentences, self.batch_size)
        return self.batch_of(sentences, packed, shares[0] / shares[1])

    def batch_of(
        self, sentences: Sequence[list[str]], packed: PackedBatch, weight: float
    ) -> LocalBatch:
        """The batch of packed sentences, which are `weight` of the whole."""
        targets = packed.text.to_streams(torch.from_numpy(self.vocab.targets(sentences)))
        return LocalBatch(weight, packed.words, packed.tokens, packed.text.packing, targets)

    def outputs(self, vectors: Tensor, batch: LocalBatch) -> Tensor:
        layers, _ = self.bilm.run(vectors, batch.tokens, batch.packing, dropout=self.dropout)
        return layers[-1]


class MaskedWords(SentenceObjective):
    """Masked words of whole sentences are predicted from all others."""

    names = ("masked",)

    def next_batch(self, generator: torch.Generator) -> LocalBatch:
        batch = next(self.stream)
        drawn = draw_masked(list(map(len, batch)), MASKED_SHARE, generator)
        local = self.local(batch)
        sentences, masked = [batch[index] for index in local], [drawn[index] for index in local]
        packed = PackedBatch.to_embed(sentences, self.batch_size)
        # The positions of masked words in the text, where <S> is before each sentence:
        #
        #   sentences   a _ c | _ e          masked      [1] [0]
        #   text        <S> a _ c </S> <S> _ e </S>
        #   begins      0                  5           positions   2 6
        begins = np.cumsum(packed.lengths) - packed.lengths
        positions = [begin + 1 + k for begin, k in zip(begins, masked, strict=True)]
        positions = np.concatenate([np.zeros(0, dtype=np.int64), *positions])
        words = [words[k] for words, ks in zip(sentences, masked, strict=True) for k in ks]
        return LocalBatch(
            len(words) / sum(map(len, drawn)),
            packed.words,
            packed.tokens,
            packed.text.packing,
            targets=torch.from_numpy(self.vocab.ids(words))[None],
            slots=packed.text.slots[:, torch.from_numpy(positions)],
        )

    def outputs(self, vectors: Tensor, batch: LocalBatch) -> Tensor:
        assert batch.slots is not None
        return self.bilm.masked_outputs(
            vectors, batch.tokens, batch.packing, batch.slots, self.dropout
        )[None]
