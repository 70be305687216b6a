"""The verbs of tasks from end to end."""

from pathlib import Path

import pytest

from elmokit import cli

SENTENCES = (
    "Ann B-PER\nsees O\nred B-THING\ndogs I-THING\n\n"
    "Bob B-PER\nlikes O\nblue B-THING\ncats I-THING\n\n"
    "Eve B-PER\nsees O\ngreen B-THING\nowls I-THING\n\n"
)  # fmt: skip
FIT = (
    "fit tagging {0}/train.txt {0}/train.txt --output {0}/tagger --elmo none --word-dim 16 "
    "--hidden-dim 8 --device cpu --max-epochs 1"
)


@pytest.fixture
def train(tmp_path: Path) -> Path:
    (tmp_path / "train.txt").write_text(SENTENCES * 4)
    return tmp_path


def run(command: str, directory: Path, *more: str) -> int:
    return cli.main([*command.format(directory).split(), *more])


def test_fit_predict_and_evaluate_from_end_to_end(
    train: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert run(FIT, train) == 0
    assert run(FIT, train) == 2  # it exists
    assert run(FIT, train, "--overwrite") == 0
    assert run("predict {0}/train.txt --model {0}/tagger --output {0}/out.jsonl", train) == 0
    capsysbinary.readouterr()
    assert run("predict {0}/train.txt --model {0}/tagger --output -", train) == 0
    captured = capsysbinary.readouterr()
    assert captured.out == (train / "out.jsonl").read_bytes()
    assert b"12 examples" in captured.err
    assert run("evaluate {0}/train.txt --model {0}/tagger", train) == 0
    assert capsysbinary.readouterr().out.startswith(b"score ")
