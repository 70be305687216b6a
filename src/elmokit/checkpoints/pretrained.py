"""A pretrained model in memory: the biLM and everything that travels with it."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property

from elmokit.config import BiLMConfig
from elmokit.nn.bilm import BiLM, BiLMState
from elmokit.nn.softmax import FullSoftmax
from elmokit.text.vocab import Vocab

STATE_POLICIES = ("zeros", "warm", "carry")


@dataclass(frozen=True)
class MixWeights:
    """A fixed mix of layers, gamma * sum_j softmax(weights)_j h_j: L+1 weights, before the softmax, and gamma."""

    weights: tuple[float, ...]
    gamma: float = 1.0


class Pretrained:
    """A biLM and, where there are such, its softmax and words, tokenizer's name, mix of layers, warm state and card.

    `softmax` may be given as a function that loads it: it is called when the attribute is first asked for.
    `warm_state` has one row; `state_policy` ("zeros", "warm" or "carry") says what a sentence starts from by default.
    ValueError where the parts do not fit each other.
    """

    def __init__(
        self,
        bilm: BiLM,
        *,
        softmax: FullSoftmax | Callable[[], FullSoftmax] | None = None,
        vocab: Vocab | None = None,
        card: str = "",
        tokenizer: str | None = None,
        state_policy: str = "zeros",
        mix: MixWeights | None = None,
        warm_state: BiLMState | None = None,
    ) -> None:
        if state_policy not in STATE_POLICIES:
            raise ValueError(f"the state policy must be one of {', '.join(STATE_POLICIES)}, not {state_policy!r}")
        if state_policy == "warm" and warm_state is None:
            raise ValueError("the state policy is 'warm', but there is no warm state")
        if mix is not None and len(mix.weights) != bilm.config.num_representations:
            raise ValueError(f"the mix has {len(mix.weights)} weights for {bilm.config.num_representations} layers")
        if vocab is not None and bilm.config.num_words not in (None, len(vocab)):
            raise ValueError(f"the vocabulary has {len(vocab)} words, the biLM's word table {bilm.config.num_words}")
        self.config: BiLMConfig = bilm.config
        self._bilm: BiLM | None = bilm
        # Reads the biLM once more, where the model is that of a file.
        self.read_again: Callable[[], BiLM] | None = None
        self.vocab, self.card, self.tokenizer = vocab, card, tokenizer
        self.state_policy, self.mix, self.warm_state = state_policy, mix, warm_state
        self.has_softmax = softmax is not None
        self._softmax = softmax

    @property
    def bilm(self) -> BiLM:
        """The network. Weights that were let go are read again, and stay."""
        if self._bilm is None:
            assert self.read_again is not None
            self._bilm = self.read_again()
        return self._bilm

    @bilm.setter
    def bilm(self, bilm: BiLM) -> None:
        self._bilm, self.read_again = bilm, None

    @property
    def holds_weights(self) -> bool:
        return self._bilm is not None

    def let_weights_go(self) -> None:
        """Free the memory of the biLM where it can be read again, for whoever has a copy of the weights."""
        if self.read_again is not None:
            self._bilm = None

    @cached_property
    def softmax(self) -> FullSoftmax | None:
        """The output layer of the language model; None where there is none."""
        if self._softmax is None or isinstance(self._softmax, FullSoftmax):
            return self._softmax
        return self._softmax()


def fingerprint(model: Pretrained) -> str:
    """A hash of all that its vectors depend on: configuration, weights, words, tokenizer, mix, and warm state."""
    held = model.holds_weights
    settings = [model.config.to_dict(), model.mix and asdict(model.mix), model.state_policy, model.tokenizer]
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    tensors = dict(sorted(model.bilm.stored_tensors().items()))
    if model.warm_state is not None:
        tensors |= {"state.h": model.warm_state.h, "state.c": model.warm_state.c}
    for name, tensor in tensors.items():
        digest.update(name.encode())
        digest.update(tensor.detach().float().cpu().contiguous().numpy().data)
    if model.vocab is not None and model.config.num_words is not None:  # which say what each row of the table is
        digest.update("\n".join(model.vocab.words).encode("utf-8", "surrogatepass"))
    if not held:
        model.let_weights_go()
    return digest.hexdigest()
