"""What the language model says of single words: how likely they are, what could stand in their place, what is next.

A direction's probability of a word is that of the exact softmax, given only the words before it (forward) or only
those after it (backward). A word outside the vocabulary is scored as <UNK>. Logarithms are natural.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from elmokit.checkpoints.loading import ModelSource, resolve_model
from elmokit.checkpoints.pretrained import Pretrained
from elmokit.config import StatePolicy
from elmokit.data.streams import STATES, scoring_block
from elmokit.fs.atomic import atomic_path, create_bytes
from elmokit.fs.reading import read_lines
from elmokit.lm.evaluate import Perplexity, block_outputs, log_losses
from elmokit.nn.bilm import BiLM, BiLMState
from elmokit.nn.softmax import FullSoftmax
from elmokit.runtime import pick_device
from elmokit.text.tokenizers import get_tokenizer
from elmokit.text.vocab import Vocab

Sentence = str | Sequence[str]
LOGITS_AT_ONCE = 1 << 22  # of one direction: 16 MB in float32
DIRECTIONS = {"forward": (0,), "backward": (1,), "both": (0, 1)}


@dataclass(frozen=True, eq=False)
class SentenceScore:
    """Log-probabilities of a sentence of T words, `unknown` of which were scored as <UNK>.

    `truncated` of them have more bytes than the model reads.

    `forward` (T+1,): of each word given those before it, then of </S>. `backward` (T+1,): of <S>, then of each word
    given those after it.
    """

    words: tuple[str, ...]
    forward: np.ndarray
    backward: np.ndarray
    unknown: int
    truncated: int = 0

    @property
    def losses(self) -> np.ndarray:
        """Sums of -log p of both directions, (2,) float64."""
        return -np.stack([self.forward, self.backward]).sum(axis=1, dtype=np.float64)

    @property
    def perplexity(self) -> Perplexity:
        """That of this sentence alone, as `elmokit.lm.evaluate` defines it: the boundary counts."""
        return Perplexity.of(self.losses, 1, len(self.forward), self.unknown, self.truncated)


@dataclass(frozen=True)
class Candidate:
    """A word of the vocabulary for a place in a sentence."""

    word: str
    log_probability: float

    def __str__(self) -> str:
        return f"{self.word} {self.log_probability:.3f}"


def _resolve(model: ModelSource, device: str | None) -> Pretrained:
    """The model with its softmax; a loaded one stays on its device unless another is named."""
    pretrained = resolve_model(model, softmax=True)
    if device is not None or pretrained is not model:
        pretrained.bilm.to(pick_device(device))
    return pretrained


def _language_model(model: Pretrained) -> tuple[BiLM, FullSoftmax, Vocab]:
    """The parts that predict words, on the biLM's device."""
    softmax, vocab = model.softmax, model.vocab
    if softmax is None or vocab is None:
        raise ValueError(
            "scoring words needs a model with its softmax and vocabulary, which this one was saved without"
        )
    if len(softmax.weight) != len(vocab):
        raise ValueError(f"the softmax has {len(softmax.weight)} words, the vocabulary {len(vocab)}: use its own one")
    bilm = model.bilm.eval()
    return bilm, softmax.to(bilm.device), vocab


def _start(model: Pretrained, state: str) -> BiLMState | None:
    """What a sentence starts from: the stored state, or None for zeros and for carried state."""
    if state not in STATES:
        raise ValueError(f"state must be one of {', '.join(STATES)}, not {state!r}")
    if state != "warm":
        return None
    if model.warm_state is None:
        raise ValueError("state='warm' needs a model with a stored state; use state='zeros' or 'carry'")
    return model.warm_state.to(model.bilm.device)


def words_of(model: Pretrained, sentence: Sentence) -> Sequence[str]:
    """A list of tokens as it is; a string split as the model's training text was."""
    if isinstance(sentence, str):
        return get_tokenizer(model.tokenizer or "whitespace-1").tokenize(sentence)
    return sentence


# --- Scores --------------------------------------------------------------------------------------------------------


def _scores(
    model: Pretrained, sentences: Iterable[Sequence[str]], state: str, batch_size: int
) -> Iterator[SentenceScore]:
    bilm, softmax, vocab = _language_model(model)
    start = _start(model, state)
    for group, targets, losses in log_losses(bilm, softmax, vocab, sentences, state, batch_size, start):
        ends = np.cumsum([len(sentence) + 1 for sentence in group])[:-1]
        unknown = np.split((targets[0] == vocab.unk).numpy(), ends)
        log_p = np.split(-losses.cpu().numpy(), ends, axis=1)
        for sentence, (forward, backward), is_unknown in zip(group, log_p, unknown, strict=True):
            truncated = bilm.token_encoder.count_truncated(sentence)
            yield SentenceScore(tuple(sentence), forward, backward, int(is_unknown.sum()), truncated)


def score(
    sentences: Sequence[Sentence],
    model: ModelSource = None,
    *,
    state: StatePolicy = "zeros",
    batch_size: int = 1,
    device: str | None = None,
) -> list[SentenceScore]:
    """Compute the log-probability of every word in each direction.

    Args:
        sentences: Each a list of tokens, or a string, which is split as the model's training text was.
        model: A loaded model with its softmax, or whatever `elmokit.load` takes.
        state: The state that a sentence starts from: zeros, the model's warm state, or with "carry" that after sentence
            i - `batch_size`.
        batch_size: Rows of carried state; without "carry" it changes no score.
        device: Where to compute; None: where a loaded model is, else on a GPU where there is one.

    Returns:
        A score for each sentence, in order.

    Raises:
        ValueError: The model has no softmax, vocabulary or warm state, or its layers are interleaved.
    """
    if isinstance(sentences, str):
        raise ValueError("score takes a list of sentences, not a single string: write score([text])")
    pretrained = _resolve(model, device)
    tokenized = [words_of(pretrained, sentence) for sentence in sentences]
    return list(_scores(pretrained, tokenized, state, batch_size))


# --- Candidates for a place ----------------------------------------------------------------------------------------


@torch.no_grad()
def _outputs(model: Pretrained, words: Sequence[str], state: str) -> Tensor:
    """(2, T+1, D): place k predicts word k forward (the last one </S>), and word k-1 backward (the first one <S>)."""
    bilm, softmax, vocab = _language_model(model)
    block = scoring_block([words], np.zeros(1, dtype=np.int64), 1, reset=True)
    outputs, _ = block_outputs(bilm, vocab, block, start=_start(model, state))
    return outputs.to(softmax.weight.dtype)


@torch.no_grad()
def _best(model: Pretrained, outputs: Tensor, excluded: list[int], top: int) -> list[list[Candidate]]:
    """The likeliest words at P places by the sum of log p over d directions: outputs (d, P, D), logits in pieces."""
    if top < 1:
        raise ValueError(f"top must be at least 1, not {top}")
    _, softmax, vocab = _language_model(model)
    found, count = [], min(top, len(vocab) - len(excluded))
    for piece in outputs.split(max(1, LOGITS_AT_ONCE // len(vocab)), dim=1):
        log_p = torch.zeros((), device=outputs.device)
        for hidden in piece:
            log_p = log_p + torch.addmm(softmax.bias, hidden, softmax.weight.T).log_softmax(dim=1)
        log_p[:, excluded] = -math.inf
        values, ids = log_p.topk(count, dim=1)
        for row in zip(values.tolist(), ids.tolist(), strict=True):
            found.append([Candidate(vocab.words[number], value) for value, number in zip(*row, strict=True)])
    return found


def _directions(direction: str, allowed: Sequence[str]) -> tuple[int, ...]:
    if direction not in allowed:
        raise ValueError(f"direction must be {' or '.join(allowed)}, not {direction!r}")
    return DIRECTIONS[direction]


def substitutes(
    sentence: Sentence,
    model: ModelSource = None,
    *,
    positions: Sequence[int] | None = None,
    top: int = 10,
    direction: str = "both",
    state: StatePolicy = "zeros",
    device: str | None = None,
) -> list[list[Candidate]]:
    """Find the likeliest words in the place of words of a sentence.

    Args:
        sentence, model, state, device: As for `score`.
        positions: The places, from 0; None: every word.
        top: Candidates for each place.
        direction: Rank by the log-probability given the words before the place ("forward"), after it ("backward"), or
            by the sum of both ("both"). The word at the place is not read, and may be a candidate.

    Returns:
        For each place the candidates, the likeliest first; never <S>, </S> or <UNK>.

    Raises:
        ValueError: As `score`; or there is no such place or direction.
    """
    model, directions = _resolve(model, device), _directions(direction, tuple(DIRECTIONS))
    words = words_of(model, sentence)
    places = range(len(words)) if positions is None else positions
    for place in places:
        if not 0 <= place < len(words):
            raise ValueError(f"there is no word {place} in a sentence of {len(words)} words, counted from 0")
    outputs, at = _outputs(model, words, state), torch.tensor(list(places), dtype=torch.int64)
    chosen = torch.stack([outputs[d, at + d] for d in directions])
    vocab = _language_model(model)[2]
    return _best(model, chosen, [vocab.bos, vocab.eos, vocab.unk], top)


def next_words(
    sentence: Sentence,
    model: ModelSource = None,
    *,
    top: int = 10,
    direction: str = "forward",
    state: StatePolicy = "zeros",
    device: str | None = None,
) -> list[Candidate]:
    """Find the likeliest continuations of a sentence.

    Args:
        sentence, model, state, device: As for `score`.
        top: How many.
        direction: "forward": the word after the sentence; "backward": the word before it.

    Returns:
        The likeliest first, of all words of the softmax, whose probabilities sum to 1: </S> (backward <S>) means that
        the sentence ends (begins) there, <UNK> any word outside the vocabulary.

    Raises:
        ValueError: As `score`, or there is no such direction.
    """
    model, (d,) = _resolve(model, device), _directions(direction, ("forward", "backward"))
    outputs = _outputs(model, words_of(model, sentence), state)
    end = outputs[d, :1] if d else outputs[d, -1:]
    return _best(model, end[None], [], top)[0]


# --- Files ---------------------------------------------------------------------------------------------------------


def _as_json(number: int, found: SentenceScore) -> str:
    perplexity = found.perplexity
    values = {
        "line": number,
        "perplexity": {name: getattr(perplexity, name) for name in ("forward", "backward", "mean")},
        "words": found.words,
        "forward": found.forward.tolist(),
        "backward": found.backward.tolist(),
    }
    return json.dumps(values, ensure_ascii=False)


def score_file(
    file: str | Path,
    output: str | Path,
    model: ModelSource = None,
    state: str = "zeros",
    batch_size: int = 1,
    device: str | None = None,
    tokenize: bool = False,
) -> Perplexity:
    """Score the sentences of a text file, a line each, into a file of JSON lines (plain, .gz or .zst); all in all.

    Lines are split at white space, or with `tokenize` as the model's training text was. Blank lines are no sentences;
    "line" (from 1) says where a sentence stood. ValueError where there is none.
    """
    pretrained = _resolve(model, device)
    count = sum(1 for line in read_lines(file) if line.strip())
    if not count:
        raise ValueError(f"{file} holds no sentence to score")
    lines = (number for number, line in enumerate(read_lines(file), start=1) if line.strip())
    texts = (line for line in read_lines(file) if line.strip())
    sentences = (words_of(pretrained, text) if tokenize else text.split() for text in texts)
    losses, predictions, unknown, truncated = np.zeros(2), 0, 0, 0
    with atomic_path(output) as path, io.TextIOWrapper(create_bytes(path), encoding="utf-8", newline="\n") as stream:
        found = _scores(pretrained, sentences, state, batch_size)
        for number, each in tqdm(zip(lines, found, strict=True), "score", count, disable=None):
            stream.write(_as_json(number, each) + "\n")
            losses += each.losses
            predictions, unknown = predictions + len(each.forward), unknown + each.unknown
            truncated += each.truncated
    return Perplexity.of(losses, count, predictions, unknown, truncated)
