"""Start-up time of a fresh process: imports, `elmokit --help` and a first vector, and the imports
of the peers.

    python benchmarks/speed/import_time.py [--environments DIRECTORY] [--repeats 5] [--quick]

All commands are run in turn, as often as --repeats says. The results are medians of wall-clock
seconds, and include the start of Python itself, which is also measured alone. Peers are left out if
no environments are given.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from measuring import PEERS, RESULTS, write_result

OURS = {
    "python alone": "pass",
    "import elmokit": "import elmokit",
    "elmokit --help": "import sys; from elmokit.cli import main; sys.argv = ['elmokit', "
    "'--help']; main()",
    "elmokit.Embedder": "from elmokit import Embedder",
    "a first vector of en-small": "import elmokit; elmokit.Embedder().embed(['One sentence .'])",
}
THEIRS = {
    "allennlp": "from allennlp.modules.elmo import Elmo",
    "bilm-tf": "from bilm import Batcher, BidirectionalLanguageModel",
    "simple-elmo": "from simple_elmo import ElmoModel",
    "elmoformanylangs": "from elmoformanylangs import Embedder",
}


def commands(environments: Path | None) -> dict[str, list[str]]:
    found = {name: [sys.executable, "-c", code] for name, code in OURS.items()}
    if environments is not None:
        for name, code in THEIRS.items():
            python = environments / str(PEERS[name].environment) / "bin" / "python"
            found[f"import of {name}"] = [str(python), "-c", code]
    return found


def seconds(command: list[str]) -> float:
    environment = os.environ | {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    start = time.perf_counter()
    subprocess.run(command, env=environment, capture_output=True, check=True)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--environments", type=Path, help="directory that peers/install.sh creates")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--quick", action="store_true", help="one repeat; no result file unless --output names one"
    )
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    if not arguments.quick and arguments.output is None:
        arguments.output = RESULTS / "import_time.json"
    asked = commands(arguments.environments)
    for command in asked.values():
        seconds(
            command
        )  # the first run reads files from disk; later ones find them in the page cache
    taken: dict[str, list[float]] = {name: [] for name in asked}
    for _ in range(1 if arguments.quick else arguments.repeats):
        for name, command in asked.items():
            taken[name].append(seconds(command))
    for name, times in taken.items():
        print(f"{name:28} {statistics.median(times):7.3f} s")
        write_result(arguments.output, {"seconds": times, "median": statistics.median(times)}, name)


if __name__ == "__main__":
    main()
