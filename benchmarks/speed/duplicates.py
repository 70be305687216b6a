"""The cost of finding duplicates: signatures of documents, the index, and alternatives to rensa.

    python benchmarks/speed/duplicates.py RAW_TEXT... [--documents 8000]

Prints the processor seconds for the shingles (sequences of consecutive words) and MinHash signatures of the documents,
by `elmokit.data.duplicates`, by rensa on strings and, if it is installed, by datasketch; the error of the estimated
similarity compared with exact sets; and the memory, disk space and time of the index per document, with random
signatures that do not resemble each other.
"""

import argparse
import random
import re
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from elmokit.data.documents import read_documents
from elmokit.data.duplicates import PERMUTATIONS, Fingerprint, SeenTexts, shingle_hashes, signatures


def seconds(name: str, run: Callable[[], Any]) -> Any:
    start = time.process_time()
    found = run()
    print(f"{name:50} {time.process_time() - start:8.2f} s")
    return found


def string_shingles(text: str) -> list[str]:
    words = re.findall(r"\w+", text.casefold())
    return list(set(map(" ".join, zip(*(words[place:] for place in range(5)), strict=False)))) or words[:1]


def fingerprint_costs(texts: list[str]) -> None:
    words = sum(len(text.split()) for text in texts)
    print(f"{len(texts):,} documents, {words:,} words between white spaces")
    hashes = seconds("shingles", lambda: [set(shingle_hashes(text).tolist()) for text in texts])
    rows = seconds("shingles and signatures", lambda: signatures(texts))
    strings = seconds("shingles as strings", lambda: [string_shingles(text) for text in texts])

    from rensa import RMinHash  # pyright: ignore[reportAttributeAccessIssue]

    seconds("rensa on strings", lambda: RMinHash.digest_matrix_from_token_sets(strings, PERMUTATIONS, 0))
    try:
        from datasketch import MinHash  # pyright: ignore[reportMissingImports]
    except ImportError:
        print("datasketch is not installed")
    else:
        encoded = [[shingle.encode() for shingle in each] for each in strings]
        seconds("datasketch on strings", lambda: list(MinHash.generator(encoded, num_perm=PERMUTATIONS)))
    _similarity_errors(texts, hashes, rows)


def _similarity_errors(texts: list[str], hashes: list[set[int]], rows: list[np.ndarray | None]) -> None:
    """Errors for pairs of a document and the same document with some words removed."""
    draw, errors = random.Random(0), []
    for text, shingles, row in islice(zip(texts, hashes, rows, strict=True), 2_000):
        changed = " ".join(word for word in text.split() if draw.random() > 0.02)
        others, (other,) = set(shingle_hashes(changed).tolist()), signatures([changed])
        if row is not None and other is not None:
            errors.append(float(np.mean(row == other)) - len(shingles & others) / len(shingles | others))
    print(f"estimated less exact similarity: mean {np.mean(errors):.4f}, standard deviation {np.std(errors):.4f}")


def index_costs(documents: int) -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    draw = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as directory:
        seen = SeenTexts(Path(directory))
        before, peak, start = resident(), 0, time.process_time()
        for number in range(documents):
            row = draw.integers(0, 1 << 32, PERMUTATIONS, dtype=np.uint32)
            fingerprint = Fingerprint(int(draw.integers(1, 1 << 62)), [], row)
            seen.match(fingerprint)
            seen.add(fingerprint)
            if number % 1000 == 0:
                peak = max(peak, resident())
        spent = time.process_time() - start
        seen.sync()
        disk = sum(file.stat().st_size for file in Path(directory).iterdir())
        seen.close()
        print(
            f"index of {documents:,}: {(resident() - before) / documents:.0f} bytes of memory a document at the end, "
            f"{(peak - before) / documents:.0f} at the most, {disk / documents:.0f} of disk, "
            f"{1e6 * spent / documents:.0f} us"
        )
        seconds("built again from its files", lambda: SeenTexts(Path(directory), sizes=seen.sizes).close())


def texts_of(files: list[Path]) -> Iterator[str]:
    for document in chain.from_iterable(read_documents(str(file)) for file in files):
        yield "\n".join(document.lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", type=Path, nargs="+")
    parser.add_argument("--documents", type=int, default=8_000)
    parser.add_argument("--index", type=int, default=400_000, help="number of documents in the index")
    arguments = parser.parse_args()
    fingerprint_costs(list(islice(texts_of(arguments.texts), arguments.documents)))
    index_costs(arguments.index)


if __name__ == "__main__":
    main()
