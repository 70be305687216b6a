"""The speed of this checkout compared with that of another one, in turn in one run.

    python benchmarks/speed/two_versions.py TEXT --other SRC --models DIRECTORY [--cases CASE ...]
    [--pairs 7]

TEXT is tokenized, one sentence per line; SRC is the `src` directory of the other checkout, with its
compiled kernels. DIRECTORY is for the random models of both sizes, which are written if they are
missing. Each side runs in a separate process, and both run the same case: a warm-up on each, then
pairs in alternating order. The ratio of a pair is the other side's time divided by ours, so above 1
this checkout is faster. Peak memory is that of the process, which runs only that case.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

from sentences import first_sentences

SIZES, DTYPES = ("small", "original"), ("float32", "bfloat16", "int8")
WORDS = {"small": 16_000, "original": 3_000}  # embedded in one pass
EMBEDDING = tuple(f"embed {size} {dtype}" for size, dtype in product(SIZES, DTYPES))
LATENCY = tuple(
    f"one sentence {size} {dtype}" for size in SIZES for dtype in ("float32", "bfloat16")
)
CASES = (*EMBEDDING, *LATENCY, "encode small float32", "file to file", "training step")


# --- One side: runs a case; for each line of input it makes a pass, and answers with its seconds --


def embedding(model: Path, dtype: str, sentences: list[list[str]]) -> Callable[[], None]:
    from elmokit.embed.embedder import Embedder

    embedder = Embedder(model, dtype=dtype)

    def run() -> None:
        embedder.clear_word_cache()
        embedder.embed(sentences, layers="all")

    return run


def vectors_of_texts(model: Path, dtype: str, sentences: list[list[str]]) -> Callable[[], None]:
    from elmokit.embed.embedder import Embedder

    embedder = Embedder(model, dtype=dtype)

    def run() -> None:
        embedder.clear_word_cache()
        embedder.encode(sentences)

    return run


def one_sentence(model: Path, dtype: str, sentences: list[list[str]]) -> Callable[[], None]:
    from elmokit.embed.embedder import Embedder

    embedder = Embedder(model, dtype=dtype)
    calls = [sentence[:20] for sentence in sentences if len(sentence) >= 20][:40]

    def run() -> None:
        for sentence in calls:
            embedder.clear_word_cache()
            embedder.embed([sentence], layers="all")

    return run


def file_to_file(model: Path, text: Path, folder: Path) -> Callable[[], None]:
    import shutil

    from elmokit.embed.embedder import Embedder
    from elmokit.embed.files import embed_file

    embedder = Embedder(model, dtype="bfloat16")
    excerpt = folder / "excerpt.txt"
    lines = [" ".join(words) for words in first_sentences(text, words=40_000)]
    excerpt.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def run() -> None:
        shutil.rmtree(folder / "vectors", ignore_errors=True)
        embedder.clear_word_cache()
        embed_file(
            excerpt,
            folder / "vectors",
            embedder,
            layers="all",
            tokenize=False,
            storage_dtype="float16",
        )

    return run


def training_step(text: Path, folder: Path) -> Callable[[], None]:
    import torch

    from elmokit.config import BiLMConfig
    from elmokit.text.vocab import Vocab
    from elmokit.train.config import PretrainConfig
    from elmokit.train.trainer import Trainer

    torch.set_num_threads(2)
    settings = PretrainConfig(
        corpus=(text,),
        output=folder,
        recipe="modern",
        batch_size=128,
        unroll_steps=20,
        num_samples=4096,
        dropout=0.1,
        dtype="bfloat16",
        threads=2,
    )
    words = Counter(text.read_text(encoding="utf-8").split())  # the same in both versions
    vocab = Vocab.from_counts(words, max_size=20_000)
    trainer = Trainer(settings, BiLMConfig.preset("small"), vocab, [text], 10_000)

    def run() -> None:
        for _ in range(3):
            trainer.train_step()

    return run


def prepared(case: str, text: Path, models: Path, folder: Path) -> Callable[[], None]:
    if case == "file to file":
        return file_to_file(models / "small", text, folder)
    if case == "training step":
        return training_step(text, folder)
    kind, size, dtype = case.rsplit(maxsplit=2)
    functions = {"embed": embedding, "encode": vectors_of_texts, "one sentence": one_sentence}
    return functions[kind](models / size, dtype, first_sentences(text, words=WORDS[size]))


def peak_mib() -> float:
    """Peak resident memory of this process. (On Linux, getrusage includes that of the parent.)"""
    status = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    (peak,) = (line.split()[1] for line in status if line.startswith("VmHWM"))
    return int(peak) / 1024


def serve(case: str, text: Path, models: Path) -> None:
    """Run the case once for each line of input; print the seconds, and the peak memory in MiB so
    far.
    """
    with TemporaryDirectory() as folder:
        run = prepared(case, text, models, Path(folder))
        run()
        print("ready", flush=True)
        for _ in sys.stdin:
            started = time.perf_counter()
            run()
            seconds = time.perf_counter() - started
            print(seconds, peak_mib(), flush=True)


# --- Both sides -----------------------------------------------------------------------------------


class Side:
    """A process that runs one case from the sources in a directory."""

    def __init__(self, source: Path, case: str, text: Path, models: Path) -> None:
        environment = os.environ | {"PYTHONPATH": str(source), "OMP_WAIT_POLICY": "PASSIVE"}
        command = [sys.executable, __file__, str(text), "--models", str(models), "--serve", case]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, env=environment, **pipes)
        assert self._answer() == "ready", f"{source} cannot run {case!r}"

    def _answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def run(self) -> tuple[float, float]:
        """Seconds of one pass, and the peak memory in MiB."""
        assert self.process.stdin is not None
        print(file=self.process.stdin, flush=True)
        seconds, memory = self._answer().split()
        return float(seconds), float(memory)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def measure(case: str, arguments: argparse.Namespace) -> dict:
    """Measure pairs of passes of both sides, in alternating order."""
    here = Path(__file__).parents[2] / "src"
    ours, other = (
        Side(source, case, arguments.text, arguments.models) for source in (here, arguments.other)
    )
    pairs, memory = [], (0.0, 0.0)
    for number in range(arguments.pairs):
        if number % 2:
            (second, ours_memory), (first, other_memory) = ours.run(), other.run()
        else:
            (first, other_memory), (second, ours_memory) = other.run(), ours.run()
        pairs.append((first, second))
        memory = (other_memory, ours_memory)
    for side in (ours, other):
        side.close()
    ratio = statistics.median(first / second for first, second in pairs)
    return {
        "seconds_other_and_ours": pairs,
        "ratio": ratio,
        "peak_mib_other_and_ours": memory,
        "memory_ratio": memory[1] / memory[0],
    }


def write_models(folder: Path) -> None:
    import torch

    from elmokit.checkpoints.loading import save
    from elmokit.checkpoints.pretrained import Pretrained
    from elmokit.config import BiLMConfig
    from elmokit.nn.bilm import BiLM

    for size in SIZES:
        if not (folder / size).exists():
            torch.manual_seed(0)
            save(Pretrained(BiLM(BiLMConfig.preset(size))), folder / size)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("text", type=Path)
    parser.add_argument("--other", type=Path, help="src of the other checkout")
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--other-commit", default="unknown")
    parser.add_argument("--serve", choices=CASES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve, arguments.text, arguments.models)
        return
    if arguments.other is None:  # or this checkout would be compared with itself
        parser.error("--other is required")
    sys.path.append(str(Path(__file__).parents[1]))
    from result_files import RESULTS, write_result

    write_models(arguments.models)
    for case in arguments.cases:
        figures = {**measure(case, arguments), "other_commit": arguments.other_commit}
        write_result(RESULTS / "two_versions.json", figures, case)
        print(f"{case:32} {figures['ratio']:.3f}  memory {figures['memory_ratio']:.3f}", flush=True)


if __name__ == "__main__":
    main()
