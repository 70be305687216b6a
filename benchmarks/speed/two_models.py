"""The embedding speed of a model compared with that of another one, by number type.

    python benchmarks/speed/two_models.py TEXT --beside MODEL [--model NAME_OR_PATH] [--repeats 5]

TEXT is tokenized, one sentence per line. Both models embed its first 16,000 words in turn, in one process, with an
empty word cache; the result is the median of the ratios.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import median

import torch
from sentences import first_sentences
from threads import words_per_second

from elmokit.embed.embedder import Embedder

sys.path.append(str(Path(__file__).parents[1]))
from result_files import RESULTS, write_result

WORDS = 16_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("--beside", required=True, help="directory of the other model")
    parser.add_argument("--model", help="name or directory; the bundled model when not given")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path, default=RESULTS / "two_models.json")
    arguments = parser.parse_args()
    sentences, threads = first_sentences(arguments.text, words=WORDS), torch.get_num_threads()
    for dtype in ("float32", "bfloat16", "int8"):
        sides = [Embedder.load(name, "cpu", dtype=dtype) for name in (arguments.model, arguments.beside)]
        for embedder in sides:
            words_per_second(embedder, sentences, threads)  # the first pass allocates
        pairs = [
            [words_per_second(embedder, sentences, threads) for embedder in sides] for _ in range(arguments.repeats)
        ]
        figures = {
            "words_per_second": [median(speeds) for speeds in zip(*pairs, strict=True)],
            "ratio": median(ours / other for ours, other in pairs),
            "fingerprints": [side.fingerprint() for side in sides],
        }
        print(dtype, figures, flush=True)
        write_result(arguments.output, figures, dtype)


if __name__ == "__main__":
    main()
