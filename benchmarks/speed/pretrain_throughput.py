"""Words per second of pretraining: elmokit and bilm-tf's own training loop, with the same settings.

    python benchmarks/speed/pretrain_throughput.py TEXT --environments DIRECTORY --models DIRECTORY
        [--sizes small] [--dtypes bfloat16] [--steps 20] [--quick]

Both sides use a vocabulary of 50,000, 8,192 negative samples, windows of 20 steps, 128 rows,
dropout 0.1 and AdaGrad. They stay loaded and, after a warm-up, take --steps steps in turn; reading
the text is part of a step. Words are the positions of a window in one direction, including sentence
boundaries. Each side initializes its own weights. The roofline is the least number of operations of
a step (roofline.py) at the best rate of matrix products of its shapes.
"""

import argparse
import tempfile
from collections import Counter
from itertools import chain, cycle, islice
from pathlib import Path

from measuring import (
    ELMOKIT,
    PEERS,
    Worker,
    argument_parser,
    in_pairs,
    parse,
    ratios,
    side_figures,
    write_result,
)
from roofline import product_rates, roofline, training_operations
from sentences import first_sentences

from elmokit.config import BiLMConfig
from elmokit.text.vocab import Vocab
from elmokit.train.corpus import TrainingStream

DTYPES = ("bfloat16", "float32")
WINDOWS = 20  # over which the number of distinct words is averaged


def write_vocab(sentences: list[list[str]], size: int, path: Path) -> None:
    """Write the words of the text, most frequent first, then invented ones: the softmax costs the
    same for any word.
    """
    counts = Counter(chain.from_iterable(sentences))
    words = [word for word, _ in counts.most_common(size) if word not in Vocab.SPECIALS]
    invented = (f"invented-{number}" for number in range(size))
    chosen = islice(chain(Vocab.SPECIALS, words, invented), size)
    path.write_text("".join(f"{word}\n" for word in chosen), encoding="utf-8")


def operations_of_a_step(
    config: BiLMConfig, sentences: list[list[str]], arguments: argparse.Namespace
) -> int:
    """The mean number of operations over the first windows, which differ in their numbers of
    distinct words.
    """
    vocab = Vocab.read(arguments.vocab)
    windows = TrainingStream(cycle(sentences), vocab, arguments.batch, arguments.unroll)
    positions = arguments.batch * arguments.unroll
    each = [
        training_operations(config, w.words, positions, arguments.samples)
        for w in islice(windows, WINDOWS)
    ]
    return round(sum(each) / len(each))


def run_size(size: str, arguments: argparse.Namespace) -> None:
    config, sentences = BiLMConfig.preset(size), first_sentences(arguments.text)
    operations, positions = (
        operations_of_a_step(config, sentences, arguments),
        arguments.batch * arguments.unroll,
    )
    names = ("vocab", "samples", "batch", "unroll")
    options = [
        "--training",
        *chain.from_iterable((f"--{name}", getattr(arguments, name)) for name in names),
    ]
    warm_up, job = (
        {"job": "train", "steps": steps} for steps in (arguments.warm_up, arguments.steps)
    )
    for dtype in arguments.dtypes:
        limit = roofline(operations, positions, product_rates(config, dtype))
        for peer in arguments.peers:
            with (
                Worker(PEERS[peer], size, arguments, *options) as theirs,
                Worker(ELMOKIT, size, arguments, *options, "--dtype", dtype) as ours,
            ):
                in_pairs(ours, theirs, 1, warm_up, warm_up)
                answers = in_pairs(ours, theirs, arguments.repeats, job, job)
                found = {
                    "elmokit": side_figures(ours, answers[0]),
                    "peer": side_figures(theirs, answers[1]),
                }
            speed = found["elmokit"]["words_per_second"]
            found["ratio"] = ratios(*answers)
            found["roofline"] = {**limit, "reached": speed / float(limit["words_per_second"])}
            print(
                f"{size}: elmokit {dtype} {speed:.0f} words/s, peak "
                f"{found['elmokit']['peak_mib']:.0f} MiB; {peer} "
                f"{found['peer']['words_per_second']:.0f} words/s, peak "
                f"{found['peer']['peak_mib']:.0f} MiB; ratio {found['ratio']['median']:.2f}; "
                f"{100 * found['roofline']['reached']:.0f} % of the roofline, "
                f"{limit['words_per_second']:.0f} words/s",
                flush=True,
            )
            settings = {
                name: getattr(arguments, name)
                for name in ("vocab_size", "samples", "batch", "unroll", "steps")
            }
            write_result(
                arguments.output, {"settings": settings, **found}, f"{size} {dtype} {peer}"
            )


def main() -> None:
    parser = argument_parser(__doc__, ("bilm-tf",))
    parser.set_defaults(sizes=["small"])
    parser.add_argument(
        "--dtypes", nargs="+", default=DTYPES, choices=DTYPES, help="number types of elmokit"
    )
    parser.add_argument("--vocab-size", type=int, default=50_000)
    parser.add_argument("--samples", type=int, default=8192)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--unroll", type=int, default=20)
    parser.add_argument(
        "--warm-up",
        type=int,
        default=20,
        help="steps before the first measurement, while memory is still allocated",
    )
    parser.add_argument("--steps", type=int, default=10, help="steps of one measurement")
    arguments = parse(parser)
    if arguments.quick:
        arguments.warm_up = arguments.steps = 1
    with tempfile.TemporaryDirectory() as directory:
        arguments.vocab = Path(directory) / "vocab.txt"
        write_vocab(first_sentences(arguments.text), arguments.vocab_size, arguments.vocab)
        for size in arguments.sizes:
            run_size(size, arguments)


if __name__ == "__main__":
    main()
