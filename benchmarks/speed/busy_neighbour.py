"""The speed of `Elmo` in a user's own training loop, on an idle machine and next to one busy process.

    python benchmarks/speed/busy_neighbour.py TEXT [--seconds 15] [--pairs 3]

TEXT is tokenized, one sentence per line. The loop trains a linear tagger on top of the bundled model, frozen or
fine-tuned, with batches of 32 sentences and PyTorch's default OpenMP settings. A pair of measurements is one on the
idle machine, and one next to a process that keeps one core busy.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

BUSY = "while True: pass"
BATCH = 32


def words_per_second(text: Path, freeze: bool, seconds: float) -> float:
    """The speed of a training loop, after a warm-up of two batches."""
    import torch

    import elmokit

    torch.manual_seed(0)
    with text.open(encoding="utf-8") as lines:
        sentences = [line.split()[:60] for line, _ in zip(lines, range(50 * BATCH), strict=False) if line.strip()]
    elmo = elmokit.Elmo(elmokit.load().bilm, freeze=freeze)
    tagger = torch.nn.Linear(elmo.bilm.config.output_dim, 9)
    learned = [*tagger.parameters(), *(each for each in elmo.parameters() if each.requires_grad)]
    optimizer = torch.optim.AdamW(learned, lr=1e-4)
    words, steps, started = 0, 0, time.perf_counter()
    while time.perf_counter() - started < seconds or steps < 4:
        first = steps * BATCH % (len(sentences) - BATCH)
        batch = sentences[first : first + BATCH]
        output = elmo(elmokit.batch_to_ids(batch))
        logits = tagger(output.representations[0])[output.mask]
        loss = torch.nn.functional.cross_entropy(logits, torch.randint(9, (len(logits),)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
        words += len(logits)
        if steps == 2:
            words, started = 0, time.perf_counter()
    return words / (time.perf_counter() - started)


def measure(text: Path, freeze: bool, seconds: float) -> float:
    """`words_per_second` in a process of its own."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    command = [sys.executable, __file__, str(text), "--seconds", str(seconds), "--run", "frozen" if freeze else "tuned"]
    found = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return float(found.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--run", choices=("frozen", "tuned"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        print(words_per_second(arguments.text, arguments.run == "frozen", arguments.seconds))
        return
    sys.path.append(str(Path(__file__).parents[1]))
    from result_files import RESULTS, write_result

    for name, freeze in (("frozen", True), ("fine-tuned", False)):
        pairs = []
        for _ in range(arguments.pairs):
            idle = measure(arguments.text, freeze, arguments.seconds)
            with subprocess.Popen([sys.executable, "-c", BUSY]) as busy:
                try:
                    pairs.append((idle, measure(arguments.text, freeze, arguments.seconds)))
                finally:
                    busy.kill()
            print(f"{name:12} idle {idle:8,.0f} words/s, beside a busy process {pairs[-1][1]:8,.0f}", flush=True)
        figures = {"idle_and_beside": pairs, "ratio": statistics.median(beside / idle for idle, beside in pairs)}
        write_result(RESULTS / "busy_neighbour.json", figures, name)


if __name__ == "__main__":
    main()
