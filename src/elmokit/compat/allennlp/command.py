"""AllenNLP's command line, of which there is `allennlp elmo` (commands/elmo.py of versions up to 0.9)."""

from __future__ import annotations

import argparse
from typing import Any

from elmokit.compat.allennlp.embedder import DEFAULT_BATCH_SIZE, allennlp_elmo
from elmokit.compat.weights import DEFAULT_OPTIONS_FILE, DEFAULT_WEIGHT_FILE


def _parser(prog: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog)
    elmo = parser.add_subparsers(required=True).add_parser("elmo", help=allennlp_elmo.__doc__)
    elmo.add_argument("input_file")
    elmo.add_argument("output_file")
    layers = elmo.add_mutually_exclusive_group(required=True)
    for flag in ("all", "top", "average"):
        layers.add_argument(f"--{flag}", action="store_true")
    for flag in ("file-friendly-logging", "forget-sentences", "use-sentence-keys"):
        elmo.add_argument(f"--{flag}", action="store_true")
    elmo.add_argument("--vocab-path")
    elmo.add_argument("--options-file", default=DEFAULT_OPTIONS_FILE)
    elmo.add_argument("--weight-file", default=DEFAULT_WEIGHT_FILE)
    elmo.add_argument("--batch-size", type=int, default=DEFAULT_BATCH_SIZE)
    elmo.add_argument("--cuda-device", type=int, default=-1)
    elmo.add_argument("--include-package", action="append", default=[])
    return parser


def main(prog: str | None = None, **ignored: Any) -> None:
    """`allennlp.commands.main`: run the command in `sys.argv`."""
    allennlp_elmo(**vars(_parser(prog).parse_args()))
