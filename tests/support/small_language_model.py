"""A small language model with random weights, and its predictions by definition, in float64."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from oracle import Oracle, log_softmax, random_weights

from elmokit.checkpoints.pretrained import Pretrained
from elmokit.config import BiLMConfig, CharCNNConfig, LSTMConfig
from elmokit.lm.scoring import Perplexity
from elmokit.nn.bilm import BiLM, BiLMState
from elmokit.nn.softmax import FullSoftmax
from elmokit.text.characters import encode_words
from elmokit.text.vocab import Vocab

SENTENCES = [["a", "b", "zebra"], ["c"], ["b", "b", "a", "c", "<S>"], [], ["zebra", "c"]]
CONFIG = BiLMConfig(
    LSTMConfig(2, 5, 4, cell_clip=1.0, proj_clip=1.0), CharCNNConfig(3, ((1, 3), (3, 4)), 1)
)
SPECIALS = ["<S>", "</S>", "<UNK>"]


def small_language_model(dtype: torch.dtype = torch.float32) -> Pretrained:
    """Random weights, and a vocabulary in which the positions of the special tokens matter."""
    vocab = Vocab(["a", "<S>", "b", "</S>", "c", "<UNK>", "d", "e"])
    bilm = BiLM(CONFIG).to(dtype)
    softmax = FullSoftmax(len(vocab), 4).to(dtype)
    random_weights(bilm, seed=1)
    random_weights(softmax, seed=2)
    torch.manual_seed(3)
    zeros = bilm.initial_state(1)
    warm = BiLMState(torch.randn_like(zeros.h), torch.randn_like(zeros.c))
    return Pretrained(bilm, softmax=softmax, vocab=vocab, warm_state=warm)


def first_states(model: Pretrained, warm: bool = False) -> list[Any]:
    """The state in which each direction begins a sentence, zeros or the warm one."""
    if not warm:
        return [Oracle(model.bilm).zeros()] * 2
    h, c = (part.double().numpy() for part in (model.warm_state.h, model.warm_state.c))
    return [list(zip(h[d, :, 0], c[d, :, 0], strict=True)) for d in range(2)]


def predictions(
    model: Pretrained, words: Sequence[str], states: list[Any]
) -> tuple[np.ndarray, list[Any]]:
    """Log p by definition, (2, T+1, V), and the states after the sentence.

    Row k predicts word k forward, word k-1 backward.
    """
    oracle = Oracle(model.bilm)
    weight, bias = (p.detach().double().numpy() for p in model.softmax.parameters())
    log_p = []
    after = []
    for d in range(2):
        inputs = ["</S>", *reversed(words)] if d else ["<S>", *words]
        vectors = [oracle.word(ids) for ids in encode_words(inputs)]
        layers, state = oracle.direction(d, vectors, states[d])
        log_p.append(log_softmax(layers[-1] @ weight.T + bias)[:: -1 if d else 1])
        after.append(state)
    return np.stack(log_p), after


def brute_force(model: Pretrained, words: Sequence[str], warm: bool = False) -> np.ndarray:
    """The `predictions` of a sentence by itself."""
    return predictions(model, words, first_states(model, warm))[0]


def expected_losses(model: Pretrained, words: Sequence[str], log_p: np.ndarray) -> np.ndarray:
    """-log p of the words and boundaries of a sentence, (2, T+1), given its `predictions`."""
    targets = [*words, "</S>"], ["<S>", *words]
    ids = [vocab_of(model).ids(of_direction) for of_direction in targets]
    return -np.take_along_axis(log_p, np.stack(ids)[:, :, None], axis=2)[:, :, 0]


def vocab_of(model: Pretrained) -> Vocab:
    assert model.vocab is not None
    return model.vocab


def three(perplexity: Perplexity) -> tuple[float, ...]:
    """Forward, backward, mean."""
    return tuple(perplexity.values.values())
