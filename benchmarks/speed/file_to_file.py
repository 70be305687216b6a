"""Words per second from a text file to the vectors of all layers on disk, compared with the same
text in memory.

    python benchmarks/speed/file_to_file.py TEXT --model MODEL [--megabytes 10] [--dtype bfloat16]
    [--repeats 3]

TEXT is tokenized, one sentence per line. `embed_file` writes all layers of its first megabytes in
float16, to the same files as `elmokit embed`. `Embedder.embed_stream` computes the same arrays in
memory, some thousand words at a time, and drops them. Both run in alternation, with a warmed-up
model and an empty word cache.
"""

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from measuring import RESULTS, write_result

from elmokit.embed.embedder import Embedder
from elmokit.embed.files import embed_file
from elmokit.fs.reading import read_lines


def first_lines(text: Path, size: int) -> Iterator[str]:
    for line in read_lines(text):
        if size <= 0:
            return
        size -= len(line.encode()) + 1
        yield line


def in_memory(embedder: Embedder, sentences: Sequence[Sequence[str]]) -> float:
    embedder.clear_word_cache()
    start = time.perf_counter()
    for _ in embedder.embed_stream(sentences, layers="all"):
        pass
    return time.perf_counter() - start


def to_file(embedder: Embedder, text: Path, output: Path) -> float:
    embedder.clear_word_cache()
    start = time.perf_counter()
    embed_file(text, output, embedder, layers="all", storage_dtype="float16", tokenize=False)
    seconds = time.perf_counter() - start
    shutil.rmtree(output)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("text", type=Path)
    parser.add_argument("--model", required=True)
    parser.add_argument("--megabytes", type=float, default=10)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--results", type=Path, default=RESULTS / "file_to_file.json")
    given = parser.parse_args()
    embedder = Embedder(given.model, dtype=given.dtype)
    with tempfile.TemporaryDirectory() as directory:
        text, output = Path(directory) / "text.txt", Path(directory) / "vectors"
        lines = list(first_lines(given.text, int(given.megabytes * 1e6)))
        text.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        sentences = [line.split() for line in lines]
        words = sum(map(len, sentences))
        embedder.embed(sentences[:64], layers="all")
        pairs = [
            (in_memory(embedder, sentences), to_file(embedder, text, output))
            for _ in range(given.repeats)
        ]
        size = text.stat().st_size
    ratio = statistics.median(file / memory for memory, file in pairs)
    memory, file = (words / statistics.median(side) for side in zip(*pairs, strict=True))
    print(
        f"{size:,} bytes, {words:,} words: {memory:,.0f} words/s in memory, {file:,.0f} from file "
        f"to file; the file costs {100 * (ratio - 1):+.1f} %"
    )
    name = Path(given.model).name
    figures = {
        "bytes": size,
        "words": words,
        "words_per_second_in_memory": memory,
        "words_per_second_file_to_file": file,
        "seconds_in_memory_and_to_file": pairs,
        "ratio": ratio,
    }
    write_result(given.results, figures, f"{name} {given.dtype}")


if __name__ == "__main__":
    main()
