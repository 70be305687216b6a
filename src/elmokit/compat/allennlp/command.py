"""AllenNLP's command line, with only the command `allennlp elmo` (commands/elmo.py of versions up to 0.9)."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import h5py

from elmokit.compat.allennlp.embedder import DEFAULT_BATCH_SIZE, OUTPUT_FORMATS, ElmoEmbedder
from elmokit.compat.weights import DEFAULT_OPTIONS_FILE, DEFAULT_WEIGHT_FILE
from elmokit.fs.atomic import check_output
from elmokit.fs.reading import read_lines


def main(prog: str | None = None, **ignored: Any) -> None:
    """`allennlp.commands.main`: run the command in `sys.argv`."""
    parser = argparse.ArgumentParser(prog or "allennlp", description=__doc__)
    elmo = parser.add_subparsers(metavar="COMMAND", required=True).add_parser(
        "elmo", help="write layers of text to HDF5"
    )
    elmo.add_argument("input_file", help="tokenized text (plain, .gz or .zst), a sentence a line, no blank lines")
    elmo.add_argument("output_file", help="HDF5 file for the vectors, a dataset for each line")
    layers = elmo.add_mutually_exclusive_group(required=True)
    for name in OUTPUT_FORMATS:
        layers.add_argument(f"--{name}", dest="output_format", action="store_const", const=name)
    elmo.add_argument("--options-file", default=DEFAULT_OPTIONS_FILE)
    elmo.add_argument("--weight-file", default=DEFAULT_WEIGHT_FILE)
    elmo.add_argument("--batch-size", type=int, default=DEFAULT_BATCH_SIZE)
    elmo.add_argument("--cuda-device", type=int, default=-1, help="index of the GPU; -1 for the CPU")
    elmo.add_argument("--forget-sentences", action="store_true", help="omit the mapping from sentences to lines")
    elmo.add_argument("--use-sentence-keys", action="store_true", help="name the datasets after the sentences")
    elmo.add_argument("--file-friendly-logging", action="store_true", help="ignored")
    for name in ("--vocab-path", "--include-package"):
        elmo.add_argument(name, action="append", help="ignored")
    given = parser.parse_args()
    check_output(given.output_file, [given.input_file], overwrite=True)
    if Path(given.output_file).is_file() and not h5py.is_hdf5(given.output_file):
        raise FileExistsError(f"{given.output_file} exists and is not an HDF5 file: choose another name")
    ElmoEmbedder(given.options_file, given.weight_file, given.cuda_device).embed_file(
        read_lines(given.input_file),
        given.output_file,
        given.output_format,
        given.batch_size,
        given.forget_sentences,
        given.use_sentence_keys,
    )
