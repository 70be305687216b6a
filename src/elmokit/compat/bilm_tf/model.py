"""bilm-tf's `BidirectionalLanguageModel` and its dumps of vectors (bilm/model.py)."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from torch import Tensor, nn

from elmokit.checkpoints.formats.bilm_hdf5 import write_token_embeddings
from elmokit.checkpoints.native import filled
from elmokit.checkpoints.pretrained import Pretrained
from elmokit.compat.bilm_tf.data import Vocabulary, warn_of_missing_boundaries
from elmokit.compat.carried import CarriedStates, without_boundaries
from elmokit.compat.notice import warn_of_truncated
from elmokit.compat.weights import open_bilm
from elmokit.compat.zero_characters import run_bilm
from elmokit.data.streams import sentence_batches
from elmokit.embed.embedder import Embedder, TruncationWarning
from elmokit.fs.atomic import check_output
from elmokit.fs.hdf5 import atomic_hdf5
from elmokit.fs.reading import read_lines
from elmokit.nn.bilm import BiLM
from elmokit.nn.inference import Frozen

BATCH_WORDS = 8192


def _warn_of_truncated(bilm: BiLM, words: Iterable[str]) -> None:
    if bilm.config.char_cnn is not None:
        warn_of_truncated(words, bilm.config.char_cnn.max_characters, "bilm-tf")


def _words_of(vocab_file: str | Path) -> list[str]:
    vocab = Vocabulary(vocab_file)
    return list(map(vocab.id_to_word, range(vocab.size)))


# --- The model ---------------------------------------------------------------------------------------------------


def _with_word_embedding(bilm: BiLM, embedding_weight_file: str | Path) -> BiLM:
    """A biLM with the same LSTMs that reads token vectors written by `dump_token_embeddings`."""
    try:
        with h5py.File(embedding_weight_file) as file:
            table = torch.from_numpy(np.asarray(file["embedding"], dtype=np.float32))
    except KeyError as error:
        raise ValueError(f"{embedding_weight_file} has no dataset 'embedding': use dump_token_embeddings") from error
    if table.dim() != 2 or table.shape[1] != bilm.config.sequence_encoder.projection_dim:
        expected = f"(V, {bilm.config.sequence_encoder.projection_dim})"
        raise ValueError(f"{embedding_weight_file} has vectors {tuple(table.shape)}, but this biLM needs {expected}")
    config = replace(bilm.config, char_cnn=None, num_words=len(table))
    lstms = {name: tensor for name, tensor in bilm.state_dict().items() if not name.startswith("token_encoder.")}
    return filled(lambda: BiLM(config), lstms | {"token_encoder.weight": table})


def _tensor(ids: Any) -> Tensor:
    try:
        return torch.as_tensor(ids).long()
    except (NotImplementedError, RuntimeError, TypeError, ValueError):
        kind = type(ids).__name__
        raise ValueError(f"ids must be an array, not {kind}: pass the result of batch_sentences") from None


class BidirectionalLanguageModel:
    """Ids with boundaries -> all layers without boundaries; as in bilm-tf, rows carry their state from call to call.

    `mixes` has the mixes of `weight_layers`, by name. `states.reset_states()` resets the state to zeros; with
    `states.stateful = False`, every call starts from zeros.
    """

    def __init__(
        self,
        options_file: str | Path,
        weight_file: str | Path,
        use_character_inputs: bool = True,
        embedding_weight_file: str | Path | None = None,
        max_batch_size: int = 128,
    ) -> None:
        self.bilm = open_bilm(options_file, weight_file).requires_grad_(False)
        if not use_character_inputs:
            if embedding_weight_file is None:
                raise ValueError("use_character_inputs=False needs the embedding_weight_file of dump_token_embeddings")
            self.bilm = _with_word_embedding(self.bilm, embedding_weight_file).requires_grad_(False)
        self.max_batch_size = max_batch_size
        self.states = CarriedStates()
        self._frozen = Frozen()
        self.mixes = nn.ModuleDict()

    @torch.no_grad()
    def __call__(self, ids: np.ndarray | Tensor) -> dict[str, Any]:
        """Run the model.

        Args:
            ids: Character ids (B, T+2, C) or word ids (B, T+2), with boundaries.

        Returns:
            The values of bilm-tf's ops: lm_embeddings (B, L+1, T, 2D) and mask (B, T), without boundaries; lengths
            (B,), also without; token_embeddings (B, T+2, D), with boundaries. In addition, `mixes`.

        Raises:
            ValueError: There are more rows than `max_batch_size`, words have more characters than the model reads, an
                id is outside the vocabulary, or `ids` is not an array, such as a placeholder of a graph.
        """
        ids = _tensor(ids)
        if len(ids) > self.max_batch_size:
            raise ValueError(f"{len(ids)} rows are more than max_batch_size={self.max_batch_size}: raise it")
        char_cnn = self.bilm.config.char_cnn
        if char_cnn is not None and ids.dim() == 3 and ids.shape[2] > char_cnn.max_characters:
            raise ValueError(
                f"this model reads {char_cnn.max_characters} characters of a word, not {ids.shape[2]}: use "
                f"Batcher(vocab_file, {char_cnn.max_characters})"
            )
        num_words = self.bilm.config.num_words
        if num_words is not None and ids.numel() and int(ids.max()) > num_words:
            raise ValueError(
                f"there are {num_words} token embeddings but an id is {int(ids.max())}: dump those of this vocabulary"
            )
        out = run_bilm(self._frozen, self.bilm, ids, self.states.initial(len(ids), ids.device))
        self.states.update(out.state)
        layers, mask = without_boundaries(out.layers, out.mask)
        return {
            "lm_embeddings": layers.transpose(0, 1),
            "lengths": mask.sum(dim=1),
            "token_embeddings": out.layers[0].chunk(2, dim=-1)[0],
            "mask": mask,
            "mixes": self.mixes,
        }


# --- Dumps -------------------------------------------------------------------------------------------------------


def dump_token_embeddings(
    vocab_file: str | Path, options_file: str | Path, weight_file: str | Path, outfile: str | Path
) -> None:
    """Write the token vectors of a vocabulary to the HDF5 dataset `embedding`, (V, D), atomically.

    Args:
        vocab_file: One word per line.
        options_file: options.json of the model.
        weight_file: HDF5 weights of the model.
        outfile: HDF5 file to write.

    Raises:
        ValueError: The model reads word ids.
    """
    check_output(outfile, [vocab_file, options_file, weight_file], overwrite=True)
    words, bilm = _words_of(vocab_file), open_bilm(options_file, weight_file)
    warn_of_missing_boundaries(words)
    _warn_of_truncated(bilm, words)
    write_token_embeddings(bilm, words, outfile)


def dump_bilm_embeddings(
    vocab_file: str | Path | None,
    dataset_file: str | Path,
    options_file: str | Path,
    weight_file: str | Path,
    outfile: str | Path,
) -> None:
    """Write all layers of every line to the HDF5 dataset `str(line)`, (L+1, T, 2D) float32, atomically.

    Lines are split at white space. As in bilm-tf, state is carried from line to line, and blank lines have length 0.

    Args:
        vocab_file: Only checked for <S> and </S>; None to skip the check.
        dataset_file: One tokenized sentence per line.
        options_file: options.json of the model.
        weight_file: HDF5 weights of the model.
        outfile: HDF5 file to write.
    """
    inputs = [dataset_file, options_file, weight_file, *([] if vocab_file is None else [vocab_file])]
    check_output(outfile, inputs, overwrite=True)
    if vocab_file is not None:
        warn_of_missing_boundaries(_words_of(vocab_file))
    embedder = Embedder(Pretrained(open_bilm(options_file, weight_file)))
    lines, state, number = (line.split() for line in read_lines(dataset_file)), "carry", 0
    with atomic_hdf5(outfile) as file:
        for batch in sentence_batches(lines, BATCH_WORDS):
            _warn_of_truncated(embedder.model.bilm, chain.from_iterable(batch))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", TruncationWarning)  # issued above, without a line number in the batch
                embeddings = embedder.embed(batch, layers="all", state=state, batch_size=1)
            for layers in embeddings:
                file.create_dataset(str(number), data=layers, dtype="float32")
                number += 1
            state = embeddings.state
