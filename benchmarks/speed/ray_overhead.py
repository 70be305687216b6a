"""The time to embed a table on a local Ray cluster, compared with the same texts embedded by `elmokit embed`.

    python benchmarks/speed/ray_overhead.py TEXT [--megabytes 5] [--actors 2] [--repeats 3]

TEXT is tokenized, one sentence per line; its first megabytes are also written as a Parquet file with one column. In
alternation, `embed_file` embeds the text with as many threads as there are actors, and `embed_parquet` embeds the table
with actors of one thread each. Both go from a file to Parquet files and load the model each time; the cluster is
started beforehand. Every pair of outputs is compared. The target: Ray takes at most 25 % more time. Needs elmokit's
extra ray.
"""

import argparse
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow
import ray
import torch
from file_to_file import first_lines
from measuring import RESULTS, write_result
from pyarrow import parquet

from elmokit.embed.files import embed_file
from elmokit.integrations.ray import EmbedWords, embed_parquet

BAR = 1.25
ROWS = 1000  # rows per output file on both sides


def here(text: Path, output: Path, threads: int) -> float:
    """Seconds of `elmokit embed`."""
    torch.set_num_threads(threads)
    start = time.perf_counter()
    embed_file(text, output, tokenize=False, sentences_per_part=ROWS)
    return time.perf_counter() - start


def on_cluster(table: Path, output: Path, actors: int) -> float:
    """Seconds of `elmokit embed --ray`."""
    start = time.perf_counter()
    embed_parquet(table, output, EmbedWords(tokenize=False), num_actors=actors, sentences_per_part=ROWS)
    return time.perf_counter() - start


def numbers(table: pyarrow.Table) -> np.ndarray:
    """All components of the vectors in a table, concatenated."""
    return np.concatenate([chunk.flatten().flatten() for chunk in table["vectors"].chunks])


def check_same(file: Path, directory: Path) -> int:
    """The number of words; RuntimeError if the outputs differ in words or, by more than 1e-4, in vectors."""
    whole, words, first = parquet.read_table(file), 0, 0
    for path in sorted(directory.glob("*.parquet")):
        part = parquet.read_table(path)
        same, tokens = whole.slice(first, len(part)), part["tokens"].to_pylist()
        if tokens != same["tokens"].to_pylist() or not np.allclose(numbers(part), numbers(same), atol=1e-4):
            raise RuntimeError(f"the rows from {first} on differ")
        first, words = first + len(part), words + sum(map(len, tokens))
    if first != len(whole):
        raise RuntimeError(f"Ray wrote {first} rows of {len(whole)}")
    return words


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("--megabytes", type=float, default=5)
    parser.add_argument("--actors", type=int, default=os.cpu_count())
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--results", type=Path, default=RESULTS / "ray_overhead.json")
    given = parser.parse_args()
    ray.init(num_cpus=given.actors, include_dashboard=False)
    with tempfile.TemporaryDirectory() as directory:
        text, table = Path(directory) / "text.txt", Path(directory) / "text.parquet"
        lines = list(first_lines(given.text, int(given.megabytes * 1e6)))
        text.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        parquet.write_table(pyarrow.table({"text": lines}), table)
        pairs = []
        for _ in range(given.repeats):
            file, files = Path(directory) / "vectors.parquet", Path(directory) / "vectors"
            pairs.append((here(text, file, given.actors), on_cluster(table, files, given.actors)))
            words = check_same(file, files)
            file.unlink()
            shutil.rmtree(files)
    ratio = statistics.median(cluster / machine for machine, cluster in pairs)
    machine, cluster = (words / statistics.median(side) for side in zip(*pairs, strict=True))
    print(
        f"{words:,} words: {machine:,.0f} words/s by embed, {cluster:,.0f} with Ray and {given.actors} actors, "
        f"which costs {100 * (ratio - 1):+.1f} %"
    )
    figures = {
        "words": words, "actors": given.actors, "words_per_second_embed": machine, "words_per_second_ray": cluster,
        "seconds_embed_and_ray": pairs, "ratio": ratio, "bar": BAR, "versions": {"ray": ray.__version__},
    }  # fmt: skip
    write_result(given.results, figures)
    raise SystemExit(0 if ratio <= BAR else "slower than the bar")


if __name__ == "__main__":
    main()
