"""How often a step of training, and embedding, would launch kernels on a GPU, and wait for it: counted without one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from mock_gpu import DEVICE, MockGPU
from toy_run import settings_for, write_text

from elmokit.checkpoints.pretrained import Pretrained
from elmokit.config import BiLMConfig, CharCNNConfig, LSTMConfig
from elmokit.embed.embedder import Embedder
from elmokit.embed.pipeline import Sizes
from elmokit.nn.bilm import BiLM
from elmokit.ops import dispatch
from elmokit.ops.autograd import differentiably
from elmokit.ops.functional import LSTMState
from elmokit.text.vocab import Vocab, count_words
from elmokit.train import optim
from elmokit.train.trainer import Trainer

# The layers of en-small, each of a few dimensions: the number of kernels does not depend on sizes.
CONFIG = BiLMConfig(
    LSTMConfig(2, 16, 8, cell_clip=3.0, proj_clip=3.0),
    CharCNNConfig(filters=((1, 4), (2, 4), (3, 4), (4, 4), (5, 4), (6, 4), (7, 4)), num_highway=2, embedding_dim=4),
)


def lstm_on(gpu: MockGPU) -> ModuleType:
    """An LSTM whose steps are one kernel for each layer, direction and pass."""
    module: Any = ModuleType("lstm")

    def run(packing: Any, x: Any, h: Any, c: Any) -> tuple[torch.Tensor, LSTMState]:
        packing.on(x.device)
        gpu.launch("forward_kernel")
        return h.new_empty(packing.num_slots, h.shape[1]), LSTMState(h.clone(), c.clone())

    def forward(x: Any, h: Any, c: Any, *weights: Any, packing: Any, dtype: torch.dtype) -> Any:
        low_x, (input, _, bias, _) = x.to(dtype), [weight.to(dtype) for weight in weights]
        gates = torch.addmm(bias, low_x, input.T)
        outputs, state = run(packing, x, h, c)
        hidden = h.new_empty(len(x), c.shape[1], dtype=dtype)
        return (outputs, *state), (gates, low_x, input, hidden, outputs.to(dtype))

    def backward(saved: Any, gradients: Any, last: bool, *, packing: Any, dtype: torch.dtype) -> Any:
        gates, x, input, hidden, previous = saved
        gpu.launch("backward_kernel")
        grad_h, grad_c, grad_projected = gradients[1].clone(), gradients[2].clone(), gradients[0].to(dtype)
        of_weights = gates.T @ x, gates.T @ previous, gates.sum(dim=0), grad_projected.T @ hidden
        return gates @ input, grad_h, grad_c, *of_weights

    def lstm(x: Any, packing: Any, state: Any, weights: Any, clips: Any, start: Any, dtype: torch.dtype) -> Any:
        outputs, h, c = differentiably(module, x, *state, *weights, packing=packing, dtype=dtype)
        return outputs, LSTMState(h, c)

    def run_prepacked(weights: Any, dtype: Any, x: Any, packing: Any, state: Any, *_: Any) -> Any:
        torch.addmm(weights.bias.to(dtype), x.to(dtype), weights.input.to(dtype).T)
        return run(packing, x, *state)

    module.forward, module.backward, module.lstm = forward, backward, lstm
    module.prepack_lstm = lambda weights, dtype: partial(run_prepacked, weights, dtype)
    return module


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[MockGPU]:
    gpu, choose = MockGPU(), dispatch.choose
    lstm = lstm_on(gpu)
    monkeypatch.setattr(
        "elmokit.ops.functional.choose", lambda op, *request: lstm if op == "lstm" else choose(op, *request)
    )
    for module in ("elmokit.train.trainer", "elmokit.embed.embedder"):
        monkeypatch.setattr(f"{module}.pick_device", lambda name: DEVICE)
    monkeypatch.setattr("elmokit.train.trainer.multiplies_bfloat16", lambda device: True)
    monkeypatch.setattr(optim, "_fused", lambda parameters: True)
    with gpu:
        yield gpu


def test_a_step_of_training_launches_few_kernels_and_does_not_wait(gpu: MockGPU, tmp_path: Path) -> None:
    text = write_text(tmp_path / "text.txt")
    settings = replace(
        settings_for(text, tmp_path / "run"), recipe="muon", schedule="constant", batch_size=512, unroll_steps=40,
        dropout=0.0, dtype="bfloat16",
    )  # fmt: skip
    run = Trainer(settings, CONFIG, Vocab.from_counts(count_words([text])), [text], None)
    run.train_step()
    gpu.reset()
    losses = run.train_step()
    assert losses.device == DEVICE and losses.shape == (2,)
    assert gpu.kernels.total() <= 900, gpu.kernels.most_common(40)
    assert gpu.waits.total() <= 1, gpu.waits
    assert gpu.copies.total() <= 4, gpu.copies


@pytest.mark.parametrize("pooled", [False, True])
def test_embedding_launches_few_kernels_for_a_word_and_waits_for_its_results(gpu: MockGPU, pooled: bool) -> None:
    sizes = Sizes(batch_words=32_768, rows=512, batches_ahead=1)  # those of a GPU, but on this thread, which counts
    embedder = Embedder(Pretrained(BiLM(CONFIG)), sizes=sizes)
    draws = np.random.default_rng(0)
    sentences = [[f"word{number}" for number in draws.integers(9000, size=25)] for _ in range(4000)]
    embedder.embed(sentences[:100])
    gpu.reset()
    (embedder.encode if pooled else embedder.embed)(sentences)
    words = sum(map(len, sentences))
    assert gpu.kernels.total() <= 0.02 * words, gpu.kernels.most_common(40)
    assert gpu.waits.total() <= 4, gpu.waits  # one for each batch
