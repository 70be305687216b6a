"""The speed benchmarks: their count of operations, and the workers of the sides that need no other environment."""

import argparse
import json
import sys
from pathlib import Path

import pytest
import torch
from torch.nn.functional import conv1d, linear
from torch.utils.flop_counter import FlopCounterMode

from elmokit.config import BiLMConfig
from elmokit.embed.embedder import Embedder

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TEXT = "The cat sat .\nYes\nA dog and a cat sat on the mat .\n"


@pytest.fixture(autouse=True)
def scripts(monkeypatch):
    """The scripts' directories on the path, as where one of them is run."""
    folders = (BENCHMARKS / "speed", BENCHMARKS, BENCHMARKS / "peers")
    monkeypatch.setattr(sys, "path", [*map(str, folders), *sys.path])


@pytest.fixture
def arguments(tmp_path):
    from make_models import make_models

    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    make_models(tmp_path / "models", ["tiny"])
    return argparse.Namespace(text=tmp_path / "text.txt", models=tmp_path / "models", environments=None, sentences=None)


def test_operations_of_a_long_word_are_those_that_pytorch_counts():
    from roofline import word_operations

    config = BiLMConfig.preset("small").char_cnn
    assert config is not None
    with FlopCounterMode(display=False) as counter:
        for width, number in config.filters:
            conv1d(torch.zeros(1, config.embedding_dim, 50), torch.zeros(number, config.embedding_dim, width))
        filters = config.num_filters
        linear(torch.zeros(1, filters), torch.zeros(2 * filters, filters))
        linear(torch.zeros(1, filters), torch.zeros(128, filters))
    assert word_operations(config, 128, "x" * 60) == counter.get_total_flops()
    assert word_operations(config, 128, "x") < counter.get_total_flops()


@pytest.mark.slow
def test_workers_answer_with_what_the_embedder_makes(arguments):
    from measuring import ELMOKIT, PEERS, Worker
    from worker import checksum

    text = TEXT + "Only line feeds\u2028end a sentence .\n"
    arguments.text.write_text(text, encoding="utf-8")
    expected = checksum(Embedder.load(arguments.models / "tiny").embed(text.strip().split("\n"), layers="all"))
    for side in (ELMOKIT, PEERS["torch-lstm"]):  # no clip binds in the random models
        with Worker(side, "tiny", arguments) as started:
            answer = started.ask(job="embed", batch=2, order="sorted")
            assert answer["words"] == len(text.split())
            assert answer["checksum"] == pytest.approx(expected, rel=1e-5)
            assert started.ask(job="one_sentence", length=4, calls=2)["seconds"] > 0


@pytest.mark.slow
def test_memory_is_that_of_a_process_of_its_own(arguments, monkeypatch):
    import embed_memory

    output, size = arguments.text.with_name("report.json"), (2 * len(TEXT) + 1) / 1e6
    options = [f"--model={arguments.models / 'tiny'}", f"--output={output}", f"--megabytes={size}"]
    monkeypatch.setattr(sys, "argv", [embed_memory.__file__, str(arguments.text), *options])
    embed_memory.main()
    report = json.loads(output.read_text(encoding="utf-8"))
    assert report["text_megabytes"] == 2 * len(TEXT) / 1e6 and report["words"] == 2 * len(TEXT.split())
    assert (report["layers"], report["dtype"], report["sentences"]) == ("mix", "float32", 6)
    assert 50 < report["peak_megabytes"] < 2000 and "output" not in report
