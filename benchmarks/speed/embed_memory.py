"""Peak memory and speed of embedding a large text file.

    python benchmarks/speed/embed_memory.py TEXT... [--megabytes 50] [--dtype bfloat16]

The texts (plain, .gz or .zst, one sentence per line) are repeated up to the given size and embedded
in a separate process, whose peak resident memory is recorded. The vectors go to a temporary
directory.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict
from itertools import chain, cycle
from pathlib import Path
from typing import Any

from measuring import RESULTS, peak_megabytes, write_result

from elmokit.embed.embedder import Embedder
from elmokit.embed.files import embed_file
from elmokit.fs.reading import read_lines

MEGABYTE = 1_000_000


def repeat(texts: list[Path], size: int, path: Path) -> None:
    """Write a file of at most `size` bytes by repeating the texts, without the line that would
    exceed it.
    """
    with path.open("wb") as stream:
        for line in chain.from_iterable(read_lines(text) for text in cycle(texts)):
            encoded = line.encode() + b"\n"
            if stream.tell() + len(encoded) > size:
                break
            stream.write(encoded)


def embed(arguments: argparse.Namespace) -> dict[str, Any]:
    """In the child process: the figures."""
    embedder = Embedder(arguments.model, "cpu", arguments.dtype)
    options = {"layers": arguments.layers, "storage_dtype": arguments.storage_dtype}
    report = asdict(embed_file(arguments.texts[0], arguments.child, embedder, **options))
    del report["output"]
    return {**options, "dtype": arguments.dtype, **report, "peak_megabytes": peak_megabytes()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("texts", type=Path, nargs="+")
    parser.add_argument(
        "--model", help="directory or name; the bundled English model when not given"
    )
    parser.add_argument("--layers", default="mix", choices=("mix", "average", "top", "all"))
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--storage-dtype", default="float16", choices=("float32", "float16"))
    parser.add_argument("--megabytes", type=float, default=50)
    parser.add_argument("--output", type=Path, default=RESULTS / "embed_memory.json")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        return print(json.dumps(embed(arguments)))
    with tempfile.TemporaryDirectory() as directory:
        text, vectors = Path(directory) / "text.txt", Path(directory) / "vectors"
        repeat(arguments.texts, int(arguments.megabytes * MEGABYTE), text)
        options = [*sys.argv[1 + len(arguments.texts) :], f"--child={vectors}"]
        command = [sys.executable, sys.argv[0], str(text), *options]
        printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        report = {
            "model": arguments.model or "en-small",
            **json.loads(printed.splitlines()[-1]),
            "text_megabytes": text.stat().st_size / MEGABYTE,
            "vectors_megabytes": round(
                sum(part.stat().st_size for part in vectors.iterdir()) / MEGABYTE
            ),
        }
    print(json.dumps(report, indent=1))
    write_result(arguments.output, report)


if __name__ == "__main__":
    main()
