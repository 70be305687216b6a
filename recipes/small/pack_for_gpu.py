"""Pack what a rented machine without a network needs: the corpus as numbers, held-out text, wheels,
AllenNLP's LSTM.

    python recipes/small/pack_for_gpu.py RUNS/corpus --heldout RUNS/heldout/*.txt --parts
    runs/gpu/1 runs/gpu/2

RUNS is the directory of train.sh. Shards of the corpus go into the parts in turn, until each has
--mib MiB; the first part also has everything else. Words are numbers of 16 bits, in the order of
their frequency, so that xz needs 9.3 bits for one; a number that says "rare" stands for the words
beyond, which are listed. `unpack` (docs/gpu.md) is the inverse.
"""

from __future__ import annotations

import argparse
import json
import lzma
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import repeat
from pathlib import Path

import numpy as np

from elmokit.fs.reading import read_lines

END, RARE = 0, 0xFFFF  # the numbers of a line's end and of every rare word
FILTERS = [
    {"id": lzma.FILTER_LZMA2, "preset": 9, "lc": 3, "lp": 1, "pb": 1}
]  # the best of five for such numbers
WHEELS = ("zstandard==0.25.0", "tyro==1.0.17", "docstring_parser==0.18.0", "typeguard==4.6.1")
ALLENNLP = "allennlp==2.10.1"
MODULES = (
    "encoder_base",
    "lstm_cell_with_projection",
    "elmo_lstm",
)  # of allennlp.modules, in the order of imports
MIB = 1 << 20


# --- Text as numbers ------------------------------------------------------------------------------


def read_words(file: Path) -> Iterator[str]:
    """The words of a file, with "\\n" after each sentence."""
    for line in filter(str.strip, read_lines(file)):
        yield from line.split()
        yield "\n"


def frequent_words(files: Iterable[Path]) -> list[str]:
    """The words that have a number, the most frequent first; at 0 the end of a line."""
    counts: Counter[str] = Counter()
    for file in files:
        counts.update(read_words(file))
    del counts["\n"]
    return [
        "\n",
        *(
            word
            for word, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[: RARE - 1]
        ),
    ]


def to_numbers(words: Iterable[str], frequent: list[str]) -> bytes:
    """Words as compressed numbers and, after those, the list of rare ones."""
    number_of = {word: number for number, word in enumerate(frequent)}
    words = list(words)
    numbers = np.fromiter((number_of.get(word, RARE) for word in words), dtype="<u2")
    rare = "\n".join(words[place] for place in np.flatnonzero(numbers == RARE))
    packed = lzma.compress(numbers.tobytes(), filters=FILTERS)
    return len(packed).to_bytes(8, "little") + packed + lzma.compress(rare.encode())


def from_numbers(data: bytes, frequent: list[str]) -> str:
    """The text of `to_numbers`: words that spaces separate, one sentence on each line."""
    size = 8 + int.from_bytes(data[:8], "little")
    numbers = np.frombuffer(lzma.decompress(data[8:size]), dtype="<u2")
    words = np.array([*frequent, *repeat("", RARE + 1 - len(frequent))], dtype=object)[numbers]
    words[numbers == RARE] = (
        lzma.decompress(data[size:]).decode().split("\n") if (numbers == RARE).any() else []
    )
    return " ".join(words).replace(" \n ", "\n").replace(" \n", "\n")


def _unpack_file(file: Path, directory: Path, frequent: list[str]) -> tuple[int, int]:
    """Write the text of a file; the number of its words and sentences."""
    text = from_numbers(file.read_bytes(), frequent)
    (directory / file.name.removesuffix(".xz")).write_text(text, encoding="utf-8")
    sentences = text.count("\n")
    return text.count(" ") + sentences, sentences


def unpack(part: Path, directory: Path) -> dict[str, int]:
    """Write the text of a part to corpus/ and heldout/ in a directory, where later parts find the
    list of words.

    Returns:
        The number of files, words and sentences of the corpus.
    """
    directory.mkdir(parents=True, exist_ok=True)
    if (words := part / "words.xz").exists():
        (directory / "words.txt").write_bytes(lzma.decompress(words.read_bytes()))
    frequent = ["\n", *(directory / "words.txt").read_text(encoding="utf-8").split("\n")]
    counts = {}
    with ProcessPoolExecutor() as pool:
        for name in ("corpus", "heldout"):
            (directory / name).mkdir(exist_ok=True)
            files = sorted((part / name).glob("*.xz"))
            counts[name] = list(
                pool.map(
                    partial(_unpack_file, directory=directory / name, frequent=frequent), files
                )
            )
    words, sentences = (sum(each[number] for each in counts["corpus"]) for number in range(2))
    return {"files": len(counts["corpus"]), "words": words, "sentences": sentences}


# --- Packing --------------------------------------------------------------------------------------


def _download(directory: Path, *names: str) -> None:
    """Wheels for CPython 3.12 on Linux, without what they need."""
    platforms = [
        f"--platform=manylinux{each}_x86_64" for each in ("2014", "_2_17", "_2_27", "_2_28")
    ]
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
    command += [
        "--python-version=3.12",
        "--implementation=cp",
        *platforms,
        "-d",
        str(directory),
        *names,
    ]
    subprocess.run(command, check=True)


def add_libraries(part: Path) -> None:
    """Add wheels, and three modules of AllenNLP, which would need much else as a whole."""
    _download(part / "wheels", *WHEELS)
    with tempfile.TemporaryDirectory() as directory:
        _download(Path(directory), ALLENNLP)
        with zipfile.ZipFile(next(Path(directory).glob("*.whl"))) as wheel:
            for name in MODULES:
                (part / "allennlp" / f"{name}.py").write_bytes(
                    wheel.read(f"allennlp/modules/{name}.py")
                )


def size_of(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", type=Path, help="directory of `elmokit prepare`")
    parser.add_argument("--heldout", type=Path, nargs="+", required=True, help="tokenized text")
    parser.add_argument(
        "--parts", type=Path, nargs="+", required=True, help="new directories, one for each call"
    )
    parser.add_argument("--mib", type=float, default=53.0, help="size of each part")
    parser.add_argument("--no-libraries", action="store_true", help="neither wheels nor AllenNLP")
    arguments = parser.parse_args(argv)
    first, limit = arguments.parts[0], arguments.mib * MIB
    for part in arguments.parts:
        for name in ("corpus", "heldout"):
            (part / name).mkdir(parents=True)
    (first / "allennlp").mkdir()
    if not arguments.no_libraries:
        add_libraries(first)
    about = json.loads((arguments.corpus / "corpus.json").read_text(encoding="utf-8"))
    (first / "tokenizer").write_text(about["options"]["tokenizer"])
    shards = sorted(arguments.corpus.glob("shard-*"))
    frequent = frequent_words([*shards, *arguments.heldout])
    (first / "words.xz").write_bytes(lzma.compress("\n".join(frequent[1:]).encode()))
    for file in arguments.heldout:
        (first / "heldout" / f"{file.name}.xz").write_bytes(to_numbers(read_words(file), frequent))
    parts = iter(arguments.parts)
    part = next(parts)
    for packed_shards, shard in enumerate(shards):
        packed = to_numbers(read_words(shard), frequent)
        while size_of(part) + len(packed) > limit:
            if (part := next(parts, None)) is None:
                print(f"{packed_shards} of {len(shards)} shards fit")
                return
        (part / "corpus" / f"{shard.name.removesuffix('.zst')}.xz").write_bytes(packed)
        print(
            f"{shard.name} to {part}: {len(packed) / MIB:.1f} MiB, part {size_of(part) / MIB:.1f} "
            f"MiB",
            flush=True,
        )


if __name__ == "__main__":
    main()
