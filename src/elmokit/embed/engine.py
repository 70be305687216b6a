"""From a packed block of words to the layers of its streams, with the weights ready for the machine at hand."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import ExitStack
from threading import Lock
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from elmokit.checkpoints.pretrained import Pretrained
from elmokit.config import PAD_CHARACTER, BiLMConfig
from elmokit.data.streams import Block, one_row, word_ids
from elmokit.nn.bilm import BiLM, BiLMState
from elmokit.nn.prepared import PreparedBiLM, prepare
from elmokit.nn.room import Rooms
from elmokit.text.characters import BOS, EOS

WORDS_TOGETHER, CHARACTERS_TOGETHER = 128, 8
CACHE_BYTES = 32 << 20
LONGEST_KEPT = 200  # characters: a text that is no text, without white space, would fill the cache with itself

Result = TypeVar("Result")


def in_few_shapes(ids: Tensor, config: BiLMConfig) -> Tensor:
    """Distinct words with a few more rows, and characters with more padding, which change no vector.

    For every new shape of a bfloat16 product oneDNN compiles a program and keeps it: without this, memory grows with
    the text by about 80 MB for every 85,000 words.
    """
    if config.char_cnn is not None:
        missing = min(-ids.shape[1] % CHARACTERS_TOGETHER, config.char_cnn.max_characters - ids.shape[1])
        ids = F.pad(ids, (0, missing), value=PAD_CHARACTER)
    return torch.cat([ids, ids[:1].expand(-len(ids) % WORDS_TOGETHER, *ids.shape[1:])])


class _KnownWords:
    """Vectors of words that were met before, as many as fit into CACHE_BYTES; when full it starts anew."""

    def __init__(self, dim: int) -> None:
        self.capacity, self._dim = max(1, CACHE_BYTES // (4 * dim)), dim
        self._vectors = torch.empty(self.capacity, dim)
        self._rows: dict[str, int] = {}
        self._lock = Lock()

    def __reduce__(self) -> tuple[type[_KnownWords], tuple[int]]:
        """A copy, as for another process, begins empty."""
        return _KnownWords, (self._dim,)

    def forget(self) -> None:
        with self._lock:
            self._rows.clear()

    def look_up(self, words: list[str]) -> tuple[Tensor, list[int]]:
        """Words -> (U, D), and the numbers of those that are not known, whose rows mean nothing."""
        with self._lock:
            rows = [self._rows.get(word, -1) for word in words]
            vectors = self._vectors[torch.tensor(rows, dtype=torch.int64).clamp_(min=0)]
        return vectors, [number for number, row in enumerate(rows) if row < 0]

    def add(self, words: list[str], vectors: Tensor) -> None:
        """Distinct words, of which another thread may have added some; the first ones, where there are too many."""
        with self._lock:
            if len(self._rows) + len(words) > self.capacity:
                self._rows.clear()
            kept = enumerate(words[: self.capacity])
            new = [number for number, word in kept if word not in self._rows and len(word) <= LONGEST_KEPT]
            rows = range(len(self._rows), len(self._rows) + len(new))
            self._vectors[rows.start : rows.stop] = vectors[new]
            self._rows.update((words[number], row) for number, row in zip(new, rows, strict=True))


class Engine:
    """A model's biLM on a device, its products of one type."""

    def __init__(self, model: Pretrained, device: torch.device, dtype: torch.dtype) -> None:
        self.config, self._vocab, self.device, self._dtype = model.config, model.vocab, device, dtype
        prepared = prepare(model.bilm, dtype, device)
        if prepared is None and dtype == torch.int8:
            raise ValueError(
                "int8 needs a CPU with AVX-512 VNNI, the compiled kernels (see elmokit info), and a model whose "
                "directions do not join: use bfloat16 or float32"
            )
        self._bilm = _moved(model.bilm, device, dtype) if prepared is None else prepared
        self.has_own_weights = self._bilm is not model.bilm
        self.begins_early = prepared is not None or device.type != "cpu"  # begin() comes back before its work is done
        # Only these products give a word the same vector, to the last bit, whatever other words are beside it.
        has_use = prepared is not None and self.config.char_cnn is not None
        self._rooms = Rooms()
        self._known = _KnownWords(self.config.lstm.projection_dim) if has_use else None
        self._zeros_at_words: BiLMState | None = None

    @torch.no_grad()
    def begin(
        self,
        block: Block,
        state: BiLMState | None,
        start: BiLMState | None,
        then: Callable[[Tensor, BiLMState], Result],
    ) -> Callable[[], Result]:
        """A run on its way, where it can be: a function that waits for what `then` makes of it.

        then() is given the layers (L+1, 2, N, D) in stream order, which are good until it is done, and the state after;
        `state`, `start` as in `BiLM.run_packed`. ValueError where products in float16 overflow.
        """
        words, tokens = self._word_vectors(block.words), block.tokens.to(self.device)
        packed = words, tokens, block.text.packing, state, start
        if not isinstance(self._bilm, PreparedBiLM):
            found = self._bilm.run_packed(*packed)
            return lambda: then(*self._checked(*found))
        under_way = ExitStack()
        room = under_way.enter_context(self._rooms.one())

        def then_leave(layers: Tensor, after: BiLMState) -> Result:
            with under_way:
                return then(layers, after)

        return self._bilm.begin_packed(*packed, room, then_leave)

    def after_first_boundaries(self, start: BiLMState | None) -> BiLMState:
        """From `start` (one row; None: zeros) the state at the first word that each direction reads of a sentence."""
        if start is None and self._zeros_at_words is not None:
            return self._zeros_at_words
        after = self.begin(one_row([BOS], [EOS]), start, None, lambda _, after: after)()
        if start is None and self.has_own_weights:  # the model's may be changed by whoever has it
            self._zeros_at_words = after
        return after

    def _checked(self, layers: Tensor, after: BiLMState) -> tuple[Tensor, BiLMState]:
        if self._dtype == torch.float16 and not layers.isfinite().all():
            raise ValueError("numbers of this model are too large for products in float16: use bfloat16 or float32")
        return layers, after

    def initial_state(self, rows: int) -> BiLMState:
        return self._bilm.initial_state(rows)

    def forget_words(self) -> None:
        """Empty the cache of word vectors."""
        if self._known is not None:
            self._known.forget()

    def _word_vectors(self, words: list[str]) -> Tensor:
        """Distinct words -> (U, D)."""
        if self._known is None:
            return self._encoded(words)
        vectors, missing = self._known.look_up(words)
        if missing:
            new = [words[number] for number in missing]
            encoded = self._encoded(new)
            vectors[missing] = encoded
            self._known.add(new, encoded)
        return vectors

    def _encoded(self, words: list[str]) -> Tensor:
        """Distinct words -> (U, D), and perhaps a few rows that no token stands for."""
        ids = word_ids(words, self.config, self._vocab)
        if self._known is None:
            ids = in_few_shapes(ids, self.config)
        return self._bilm.encode_words(ids.to(self.device))


def _moved(bilm: BiLM, device: torch.device, dtype: torch.dtype) -> BiLM:
    parameter = next(bilm.layers.parameters())
    if (parameter.dtype, parameter.device) != (dtype, device):
        bilm = copy.deepcopy(bilm).to(device, dtype)
    return bilm.eval()
