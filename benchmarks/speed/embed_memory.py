"""Peak memory and speed of embedding a large text file.

    python benchmarks/speed/embed_memory.py [--model NAME_OR_PATH] [--megabytes 50] TEXT...

The given texts (plain, .gz or .zst, one sentence per line) are repeated up to the given size and embedded in a separate
process, whose peak resident memory is recorded. The vectors go to a temporary directory.
"""

import argparse
import json
import tempfile
from dataclasses import asdict
from itertools import chain, cycle
from pathlib import Path

from child_process import MEGABYTE, argument_parser, embed_in_child, peak_megabytes, settings_of
from measuring import write_result

from elmokit.embed.embedder import Embedder
from elmokit.embed.files import embed_file
from elmokit.fs.reading import read_lines


def repeat(texts: list[Path], size: int, path: Path) -> None:
    """Write a file of at most `size` bytes by repeating the texts, without the line that would exceed it."""
    if not any(line for text in texts for line in read_lines(text)):
        raise ValueError(f"there is no text in {', '.join(map(str, texts))}")
    with path.open("wb") as stream:
        for line in chain.from_iterable(read_lines(text) for text in cycle(texts)):
            encoded = line.encode() + b"\n"
            if stream.tell() + len(encoded) > size:
                break
            stream.write(encoded)


def measure(arguments: argparse.Namespace) -> None:
    """The child process: embed, and print the figures."""
    embedder = Embedder.load(arguments.model, arguments.device, arguments.dtype)
    report = embed_file(
        arguments.texts[0], arguments.child, embedder, layers=arguments.layers, storage_dtype=arguments.storage_dtype
    )
    found = asdict(report) | {"peak_megabytes": peak_megabytes()}
    del found["output"]
    print(json.dumps(found))


def main() -> None:
    parser = argument_parser(__doc__, layers="mix")
    parser.add_argument("--megabytes", type=float, default=50)
    arguments = parser.parse_args()
    if arguments.child:
        return measure(arguments)
    with tempfile.TemporaryDirectory(dir=arguments.temporary) as directory:
        text = Path(directory) / "text.txt"
        repeat(arguments.texts, int(arguments.megabytes * MEGABYTE), text)
        found = embed_in_child(arguments, text, Path(directory) / "vectors")
        found["text_megabytes"] = text.stat().st_size / MEGABYTE
    report = {**settings_of(arguments), **found}
    print(json.dumps(report, indent=1))
    write_result(arguments.output, report)


if __name__ == "__main__":
    main()
