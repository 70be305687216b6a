"""Exact perplexity of a corpus, in each direction and their mean.

Perplexity of a direction is exp of the mean of -log p over every word and one boundary a sentence (</S> forward, <S>
backward), unknown words as <UNK>, from the full softmax. The mean perplexity is exp of the mean of the two
directions' losses: their geometric mean. It is bilm-tf's definition (training.py:955-1044) where its batches leave
nothing out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from elmokit.checkpoints.loading import load
from elmokit.checkpoints.pretrained import Pretrained
from elmokit.config import BiLMConfig
from elmokit.data.corpus import find_files
from elmokit.data.streams import STATES, Block, blocks_of, deal_evenly, scoring_block
from elmokit.fs.reading import read_lines
from elmokit.nn.bilm import BiLM, BiLMState
from elmokit.nn.inference import prepack
from elmokit.nn.softmax import FullSoftmax
from elmokit.runtime import pick_device
from elmokit.text.characters import BOS, EOS
from elmokit.text.vocab import Vocab

WORDS_AT_ONCE = 16_384


@dataclass(frozen=True)
class Perplexity:
    """Perplexity per direction and mean; `predictions` counts those of one direction, `unknown` its <UNK>s.

    `truncated` counts words with more bytes than the model reads.
    """

    forward: float
    backward: float
    mean: float
    sentences: int
    predictions: int
    unknown: int
    truncated: int = 0

    @staticmethod
    def of(losses: np.ndarray, sentences: int, predictions: int, unknown: int, truncated: int = 0) -> Perplexity:
        """From the sums of -log p, (2,)."""
        forward, backward = (losses / predictions).tolist()
        mean = math.exp((forward + backward) / 2)
        return Perplexity(math.exp(forward), math.exp(backward), mean, sentences, predictions, unknown, truncated)


def target_ids(sentences: Sequence[Sequence[str]], vocab: Vocab) -> torch.Tensor:
    """(2, N) in text order: what each position of `scoring_block` predicts forward and backward."""
    forward = chain.from_iterable((*sentence, EOS) for sentence in sentences)
    backward = chain.from_iterable((BOS, *sentence) for sentence in sentences)
    return torch.from_numpy(vocab.ids(chain(forward, backward)).reshape(2, -1))


def check_predicts(config: BiLMConfig) -> None:
    """ValueError where a direction has seen the word that it is to predict."""
    if config.lstm.interleaved:
        raise ValueError("this model's directions join, so it cannot predict words: it gives nothing but vectors")


def block_outputs(
    bilm: BiLM,
    vocab: Vocab,
    block: Block,
    state: BiLMState | None = None,
    start: BiLMState | None = None,
) -> tuple[torch.Tensor, BiLMState]:
    """What the softmax of each direction reads, (2, N, D) in text order, and the state after the block."""
    check_predicts(bilm.config)
    words = bilm.token_encoder(bilm.token_encoder.ids(block.words, vocab).to(bilm.device))
    layers, after = bilm.run(words, block.tokens.to(bilm.device), block.text.packing, state, start)
    return torch.stack(block.text.unpack(layers[-1]).chunk(2, dim=1)), after


@torch.no_grad()
def log_losses(
    bilm: BiLM,
    softmax: FullSoftmax,
    vocab: Vocab,
    sentences: Iterable[Sequence[str]],
    state: str = "carry",
    batch_size: int = 1,
    start: BiLMState | None = None,
) -> Iterator[tuple[list[Sequence[str]], torch.Tensor, torch.Tensor]]:
    """Groups of sentences, and in text order the targets (2, N) of each and their -log p (2, N).

    `carry`: sentence i belongs to row i mod `batch_size`, whose state runs on. `zeros`: each sentence starts from
    zeros, and `batch_size` changes nothing. `warm`: each starts from `start`, a state of one row.
    """
    if state not in STATES:
        raise ValueError(f"state must be one of {', '.join(STATES)}, not {state!r}")
    if state == "warm" and start is None:
        raise ValueError("state='warm' needs a model with a stored state; use state='zeros' or 'carry'")
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, not {batch_size}")
    start = start if state == "warm" else None
    check_predicts(bilm.config)
    prepacked = prepack(bilm, bilm.dtype)
    carried, count = bilm.initial_state(batch_size) if state == "carry" else None, 0
    for group in blocks_of(sentences, WORDS_AT_ONCE):
        if state == "carry":
            block = scoring_block(group, np.arange(count, count + len(group)) % batch_size, batch_size, reset=False)
        else:
            rows = min(64, len(group))
            block = scoring_block(group, deal_evenly([len(s) + 1 for s in group], rows), rows, reset=True)
        outputs, after = block_outputs(prepacked, vocab, block, carried, start)
        carried = after if state == "carry" else None
        count += len(group)
        targets, dtype = target_ids(group, vocab), softmax.weight.dtype
        losses = [softmax.log_losses(outputs[d].to(dtype), targets[d].to(outputs.device)) for d in range(2)]
        yield group, targets, torch.stack(losses)


def perplexity(
    bilm: BiLM,
    softmax: FullSoftmax,
    vocab: Vocab,
    sentences: Iterable[Sequence[str]],
    state: str = "carry",
    batch_size: int = 1,
    start: BiLMState | None = None,
) -> Perplexity:
    """Perplexity of tokenized sentences, with states as in `log_losses`."""
    sums, count, total, unknown, truncated = np.zeros(2), 0, 0, 0, 0
    for group, targets, losses in log_losses(bilm, softmax, vocab, sentences, state, batch_size, start):
        sums += losses.double().sum(dim=1).cpu().numpy()
        count, total = count + len(group), total + targets.shape[1]
        unknown += int((targets[0] == vocab.unk).sum())
        truncated += sum(map(bilm.token_encoder.count_truncated, group))
    if not total:
        raise ValueError("there is no sentence to evaluate: the text is empty")
    return Perplexity.of(sums, count, total, unknown, truncated)


# --- Files ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Evaluation:
    """Perplexity of each file, by its path (with a number, where it comes again), and of all their words together."""

    files: dict[str, Perplexity]
    total: Perplexity

    def __str__(self) -> str:
        """A table with a row for each file, and one for all where there are several."""
        found = self.files if len(self.files) == 1 else {**self.files, "all": self.total}
        width = max(map(len, found))
        lines = [" " * width + "".join(f"{field.name:>13}" for field in fields(Perplexity))]
        for name, part in found.items():
            cells = (f"{value:.3f}" if isinstance(value, float) else str(value) for value in astuple(part))
            lines.append(f"{name:{width}}" + "".join(f"{cell:>13}" for cell in cells))
        return "\n".join(lines)


def _together(parts: Sequence[Perplexity]) -> Perplexity:
    """As if the parts were one text: losses add up, weighted by predictions."""
    predictions = [part.predictions for part in parts]
    losses = np.log([[part.forward, part.backward, part.mean] for part in parts])
    forward, backward, mean = np.exp(np.average(losses, axis=0, weights=predictions)).tolist()
    counts = {name: sum(getattr(part, name) for part in parts) for name in ("sentences", "unknown", "truncated")}
    return Perplexity(forward, backward, mean, predictions=sum(predictions), **counts)


def _sentences(file: Path) -> Iterator[list[str]]:
    lines = (line for line in read_lines(file) if line.strip())
    for line in tqdm(lines, desc=f"evaluate {file.name}", unit=" sentences", unit_scale=True, disable=None):
        yield line.split()


def evaluate_files(
    files: Sequence[str | Path],
    model: Pretrained | str | Path | None = None,
    state: str = "carry",
    batch_size: int = 1,
    device: str | None = None,
) -> Evaluation:
    """Perplexity of tokenized text files (plain, .gz or .zst), one sentence a line; blank lines are no sentences.

    A directory stands for the text files in it, as `elmokit prepare` writes them. `state` and `batch_size` are those of
    `perplexity`; carried state starts afresh with each file. ValueError where the model has no softmax or vocabulary,
    and for a file without a sentence.
    """
    if not files:
        raise ValueError("there is no file to evaluate: name at least one")
    paths = find_files(files)
    pretrained = model if isinstance(model, Pretrained) else load(model)
    if pretrained.softmax is None or pretrained.vocab is None:
        raise ValueError("perplexity needs a model with its softmax and vocabulary, which this one was saved without")
    where = pick_device(device)
    bilm, softmax, start = pretrained.bilm.to(where).eval(), pretrained.softmax.to(where), pretrained.warm_state
    start = start and BiLMState(start.h.to(where), start.c.to(where))
    found = {}
    for number, file in enumerate(paths):
        name = f"{file} ({paths[:number].count(file) + 1})" if file in paths[:number] else str(file)
        try:
            found[name] = perplexity(bilm, softmax, pretrained.vocab, _sentences(file), state, batch_size, start)
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from error
    return Evaluation(found, _together(list(found.values())))
