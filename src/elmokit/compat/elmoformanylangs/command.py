"""The command `python -m elmoformanylangs test` (its __main__.py): a file of text to files of vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import groupby, islice
from pathlib import Path
from typing import IO

import h5py
import numpy as np
from tqdm import tqdm

from elmokit.compat.elmoformanylangs.embedder import ALL, AVERAGE, Embedder
from elmokit.compat.notice import warn_once
from elmokit.fs.atomic import atomic_path
from elmokit.fs.reading import read_lines

SENTENCES_AT_ONCE = 256
OUTPUT_FORMATS = ("hdf5", "txt")


# --- Reading -----------------------------------------------------------------------------------------------------


def _words_between_tabs(path: str | Path) -> Iterator[list[str]]:
    for line in read_lines(path):
        yield line.split("\t") if line.strip() else []


def _words_of_conll(path: str | Path) -> Iterator[list[str]]:
    """Second column of every token; ranges and empty nodes are none."""
    for is_token, lines in groupby(read_lines(path), key=lambda line: bool(line.strip())):
        if not is_token:
            continue
        rows = [line.split("\t") for line in lines if not line.startswith("#")]
        if short := [row for row in rows if len(row) < 2]:
            raise ValueError(f"{path}: {short[0][0][:60]!r} has no second column behind a tab, so it is no CoNLL-U")
        yield [row[1] for row in rows if not {"-", "."} & set(row[0])]


def _split(sentences: Iterable[list[str]], split: Callable[[str], Iterable[str]]) -> Iterator[list[str]]:
    for sentence in sentences:
        yield [part for word in sentence for part in split(word)]


INPUT_FORMATS: dict[str, Callable[[str | Path], Iterator[list[str]]]] = {
    "plain": _words_between_tabs,
    "conll": _words_of_conll,
    "conll_char": lambda path: _split(_words_of_conll(path), list),
    "conll_char_vi": lambda path: _split(_words_of_conll(path), str.split),
}


# --- Writing -----------------------------------------------------------------------------------------------------


def _key(words: Sequence[str]) -> str:
    """HDF5 takes slashes for groups, and a period alone for the group itself."""
    return "\t".join(words).replace(".", "$period$").replace("/", "$backslash$")


class _HDF5:
    """A dataset a sentence, called by its words; of sentences that occur twice there is the first."""

    def __init__(self, path: Path) -> None:
        self._file = h5py.File(path, "w")

    def write(self, words: Sequence[str], vectors: np.ndarray) -> None:
        if (key := _key(words)) in self._file:
            warn_once("some sentences occur twice: as before, HDF5 has the first of each; txt has them all")
        elif not words:
            warn_once("blank lines have no place in HDF5, where a sentence is called by its words: left out")
        else:
            self._file.create_dataset(key, data=vectors, dtype="float32")

    def close(self) -> None:
        self._file.close()


class _Text:
    """A line a word, the word and its numbers between tabs; a blank line ends a sentence."""

    def __init__(self, path: Path) -> None:
        self._file: IO[str] = path.open("w", encoding="utf-8", newline="\n")

    def write(self, words: Sequence[str], vectors: np.ndarray) -> None:
        for word, row in zip(words, vectors, strict=True):
            self._file.write("\t".join([word, *(f"{number:.8f}" for number in row)]) + "\n")
        self._file.write("\n")

    def close(self) -> None:
        self._file.close()


# --- The command -------------------------------------------------------------------------------------------------


def _layers(text: str | int) -> list[int]:
    try:
        layers = [int(part) for part in str(text).split(",")]
    except ValueError:
        raise ValueError(f"output_layer must be numbers with commas between them, not {text!r}") from None
    if ALL in layers:
        raise ValueError("output_layer -2 has no place in these files: give the numbers of layers, or -1")
    return layers


def _groups(sentences: Iterator[list[str]], batch_size: int) -> Iterator[list[list[str]]]:
    """Several batches at a time, always whole ones, so that each sentence stays in its row."""
    size = batch_size * max(1, SENTENCES_AT_ONCE // batch_size)
    while group := list(islice(sentences, size)):
        yield group


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
    """The command, flag by flag: writes OUTPUT_PREFIX.ly{layer}.{format} for every layer and format, or none of them.

    `output_layer` and `output_format` may be several with commas between them. Sentences are read and written in the
    order of the file, each going on from the state of the one `batch_size` before it.
    """
    layers, formats = _layers(output_layer), output_format.split(",")
    if input_format not in INPUT_FORMATS:
        raise ValueError(f"input_format must be one of {', '.join(INPUT_FORMATS)}, not {input_format!r}")
    if unknown := set(formats) - set(OUTPUT_FORMATS):
        raise ValueError(f"output_format must be of {', '.join(OUTPUT_FORMATS)}, not {', '.join(sorted(unknown))}")
    embedder = Embedder(model, batch_size, "cpu" if gpu < 0 else f"cuda:{gpu}")
    embedder.check_layers(layers)
    with ExitStack() as stack:
        files = []
        for format in formats:
            for layer in layers:
                path = stack.enter_context(atomic_path(f"{output_prefix}.ly{layer}.{format}"))
                file = (_HDF5 if format == "hdf5" else _Text)(path)
                stack.callback(file.close)
                files.append((layer, file))
        sentences = tqdm(INPUT_FORMATS[input_format](input), disable=None, unit="sentence")
        for group in _groups(iter(sentences), batch_size):
            for words, vectors in zip(group, embedder.all_layers(group), strict=True):
                for layer, file in files:
                    file.write(words, _chosen(vectors, layer))


def _chosen(layers: np.ndarray, layer: int) -> np.ndarray:
    """(T, 2D) of (L+1, T, 2D); the encoder called lstm has but one layer."""
    if layers.ndim == 2:
        return layers
    return layers.mean(axis=0) if layer == AVERAGE else layers[layer]
