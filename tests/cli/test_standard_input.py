"""`-` and pipes of the shell in the place of text files."""

import gzip
import io
import subprocess
import sys
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from tiny_model import tiny_model

from elmokit import cli
from elmokit.checkpoints.loading import save
from elmokit.embed.files import embed_file
from elmokit.storage.store import EmbeddingStore

TEXT = "the cat sees a dog\na dog\n"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    save(tiny_model(sorted(set(TEXT.split()))), tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, bytes], int]:
    """Runs a command with a text as its standard input; returns the exit code."""
    monkeypatch.chdir(tmp_path)

    def run(command: str, text: bytes) -> int:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
        return cli.main(command.split())

    return run


@pytest.mark.parametrize(
    "text", [TEXT.encode(), gzip.compress(TEXT.encode())], ids=["plain", "gzip"]
)
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


@pytest.mark.parametrize(("options", "suffix"), [("", ".jsonl"), (" --per word", ".tsv")])
def test_score_writes_to_standard_output_what_it_writes_to_a_file(
    options: str,
    suffix: str,
    model: Path,
    run: Callable[[str, bytes], int],
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    assert run(f"score - --output scores{suffix} --model model{options}", TEXT.encode()) == 0
    assert b"perplexity" in capsysbinary.readouterr().out
    assert run(f"score - --output - --model model{options}", TEXT.encode()) == 0
    captured = capsysbinary.readouterr()
    assert captured.out == Path(f"scores{suffix}").read_bytes()
    assert b"perplexity" in captured.err


@pytest.mark.parametrize(
    ("command", "function"),
    [
        ("finetune --output run --corpus -", "elmokit.train.finetuning.finetune"),
        ("prepare --output run -", "elmokit.data.prepare"),
        ("senses cat --corpus -", "elmokit.analysis.word_map.senses"),
        (
            "predict - --model tagger --output tags.jsonl",
            "elmokit.tasks.fitting.model.predict_file",
        ),
    ],
)
def test_verbs_are_given_a_file_with_the_text_of_standard_input(
    command: str, function: str, run: Callable[[str, bytes], int]
) -> None:
    given: list[str] = []

    def called(*arguments: object, **options: object) -> dict[str, str]:
        settings = [getattr(each, "corpus", each) for each in (*arguments, *options.values())]
        paths = chain.from_iterable(
            each if isinstance(each, tuple) else (each,) for each in settings
        )
        given.extend(
            path.read_text() for path in paths if isinstance(path, Path) and path.is_file()
        )
        return {}

    with patch(function, called):
        assert run(command, TEXT.encode()) == 0
    assert given == [TEXT]


@pytest.mark.slow
def test_pipe_of_the_shell_is_read_as_standard_input_is(model: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt.gz").write_bytes(gzip.compress(TEXT.encode()))
    command = (
        f'zcat text.txt.gz | "{sys.executable}" -m elmokit evaluate - <(zcat text.txt.gz) '
        f"--model model"
    )
    printed = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, cwd=tmp_path, check=True
    ).stdout
    first, second, _ = map(str.split, printed.splitlines())
    assert first[0].endswith("standard-input.txt:")
    assert first[1:] == second[1:]


def test_errors_name_standard_input_and_not_its_copy(
    run: Callable[[str, bytes], int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("embed - --output vectors", b"a caf\xe9\n") == 2
    error = capsys.readouterr().err
    assert error.startswith("elmokit: error: standard input, line 1: ")
    assert run("embed - --output vectors", b"") == 2
    assert capsys.readouterr().err.startswith("elmokit: error: standard input is empty")
