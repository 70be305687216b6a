"""bio_embeddings' `SeqVecEmbedder`: ELMo for proteins, whose words are residues.

`elmokit embed NAME.fasta --layers sum` takes the place of SeqVec's own script.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from elmokit.checkpoints import Pretrained, load
from elmokit.compat.shared import CarriedStates, open_model
from elmokit.embed import Embedder

# The sequence with which bio_embeddings warms its model up: T0922 of CASP.
WARMUP_SEQUENCE = (
    "MGSSHHHHHHSSGLVPRGSHMASVQKFPGDANCDGIVDISDAVLIMQTMANPSKYQMTDK"
    "GRINADVTGNSDGVTVLDAQFIQSYCLGLVELPPVE"
)


def _open(options: dict[str, Any]) -> Pretrained:
    """The model of a directory, or of two files."""
    directory, names = options.get("model_directory"), ("options_file", "weights_file")
    files = [Path(directory) / name if directory else options.get(name) for name in names]
    if directory and not Path(directory, names[1]).is_file():
        return load(directory, softmax=False)
    if None in files:
        raise ValueError(
            "SeqVec is not downloaded: give its options_file and weights_file, or a model_directory"
        )
    return open_model(*files)


class SeqVecEmbedder:
    """bio_embeddings' `SeqVecEmbedder`: ELMo for proteins, whose words are residues.

    Every sequence starts from zeros, so that its vectors depend on nothing else. With
    `warmup_rounds` (4 in the original) the model first reads a sample sequence that many times, and
    the state is carried from call to call as in AllenNLP: row k of a batch starts from the final
    state of row k of the last one. `embed_many` keeps the order of the sequences.
    """

    name = "seqvec"
    embedding_dimension = 1024
    number_of_layers = 3
    necessary_files = ("weights_file", "options_file")

    def __init__(
        self,
        warmup_rounds: int = 0,
        device: str | torch.device | None = None,
        *,
        dtype: str | None = None,
        use_cpu: bool = False,
        **options: Any,
    ) -> None:
        """Load the model.

        Args:
            warmup_rounds: How many times the model first reads the sample sequence; 0: no state is
                carried.
            device: As for `elmokit.Embedder`.
            dtype: As for `elmokit.Embedder`.
            use_cpu: The same as device="cpu".
            options: `weights_file` and `options_file`, or `model_directory`, which has files of
                these names or is any model that `elmokit.load` accepts. Other options are ignored,
                as in the original.

        Raises:
            ValueError: No model is named, or `warmup_rounds` is set for a model that carries no
                state.
        """
        named = "cpu" if use_cpu else None if device is None else str(device)
        self._embedder = Embedder(_open(options), named, dtype)
        self.embedding_dimension, self.number_of_layers = (
            self._embedder.dim,
            self._embedder.num_layers,
        )
        self.warmup_rounds = warmup_rounds
        self._states = CarriedStates(stateful=warmup_rounds > 0)
        for _ in range(warmup_rounds):
            self.embed(WARMUP_SEQUENCE)

    def embed(self, sequence: str) -> np.ndarray:
        """One sequence of T residues -> (L+1, T, 2D) float32."""
        return next(self.embed_batch([sequence]))

    def embed_batch(self, batch: Sequence[str]) -> Iterator[np.ndarray]:
        """Yield the layers of each sequence, (L+1, T, 2D) float32."""
        if not len(batch):  # it may be an array
            return
        sentences = [list(sequence) for sequence in batch]
        state = self._states.initial(len(batch), self._embedder.device)
        policy = "carry" if self._states.stateful else "zeros"
        embeddings = self._embedder.embed(
            sentences, "all", policy if state is None else state, len(batch)
        )
        if embeddings.state is not None:
            self._states.update(embeddings.state)
        yield from embeddings

    def embed_many(
        self, sequences: Iterable[str], batch_size: int | None = None
    ) -> Iterator[np.ndarray]:
        """Yield the layers of each sequence, in batches of fewer than `batch_size` residues.

        A longer sequence is a batch of its own; without `batch_size`, every sequence is.
        """
        batch: list[str] = []
        for sequence in sequences:
            if batch and sum(map(len, batch)) + len(sequence) >= (batch_size or 0):
                yield from self.embed_batch(batch)
                batch = []
            batch.append(sequence)
        yield from self.embed_batch(batch)

    @staticmethod
    def reduce_per_protein(embedding: np.ndarray) -> np.ndarray:
        """(L+1, T, 2D) -> (2D,): the mean over residues of the sum of the layers."""
        return embedding.sum(0).mean(0)
