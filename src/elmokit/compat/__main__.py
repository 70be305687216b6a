"""Run a script for an old library as it is: python -m elmokit.compat [--tensorflow-hub] SCRIPT ARGS..."""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path

from elmokit.compat.old_modules import install


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m elmokit.compat",
        description="Run a Python script that was written for AllenNLP, bilm-tf, ELMoForManyLangs or simple_elmo.",
    )
    parser.add_argument("--tensorflow-hub", action="store_true", help="stand in for tensorflow_hub, too")
    parser.add_argument("script", type=Path)
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="those of the script")
    options = parser.parse_args()
    if not options.script.is_file():
        parser.error(f"there is no script {options.script}")
    install(tensorflow_hub=options.tensorflow_hub)
    sys.argv = [str(options.script), *options.arguments]
    sys.path[0] = str(options.script.parent)
    runpy.run_path(str(options.script), run_name="__main__")


if __name__ == "__main__":
    main()
