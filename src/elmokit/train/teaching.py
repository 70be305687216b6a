"""Teaching a biLM the vectors of texts that another model computed (Hinton et al. 2015)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import chain
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elmokit.data import PackedBatch
from elmokit.fs import read_lines
from elmokit.nn import TextMap
from elmokit.train.objectives import LocalBatch, SentenceLikelihood

TEXT_WEIGHT = 10.0  # of the loss of vectors beside those of words, which are some four nats


class TextVectors:
    """The vectors of tokenized texts, looked up by their words.

    Attributes:
        dim: Width of a vector.
        digest: What identifies the vectors.
    """

    def __init__(self, files: Sequence[Path], vectors: Path) -> None:
        """Open a file of vectors.

        Args:
            files: The texts, one per line.
            vectors: A NumPy file (N, K) with a row for each line of the files in their order.

        Raises:
            ValueError: It has another number of rows, or is no such file.
        """
        try:
            self._vectors = np.load(Path(vectors).expanduser(), mmap_mode="r")
        except (ValueError, EOFError) as error:
            raise ValueError(f"{vectors} is not a NumPy file of numbers: {error}") from error
        keys = np.fromiter(map(_key, chain.from_iterable(map(read_lines, files))), np.uint64)
        if self._vectors.ndim != 2 or len(self._vectors) != len(keys):
            raise ValueError(
                f"{vectors} holds numbers {self._vectors.shape}, and the corpus has {len(keys):,} "
                "lines: give a row for each line, also for blank ones"
            )
        self._rows = np.argsort(keys, kind="stable")
        self._keys = keys[self._rows]
        self.dim = self._vectors.shape[1]
        self.digest = blake2b(self._vectors, digest_size=16).hexdigest()

    def find(self, texts: Sequence[Sequence[str]]) -> Tensor:
        """Unit vectors of texts, (B, K) float32; zeros for one that is none of the lines."""
        keys = np.array([_key(" ".join(words)) for words in texts], np.uint64)
        places = np.searchsorted(self._keys, keys).clip(max=len(self._keys) - 1)
        vectors = self._vectors[self._rows[places]].astype(np.float32)
        vectors[self._keys[places] != keys] = 0
        return F.normalize(torch.from_numpy(vectors), dim=1)


def _key(line: str) -> int:
    return int.from_bytes(blake2b(line.encode(), digest_size=8).digest(), "little")


@dataclass(eq=False)
class TextTeaching(SentenceLikelihood):
    """Each direction predicts the next word, and a map of the layers' means gives texts their
    vectors.

    The loss of the vectors is one minus their cosine with the given ones, and the squared error of
    the cosines between all texts of a batch.

    Attributes:
        vectors: The vectors to learn.
        text_map: The map to train.
    """

    vectors: TextVectors = field(kw_only=True)
    text_map: TextMap = field(kw_only=True)

    names = ("forward", "backward", "text")
    weights = (1.0, 1.0, TEXT_WEIGHT)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.text_map.to(self.bilm.device)

    def batch_of(
        self, sentences: Sequence[list[str]], packed: PackedBatch, weight: float
    ) -> LocalBatch:
        #   forward    <S> a b <S> c         the vector of a word is where it has been read:
        #   backward   a b </S> c </S>       forward 1 2 4, backward 0 1 3
        ends = np.cumsum(packed.lengths)
        begins = ends - packed.lengths
        slots = packed.text.slots
        read = [np.delete(np.arange(ends[-1]), begins), np.delete(np.arange(ends[-1]), ends - 1)]
        places = [slots[side, torch.from_numpy(at)] for side, at in enumerate(read)]
        return replace(
            super().batch_of(sentences, packed, weight),
            slots=torch.stack(places),
            lengths=packed.lengths - 1,
            vectors=self.vectors.find(sentences),
        )

    def losses(
        self, vectors: Tensor, batch: LocalBatch, predict: Callable[[Tensor], Tensor]
    ) -> Tensor:
        assert batch.slots is not None and batch.vectors is not None
        layers, _ = self.bilm.run(vectors, batch.tokens, batch.packing, dropout=self.dropout)
        halves = [layers[:, side, batch.slots[side]] for side in (0, 1)]
        words = torch.cat(halves, dim=-1).float()  # (L+1, M, 2D)
        lengths = torch.tensor(batch.lengths, device=words.device)
        texts = torch.repeat_interleave(torch.arange(len(lengths), device=words.device), lengths)
        sums = words.new_zeros(len(words), len(lengths), words.shape[2])
        means = sums.index_add(1, texts, words) / lengths[:, None]
        # Zeros are the given vectors of parts of texts longer than a batch, which do not count.
        given, is_given = batch.vectors, batch.vectors.any(dim=1)
        learned = F.normalize(self.text_map(means), dim=1) * is_given[:, None]
        count = is_given.sum().clamp(min=1)
        distance = 1 - (learned * given).sum() / count
        error = (learned @ learned.T - given @ given.T).square().sum() / count**2
        return torch.cat([predict(layers[-1]), (distance + error)[None]])

    def parameters(self) -> Sequence[nn.Parameter]:
        return list(self.text_map.parameters())

    def tensors(self) -> dict[str, Tensor]:
        return self.text_map.state_dict()

    def restore(self, tensors: dict[str, Tensor]) -> None:
        self.text_map.load_state_dict(tensors)
