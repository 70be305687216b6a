"""A small language model with random weights, and its predictions by definition, in float64."""

from collections.abc import Sequence

import numpy as np
import torch
from oracle import Oracle, log_softmax, random_weights

from elmokit.checkpoints.pretrained import Pretrained
from elmokit.config import BiLMConfig, CharCNNConfig, LSTMConfig
from elmokit.lm.measures import Perplexity
from elmokit.nn.bilm import BiLM, BiLMState
from elmokit.nn.softmax import FullSoftmax
from elmokit.text.characters import encode_words
from elmokit.text.vocab import Vocab

SENTENCES = [["a", "b", "zebra"], ["c"], ["b", "b", "a", "c", "<S>"], [], ["zebra", "c"]]
CONFIG = BiLMConfig(
    LSTMConfig(2, 5, 4, cell_clip=1.0, proj_clip=1.0), CharCNNConfig(3, ((1, 3), (3, 4)), 1)
)
SPECIALS = ["<S>", "</S>", "<UNK>"]


def small_language_model() -> Pretrained:
    """Random weights, and a vocabulary whose special tokens are not first, so that their positions
    matter.
    """
    vocab = Vocab(["a", "<S>", "b", "</S>", "c", "<UNK>", "d", "e"])
    bilm, softmax = BiLM(CONFIG), FullSoftmax(len(vocab), 4)
    random_weights(bilm, seed=1)
    random_weights(softmax, seed=2)
    torch.manual_seed(3)
    zeros = bilm.initial_state(1)
    warm = BiLMState(torch.randn_like(zeros.h), torch.randn_like(zeros.c))
    return Pretrained(bilm, softmax=softmax, vocab=vocab, warm_state=warm)


def brute_force(model: Pretrained, words: Sequence[str], warm: bool = False) -> np.ndarray:
    """Log p by definition, (2, T+1, V): row k predicts word k forward, word k-1 backward."""
    assert model.softmax is not None
    oracle, weight, bias = (
        Oracle(model.bilm),
        *(p.detach().double().numpy() for p in model.softmax.parameters()),
    )
    log_p = []
    for d in range(2):
        state = oracle.zeros()
        if warm:
            assert model.warm_state is not None
            h, c = (
                part[d, :, 0].double().numpy() for part in (model.warm_state.h, model.warm_state.c)
            )
            state = list(zip(h, c, strict=True))
        inputs = ["</S>", *reversed(words)] if d else ["<S>", *words]
        layers, _ = oracle.direction(d, [oracle.word(ids) for ids in encode_words(inputs)], state)
        log_p.append(log_softmax(layers[-1] @ weight.T + bias)[:: -1 if d else 1])
    return np.stack(log_p)


def vocab_of(model: Pretrained) -> Vocab:
    assert model.vocab is not None
    return model.vocab


def three(result: Perplexity) -> tuple[float, float, float]:
    return result.forward, result.backward, result.mean
