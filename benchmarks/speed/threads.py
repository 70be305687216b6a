"""The speed of embedding with several numbers of threads, relative to one thread per core.

    python benchmarks/speed/threads.py TEXT --models DIRECTORY [--repeats 5]

TEXT is tokenized, one sentence per line; DIRECTORY has the models `small` and `original` of peers/make_models.py. Runs
with the two numbers of threads alternate, each with an empty word cache; the result is the median of the pairs.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from statistics import median

import torch
from sentences import first_sentences

import elmokit

THREADS = (1, 3, 4, 8)
WORDS = {"small": 16_000, "original": 4_000}


def words_per_second(embedder: elmokit.Embedder, sentences: list[list[str]], threads: int) -> float:
    """The speed of computing all layers of the sentences."""
    torch.set_num_threads(threads)
    embedder.clear_word_cache()
    started = time.perf_counter()
    embedder.embed(sentences, layers="all")
    return sum(map(len, sentences)) / (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    sys.path.append(str(Path(__file__).parents[1]))
    from result_files import RESULTS, write_result

    cores = os.cpu_count() or 1
    for size, words in WORDS.items():
        embedder = elmokit.Embedder(arguments.models / size, "cpu")
        sentences, ratios = first_sentences(arguments.text, words=words), {}
        words_per_second(embedder, sentences, cores)  # the first pass allocates
        for threads in THREADS:
            pairs = [
                [words_per_second(embedder, sentences, each) for each in (cores, threads)]
                for _ in range(arguments.repeats)
            ]
            ratios[str(threads)] = median(other / ours for ours, other in pairs)
            print(f"{size:9} {threads} threads: {ratios[str(threads)]:.2f} of {cores}", flush=True)
        write_result(RESULTS / "threads.json", {"words": words, "threads_of_base": cores, "ratios": ratios}, size)


if __name__ == "__main__":
    main()
