"""How often a step of training, and embedding, would launch kernels on a GPU, and wait for it:
counted without one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mock_gpu import DEVICE, MockGPU
from toy_run import settings_for, write_text

from elmokit.checkpoints.pretrained import Pretrained
from elmokit.config import BiLMConfig, CharCNNConfig, LSTMConfig
from elmokit.embed import pipeline
from elmokit.embed.embedder import Embedder
from elmokit.nn.bilm import BiLM
from elmokit.ops import dispatch
from elmokit.text.vocab import Vocab
from elmokit.train.trainer import Trainer

pytestmark = pytest.mark.slow

# The layers of en-small, each of a few dimensions: the number of kernels does not depend on sizes.
CONFIG = BiLMConfig(
    LSTMConfig(2, 16, 8, cell_clip=3.0, proj_clip=3.0),
    CharCNNConfig(
        filters=((1, 4), (2, 4), (3, 4), (4, 4), (5, 4), (6, 4), (7, 4)),
        num_highway=2,
        embedding_dim=4,
    ),
)


class Kernel:
    """A Triton kernel whose launches are counted."""

    def __init__(self, gpu: MockGPU, name: str) -> None:
        self.gpu = gpu
        self.name = name

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return self.launch

    def launch(self, **arguments: Any) -> None:
        devices = {each.device for each in arguments.values() if isinstance(each, torch.Tensor)}
        assert devices == {DEVICE}
        self.gpu.launch(self.name)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[MockGPU]:
    pytest.importorskip("triton", reason="NO TRITON: its launches are not counted")
    from elmokit.ops.triton import lstm

    gpu = MockGPU()
    choose = dispatch.choose
    for module in ("elmokit.train.trainer", "elmokit.embed.embedder"):
        monkeypatch.setattr(f"{module}.pick_device", lambda name: DEVICE)
    for name in ("forward_kernel", "backward_kernel"):
        monkeypatch.setattr(lstm, name, Kernel(gpu, name))
    monkeypatch.setattr(
        "elmokit.ops.functional.choose",
        lambda op, *request: lstm if op == "lstm" else choose(op, *request),
    )
    with gpu:
        yield gpu


def test_a_step_of_training_launches_few_kernels_and_does_not_wait(
    gpu: MockGPU, tmp_path: Path
) -> None:
    text = write_text(tmp_path / "text.txt")
    settings = replace(
        settings_for(text, tmp_path / "run"),
        recipe="muon",
        schedule="constant",
        batch_size=512,
        unroll_steps=40,
        dropout=0.0,
        dtype="bfloat16",
    )
    run = Trainer(settings, CONFIG, Vocab.from_counts(Vocab.count_words([text])), [text], None)
    run.train_step()
    gpu.reset()
    losses = run.train_step()
    assert losses.device == DEVICE
    assert losses.shape == (2,)
    assert (
        sum(count for name, count in gpu.kernels.items() if "ward_kernel" in name) == 8
    )  # of 2 layers and directions
    assert gpu.kernels.total() <= 950, gpu.kernels.most_common(40)
    assert gpu.waits.total() <= 1, gpu.waits
    assert gpu.copies.total() <= 4, gpu.copies


@pytest.mark.parametrize("pooled", [False, True])
def test_embedding_launches_few_kernels_for_a_word_and_waits_for_its_results(
    gpu: MockGPU, pooled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "BATCHES_AHEAD", 1)  # on this thread, which counts
    embedder = Embedder(Pretrained(BiLM(CONFIG)))
    embedder.pipeline.batch_words, embedder.pipeline.rows = 32_768, 512  # those of a GPU
    draws = np.random.default_rng(0)
    sentences = [[f"word{number}" for number in draws.integers(9000, size=25)] for _ in range(4000)]
    embedder.embed(sentences[:100])
    gpu.reset()
    (embedder.encode if pooled else embedder.embed)(sentences)
    words = sum(map(len, sentences))
    assert gpu.kernels.total() <= 0.02 * words, gpu.kernels.most_common(40)
    assert gpu.waits.total() <= 4, gpu.waits  # one for each batch
