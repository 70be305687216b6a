"""The command `python -m elmoformanylangs test` (its __main__.py), which embeds a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import groupby, islice
from pathlib import Path
from typing import IO

import h5py
import numpy as np

from elmokit.compat.elmoformanylangs.embedder import ALL, AVERAGE, Embedder
from elmokit.compat.notice import warn_once
from elmokit.fs.atomic import atomic_path, check_output
from elmokit.fs.hdf5 import atomic_hdf5
from elmokit.fs.reading import read_lines
from elmokit.progress import ProgressBar

CHUNK_SENTENCES = 256
OUTPUT_FORMATS = ("hdf5", "txt")


# --- Reading -----------------------------------------------------------------------------------------------------


def _words_between_tabs(path: str | Path) -> Iterator[list[str]]:
    for line in read_lines(path):
        yield line.split("\t") if line.strip() else []


def _words_of_conll(path: str | Path) -> Iterator[list[str]]:
    """The second column of every token, without multiword ranges and empty nodes."""
    for is_token, lines in groupby(read_lines(path), key=lambda line: bool(line.strip())):
        if not is_token:
            continue
        rows = [line.split("\t") for line in lines if not line.startswith("#")]
        if short := [row for row in rows if len(row) < 2]:
            raise ValueError(f"{path}: the line {short[0][0][:60]!r} has no second column, so it is not CoNLL-U")
        yield [row[1] for row in rows if not {"-", "."} & set(row[0])]


def _split(sentences: Iterable[list[str]], split: Callable[[str], Iterable[str]]) -> Iterator[list[str]]:
    for sentence in sentences:
        yield [token for word in sentence for token in split(word)]


INPUT_FORMATS: dict[str, Callable[[str | Path], Iterator[list[str]]]] = {
    "plain": _words_between_tabs,
    "conll": _words_of_conll,
    "conll_char": lambda path: _split(_words_of_conll(path), list),
    "conll_char_vi": lambda path: _split(_words_of_conll(path), str.split),
}


# --- Writing -----------------------------------------------------------------------------------------------------


def _key(words: Sequence[str]) -> str:
    """The HDF5 key of a sentence, without slashes and periods, which are special in HDF5 paths."""
    return "\t".join(words).replace(".", "$period$").replace("/", "$backslash$")


class _HDF5:
    """HDF5 with one dataset per sentence, named after its words; only the first of repeated sentences is written."""

    def __init__(self, file: h5py.File) -> None:
        self._file = file

    def write(self, words: Sequence[str], vectors: np.ndarray) -> None:
        if not words:
            warn_once("blank lines are omitted from HDF5, where datasets are named after the words")
        elif (key := _key(words)) in self._file:
            warn_once(
                "some sentences are repeated: as in ELMoForManyLangs, HDF5 has only the first of each; txt has all"
            )
        else:
            self._file.create_dataset(key, data=vectors, dtype="float32")


class _Text:
    """Text with one line per word, the word and its values separated by tabs, and a blank line after each sentence."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, words: Sequence[str], vectors: np.ndarray) -> None:
        for word, row in zip(words, vectors, strict=True):
            self._file.write("\t".join([word, *(f"{number:.8f}" for number in row)]) + "\n")
        self._file.write("\n")


# --- The command -------------------------------------------------------------------------------------------------


def _layers(text: str | int) -> list[int]:
    try:
        layers = [int(number) for number in str(text).split(",")]
    except ValueError:
        raise ValueError(f"output_layer must be comma-separated numbers, not {text!r}") from None
    if ALL in layers:
        raise ValueError("output_layer -2 (all layers) cannot be written: give the numbers of layers, or -1")
    return layers


def _chunks(sentences: Iterator[list[str]], batch_size: int) -> Iterator[list[list[str]]]:
    """Yield chunks of whole batches, so that each sentence stays in its row of the batch."""
    size = batch_size * max(1, CHUNK_SENTENCES // batch_size)
    while chunk := list(islice(sentences, size)):
        yield chunk


def elmoformanylangs_test(
    *,
    model: str | Path,
    input: str | Path,
    output_prefix: str,
    output_layer: str | int,
    output_format: str = "hdf5",
    input_format: str = "plain",
    batch_size: int = 1,
    gpu: int = -1,
) -> None:
    """The command, with its flags as arguments: write OUTPUT_PREFIX.ly{layer}.{format} for every layer and format.

    Sentences are processed in the order of the file. The files are written atomically.

    Args:
        model: Directory of the model, or any other model that `elmokit.load` accepts.
        input: Text (plain, .gz or .zst).
        output_prefix: Prefix of the output files.
        output_layer: Comma-separated layers: 0 for the tokens, 1 and 2 for the LSTM layers, -1 for the average.
        output_format: "hdf5", "txt" or both, comma-separated.
        input_format: "plain", "conll", "conll_char" or "conll_char_vi".
        batch_size: Sentences per batch: sentence i starts from the final state of sentence i - `batch_size`.
        gpu: Index of the GPU; -1 for the CPU.

    Raises:
        ValueError: An argument is invalid, or the input is not in its format.
    """
    layers, formats = _layers(output_layer), output_format.split(",")
    if input_format not in INPUT_FORMATS:
        raise ValueError(f"input_format must be one of {', '.join(INPUT_FORMATS)}, not {input_format!r}")
    if unknown := set(formats) - set(OUTPUT_FORMATS):
        raise ValueError(f"output_format must be of {', '.join(OUTPUT_FORMATS)}, not {', '.join(sorted(unknown))}")
    outputs = {(format, layer): f"{output_prefix}.ly{layer}.{format}" for format in formats for layer in layers}
    for output in outputs.values():
        check_output(output, [input], overwrite=True)
    embedder = Embedder(model, batch_size, "cpu" if gpu < 0 else f"cuda:{gpu}")
    embedder.check_layers(layers)
    with ExitStack() as stack:
        files = []
        for (format, layer), output in outputs.items():
            if format == "hdf5":
                file = _HDF5(stack.enter_context(atomic_hdf5(output)))
            else:
                path = stack.enter_context(atomic_path(output))
                file = _Text(stack.enter_context(path.open("w", encoding="utf-8", newline="\n")))
            files.append((layer, file))
        sentences = ProgressBar(INPUT_FORMATS[input_format](input), unit="sentence")
        for chunk in _chunks(iter(sentences), batch_size):
            for words, vectors in zip(chunk, embedder.all_layers(chunk, sort=False), strict=True):
                for layer, file in files:
                    file.write(words, _select(vectors, layer))


def _select(layers: np.ndarray, layer: int) -> np.ndarray:
    """(L+1, T, 2D) -> (T, 2D); models with interleaved directions have a single layer."""
    if layers.ndim == 2:
        return layers
    return layers.mean(axis=0) if layer == AVERAGE else layers[layer]
