"""Words per second of an exported model in onnxruntime and of the same model in elmokit, from words to all layers.

    python benchmarks/speed/onnx_throughput.py TEXT [--model MODEL] [--sentences 2000] [--batches 32 128] [--quick]

TEXT is tokenized, one sentence per line. Two sides run in turn in one process. onnxruntime runs with each batch size,
on sentences in the order of the text, which NumPy encodes as characters and pads, as in a server without PyTorch.
`Embedder` runs in float32, and its word cache is emptied before each pass. Both start every sentence from zeros and use
all cores. The largest difference between their vectors is recorded.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from measuring import RESULTS, write_result
from sentences import first_sentences

from elmokit.embed.embedder import Embedder
from elmokit.integrations.onnx import export
from elmokit.text.characters import encode_words

Sentences = list[list[str]]


class ExportedModel:
    """A character-based model in an ONNX file."""

    def __init__(self, path: Path) -> None:
        self.session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        shapes = {each.name: each.shape for each in self.session.get_inputs()}
        self.state_shapes = {name: shapes[name] for name in ("h", "c")}

    def embed(self, sentences: Sentences, batch: int) -> list[np.ndarray]:
        """Lists of words -> all layers (L+1, T, 2D) of each."""
        arrays = []
        for begin in range(0, len(sentences), batch):
            group = sentences[begin : begin + batch]
            encoded = [encode_words(["<S>", *words, "</S>"]) for words in group]
            ids = np.zeros((len(group), max(map(len, encoded)), encoded[0].shape[1]), np.int64)
            for row, words in zip(ids, encoded, strict=True):
                row[: len(words)] = words
            state = {name: np.zeros((two, depth, len(group), dim), np.float32)
                     for name, (two, depth, _, dim) in self.state_shapes.items()}  # fmt: skip
            (layers,) = self.session.run(["layers"], {"ids": ids, **state})
            arrays += [layers[:, i, 1 : len(words) + 1] for i, words in enumerate(group)]
        return arrays


def seconds_of(embed: Callable[[], object]) -> float:
    start = time.perf_counter()
    embed()
    return time.perf_counter() - start


def measure(embedder: Embedder, exported: ExportedModel, sentences: Sentences, arguments: argparse.Namespace) -> Any:
    def ours() -> list[np.ndarray]:
        embedder.clear_word_cache()
        return embedder.embed(sentences, layers="all", state="zeros")

    def theirs(batch: int) -> list[np.ndarray]:
        return exported.embed(sentences, batch)

    pairs = zip(ours(), theirs(arguments.batches[0]), strict=True)  # this also warms both sides up
    difference = max(float(np.abs(own - other).max(initial=0)) for own, other in pairs)
    words, own, others = sum(map(len, sentences)), [], {batch: [] for batch in arguments.batches}
    for _ in range(arguments.repeats):
        own.append(words / seconds_of(ours))
        for batch, speeds in others.items():
            speeds.append(words / seconds_of(lambda batch=batch: theirs(batch)))
    best = {batch: statistics.median(speeds) for batch, speeds in others.items()}
    return {
        "model": arguments.model or "en-small",
        "sentences": len(sentences),
        "words": words,
        "onnxruntime": onnxruntime.__version__,
        "largest_difference": difference,
        "elmokit_words_per_second": statistics.median(own),
        "onnxruntime_words_per_second": best,
        "ratio": statistics.median(own) / max(best.values()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("--model", help="directory or name; the bundled English model when not given")
    parser.add_argument("--sentences", type=int, default=2000)
    parser.add_argument("--batches", type=int, nargs="+", default=[32, 128])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one pass over few sentences, to see whether it runs")
    parser.add_argument("--output", type=Path, help="result file; in benchmarks/results when not given")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.repeats, arguments.sentences = 1, 32
    elif arguments.output is None:
        arguments.output = RESULTS / "onnx_throughput.json"
    sentences = first_sentences(arguments.text, arguments.sentences)
    with tempfile.TemporaryDirectory() as directory:
        export(arguments.model, Path(directory) / "model.onnx")
        exported = ExportedModel(Path(directory) / "model.onnx")
    figures = measure(Embedder(arguments.model, "cpu"), exported, sentences, arguments)
    print(figures)
    write_result(arguments.output, figures)


if __name__ == "__main__":
    main()
