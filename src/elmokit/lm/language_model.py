"""The language model in a pretrained model: its parts, and checks of the arguments of its functions."""

from __future__ import annotations

from elmokit.checkpoints.loading import ModelSource, resolve_model
from elmokit.checkpoints.pretrained import Pretrained, on_device
from elmokit.config import BiLMConfig
from elmokit.nn.bilm import BiLM
from elmokit.nn.softmax import FullSoftmax
from elmokit.runtime import pick_device
from elmokit.settings import StatePolicy, conform
from elmokit.text.vocab import Vocab

BATCH_WORDS = 16_384  # of a batch that is evaluated, or of a window of a longer sentence
MAX_ROWS = 64  # of a batch, where no state is carried


def resolve_language_model(model: ModelSource, device: str | None) -> Pretrained:
    """Load a model with its softmax; one that is loaded stays on its device unless `device` is given."""
    pretrained = resolve_model(model, softmax=True)
    own = device is None and pretrained is model
    return on_device(pretrained, pretrained.bilm.device if own else pick_device(device))


def check_predicts(config: BiLMConfig) -> None:
    """ValueError if a model cannot predict words, as those of ELMoForManyLangs with the encoder `lstm`."""
    if not config.sequence_encoder.predicts_words:
        raise ValueError(
            "this model's directions are interleaved, and it has no vector for a hidden word: it cannot predict words, "
            "only embed them"
        )


def parts_of(model: Pretrained) -> tuple[BiLM, FullSoftmax, Vocab]:
    """The biLM, softmax and vocabulary. ValueError if one is missing, or they cannot predict words."""
    softmax, vocab = model.softmax, model.vocab
    if softmax is None or vocab is None:
        raise ValueError(
            "this needs a model with a softmax and a vocabulary, and this one lacks them: load it with "
            "softmax=True; if its files have no softmax, `elmokit finetune` trains one"
        )
    check_predicts(model.config)
    return model.bilm, softmax, vocab


# --- Initial states ------------------------------------------------------------------------------------------------


def state_of(config: BiLMConfig, state: str | None) -> str:
    """The state policy that a call asks for; None: "carry" where the encoder carries a state, else "zeros".

    Raises:
        ValueError: There is no such policy, or the encoder carries no state.
    """
    carries = config.sequence_encoder.carries_state
    state = ("carry" if carries else "zeros") if state is None else state
    conform(StatePolicy, state, "state")
    if state != "zeros" and not carries:
        raise ValueError(
            f"a model with the encoder {config.encoder_name} has no state to start from: use state='zeros'"
        )
    return state


def check_rows(batch_size: int) -> None:
    """ValueError if there is no row to carry state in."""
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, not {batch_size}")


def check_start(model: Pretrained, state: str | None, batch_size: int) -> None:
    """Check the initial state of sentences before a text is read.

    Raises:
        ValueError: There is no such policy, the model has no such state, or `batch_size` is below 1.
    """
    model.start(state_of(model.config, state))
    check_rows(batch_size)


def check_single_start(model: Pretrained, state: str) -> None:
    """ValueError if a single sentence cannot start from a state of this policy."""
    model.start(state_of(model.config, state))
    if state == "carry":
        raise ValueError("a single sentence has no sentence before it to carry state from: use state='zeros' or 'warm'")
