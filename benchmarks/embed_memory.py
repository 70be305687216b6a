"""Peak memory and speed of embedding a large text file.

    python benchmarks/embed_memory.py [--model NAME_OR_PATH] [--megabytes 50] TEXT...

The given texts (plain, .gz or .zst, one sentence a line), repeated until they have that many megabytes, are embedded by
a process of its own, whose peak resident memory is recorded. The vectors go to a temporary directory.
"""

import argparse
import json
import platform
import resource
import subprocess
import sys
import tempfile
from dataclasses import asdict
from itertools import chain, cycle
from pathlib import Path

import torch

from elmokit.embed.embedder import Embedder
from elmokit.embed.files import embed_file
from elmokit.files import atomic_path, read_lines

RESULTS = Path(__file__).parent / "results" / "embed_memory.json"
MEGABYTE = 1_000_000
# What ru_maxrss counts in: kilobytes on Linux, bytes on macOS.
RSS_UNIT = 1 if sys.platform == "darwin" else 1024


def repeat(texts: list[Path], size: int, path: Path) -> None:
    """A file of about `size` bytes: the last line that would go beyond is left out."""
    if not any(line for text in texts for line in read_lines(text)):
        raise ValueError(f"there is no text in {', '.join(map(str, texts))}")
    with path.open("wb") as stream:
        for line in chain.from_iterable(read_lines(text) for text in cycle(texts)):
            encoded = line.encode() + b"\n"
            if stream.tell() + len(encoded) > size:
                break
            stream.write(encoded)


def measure(arguments: argparse.Namespace) -> None:
    """What the child process does: embed, and print what it took."""
    embedder = Embedder.load(arguments.model, arguments.device, arguments.products)
    report = embed_file(arguments.texts[0], arguments.child, embedder, arguments.layers, dtype=arguments.dtype)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RSS_UNIT
    found = {**asdict(report), "peak_megabytes": round(peak / MEGABYTE), "threads": torch.get_num_threads()}
    print(json.dumps(found, default=str))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", type=Path, nargs="+")
    parser.add_argument("--model", help="directory or name; the bundled English model when not given")
    parser.add_argument("--megabytes", type=float, default=50)
    parser.add_argument("--layers", default="mix", choices=("mix", "average", "top", "all"))
    parser.add_argument("--dtype", default="float16", choices=("float32", "float16"), help="of the written vectors")
    parser.add_argument("--products", default="float32", choices=("float32", "bfloat16", "auto"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--temporary", type=Path, help="where the vectors go for the while")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        return measure(arguments)
    with tempfile.TemporaryDirectory(dir=arguments.temporary) as directory:
        text, vectors = Path(directory) / "text.txt", Path(directory) / "vectors"
        repeat(arguments.texts, int(arguments.megabytes * MEGABYTE), text)
        options = [f"--{name}={getattr(arguments, name)}" for name in ("layers", "dtype", "products", "device")]
        options += [f"--model={arguments.model}"] if arguments.model else []
        command = [sys.executable, __file__, str(text), f"--child={vectors}", *options]
        printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        found = json.loads(printed.splitlines()[-1]) | {"text_megabytes": text.stat().st_size / MEGABYTE}
        found["vectors_megabytes"] = round(sum(part.stat().st_size for part in vectors.iterdir()) / MEGABYTE)
    del found["output"]
    settings = {name: getattr(arguments, name) for name in ("model", "layers", "dtype", "products", "device")}
    machine = f"{platform.machine()}, torch {torch.__version__}"
    report = {**settings, "model": arguments.model or "en-small", **found, "machine": machine}
    print(json.dumps(report, indent=1))
    with atomic_path(arguments.output) as path:
        path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
