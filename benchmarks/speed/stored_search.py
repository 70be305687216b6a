"""Questions to a store of vectors: the nearest uses of a word, those of any word, and the senses of
a word.

    python benchmarks/speed/stored_search.py TEXT [--store DIRECTORY] [--output FILE]

TEXT has one sentence per line, split into words. Its vectors (layer 2 of the bundled model,
computed in bfloat16, stored in float16) are written to the store first, unless it has them. Medians
of five calls with a loaded model, after one that brings the files into the page cache. Processor
time, of one thread, depends less on the load of the machine.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from measuring import RESULTS, write_result

import elmokit

QUERY = "They sat on the bank of the river ."


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("text", type=Path)
    parser.add_argument("--store", type=Path, default=Path("runs/stored_search"))
    parser.add_argument("--output", type=Path, default=RESULTS / "stored_search.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    options = {"layers": "top", "dtype": "bfloat16", "storage_dtype": "float16", "tokenize": False}
    report = elmokit.embed_file(arguments.text, arguments.store, **options)
    embedder, store = elmokit.Embedder(softmax=True), arguments.store
    questions: dict[str, Callable[[], object]] = {
        "neighbors": lambda: elmokit.neighbors("bank", QUERY, store, embedder),
        "neighbors of any word": lambda: elmokit.neighbors(
            "bank", QUERY, store, embedder, any_word=True
        ),
        "senses": lambda: elmokit.senses("light", store, embedder),
    }
    figures: dict[str, object] = {"words": report.words, "sentences": report.sentences}
    for name, ask in questions.items():
        ask()
        seconds, processor_seconds = [], []
        for _ in range(5):
            start, processor_start = time.perf_counter(), time.process_time()
            ask()
            seconds.append(time.perf_counter() - start)
            processor_seconds.append(time.process_time() - processor_start)
        medians = median(seconds), median(processor_seconds)
        figures[name] = dict(zip(("seconds", "processor_seconds"), medians, strict=True))
        print(f"{name}: {figures[name]}", flush=True)
    write_result(arguments.output, figures)


if __name__ == "__main__":
    main()
