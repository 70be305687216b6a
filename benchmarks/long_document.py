"""One sentence of a million words: peak memory and speed of embedding it, and whether the vectors are right.

    python benchmarks/long_document.py [--model NAME_OR_PATH] [--words 10000 100000 1000000] TEXT...

The words of the given texts (plain, .gz or .zst; split at white space), repeated as needed, become one line of each
length, with one pair of boundaries, which a process of its own embeds to a temporary directory. That process's peak
resident memory is recorded. The vectors of the shortest line, all layers in float32, are compared with those of one
call of `BiLM.forward`, which holds the whole.
"""

import argparse
import json
import platform
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import chain, cycle, islice
from pathlib import Path

import numpy as np
import torch

from elmokit.data.streams import word_ids
from elmokit.embed.embedder import Embedder
from elmokit.embed.files import embed_file
from elmokit.embed.groups import WORDS_AT_ONCE
from elmokit.embed.long import POSITIONS_AT_ONCE
from elmokit.files import atomic_path, read_lines
from elmokit.io.store import EmbeddingStore
from elmokit.runtime import pick_dtype
from elmokit.text.characters import BOS, EOS

RESULTS = Path(__file__).parent / "results" / "long_document.json"
MEGABYTE = 1_000_000
STATUS = Path("/proc/self/status")


def words_of(texts: list[Path]) -> Iterator[str]:
    """Their words, from the first again after the last."""
    if not any(line.split() for text in texts for line in read_lines(text)):
        raise ValueError(f"there is no text in {', '.join(map(str, texts))}")
    lines = chain.from_iterable(read_lines(text) for text in cycle(texts))
    return chain.from_iterable(map(str.split, lines))


def peak_megabytes() -> int:
    """Peak resident memory of this process. On Linux what getrusage says includes the process that started it."""
    if STATUS.is_file():
        (peak,) = (line.split()[1] for line in STATUS.read_text().splitlines() if line.startswith("VmHWM"))
        return round(int(peak) * 1024 / MEGABYTE)
    unit = 1 if sys.platform == "darwin" else 1024
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / MEGABYTE)


def measure(arguments: argparse.Namespace) -> None:
    """What the child process does: embed one line, and print what it took."""
    embedder = Embedder.load(arguments.model, arguments.device, arguments.products)
    loaded = peak_megabytes()
    options = {"layers": arguments.layers, "state": "zeros", "dtype": arguments.dtype, "tokenize": False}
    report = embed_file(arguments.texts[0], arguments.child, embedder, **options)
    found = {"words": report.words, "seconds": report.seconds, "words_per_second": report.words_per_second}
    print(json.dumps({**found, "peak_megabytes": peak_megabytes(), "megabytes_before": loaded}))


def embedded_apart(arguments: argparse.Namespace, line: Path, vectors: Path, **other: str) -> dict:
    """What `measure` printed in a process of its own."""
    names = ("layers", "dtype", "products", "device", "model")
    options = {name: getattr(arguments, name) for name in names} | other
    command = [sys.executable, __file__, str(line), f"--child={vectors}"]
    command += [f"--{name}={value}" for name, value in options.items() if value is not None]
    printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return json.loads(printed.splitlines()[-1])


@torch.no_grad()
def difference_from_whole(arguments: argparse.Namespace, line: Path, directory: Path) -> dict:
    """How far the stored vectors of one line are from those of one forward call."""
    embedded_apart(arguments, line, directory, layers="all", dtype="float32")
    words, found = EmbeddingStore(directory)[0]
    embedder = Embedder.load(arguments.model, arguments.device)
    bilm = embedder.model.bilm.to(embedder.device, pick_dtype(arguments.products, embedder.device)).eval()
    ids = word_ids([BOS, *words, EOS], bilm.config, embedder.model.vocab).to(embedder.device)
    whole = bilm(ids[None]).layers[:, 0, 1:-1].float().cpu().numpy().swapaxes(0, 1)
    lengths = np.linalg.norm(found, axis=-1) * np.linalg.norm(whole, axis=-1)
    cosine = (found * whole).sum(-1) / np.maximum(lengths, 1e-12)
    return {
        "words": len(words),
        "in_windows": len(words) + 2 > WORDS_AT_ONCE,
        "largest_difference": float(np.abs(found - whole).max()),
        "smallest_cosine": float(cosine.min()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", type=Path, nargs="+")
    parser.add_argument("--model", help="directory or name; the bundled English model when not given")
    parser.add_argument("--words", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--layers", default="all", choices=("mix", "average", "top", "all"))
    parser.add_argument("--dtype", default="float16", choices=("float32", "float16"), help="of the written vectors")
    parser.add_argument("--products", default="float32", choices=("float32", "bfloat16", "auto"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--temporary", type=Path, help="where the vectors go for the while")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        return measure(arguments)
    documents, compared = [], {}
    for count in sorted(arguments.words):
        with tempfile.TemporaryDirectory(dir=arguments.temporary) as directory:
            line, vectors = Path(directory) / "line.txt", Path(directory) / "vectors"
            line.write_text(" ".join(islice(words_of(arguments.texts), count)) + "\n", encoding="utf-8")
            found = embedded_apart(arguments, line, vectors)
            size = sum(part.stat().st_size for part in vectors.iterdir())
            documents.append({**found, "vectors_megabytes": round(size / MEGABYTE)})
            print(json.dumps(documents[-1]), flush=True)
            if not compared:
                compared = difference_from_whole(arguments, line, Path(directory) / "compared")
                print(json.dumps(compared), flush=True)
    settings = {name: getattr(arguments, name) for name in ("layers", "dtype", "products", "device")}
    report = {
        "model": arguments.model or "en-small",
        **settings,
        "window": POSITIONS_AT_ONCE,
        "documents": documents,
        "compared_with_the_whole": compared,
        "threads": torch.get_num_threads(),
        "machine": f"{platform.machine()}, torch {torch.__version__}",
    }
    with atomic_path(arguments.output) as path:
        path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
