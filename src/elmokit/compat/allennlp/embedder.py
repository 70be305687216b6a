"""AllenNLP's `ElmoEmbedder` and its command `allennlp elmo` (commands/elmo.py of versions up to 0.9)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import h5py
import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from elmokit.compat.allennlp.elmo import DEFAULT_OPTIONS_FILE, DEFAULT_WEIGHT_FILE, _ElmoBiLm, batch_to_ids
from elmokit.compat.carried import without_boundaries
from elmokit.compat.notice import warn_once
from elmokit.fs.atomic import atomic_path
from elmokit.fs.reading import read_lines

DEFAULT_BATCH_SIZE = 64
OUTPUT_FORMATS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "all": lambda layers: layers,
    "top": lambda layers: layers[-1],
    "average": lambda layers: layers.mean(axis=0),
}


def _sentences(lines: Iterable[str]) -> Iterator[str]:
    for number, line in enumerate(lines):
        if not line.strip():
            raise ValueError(f"line {number} (from 0) is blank: remove blank lines, or use `elmokit embed`, which may")
        yield line.strip()


def _write_sentence_to_index(file: h5py.File, sentences: Sequence[str]) -> None:
    """AllenNLP's table in JSON: a sentence to its line's number, a string."""
    line_of = {sentence: str(line) for line, sentence in enumerate(sentences)}
    if len(line_of) < len(sentences):
        warn_once("some sentences occur twice: as before, sentence_to_index names the last line of each")
    table = file.create_dataset("sentence_to_index", (1,), dtype=h5py.string_dtype("utf-8"))
    table[0] = json.dumps(line_of)


class ElmoEmbedder:
    """AllenNLP's `ElmoEmbedder`: all layers of tokenized sentences. As before, the state is carried from call to call.

    `elmo_bilm._elmo_lstm.stateful = False` makes every call start anew.
    """

    def __init__(
        self,
        options_file: str | Path | None = DEFAULT_OPTIONS_FILE,
        weight_file: str | Path | None = DEFAULT_WEIGHT_FILE,
        cuda_device: int = -1,
    ) -> None:
        self.cuda_device = cuda_device
        self.elmo_bilm = _ElmoBiLm(options_file, weight_file).to(self._device)

    @property
    def _device(self) -> torch.device:
        return torch.device("cpu" if self.cuda_device < 0 else f"cuda:{self.cuda_device}")

    @torch.no_grad()
    def batch_to_embeddings(self, batch: Sequence[Sequence[str]]) -> tuple[Tensor, Tensor]:
        """Tokenized sentences -> activations (B, L+1, T, 2D) without boundaries, and their mask (B, T)."""
        out = self.elmo_bilm(batch_to_ids(batch).to(self._device))
        layers, mask = without_boundaries(torch.stack(out["activations"], dim=1), out["mask"].unsqueeze(1))
        return layers, mask.squeeze(1)

    def embed_sentence(self, sentence: Sequence[str]) -> np.ndarray:
        """One tokenized sentence -> (L+1, T, 2D) float32."""
        return self.embed_batch([sentence])[0]

    def embed_batch(self, batch: Sequence[Sequence[str]]) -> list[np.ndarray]:
        """Tokenized sentences -> for each (L+1, T, 2D) float32."""
        if not any(batch):  # as before, the state does not move on
            return [np.zeros((self.elmo_bilm.num_layers, 0, self.elmo_bilm.get_output_dim()), np.float32)] * len(batch)
        layers, mask = self.batch_to_embeddings(batch)
        lengths = mask.sum(dim=1).tolist()
        return [row[:, :length].cpu().numpy() for row, length in zip(layers, lengths, strict=True)]

    def embed_sentences(
        self, sentences: Iterable[Sequence[str]], batch_size: int = DEFAULT_BATCH_SIZE
    ) -> Iterator[np.ndarray]:
        """The same, batch by batch: sentence i belongs to row i mod `batch_size`."""
        remaining = iter(sentences)
        while batch := list(islice(remaining, batch_size)):
            yield from self.embed_batch(batch)

    def embed_file(
        self,
        input_file: Iterable[str],
        output_file_path: str | Path,
        output_format: str = "all",
        batch_size: int = DEFAULT_BATCH_SIZE,
        forget_sentences: bool = False,
        use_sentence_keys: bool = False,
    ) -> None:
        """Lines of tokens split at white space -> HDF5 with a float32 dataset a line; whole or not at all.

        Datasets are named by the line's number (or the sentence itself) and hold (L+1, T, 2D), or (T, 2D) for the
        formats "top" and "average". ValueError for a blank line, and for a sentence that is a key twice.
        """
        if output_format not in OUTPUT_FORMATS:
            raise ValueError(f"output_format must be one of {', '.join(OUTPUT_FORMATS)}, not {output_format!r}")
        seen: list[str] = []

        def tokenized() -> Iterator[list[str]]:
            for sentence in _sentences(input_file):
                seen.append(sentence)
                yield sentence.split()

        with atomic_path(output_file_path) as partial, h5py.File(partial, "w") as file:
            for line, layers in enumerate(tqdm(self.embed_sentences(tokenized(), batch_size), disable=None)):
                key = seen[line] if use_sentence_keys else str(line)
                if use_sentence_keys and key in file:
                    raise ValueError(f"the sentence of line {line} came before: use the lines' numbers as keys")
                if "/" in key:
                    warn_once("sentences with a slash, as HDF5 keys, make groups: prefer the lines' numbers as keys")
                file.create_dataset(key, data=OUTPUT_FORMATS[output_format](layers), dtype="float32")
            if not (forget_sentences or use_sentence_keys):
                _write_sentence_to_index(file, seen)


def allennlp_elmo(
    input_file: str | Path,
    output_file: str | Path,
    *,
    all: bool = False,
    top: bool = False,
    average: bool = False,
    vocab_path: str | None = None,
    options_file: str | Path | None = DEFAULT_OPTIONS_FILE,
    weight_file: str | Path | None = DEFAULT_WEIGHT_FILE,
    batch_size: int = DEFAULT_BATCH_SIZE,
    file_friendly_logging: bool = False,
    cuda_device: int = -1,
    forget_sentences: bool = False,
    use_sentence_keys: bool = False,
    include_package: Sequence[str] = (),
) -> None:
    """The command `allennlp elmo`, flag by flag; exactly one of `all`, `top` and `average`.

    `vocab_path`, `file_friendly_logging` and `include_package` are taken, and change nothing.
    """
    chosen = [name for name, flag in (("all", all), ("top", top), ("average", average)) if flag]
    if len(chosen) != 1:
        raise ValueError("exactly one of --all, --top and --average says what to write")
    if vocab_path or file_friendly_logging or include_package:
        warn_once("--vocab-path, --file-friendly-logging and --include-package change nothing here")
    embedder = ElmoEmbedder(options_file, weight_file, cuda_device)
    embedder.embed_file(read_lines(input_file), output_file, chosen[0], batch_size, forget_sentences, use_sentence_keys)
