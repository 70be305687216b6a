"""Embed one sentence of a million words: peak memory, speed, and whether the vectors are correct.

    python benchmarks/speed/long_document.py [--model NAME_OR_PATH] [--words 10000 100000 1000000] TEXT...

The words of the given texts (plain, .gz or .zst; split at white space), repeated as needed, are written as one line of
each length, with one pair of boundaries. A separate process embeds each line to a temporary directory, and its peak
resident memory is recorded. The vectors of the shortest line, all layers in float32, are compared with those of one
call of `BiLM.forward`, which holds the whole line in memory.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator
from itertools import chain, cycle, islice
from pathlib import Path

import numpy as np
import torch
from child_process import argument_parser, embed_in_child, peak_megabytes, settings_of
from measuring import write_result

from elmokit.checkpoints.loading import load
from elmokit.embed.embedder import Embedder
from elmokit.embed.files import embed_file
from elmokit.embed.pipeline import Sizes
from elmokit.fs.reading import read_lines
from elmokit.runtime import pick_device, pick_dtype
from elmokit.storage.store import EmbeddingStore
from elmokit.text.characters import BOS, EOS


def words_of(texts: list[Path]) -> Iterator[str]:
    """The words of the texts, repeated without end."""
    if not any(line.split() for text in texts for line in read_lines(text)):
        raise ValueError(f"there is no text in {', '.join(map(str, texts))}")
    lines = chain.from_iterable(read_lines(text) for text in cycle(texts))
    return chain.from_iterable(map(str.split, lines))


def measure(arguments: argparse.Namespace) -> None:
    """The child process: embed one line, and print the figures."""
    embedder = Embedder.load(arguments.model, arguments.device, arguments.dtype)
    loaded = peak_megabytes()
    options = {
        "layers": arguments.layers,
        "state": "zeros",
        "storage_dtype": arguments.storage_dtype,
        "tokenize": False,
    }
    report = embed_file(arguments.texts[0], arguments.child, embedder, **options)
    found = {"words": report.words, "seconds": report.seconds, "words_per_second": report.words_per_second}
    print(json.dumps({**found, "peak_megabytes": peak_megabytes(), "megabytes_before": loaded}))


@torch.no_grad()
def difference_from_whole(arguments: argparse.Namespace, line: Path, directory: Path) -> dict:
    """The largest difference between a line's stored vectors and those of one forward call."""
    embed_in_child(arguments, line, directory, layers="all", storage_dtype="float32")
    words, found = EmbeddingStore(directory)[0]
    model, device = load(arguments.model, softmax=False), pick_device(arguments.device)
    bilm = model.bilm.to(device, pick_dtype(arguments.dtype, device)).eval()
    ids = bilm.token_encoder.ids([BOS, *words, EOS], model.vocab).to(device)
    whole = bilm(ids[None]).layers[:, 0, 1:-1].float().cpu().numpy().swapaxes(0, 1)
    lengths = np.linalg.norm(found, axis=-1) * np.linalg.norm(whole, axis=-1)
    cosine = (found * whole).sum(-1) / np.maximum(lengths, 1e-12)
    return {
        "words": len(words),
        "in_windows": len(words) + 2 > Sizes().batch_words,
        "largest_difference": float(np.abs(found - whole).max()),
        "smallest_cosine": float(cosine.min()),
    }


def main() -> None:
    parser = argument_parser(__doc__, layers="all")
    parser.add_argument("--words", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    arguments = parser.parse_args()
    if arguments.child:
        return measure(arguments)
    documents, compared = [], {}
    for count in sorted(arguments.words):
        with tempfile.TemporaryDirectory(dir=arguments.temporary) as directory:
            line = Path(directory) / "line.txt"
            line.write_text(" ".join(islice(words_of(arguments.texts), count)) + "\n", encoding="utf-8")
            documents.append(embed_in_child(arguments, line, Path(directory) / "vectors"))
            print(json.dumps(documents[-1]), flush=True)
            if not compared:
                compared = difference_from_whole(arguments, line, Path(directory) / "compared")
                print(json.dumps(compared), flush=True)
    report = {
        **settings_of(arguments),
        "window": Sizes().window_positions,
        "documents": documents,
        "compared_with_the_whole": compared,
    }
    write_result(arguments.output, report)


if __name__ == "__main__":
    main()
