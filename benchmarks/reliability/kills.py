"""Send SIGKILL to every verb that writes, at random moments: repeating the command must give the
right bytes.

    python benchmarks/reliability/kills.py [--kills 100] [--verbs embed fit] [--seed 0] [--output
    FILE]

Each verb is first run to its end, which gives the expected files and the duration. It is then
started repeatedly; each time it is killed at a random moment within that duration, and the command
is repeated once. These are defects:

    orphan    a process of the killed command still exists 5 seconds later
    failure   the repeated command fails
    bytes     an output of the repeated command differs from the expected one
    litter    the repeated command leaves a file that the undisturbed run does not

Verbs that cannot be resumed refuse an output that is complete, as it may be if the kill comes at
the very end; they are repeated with --overwrite. Logs, and reports that contain times, are not
compared.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
sys.path += [str(ROOT / "benchmarks"), str(ROOT / "tests" / "support")]
from mutants_of_files import tiny
from result_files import RESULTS, write_result

from elmokit.checkpoints.loading import save

ORPHAN_SECONDS = 5
WITH_TIMES = ("log.jsonl", "report.json")  # files that differ from run to run
MODEL = "--output out --model model"
TRAINING = (
    "--batch-size 4 --unroll-steps 5 --num-samples 0 --dtype float32 --device cpu --threads 1 "
    "--log-every 1 --checkpoint-every 7"
)


class Verb(NamedTuple):
    """A command, run in a directory with `text.txt`, `tagged.conllu`, `model` and `tagger`; it
    writes `out` or `out.*`.

    `resumes`: the command can be repeated without --overwrite, even if it has finished.
    """

    command: str
    resumes: bool = True


VERBS = {
    "prepare": Verb("prepare text.txt --output out --processes 2 --num-shards 3"),
    "pretrain": Verb(
        f"pretrain --corpus text.txt --output out --preset tiny --epochs 4 {TRAINING}"
    ),
    "finetune": Verb(f"finetune --corpus text.txt {MODEL} {TRAINING}"),
    "embed": Verb("embed text.txt --output out --model model --sentences-per-part 20"),
    "embed carry": Verb(
        "embed text.txt --output out --model model --sentences-per-part 20 --state carry"
    ),
    "embed hdf5": Verb(
        "embed text.txt --output out.hdf5 --model model --sentences-per-part 20 --layers all"
    ),
    "encode": Verb("encode text.txt --output out.npy --model model --sentences-per-part 20"),
    "fit": Verb(f"fit tagging tagged.conllu tagged.conllu {MODEL} --cache cache --max-epochs 3"),
    "score": Verb("score text.txt --output out.jsonl --model model", False),
    "predict": Verb("predict tagged.conllu --model tagger --output out.conllu", False),
    "convert": Verb("convert --model model --output out"),
    "convert hdf5": Verb("convert --model model --output out --to hdf5"),
    "senses": Verb(
        "senses the --corpus text.txt --output out.html --model model --max-uses 50", False
    ),
}


def run(arguments: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    command = [sys.executable, "-m", "elmokit", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def write_inputs(folder: Path) -> None:
    """Write the files that the commands read."""
    draw = random.Random(0)
    nouns, verbs = ["cat", "dog", "fox", "hen"], ["sees", "likes", "chases"]
    lines = [
        f"the {draw.choice(nouns)} {draw.choice(verbs)} a {draw.choice(nouns)} ."
        for _ in range(300)
    ]
    (folder / "text.txt").write_text("".join(f"{line}\n" for line in lines))
    columns = "{}\t{}\t_\t{}" + 6 * "\t_" + "\n"
    tagged = "".join(
        "".join(
            columns.format(i, word, "NOUN" if word in nouns else "X")
            for i, word in enumerate(line.split(), 1)
        )
        + "\n"
        for line in lines
    )
    (folder / "tagged.conllu").write_text(tagged)
    save(tiny(), folder / "model")
    for command in (
        "convert --model model --output old --to hdf5",
        "fit tagging tagged.conllu tagged.conllu --output tagger --model model --cache cache "
        "--max-epochs 1",
    ):
        if (done := run(command.split(), folder)).returncode:
            sys.exit(f"elmokit {command}: {done.stderr}")


def files_of(folder: Path) -> dict[str, bytes | None]:
    """All files and directories by path; the value is the bytes of a file, or None if it is not
    compared.
    """
    inside = (
        path for path in sorted(folder.rglob("*")) if path.relative_to(folder).parts[0] != "cache"
    )
    return {
        str(path.relative_to(folder)): None
        if path.is_dir() or path.name in WITH_TIMES
        else path.read_bytes()
        for path in inside
    }


def session_of(process: int) -> list[int]:
    """The ids of the living processes in the session that a process leads."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, fields = status.read_text().rsplit(")", 1)
        except OSError:
            continue
        state, *_, session = fields.split()[:4]
        if int(session) == process and state != "Z":
            found.append(int(name.split()[0]))
    return found


def kill_and_repeat(
    verb: Verb, folder: Path, after: float, expected: dict[str, bytes | None]
) -> list[str]:
    """Kill a command after `after` seconds, and repeat it; returns the defects."""
    arguments = verb.command.split()
    process = subprocess.Popen(
        [sys.executable, "-m", "elmokit", *arguments], cwd=folder, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    time.sleep(after)
    process.kill()
    process.wait()
    wrong = []
    end = time.monotonic() + ORPHAN_SECONDS
    while (orphans := session_of(process.pid)) and time.monotonic() < end:
        time.sleep(0.05)
    if orphans:
        wrong.append(f"orphan: {len(orphans)} processes")
        for orphan in orphans:
            os.kill(orphan, signal.SIGKILL)
    repeated = run(arguments if verb.resumes else [*arguments, "--overwrite"], folder)
    found = files_of(folder)
    if repeated.returncode and found != expected:  # a file that is complete is not replaced unasked
        return [*wrong, f"failure: {repeated.stderr.strip()[-300:]}"]
    wrong += [f"litter: {name}" for name in sorted(found.keys() - expected.keys())]
    differing = [name for name in expected if name not in found or found[name] != expected[name]]
    return wrong + [f"bytes: {name}" for name in differing]


def try_verb(verb: Verb, inputs: Path, kills: int, draw: random.Random) -> dict[str, Any]:
    """Kill a verb `kills` times; returns the seconds that it takes undisturbed, and the defects."""
    with tempfile.TemporaryDirectory(prefix="elmokit-kills-") as name:
        folder = (
            Path(name) / "run"
        )  # the same for all runs, as some file names depend on the path of the text
        shutil.copytree(inputs, folder)
        start = time.monotonic()
        done = run(verb.command.split(), folder)
        seconds = time.monotonic() - start
        if done.returncode:
            sys.exit(f"elmokit {verb.command}: {done.stderr}")
        expected, wrong = files_of(folder), []
        for _ in range(kills):
            # Half of the moments are in the last third, since the time before is mostly spent in
            # imports.
            after = seconds * draw.choice([draw.uniform(0, 1), draw.uniform(0.67, 1)])
            shutil.rmtree(folder)
            shutil.copytree(inputs, folder)
            wrong += [
                f"{after:.2f} s: {problem}"
                for problem in kill_and_repeat(verb, folder, after, expected)
            ]
    return {"kills": kills, "seconds": round(seconds, 2), "wrong": wrong}


def main() -> int:
    """Try all verbs; the status is 1 if there is a defect."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--kills", type=int, default=100, help="kills in total, spread evenly over the verbs"
    )
    parser.add_argument("--verbs", nargs="+", choices=VERBS, default=list(VERBS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=None, help=f"e.g. {RESULTS / 'kills.json'}")
    arguments = parser.parse_args()
    share = Counter(
        arguments.verbs[number % len(arguments.verbs)] for number in range(arguments.kills)
    )
    verbs: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="elmokit-inputs-") as inputs:
        write_inputs(Path(inputs))
        for name, kills in share.items():
            verbs[name] = try_verb(
                VERBS[name], Path(inputs), kills, random.Random(f"{arguments.seed} {name}")
            )
            print(f"{name}: {verbs[name]}", flush=True)
    defects = sum(len(found["wrong"]) for found in verbs.values())
    write_result(arguments.output, {"kills": arguments.kills, "defects": defects, "verbs": verbs})
    return 1 if defects else 0


if __name__ == "__main__":
    sys.exit(main())
