"""Predictions of the language model: substitutes of the words of a sentence, and next words.

The directions and their probabilities are those of `elmokit.lm.scoring`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from elmokit.checkpoints import ModelSource, Pretrained
from elmokit.data import PackedBatch
from elmokit.lm.losses import (
    Check,
    final_outputs,
    masked_outputs,
    predictor,
    resolve_language_model,
)
from elmokit.runtime import check_length
from elmokit.settings import StatePolicy
from elmokit.text import Sentence

CHUNK_LOGITS = 1 << 22  # logits of one direction to compute at a time: 16 MB in float32
DIRECTIONS = {"forward": (0,), "backward": (1,), "both": (0, 1)}


@dataclass(frozen=True)
class Candidate:
    """A word of the vocabulary predicted at some position, and its log-probability in nats."""

    word: str
    log_probability: float

    def __str__(self) -> str:
        return f"{self.word} {self.log_probability:.3f}"


@dataclass(frozen=True, repr=False)
class Candidates(Sequence[Candidate]):
    """The candidates at a position of a sentence, the most likely first, and the word there."""

    position: int
    word: str | None
    candidates: tuple[Candidate, ...]

    def __getitem__(self, number: Any) -> Any:
        return self.candidates[number]

    def __len__(self) -> int:
        return len(self.candidates)

    def __repr__(self) -> str:
        return f"{self.position} {self.word or '...'}: {', '.join(map(str, self.candidates))}"


def _one_sentence(model: Pretrained, sentence: Sentence, tokenize: bool) -> Sequence[str]:
    """Its words; ValueError for a list of sentences, and a sentence that is too long."""
    words = model.split(sentence, tokenize)
    check_length(len(words), "the sentence")
    if words and all(" " in word for word in words):
        raise ValueError(
            f"{words[0][:60]!r} is not a word: give one sentence, as a string or a list of words"
        )
    return words


@torch.no_grad()
def _outputs(
    model: Pretrained, sentences: Sequence[Sequence[str]], state: str, check: Check | None
) -> Tensor:
    """Inputs of the softmax for sentences, (2, N, D), T+1 for each of T words.

    Of these, number k predicts word k forward (</S> at the last position), and word k-1 backward
    (<S> at the first).
    """
    # The sentences "a b" and "c", and the word that each output predicts:
    #
    #   output      0    1    2     3    4
    #   forward     a    b    </S>  c    </S>
    #   backward    <S>  a    b     <S>  c
    if check is not None:
        check()
    batch = PackedBatch.to_score(sentences, len(sentences))
    bilm, _, vocab = predictor(model)
    return final_outputs(bilm, vocab, batch, start=model.start(state))[0]


def _in_both_contexts(forward: Tensor, backward: Tensor) -> Tensor:
    """log p(word | words before, words after) of every word, (P, V), from both directions.

    If the two contexts are independent given the word, p is proportional to p(word | before) p(word
    | after) / p(word); without the division, the frequency of the word would count twice, and
    function words would win. p(word) is taken to be proportional to 1 / rank (Zipf), since
    vocabularies are sorted by descending frequency.
    """
    # log p(word) = - log rank + a constant, which the softmax removes.
    log_rank = torch.arange(1, forward.shape[1] + 1, device=forward.device).log()
    return (forward + backward + log_rank).log_softmax(dim=1)


@torch.no_grad()
def _best(
    model: Pretrained, outputs: Tensor, excluded: Sequence[Sequence[int]], top: int
) -> list[tuple[Candidate, ...]]:
    """The most likely words at P positions, except the ids excluded at each.

    `outputs` are inputs of the softmax, (P, D) for one direction or both.
    """
    _, softmax, vocab = predictor(model)
    candidates: list[tuple[Candidate, ...]] = []
    for chunk in outputs.to(softmax.weight.dtype).split(max(1, CHUNK_LOGITS // len(vocab)), dim=1):
        directions = [
            torch.addmm(softmax.bias, hidden, softmax.weight.T).log_softmax(dim=1)
            for hidden in chunk
        ]
        log_p = directions[0] if len(directions) == 1 else _in_both_contexts(*directions)
        for row in log_p:
            row[excluded[len(candidates)]] = -math.inf
            values, ids = row.topk(min(top, len(vocab)))
            named = zip(ids.tolist(), values.tolist(), strict=True)
            candidates.append(
                tuple(Candidate(vocab.words[n], value) for n, value in named if value > -math.inf)
            )
    return candidates


def substitutes(
    sentence: Sentence,
    model: ModelSource = None,
    *,
    positions: Sequence[int] | None = None,
    top: int = 10,
    direction: str = "both",
    state: StatePolicy = "zeros",
    device: str | None = None,
    tokenize: bool = True,
    check: Check | None = None,
) -> list[Candidates]:
    """Predict the most likely replacements of words, given their contexts.

    The word itself is not part of its context, and may be among its candidates. <S>, </S> and <UNK>
    are excluded, and for a word with a letter or a digit the words without one, such as commas.

    Args:
        sentence: A list of tokens, or a string, which the model's tokenizer splits.
        model: A loaded model with its softmax, or a path or name as for `elmokit.load`.
        positions: Positions of the words to replace, from 0; all by default.
        top: Number of candidates for each word.
        direction: The context: the words before ("forward"), the words after ("backward"), or
            "both", where the probabilities of the two directions are multiplied, and divided by
            that of the word without context.
        state: Initial state of the sentence: "zeros" or "warm"; "carry" means zeros, with no
            sentence before it.
        device: As in `score`.
        tokenize: As in `score`.
        check: Called periodically during the computation; an exception that it raises ends it.

    Returns:
        For each position the candidates, the most likely first.

    Raises:
        ValueError: A position is outside the sentence, there is no such state, or the model has no
            softmax or vocabulary, or reads both directions at once and one is asked for.
        KeyError: There is no such direction.
    """
    model = resolve_language_model(model, device)
    words = _one_sentence(model, sentence, tokenize)
    positions = range(len(words)) if positions is None else positions
    for position in positions:
        if not 0 <= position < len(words):
            raise ValueError(
                f"there is no word {position} in a sentence of {len(words)} words, counted from 0"
            )
    return batch_substitutes([words], [positions], model, top, direction, state, check)


def batch_substitutes(
    sentences: Sequence[Sequence[str]],
    positions: Sequence[Sequence[int]],
    model: Pretrained,
    top: int,
    direction: str = "both",
    state: str = "zeros",
    check: Check | None = None,
) -> list[Candidates]:
    """`substitutes` of words at some positions of several tokenized sentences, run side by side."""
    directions = DIRECTIONS[direction]
    bilm, _, vocab = predictor(model)
    model.start(state)  # raises for a state that the model lacks
    if model.config.sequence_encoder.merges_directions:
        if direction != "both":
            raise ValueError(
                f"this model reads both directions at once: direction must be both, not "
                f"{direction!r}"
            )
        with torch.no_grad():
            outputs = masked_outputs(bilm, vocab, sentences, positions, check)[None]
    else:
        # Word k of a sentence that begins at output b is predicted by output b + k of the forward
        # direction, and b + k + 1 of the backward one: in the drawing of `_outputs`, b and c are
        # words 1 of the sentence at 0 and 0 of that at 3, `indices` 1 and 3.
        begins = np.cumsum([0, *(len(words) + 1 for words in sentences)]).tolist()
        indices = torch.tensor(
            [b + k for b, ks in zip(begins, positions, strict=False) for k in ks], dtype=torch.int64
        )
        both = _outputs(model, sentences, state, check)
        outputs = torch.stack([both[d, indices + d] for d in directions])
    specials = [vocab.bos, vocab.eos, vocab.unk]
    specials_and_marks = [*specials, *vocab.marks.tolist()]
    replaced = [(k, words[k]) for words, ks in zip(sentences, positions, strict=True) for k in ks]
    excluded = [
        specials_and_marks if any(map(str.isalnum, word)) else specials for _, word in replaced
    ]
    best = _best(model, outputs, excluded, top)
    return [Candidates(k, word, row) for (k, word), row in zip(replaced, best, strict=True)]


def next_words(
    sentence: Sentence,
    model: ModelSource = None,
    *,
    top: int = 10,
    direction: str = "forward",
    state: StatePolicy = "zeros",
    device: str | None = None,
    tokenize: bool = True,
    check: Check | None = None,
) -> Candidates:
    """Predict the next word of an unfinished sentence, or the word before the given words.

    Probabilities are those of the full softmax: </S> (backward <S>) means that the sentence ends
    (begins) there. <UNK>, which stands for all words outside the vocabulary, is left out.

    Args:
        sentence: A list of tokens, or a string, which the model's tokenizer splits.
        model: A loaded model with its softmax, or a path or name as for `elmokit.load`.
        top: Number of candidates.
        direction: "forward" for the word after, "backward" for the word before.
        state: Initial state of the sentence: "zeros" or "warm"; "carry" means zeros, with no
            sentence before it.
        device: As in `score`.
        tokenize: As in `score`.
        check: As in `substitutes`.

    Returns:
        The candidates, the most likely first.

    Raises:
        ValueError: There is no such direction or state, or the model has no softmax or vocabulary,
            or merges the directions.
    """
    model, d = resolve_language_model(model, device), ("forward", "backward").index(direction)
    if model.config.sequence_encoder.merges_directions:
        raise ValueError(
            "this model predicts words from both sides, so it cannot predict a next word: use "
            "substitutes"
        )
    words = _one_sentence(model, sentence, tokenize)
    outputs = _outputs(model, [words], state, check)
    end = outputs[d, :1] if d else outputs[d, -1:]
    (best,) = _best(model, end[None], [[predictor(model)[2].unk]], top)
    return Candidates(-1 if d else len(words), None, best)
