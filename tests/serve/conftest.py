"""A server with everything in it, which most tests share, and the model that it serves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from running_server import RunningServer

    from elmokit.embed.embedder import Embedder
    from elmokit.tasks.fitting.model import TaskModel


@pytest.fixture(scope="session")
def embedder() -> Embedder:
    from elmokit.embed.embedder import Embedder

    return Embedder("en-small", "cpu", softmax=True)


@pytest.fixture(scope="session")
def tagger() -> TaskModel:
    """A tagger of toy sentences: "Ann sees red dogs"."""
    from toy_tasks import toy_tasks

    from elmokit.tasks.config import WordsConfig
    from elmokit.tasks.fitting.fit import fit

    toy = toy_tasks()["tagging"]
    words = WordsConfig(elmo="none", word_dim=8)
    return fit(toy.task, toy.examples, toy.examples, words=words, config=replace(toy.config, max_epochs=12))[0]


@pytest.fixture(scope="session")
def server(tagger: TaskModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    from running_server import CORPUS, RunningServer

    directory = tmp_path_factory.mktemp("serve") / "tagger"
    tagger.save(directory)
    with RunningServer("--device", "cpu", "--corpus", CORPUS, "--task-model", directory) as running:
        yield running


@pytest.fixture(scope="session")
def server_without_words(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """It serves a tiny model without a vocabulary, and nothing else."""
    import torch
    from running_server import RunningServer

    from elmokit.checkpoints.loading import save
    from elmokit.checkpoints.pretrained import Pretrained
    from elmokit.config import BiLMConfig
    from elmokit.nn.bilm import BiLM

    torch.manual_seed(3)
    directory = tmp_path_factory.mktemp("serve") / "wordless"
    save(Pretrained(BiLM(BiLMConfig.preset("tiny"))), directory)
    with RunningServer(directory, "--device", "cpu") as running:
        yield running


@pytest.fixture
def corpus() -> Path:
    from running_server import CORPUS

    return CORPUS
