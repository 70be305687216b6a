"""Training of a Transformer biLM, compared with a plain loop over torch.nn.TransformerEncoder on padded batches.

    python benchmarks/speed/transformer_training.py TEXT [--config FILE] [--dtypes bfloat16] [--sorted] [--steps 5]

TEXT is tokenized, one sentence per line. Both sides read the same batches of whole sentences and train a model of the
same size with the same token encoder, softmax, number of samples, dropout and optimizer; reading is part of a step.
The plain loop pads each batch to its longest sentence. With --sorted its batches consist of sentences of similar
length, which a program that shuffles its text cannot always ensure. Its attention has only the causal mask, since
padding comes last, and the loss covers real positions only. Both sides stay loaded and, after a warm-up, take --steps
steps in turn, in one process. Words are the positions of one direction, including one boundary per sentence. The ratio
is the plain loop's time per word divided by elmokit's, for each pair: if it is above 1, elmokit is faster. In bfloat16
the plain loop is slowed down by the gradients of PyTorch's attention, which on a CPU take several times as long as in
float32. elmokit computes them in float32; in the float32 run this difference does not arise.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the command `elmokit` does, before torch reads it

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.append(str(Path(__file__).parents[1]))
from result_files import RESULTS, write_result

from elmokit.config import BiLMConfig, TransformerConfig
from elmokit.data.corpus import SentenceReader
from elmokit.data.streams import SentenceStream, number_words
from elmokit.nn.softmax import FullSoftmax, LogUniformSampler
from elmokit.nn.token_encoders import token_encoder
from elmokit.runtime import pick_dtype
from elmokit.text.characters import BOS, EOS
from elmokit.text.vocab import Vocab, count_words
from elmokit.train.config import PretrainConfig
from elmokit.train.optim import clip_gradients, make_optimizer, recipe
from elmokit.train.trainer import Trainer

CONFIG = Path(__file__).parents[2] / "recipes" / "encoders" / "transformer.json"
MORE_STEPS_THAN_ASKED = 1_000_000
DTYPES = ("bfloat16", "float32")
MAX_LENGTH = 4096  # number of position vectors of the plain loop


class PlainTransformer(nn.Module):
    """Two causal nn.TransformerEncoders with learned positions."""

    def __init__(self, config: TransformerConfig, dropout: float) -> None:
        super().__init__()
        dim = config.projection_dim
        self.positions = nn.Embedding(MAX_LENGTH, dim)
        self.dropout = nn.Dropout(dropout)
        layer = nn.TransformerEncoderLayer(
            dim, config.num_heads, config.feedforward_dim, dropout, "gelu", batch_first=True, norm_first=True
        )
        self.stacks = nn.ModuleList(
            nn.TransformerEncoder(layer, config.num_layers, nn.LayerNorm(dim), enable_nested_tensor=False)
            for _ in range(2)
        )

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens (2, B, T, D), padded at the end -> (2, B, T, D)."""
        length = tokens.shape[2]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        x = self.dropout(tokens + self.positions.weight[:length])
        return torch.stack([stack(x[d], mask=mask, is_causal=True) for d, stack in enumerate(self.stacks)])


class PlainLoop:
    """A training loop over padded batches."""

    def __init__(self, settings: PretrainConfig, config: BiLMConfig, vocab: Vocab, sentences: Iterator[Any]) -> None:
        assert config.transformer is not None
        self.vocab, self.sentences = vocab, sentences
        self.token_encoder = token_encoder(config)
        self.transformer = PlainTransformer(config.transformer, settings.dropout)
        self.softmax = FullSoftmax(len(vocab), config.transformer.projection_dim)
        modules = (self.token_encoder, self.transformer, self.softmax)
        self.parameters = [parameter for module in modules for parameter in module.parameters()]
        self.recipe = recipe(settings.recipe)
        self.optimizer = make_optimizer(settings.recipe, self.parameters, [], self.recipe.learning_rate)
        self.sampler = LogUniformSampler(len(vocab), settings.num_samples)
        self.draws = torch.Generator().manual_seed(settings.seed)
        self.dtype = pick_dtype(settings.dtype, torch.device("cpu"))

    def train_step(self) -> int:
        """Take a step; returns the number of words that it read."""
        sentences = next(self.sentences)
        inputs = [[BOS, *words] for words in sentences], [[EOS, *reversed(words)] for words in sentences]
        targets = [[*words, EOS] for words in sentences], [[*reversed(words), BOS] for words in sentences]
        words, numbers = number_words(word for side in inputs for row in side for word in row)
        lengths = [len(row) for row in inputs[0]]
        rows = torch.from_numpy(numbers).split(lengths * 2)
        padded = nn.utils.rnn.pad_sequence(list(rows), batch_first=True).view(2, len(lengths), -1)
        is_word = torch.arange(padded.shape[2]) < torch.tensor(lengths)[:, None]
        ids = torch.from_numpy(self.vocab.ids(word for side in targets for row in side for word in row)).view(2, -1)
        low = self.dtype != torch.float32
        with torch.autocast("cpu", self.dtype) if low else nullcontext():
            vectors = self.token_encoder(self.token_encoder.in_few_shapes(self.token_encoder.ids(words, self.vocab)))
            outputs = self.transformer(vectors[padded])[:, is_word]
            samples = [self.sampler.sample(self.draws) for _ in range(2)]
            loss = self.softmax.sampled_losses(outputs, ids, samples, self.sampler).mean()
        loss.backward()
        clip_gradients(self.parameters, self.recipe.clip_norm)
        self.optimizer.step(self.recipe.learning_rate)
        for parameter in self.parameters:
            parameter.grad = None
        return sum(lengths)


def sorted_batches(batches: Iterator[list[list[str]]], pool: int = 50) -> Iterator[list[list[str]]]:
    """The sentences of `pool` batches, regrouped into batches of similar lengths and sizes, in random order."""
    draw = random.Random(0)
    while True:
        several = [next(batches) for _ in range(pool)]
        size = sum(len(words) + 1 for batch in several for words in batch) // pool
        of_like_length: list[list[list[str]]] = [[]]
        for words in sorted((words for batch in several for words in batch), key=len):
            if sum(len(each) + 1 for each in of_like_length[-1]) >= size:
                of_like_length.append([])
            of_like_length[-1].append(words)
        draw.shuffle(of_like_length)
        yield from of_like_length


def words_per_second(step: Callable[[], int], steps: int) -> float:
    start = time.perf_counter()
    words = sum(step() for _ in range(steps))
    return words / (time.perf_counter() - start)


def measure(settings: PretrainConfig, config: BiLMConfig, vocab: Vocab, arguments: argparse.Namespace) -> dict:
    """Measure both sides in turn."""
    size = settings.batch_size * settings.unroll_steps
    trainer = Trainer(settings, config, vocab, [arguments.text], MORE_STEPS_THAN_ASKED)

    def our_step() -> int:
        before = trainer.objective.pending["excess"]
        trainer.train_step()
        return size + trainer.objective.pending["excess"] - before

    sentences: Iterator[list[list[str]]] = SentenceStream(SentenceReader([arguments.text], settings.seed), size)
    plain = PlainLoop(settings, config, vocab, sorted_batches(sentences) if arguments.sorted else sentences)
    for step in (our_step, plain.train_step):
        words_per_second(step, arguments.warm_up)
    ours, theirs = [], []
    for _ in range(arguments.repeats):
        ours.append(words_per_second(our_step, arguments.steps))
        theirs.append(words_per_second(plain.train_step, arguments.steps))
    ratios = [our / their for our, their in zip(ours, theirs, strict=True)]
    sizes = {"elmokit": trainer.bilm.sequence_encoder, "plain": plain.transformer.stacks}
    return {
        "elmokit": {"words_per_second": statistics.median(ours), "each": ours},
        "plain": {"words_per_second": statistics.median(theirs), "each": theirs},
        "ratio": {"median": statistics.median(ratios), "pairs": ratios},
        "parameters": {name: sum(each.numel() for each in module.parameters()) for name, module in sizes.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("--config", type=Path, default=CONFIG, help="configuration of a model with a Transformer")
    parser.add_argument("--dtypes", nargs="+", default=DTYPES, choices=DTYPES)
    parser.add_argument("--sorted", action="store_true", help="plain loop with batches of sentences of similar length")
    parser.add_argument("--vocab-size", type=int, default=50_000)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--unroll", type=int, default=20)
    parser.add_argument("--samples", type=int, default=8192)
    parser.add_argument("--warm-up", type=int, default=5, help="steps before the first measurement")
    parser.add_argument("--steps", type=int, default=5, help="steps of one measurement")
    parser.add_argument("--repeats", type=int, default=7, help="pairs of measurements")
    parser.add_argument("--output", type=Path, default=RESULTS / "transformer_training.json")
    arguments = parser.parse_args()
    config = BiLMConfig.from_dict(json.loads(arguments.config.read_text(encoding="utf-8")))
    vocab = Vocab.from_counts(count_words([arguments.text]), max_size=arguments.vocab_size)
    for dtype in arguments.dtypes:
        settings = PretrainConfig(
            corpus=(arguments.text,), output=Path(tempfile.gettempdir()), recipe="modern", dtype=dtype, device="cpu",
            batch_size=arguments.batch, unroll_steps=arguments.unroll,
            num_samples=min(arguments.samples, len(vocab) - 1), dropout=0.1,
        )  # fmt: skip
        found = measure(settings, config, vocab, arguments)
        print(
            f"{dtype}: elmokit {found['elmokit']['words_per_second']:.0f} words/s, "
            f"plain loop {found['plain']['words_per_second']:.0f} words/s, ratio {found['ratio']['median']:.2f}",
            flush=True,
        )
        batches = "sorted" if arguments.sorted else "shuffled"
        settings = {name: getattr(arguments, name) for name in ("vocab_size", "samples", "batch", "unroll", "steps")}
        found = {"settings": settings, "model": config.to_dict(), **found}
        write_result(arguments.output, found, f"{dtype} {batches}")


if __name__ == "__main__":
    main()
