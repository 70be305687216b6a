"""The networks of tasks in NumPy float64, from the formulas, a word at a time."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from oracle import log_softmax, random_weights, relu, sigmoid
from torch import nn

from elmokit.tasks.fitting.words import EncodedWords

DIM, OUTPUT_DIM = 5, 3  # of the vectors that networks read, and of ELMo at their output


class GivenWords(nn.Module):
    """In place of a `WordEncoder`: a batch holds the vectors of its words."""

    dim = DIM
    output_dim = OUTPUT_DIM

    def forward(self, batch: EncodedWords) -> EncodedWords:
        return batch


def random_words(lengths: list[int], seed: int = 0) -> EncodedWords:
    """Random float64 vectors of sentences of these lengths, and of their padding."""
    generator = torch.Generator().manual_seed(seed)
    shape = (len(lengths), max(lengths))
    vectors, at_output = (
        torch.randn(*shape, dim, generator=generator, dtype=torch.float64)
        for dim in (DIM, OUTPUT_DIM)
    )
    return EncodedWords(vectors, at_output, torch.arange(shape[1]) < torch.tensor(lengths)[:, None])


def random_network(make: Any, *arguments: Any, scale: float = 0.8) -> Any:
    """A network, make(*arguments), with large random weights that reads `GivenWords`."""
    network = make(*arguments).double().eval()
    random_weights(network, seed=1, scale=scale)
    return network.requires_grad_(False)


class Sentence(NamedTuple):
    """The vectors of a sentence, (T, DIM), and of ELMo at the output, (T, OUTPUT_DIM)."""

    vectors: np.ndarray
    at_output: np.ndarray


def sentences_of(words: EncodedWords) -> list[Sentence]:
    """The sentences of a batch, without padding."""
    rows = zip(
        words.vectors.numpy(), words.at_output.numpy(), words.mask.sum(1).tolist(), strict=True
    )
    return [Sentence(vectors[:length], at_output[:length]) for vectors, at_output, length in rows]


def softmax(scores: np.ndarray) -> np.ndarray:
    return np.exp(log_softmax(scores))


def concat(*parts: np.ndarray) -> np.ndarray:
    return np.concatenate(parts, axis=-1)


class TaskOracle:
    """Parts of several networks."""

    def __init__(self, network: nn.Module) -> None:
        self.weights = {
            name: value.double().numpy() for name, value in network.state_dict().items()
        }

    def affine(self, name: str, x: np.ndarray) -> np.ndarray:
        """W x + b of a vector, or of each row of a matrix; W x of a layer without a bias."""
        return x @ self.weights[f"{name}.weight"].T + self.weights.get(f"{name}.bias", 0.0)

    def lstm(self, name: str, x: np.ndarray, suffix: str = "l0") -> np.ndarray:
        """One direction, from zeros: (T, I) -> (T, H)."""
        h = c = np.zeros(self.weights[f"{name}.weight_hh_{suffix}"].shape[1])
        outputs = []
        for word in x:
            h, c = self.lstm_step(name, word, h, c, f"_{suffix}")
            outputs.append(h)
        return np.array(outputs)

    def lstm_step(
        self, name: str, x: np.ndarray, h: np.ndarray, c: np.ndarray, suffix: str = ""
    ) -> tuple[np.ndarray, np.ndarray]:
        gates = np.zeros(4 * len(h))
        for part, read in (("ih", x), ("hh", h)):
            gates += (
                self.weights[f"{name}.weight_{part}{suffix}"] @ read
                + self.weights[f"{name}.bias_{part}{suffix}"]
            )
        i, f, g, o = np.split(gates, 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        return sigmoid(o) * np.tanh(c), c

    def bilstm(self, name: str, x: np.ndarray, layer: int = 0) -> np.ndarray:
        """(T, I) -> (T, 2H)."""
        fwd = f"l{layer}"
        bwd = f"l{layer}_reverse"
        return concat(
            self.lstm(f"{name}.lstm", x, fwd), self.lstm(f"{name}.lstm", x[::-1], bwd)[::-1]
        )

    def encode(self, sentence: Sentence) -> np.ndarray:
        """[h; ELMo] with h from the BiLSTM `encoder`."""
        return concat(self.bilstm("encoder", sentence.vectors), sentence.at_output)


def aligned(x: np.ndarray, others: np.ndarray) -> np.ndarray:
    """For each vector the mean of the others, weighted by the softmax of their dot products."""
    return np.array([softmax(others @ vector) @ others for vector in x])


# --- Tagging --------------------------------------------------------------------------------------


class TaggingOracle(TaskOracle):
    """BiLSTMs, each of which reads both directions of the one below, and a linear layer."""

    def scores(self, sentence: Sentence, num_layers: int) -> np.ndarray:
        """The scores of the tags of every word, (T, K)."""
        x = sentence.vectors
        for layer in range(num_layers):
            x = self.bilstm("lstm", x, layer)
        return self.affine("output", concat(x, sentence.at_output))


# --- Classification -------------------------------------------------------------------------------


class BiattentiveOracle(TaskOracle):
    """McCann et al. 2017, section 5, with the text as both of the inputs."""

    def scores(self, sentence: Sentence) -> np.ndarray:
        """The scores of the labels, (K,)."""
        x = self.bilstm("encoder", relu(self.affine("reduce", sentence.vectors)))
        context = aligned(x, x)
        hidden = concat(
            self.bilstm("integrator", concat(x, x - context, x * context)), sentence.at_output
        )
        attended = softmax(self.affine("attention", hidden)[:, 0]) @ hidden
        features = concat(attended, hidden.mean(axis=0), hidden.max(axis=0), hidden.min(axis=0))
        for number in range(2):  # maxout: the maximum of four linear layers
            features = self.affine(f"maxouts.{number}.linear", features).reshape(-1, 4).max(axis=1)
        return self.affine("output", features)


class PooledOracle(TaskOracle):
    """A linear layer on mean and maximum."""

    def scores(self, sentence: Sentence) -> np.ndarray:
        x = concat(*sentence)
        return self.affine("output", concat(x.mean(axis=0), x.max(axis=0)))


# --- Pairs ----------------------------------------------------------------------------------------


class ESIMOracle(TaskOracle):
    """Chen et al. 2017, section 3."""

    def outputs(self, first: Sentence, second: Sentence) -> np.ndarray:
        """The scores of the labels, (K,), or the predicted score, (1,)."""
        a = self.encode(first)
        b = self.encode(second)
        pooled = []
        for x, others in ((a, b), (b, a)):
            soft = aligned(x, others)
            compared = relu(self.affine("project", concat(x, soft, x - soft, x * soft)))
            composed = self.bilstm("composer", compared)
            pooled += [composed.mean(axis=0), composed.max(axis=0)]
        return self.affine("output", np.tanh(self.affine("hidden", concat(*pooled))))


# --- Roles ----------------------------------------------------------------------------------------


class RolesOracle(TaskOracle):
    """Alternating LSTMs with highway connections around them (Srivastava et al. 2015)."""

    def scores(self, sentence: Sentence, predicate: int, num_layers: int) -> np.ndarray:
        """The scores of the tags of every word, (T, K)."""
        is_predicate = [int(number == predicate) for number in range(len(sentence.vectors))]
        x = concat(sentence.vectors, self.weights["predicate.weight"][is_predicate])
        for number in range(num_layers):
            direction = -1 if number % 2 else 1
            h = self.lstm(f"layers.{number}.lstm", x[::direction])[::direction]
            gate = sigmoid(self.affine(f"layers.{number}.gate", concat(x, h)))
            x = gate * h + (1 - gate) * self.affine(f"layers.{number}.carry", x)
        return self.affine("output", concat(x, sentence.at_output))


# --- Translation ----------------------------------------------------------------------------------


class TranslatorOracle(TaskOracle):
    """Luong et al. 2015: general attention, with input feeding."""

    def log_probabilities(self, sentence: Sentence, target: list[int]) -> list[float]:
        """That of each target word but the first, given the words before it."""
        vectors = self.encode(sentence)
        h, c = np.split(np.tanh(self.affine("start", vectors.mean(axis=0))), 2)
        fed = np.zeros_like(h)
        found = []
        for before, word in pairwise(target):
            h, c = self.lstm_step("cell", concat(self.weights["targets.weight"][before], fed), h, c)
            context = (
                softmax(np.array([h @ self.affine("keys", vector) for vector in vectors])) @ vectors
            )
            fed = np.tanh(self.affine("attended", concat(h, context)))
            found.append(float(log_softmax(self.affine("output", fed))[word]))
        return found


# --- Reading --------------------------------------------------------------------------------------


class BiDAFOracle(TaskOracle):
    """Clark and Gardner 2017, section 3.1, with the attention of Seo et al. 2017."""

    def log_probabilities(
        self, question: Sentence, passage: Sentence
    ) -> tuple[np.ndarray, np.ndarray]:
        """Those of each word of the passage as first and as last one, each (T,)."""
        q = self.encode(question)
        p = self.encode(passage)
        similarity = self._similarity("attention", p, q)
        attended = np.array([softmax(row) @ q for row in similarity])
        summary = softmax(similarity.max(axis=1)) @ p
        x = relu(self.affine("merge", concat(p, attended, p * attended, p * summary)))
        x = x + self._from_other_words(x)
        starts = self.bilstm("start_lstm", x)
        ends = self.bilstm("end_lstm", concat(x, starts))
        return log_softmax(self.affine("start", starts)[:, 0]), log_softmax(
            self.affine("end", ends)[:, 0]
        )

    def _similarity(self, name: str, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        w = concat(self.weights[f"{name}.left.weight"][0], self.weights[f"{name}.right.weight"][0])
        w = concat(w, self.weights[f"{name}.product"])
        return np.array([[w @ concat(a, b, a * b) for b in right] for a in left])

    def _from_other_words(self, x: np.ndarray) -> np.ndarray:
        """The residual layer; a word attends to all words but itself, and the only one to none."""
        read = self.bilstm("reader", x)
        similarity = self._similarity("self_attention", read, read)
        attended = np.zeros_like(read)
        for number in range(len(read)):
            if others := [other for other in range(len(read)) if other != number]:
                attended[number] = softmax(similarity[number, others]) @ read[others]
        return relu(self.affine("merge_self", concat(read, attended, read * attended)))
