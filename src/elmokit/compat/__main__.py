"""Runs a script or, with -m, a module that was written for an old library."""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from importlib import import_module
from itertools import takewhile
from pathlib import Path

from elmokit.compat import install, is_installed


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m elmokit.compat",
        usage="%(prog)s [-h] [-m] SCRIPT [ARGUMENT ...]",
        description="Run a Python script that was written for AllenNLP, bilm-tf, ELMoForManyLangs "
        "or simple_elmo.",
    )
    parser.add_argument(
        "-m", dest="is_module", action="store_true", help="SCRIPT names a module, as in python -m"
    )
    parser.add_argument("script", metavar="SCRIPT")
    # argparse would remove a "--" from the script's arguments, so it sees none of them.
    script_end = len(list(takewhile(lambda argument: argument.startswith("-"), sys.argv[1:]))) + 2
    options = parser.parse_args(sys.argv[1:script_end])
    install(tensorflow_hub=True)
    sys.argv = [options.script, *sys.argv[script_end:]]
    # As Python does, which looks for the modules next to a script where a link to it points.
    sys.path[0] = os.getcwd() if options.is_module else str(Path(options.script).resolve().parent)
    if not options.is_module:
        runpy.run_path(options.script, run_name="__main__")
    elif options.script == "allennlp" and not is_installed("allennlp"):
        import_module("elmokit.compat.allennlp.embedder").main()
    else:
        runpy.run_module(options.script, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
