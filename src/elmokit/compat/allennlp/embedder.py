"""AllenNLP's `ElmoEmbedder` and `allennlp elmo` (its commands/elmo.py up to version 0.9)."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from torch import Tensor

from elmokit.compat.allennlp.bilm import _ElmoBiLm
from elmokit.compat.allennlp.common import ConfigurationError, lazy_groups_of
from elmokit.compat.allennlp.elmo import ELMoTokenCharactersIndexer
from elmokit.compat.shared import (
    DEFAULT_OPTIONS_FILE,
    DEFAULT_WEIGHT_FILE,
    encode_with_notices,
    warn_once,
    without_boundaries,
    word_lists,
)
from elmokit.fs import atomic_path, check_output, read_lines
from elmokit.progress import ProgressBar
from elmokit.runtime import pick_device

DEFAULT_BATCH_SIZE = 64
OUTPUT_FORMATS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "all": lambda layers: layers,
    "top": lambda layers: layers[-1],
    "average": lambda layers: layers.mean(axis=0),
}


class ElmoEmbedder:
    """AllenNLP's `ElmoEmbedder`: all layers of tokenized sentences. State is carried between calls.

    With `elmo_bilm._elmo_lstm.stateful = False`, every call starts from zeros.
    """

    def __init__(
        self,
        options_file: str | Path | None = DEFAULT_OPTIONS_FILE,
        weight_file: str | Path | None = DEFAULT_WEIGHT_FILE,
        cuda_device: int = -1,
    ) -> None:
        self.cuda_device, self.indexer = cuda_device, ELMoTokenCharactersIndexer()
        self._device = pick_device("cpu" if cuda_device < 0 else f"cuda:{cuda_device}")
        self.elmo_bilm = _ElmoBiLm(options_file, weight_file).to(self._device)

    @torch.no_grad()
    def batch_to_embeddings(self, batch: Sequence[Sequence[str]]) -> tuple[Tensor, Tensor]:
        """Sentences -> activations (B, L+1, T, 2D) without boundaries, and mask (B, T)."""
        ids = encode_with_notices(batch, self.elmo_bilm._token_embedder.max_characters, "AllenNLP")
        out = self.elmo_bilm(torch.from_numpy(ids).to(self._device))
        layers, mask = without_boundaries(
            torch.stack(out["activations"], dim=1), out["mask"].unsqueeze(1)
        )
        return layers, mask.squeeze(1)

    def embed_sentence(self, sentence: Sequence[str]) -> np.ndarray:
        """One tokenized sentence -> (L+1, T, 2D) float32."""
        return self.embed_batch([sentence])[0]

    def embed_batch(self, batch: Sequence[Sequence[str]]) -> list[np.ndarray]:
        """Tokenized sentences -> the layers of each, (L+1, T, 2D) float32."""
        batch = word_lists(batch)
        if not any(batch):  # as in AllenNLP, the state is not updated
            return [
                np.zeros(
                    (self.elmo_bilm.num_layers, 0, self.elmo_bilm.get_output_dim()), np.float32
                )
            ] * len(batch)
        layers, mask = self.batch_to_embeddings(batch)
        lengths = mask.sum(dim=1).tolist()
        return [row[:, :length].cpu().numpy() for row, length in zip(layers, lengths, strict=True)]

    def embed_sentences(
        self, sentences: Iterable[Sequence[str]], batch_size: int = DEFAULT_BATCH_SIZE
    ) -> Iterator[np.ndarray]:
        """Yield the layers of each sentence; sentence i is in row i mod `batch_size`."""
        return chain.from_iterable(map(self.embed_batch, lazy_groups_of(sentences, batch_size)))

    def embed_file(
        self,
        input_file: Iterable[str],
        output_file_path: str | Path,
        output_format: str = "all",
        batch_size: int = DEFAULT_BATCH_SIZE,
        forget_sentences: bool = False,
        use_sentence_keys: bool = False,
    ) -> None:
        """Embed lines of tokenized text into an HDF5 file, one float32 dataset a line.

        Args:
            input_file: Lines of tokens separated by white space.
            output_file_path: HDF5 file.
            output_format: "all" (L+1, T, 2D), "top" (T, 2D) or "average" (T, 2D).
            batch_size: Sentences per batch: sentence i starts from the final state of sentence i -
                `batch_size`.
            forget_sentences: Omit the mapping from sentences to line numbers.
            use_sentence_keys: Name the datasets after the sentences instead of the line numbers.

        Raises:
            ConfigurationError: A line is blank, or with `use_sentence_keys` a sentence is repeated
                or cannot be a key.
            KeyError: `output_format` is something else.
        """
        choose, seen = OUTPUT_FORMATS[output_format], []

        def tokenized() -> Iterator[list[str]]:
            for line in input_file:
                if not line.strip():
                    raise ConfigurationError(
                        f"line {len(seen)} (from 0) is blank: remove it, or use `elmokit embed`"
                    )
                seen.append(line.strip())
                yield line.split()

        with atomic_path(output_file_path) as partial, h5py.File(partial, "w") as file:
            for line, layers in enumerate(
                ProgressBar(self.embed_sentences(tokenized(), batch_size))
            ):
                key = seen[line] if use_sentence_keys else str(line)
                if "/" in key:
                    warn_once("HDF5 turns keys with a slash into groups: use line numbers as keys")
                try:
                    file.create_dataset(key, data=choose(layers), dtype="float32")
                except (
                    TypeError,
                    ValueError,
                ) as error:  # a repeated sentence, ".", or "a/b" after "a"
                    raise ConfigurationError(
                        f"line {line} cannot be a key of HDF5: use line numbers as keys"
                    ) from error
            if not (forget_sentences or use_sentence_keys):
                line_of = {sentence: str(line) for line, sentence in enumerate(seen)}
                if len(line_of) < len(seen):
                    warn_once(
                        "sentences are repeated: as in AllenNLP, sentence_to_index has the last "
                        "line of each"
                    )
                dataset = file.create_dataset(
                    "sentence_to_index", (1,), dtype=h5py.string_dtype("utf-8")
                )
                dataset[0] = json.dumps(line_of)


# --- The command line (commands/__init__.py) ------------------------------------------------------


def main(prog: str | None = None, **ignored: Any) -> None:
    """`allennlp.commands.main`: run the command in `sys.argv`."""
    parser = argparse.ArgumentParser(
        prog or "allennlp",
        description="AllenNLP's command line, with only the command `allennlp elmo`",
    )
    elmo = parser.add_subparsers(metavar="COMMAND", required=True).add_parser(
        "elmo", help="write layers of text to HDF5"
    )
    elmo.add_argument(
        "input_file", help="tokenized text (plain, .gz or .zst), a sentence a line, no blank lines"
    )
    elmo.add_argument("output_file", help="HDF5 file for the vectors, a dataset for each line")
    layers = elmo.add_mutually_exclusive_group(required=True)
    for name in OUTPUT_FORMATS:
        layers.add_argument(f"--{name}", dest="output_format", action="store_const", const=name)
    elmo.add_argument("--options-file", default=DEFAULT_OPTIONS_FILE)
    elmo.add_argument("--weight-file", default=DEFAULT_WEIGHT_FILE)
    elmo.add_argument("--batch-size", type=int, default=DEFAULT_BATCH_SIZE)
    elmo.add_argument(
        "--cuda-device", type=int, default=-1, help="index of the GPU; -1 for the CPU"
    )
    elmo.add_argument(
        "--forget-sentences", action="store_true", help="omit the mapping from sentences to lines"
    )
    elmo.add_argument(
        "--use-sentence-keys", action="store_true", help="name the datasets after the sentences"
    )
    elmo.add_argument("--file-friendly-logging", action="store_true", help="ignored")
    for name in ("--vocab-path", "--include-package"):
        elmo.add_argument(name, action="append", help="ignored")
    given = parser.parse_args()
    inputs = [given.input_file, given.options_file, given.weight_file]
    check_output(given.output_file, inputs, overwrite=True)
    if Path(given.output_file).is_file() and not h5py.is_hdf5(given.output_file):
        raise FileExistsError(
            f"{given.output_file} exists and is not an HDF5 file: choose another name"
        )
    ElmoEmbedder(given.options_file, given.weight_file, given.cuda_device).embed_file(
        read_lines(given.input_file),
        given.output_file,
        given.output_format,
        given.batch_size,
        given.forget_sentences,
        given.use_sentence_keys,
    )
