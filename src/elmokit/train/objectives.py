"""The objectives of training: the text that a step reads, and the words that are predicted from its outputs.

There is one for each kind of sequence encoder, chosen by `objective_of`:

- Encoders that carry a state read windows of endless rows, and each direction predicts its next word (bilm-tf,
  training.py; truncated backpropagation through time).
- Encoders that carry none, with independent directions, read whole sentences, and predict the same words.
- Where the directions are merged, a position has seen its own word. Some words of each sentence are hidden, and
  predicted from all others (Devlin et al. 2019, section 3.1; here a hidden word is always replaced by one vector).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from elmokit.config import BiLMConfig
from elmokit.data.streams import (
    PendingRows,
    PendingText,
    SentenceStream,
    TrainingStream,
    assign_rows,
    draw_hidden,
    embedding_batch,
    scoring_batch,
)
from elmokit.lm.evaluate import target_ids
from elmokit.lm.masked import masked_outputs
from elmokit.nn.bilm import BiLM, BiLMState
from elmokit.ops.packing import Packing
from elmokit.text.vocab import Vocab
from elmokit.train.config import PretrainConfig
from elmokit.train.processes import Processes

HIDDEN_SHARE = 0.15  # of the words of a sentence (Devlin et al. 2019, section 3.1)


@dataclass(frozen=True)
class Part:
    """Rows or sentences of a step's batch that are computed together.

    Attributes:
        key: A number that is unique within the batch, across all processes.
        share: The fraction of the batch's predictions that are this part's; 0 if it has no text.
        words: The distinct words.
        tokens: Index into `words` at each slot of each direction, (2, N).
        packing: The shape of the streams.
        targets: Vocabulary ids to predict, (K, M), for K losses.
        hidden: Slots of the words to predict in each direction, (2, M); None: each slot predicts.
    """

    key: int
    share: float
    words: list[str]
    tokens: Tensor
    packing: Packing
    targets: Tensor
    hidden: Tensor | None = None


class Objective(Protocol):
    """An objective, with its place in the text.

    Attributes:
        losses: The names of its K losses.
        pending_name: The name of `pending` in a snapshot.
    """

    losses: tuple[str, ...]
    pending_name: str

    @property
    def pending(self) -> PendingRows | PendingText:
        """Text that was read from the corpus and not yet trained on."""
        ...

    def read_from(self, sentences: Iterator[list[str]], pending: Any) -> None:
        """Set the text of the next steps: the pending text, if any, and then the sentences."""
        ...

    def next_parts(self, draws: torch.Generator) -> list[Part]:
        """The parts of the next batch that this process computes."""
        ...

    def outputs(self, bilm: BiLM, vectors: Tensor, part: Part, dropout: float) -> Tensor:
        """Run the model on a part, given the vectors of its words (U, D), and update the state of its rows, if any.

        Returns:
            The input of the softmax for its targets, (K, M, D).
        """
        ...

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that are carried from step to step, of the whole batch in all processes, by name."""
        ...

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Restore what `tensors` returned. ValueError if it is of another batch or model."""
        ...


def objective_of(
    config: BiLMConfig,
    settings: PretrainConfig,
    vocab: Vocab,
    fresh_starts: float,
    processes: Processes,
    state: BiLMState,
) -> Objective:
    """The objective for the sequence encoder of a model.

    Args:
        config: The model.
        settings: The size of a batch.
        vocab: Vocabulary of the targets.
        fresh_starts: Fraction of sentences that start from a zero state, although state is carried.
        processes: The processes that share each batch.
        state: The initial state of the rows of a batch.

    Returns:
        `WindowLikelihood` where a state is carried, `MaskedWords` where directions merge, else `SentenceLikelihood`.
    """
    encoder = config.sequence_encoder
    if encoder.carries_state:
        return WindowLikelihood(settings, vocab, fresh_starts, processes, state)
    kind = MaskedWords if encoder.merges_directions else SentenceLikelihood
    return kind(settings, vocab, processes)


class WindowLikelihood:
    """Each direction predicts the next word of its rows, whose state is carried from window to window."""

    losses: tuple[str, ...] = ("forward", "backward")
    pending_name = "rows"

    def __init__(
        self, settings: PretrainConfig, vocab: Vocab, fresh_starts: float, processes: Processes, state: BiLMState
    ) -> None:
        self._batch_size, self._steps = settings.batch_size, settings.unroll_steps
        self._vocab, self._fresh_starts, self._processes = vocab, fresh_starts, processes
        self._parts = processes.parts(settings.batch_size, settings.accumulation)
        self._initial = state
        self._set_state(state)

    def read_from(self, sentences: Iterator[list[str]], pending: list[list[list[str]]] | None) -> None:
        """See `Objective`. ValueError if the pending words are for another number of rows."""
        if pending is not None and len(pending) != self._batch_size:
            raise ValueError(f"it has {len(pending)} rows for a batch of {self._batch_size}")
        self.stream = TrainingStream(sentences, self._vocab, self._batch_size, self._steps, pending)

    @property
    def pending(self) -> PendingRows:
        return self.stream.pending

    def next_parts(self, draws: torch.Generator) -> list[Part]:
        windows, fresh_starts, parts = self.stream.next_parts(self._parts), self._draw_fresh_starts(draws), []
        for rows, window in zip(self._parts, windows, strict=True):
            count = rows.stop - rows.start
            packing = Packing.rectangle(self._steps, count)
            if fresh_starts is not None:
                packing = replace(packing, resets=window.begins & fresh_starts[:, rows].flatten())
            share = count / self._batch_size
            parts.append(Part(rows.start, share, window.words, window.tokens, packing, window.targets))
        return parts

    def _draw_fresh_starts(self, draws: torch.Generator) -> Tensor | None:
        """Draw where a sentence, if it begins there, starts from zeros: (T, B) for the whole batch; None: nowhere."""
        if not self._fresh_starts:
            return None
        drawn = torch.rand(self._steps * self._batch_size, generator=draws, device="cpu")
        return (drawn < self._fresh_starts).view(self._steps, -1)

    def outputs(self, bilm: BiLM, vectors: Tensor, part: Part, dropout: float) -> Tensor:
        layers, state = bilm.run(vectors, part.tokens, part.packing, self._states[part.key], dropout=dropout)
        self._states[part.key] = BiLMState(state.h.detach(), state.c.detach())
        return layers[-1]

    def _set_state(self, state: BiLMState) -> None:
        """Split a state by rows among the parts."""
        self._states = {rows.start: BiLMState(state.h[:, :, rows], state.c[:, :, rows]) for rows in self._parts}

    def tensors(self) -> dict[str, Tensor]:
        own = [BiLMState(state.h.cpu(), state.c.cpu()) for state in self._states.values()]
        states = list(chain.from_iterable(self._processes.gather(own)))
        return {name: torch.cat([getattr(state, name) for state in states], dim=2) for name in ("h", "c")}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        state, expected = BiLMState(**tensors).to(self._initial.h.device), self._initial
        if (state.h.shape, state.c.shape) != (expected.h.shape, expected.c.shape):
            raise ValueError(f"its state has the shapes {tuple(state.h.shape)} and {tuple(state.c.shape)}")
        self._set_state(state)


class _WholeSentences:
    """The text of objectives that read whole sentences, batch_size * unroll_steps positions of them in a batch."""

    pending_name = "sentences"

    def __init__(self, settings: PretrainConfig, vocab: Vocab, processes: Processes) -> None:
        self._rows, self._size = settings.batch_size, settings.batch_size * settings.unroll_steps
        self._vocab = vocab
        self._own = processes.part_numbers(settings.accumulation)
        self._num_parts = processes.count * settings.accumulation

    def read_from(self, sentences: Iterator[list[str]], pending: PendingText | None) -> None:
        """See `Objective`. ValueError if the pending text is from larger batches."""
        if pending is not None and pending.excess >= self._size:
            raise ValueError(f"its sentences exceed a batch of {self._size} positions by {pending.excess}")
        self.stream = SentenceStream(sentences, self._size, pending)

    @property
    def pending(self) -> PendingText:
        return self.stream.pending

    def tensors(self) -> dict[str, Tensor]:
        return {}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        if tensors:
            raise ValueError(f"it has a state ({', '.join(tensors)}), which this encoder does not carry")

    def _split(self, sentences: Sequence[list[str]]) -> dict[int, np.ndarray]:
        """The indices of the sentences of each part that this process computes; parts have about equal lengths."""
        parts = assign_rows([len(sentence) + 1 for sentence in sentences], self._num_parts)
        return {number: np.flatnonzero(parts == number) for number in self._own}

    def _rows_of(self, lengths: Sequence[int]) -> tuple[np.ndarray, int]:
        """The row of each sentence in packed streams, and the number of rows."""
        rows = max(1, min(self._rows, len(lengths)))
        return assign_rows(lengths, rows), rows


class SentenceLikelihood(_WholeSentences):
    """Each direction predicts the next word of whole sentences, which are independent of each other."""

    losses: tuple[str, ...] = ("forward", "backward")

    def next_parts(self, draws: torch.Generator) -> list[Part]:
        sentences = next(self.stream)
        positions = sum(map(len, sentences)) + len(sentences)
        return [
            self._part(key, [sentences[number] for number in own], positions)
            for key, own in self._split(sentences).items()
        ]

    def _part(self, key: int, sentences: list[list[str]], positions: int) -> Part:
        rows, num_rows = self._rows_of([len(sentence) + 1 for sentence in sentences])
        batch = scoring_batch(sentences, rows, num_rows, reset=True)
        targets = batch.text.to_streams(target_ids(sentences, self._vocab))
        share = targets.shape[1] / positions
        return Part(key, share, batch.words, batch.tokens, batch.text.packing, targets)

    def outputs(self, bilm: BiLM, vectors: Tensor, part: Part, dropout: float) -> Tensor:
        layers, _ = bilm.run(vectors, part.tokens, part.packing, dropout=dropout)
        return layers[-1]


class MaskedWords(_WholeSentences):
    """Hidden words of whole sentences are predicted from the sum of the two halves of the top layer."""

    losses: tuple[str, ...] = ("masked",)

    def next_parts(self, draws: torch.Generator) -> list[Part]:
        sentences = next(self.stream)
        hidden = draw_hidden(list(map(len, sentences)), HIDDEN_SHARE, draws)
        total = sum(map(len, hidden))
        return [
            self._part(key, [sentences[number] for number in own], [hidden[number] for number in own], total)
            for key, own in self._split(sentences).items()
        ]

    def _part(self, key: int, sentences: list[list[str]], hidden: list[np.ndarray], total: int) -> Part:
        lengths = np.array([len(sentence) + 2 for sentence in sentences], dtype=np.int64)
        rows, num_rows = self._rows_of(lengths.tolist())
        batch = embedding_batch(sentences, rows, num_rows, reset=True)
        words = [sentence[position] for sentence, own in zip(sentences, hidden, strict=True) for position in own]
        begins = np.cumsum(lengths) - lengths
        places = [begin + 1 + own for begin, own in zip(begins, hidden, strict=True)]  # after <S>
        slots = batch.text.slots[:, torch.from_numpy(np.concatenate([np.zeros(0, dtype=np.int64), *places]))]
        targets = torch.from_numpy(self._vocab.ids(words))[None]
        share = len(words) / total
        return Part(key, share, batch.words, batch.tokens, batch.text.packing, targets, slots)

    def outputs(self, bilm: BiLM, vectors: Tensor, part: Part, dropout: float) -> Tensor:
        assert part.hidden is not None
        return masked_outputs(bilm, vectors, part.tokens, part.packing, part.hidden, dropout)[None]
