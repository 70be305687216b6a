"""The layers of one sentence by itself, with its boundaries: what an embedder gives in any batch
and any windows.
"""

from collections.abc import Sequence

import numpy as np
import torch

from elmokit.nn.bilm import BiLM, BiLMState


@torch.no_grad()
def layers_alone(
    bilm: BiLM, words: Sequence[str], state: BiLMState | None = None
) -> tuple[np.ndarray, BiLMState]:
    """The layers (L+1, T, 2D) of a sentence in a batch of its own, computed at once, and the state
    after it.
    """
    output = bilm(bilm.token_encoder.ids(["<S>", *words, "</S>"])[None], state=state)
    return output.layers[:, 0, 1:-1].numpy(), output.state
