"""`-` and pipes of the shell in the place of text files."""

import gzip
import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from elmokit import cli
from elmokit.checkpoints.loading import Pretrained, save
from elmokit.config import BiLMConfig
from elmokit.embed.files import embed_file
from elmokit.nn.bilm import BiLM
from elmokit.nn.softmax import FullSoftmax
from elmokit.storage.store import EmbeddingStore
from elmokit.text.vocab import Vocab

TEXT = "the cat sees a dog\na dog\n"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    vocab = Vocab(["<S>", "</S>", "<UNK>", *sorted(set(TEXT.split()))])
    bilm = BiLM(BiLMConfig.preset("tiny"))
    save(Pretrained(bilm, softmax=FullSoftmax(len(vocab), 16), vocab=vocab), tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, bytes], int]:
    """Runs a command with a text as its standard input; returns the exit code."""
    monkeypatch.chdir(tmp_path)

    def run(command: str, text: bytes) -> int:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
        return cli.main(command.split())

    return run


@pytest.mark.parametrize("text", [TEXT.encode(), gzip.compress(TEXT.encode())])
def test_embed_reads_standard_input_as_it_reads_a_file(
    text: bytes, model: Path, run: Callable[[str, bytes], int], tmp_path: Path
) -> None:
    assert run("embed - --output vectors --model model", text) == 0
    (tmp_path / "text.txt").write_text(TEXT)
    embed_file(tmp_path / "text.txt", tmp_path / "expected", model)
    stores = EmbeddingStore(tmp_path / "vectors"), EmbeddingStore(tmp_path / "expected")
    for (tokens, vectors), (expected_tokens, expected) in zip(*stores, strict=True):
        assert tokens == expected_tokens
        np.testing.assert_array_equal(vectors, expected)


def test_finetune_reads_standard_input(model: Path, run: Callable[[str, bytes], int], tmp_path: Path) -> None:
    command = "finetune --corpus - --output run --model model --batch-size 1 --unroll-steps 2 --device cpu"
    assert run(command, TEXT.encode() * 20) == 0
    assert (tmp_path / "run" / "model" / "config.json").is_file()


def test_pipe_of_the_shell_is_read_as_standard_input_is(model: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt.gz").write_bytes(gzip.compress(TEXT.encode()))
    command = f'zcat text.txt.gz | "{sys.executable}" -m elmokit evaluate - <(zcat text.txt.gz) --model model'
    printed = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=tmp_path, check=True).stdout
    _, first, second, _ = map(str.split, printed.splitlines())
    assert first[0].endswith("standard-input.txt") and first[1:] == second[1:]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("evaluate - -", "standard input can be read only once"),
        ("embed text.txt --output -", "name one, not -"),
        ("embed - --output vectors", "is empty: there is nothing to embed"),
    ],
)
def test_misuse_of_standard_input_is_one_line(
    command: str, message: str, run: Callable[[str, bytes], int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command, b"") == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
