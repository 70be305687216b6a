"""Speed of preprocessing, from a text file to the model's input, on one thread.

    python benchmarks/speed/preprocessing.py [--raw RAW_TEXT...] TEXT...

TEXT is tokenized, one sentence per line (plain, .gz or .zst), as `elmokit prepare` writes it from RAW_TEXT. Prints the
words per second (the median of the passes, the slowest, the fastest) for:

- reading a file and splitting it into words;
- preparing batches for embedding, from words in memory to packed positions and the character ids of distinct words;
- preparing training windows with such ids, from the file (a boundary counts as a word);
- splitting raw text into sentences and tokens, with an empty tokenizer cache before each pass.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import torch
from measuring import RESULTS, write_result

from elmokit.config import BiLMConfig
from elmokit.data.corpus import SentenceReader
from elmokit.data.streams import TrainingStream, assign_rows, embedding_batch, sentence_batches
from elmokit.embed.pipeline import Sizes
from elmokit.fs.reading import read_lines
from elmokit.nn.token_encoders import token_encoder
from elmokit.text import english
from elmokit.text.chunks import ChunkRules
from elmokit.text.vocab import Vocab, count_words

CONFIG = BiLMConfig.preset("small")  # the ids are those of the published models
ENCODER = token_encoder(CONFIG)


def read(files: list[Path]) -> int:
    return sum(len(line.split()) for file in files for line in read_lines(file))


def blocks(sentences: list[list[str]]) -> int:
    words = 0
    for group in sentence_batches(sentences, Sizes().batch_words):
        rows = assign_rows([len(sentence) + 2 for sentence in group], Sizes().rows)
        block = embedding_batch(group, rows, Sizes().rows, reset=True)
        ENCODER.ids(block.words)
        words += sum(map(len, group))
    return words


def windows(files: list[Path], vocab: Vocab, batch_size: int, unroll_steps: int, count: int) -> int:
    stream = TrainingStream(SentenceReader(files, seed=0), vocab, batch_size, unroll_steps)
    for window in islice(stream, count):
        ENCODER.ids(window.words, vocab)
    return count * batch_size * unroll_steps


def tokens(paragraphs: list[str]) -> int:
    tokenize = ChunkRules(english.INSIDE_SENTENCE, english.END_OF_SENTENCE)  # english-1 with an empty cache
    return sum(
        len(tokenize(sentence)) for paragraph in paragraphs for sentence in english.split_english_sentences(paragraph)
    )


def words_per_second(name: str, run: Callable[[], int], repeats: int) -> dict[str, int]:
    speeds = []
    for _ in range(repeats):
        start = time.perf_counter()
        words = run()
        speeds.append(round(words / (time.perf_counter() - start)))
    median, slowest, fastest = round(statistics.median(speeds)), min(speeds), max(speeds)
    print(f"{name:26} {median:12,} words/s  ({slowest:,} to {fastest:,})", flush=True)
    return {"median": median, "slowest": slowest, "fastest": fastest, "words": words}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", type=Path, nargs="+")
    parser.add_argument("--raw", type=Path, nargs="+", default=[], help="text that is not tokenized")
    parser.add_argument("--vocab-size", type=int, default=50_000, help="words that training windows predict")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--unroll-steps", type=int, default=20)
    parser.add_argument("--windows", type=int, default=200, help="number of windows in each pass")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--output", type=Path, default=RESULTS / "preprocessing.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)

    sentences = [words for file in arguments.texts for line in read_lines(file) if (words := line.split())]
    vocab = Vocab.from_counts(count_words(arguments.texts), max_size=arguments.vocab_size)
    of_window = (arguments.batch_size, arguments.unroll_steps, arguments.windows)
    runs: dict[str, Callable[[], int]] = {
        "reading and splitting": lambda: read(arguments.texts),
        "embedding blocks with ids": lambda: blocks(sentences),
        "training windows with ids": lambda: windows(arguments.texts, vocab, *of_window),
    }
    if arguments.raw:
        paragraphs = [line for file in arguments.raw for line in read_lines(file) if line.strip()]
        runs["sentences and tokens"] = lambda: tokens(paragraphs)
    found = {name: words_per_second(name, run, arguments.repeats) for name, run in runs.items()}

    settings = {name: getattr(arguments, name) for name in ("batch_size", "unroll_steps", "vocab_size", "repeats")}
    figures = {**settings, "words_at_once": Sizes().batch_words, "words_per_second": found}
    write_result(arguments.output, figures, "one thread")


if __name__ == "__main__":
    main()
