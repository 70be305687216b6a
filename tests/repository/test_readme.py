"""The README's Python and its commands run as they stand, from top to bottom."""

import re
import shlex
from glob import glob
from pathlib import Path
from typing import get_args

import pytest

from elmokit.cli import Verb, main

ROOT = Path(__file__).resolve().parents[2]
BUNDLED_MODEL = ROOT / "src/elmokit/models/en-small/config.json"


def _python_blocks(markdown: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", markdown, flags=re.DOTALL | re.MULTILINE)


def test_the_python_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not BUNDLED_MODEL.is_file():
        pytest.skip(f"bundled model missing: no {BUNDLED_MODEL}")
    blocks = _python_blocks((ROOT / "README.md").read_text(encoding="utf-8"))
    assert blocks, "the README has no Python example"
    monkeypatch.chdir(tmp_path)  # whatever the examples write
    names: dict[str, object] = {"__name__": "readme"}
    for number, block in enumerate(blocks, start=1):
        exec(compile(block, f"README.md, Python block {number}", "exec"), names)


RAW = "Colorless green ideas sleep furiously. The cat sat on the mat, and the dog slept.\n\nI like apples.\n"
TEXT = "The play opened on Broadway .\nThe children play in the garden .\nThey play chess .\nI like to eat apple .\n"
TAGGED = "".join(f"{n}\t{word}\t_\t{tag}\t_\t_\t_\t_\t_\t_\n" for n, (word, tag) in enumerate(
    [("The", "DET"), ("dog", "NOUN"), ("sleeps", "VERB"), (".", "PUNCT")], start=1
)) + "\n"  # fmt: skip


def _commands(console: str) -> list[list[str]]:
    """The arguments of each command, split and expanded as a shell does."""
    lines = (shlex.split(line, comments=True) for line in console.replace("\\\n", " ").splitlines())
    return [[name for word in line for name in sorted(glob(word)) or [word]] for line in lines if line]


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # as a user sees them
@pytest.mark.usefixtures("num_threads")  # `pretrain` sets it
def test_the_commands_of_the_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not BUNDLED_MODEL.is_file():
        pytest.skip(f"bundled model missing: no {BUNDLED_MODEL}")
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/one.txt").write_text(RAW * 40)
    for name in ("corpus.txt", "sentences.txt", "heldout.txt", "domain.txt"):
        (tmp_path / name).write_text(TEXT)
    for name in ("train.conllu", "dev.conllu", "test.conllu"):
        (tmp_path / name).write_text(TAGGED * 3)
    word = tmp_path / "coarsewsd20" / "bank"
    word.mkdir(parents=True)
    (word / "classes_map.txt").write_text('{"0": "money", "1": "river"}')
    for split in ("train", "test"):
        (word / f"{split}.data.txt").write_text("1\tthe bank lent money\n0\tbank of a river\n")
        (word / f"{split}.gold.txt").write_text("0\n1\n")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```console\n(elmokit .*?)^```$", readme, flags=re.DOTALL | re.MULTILINE)
    assert blocks, "the README has no tour of the commands"
    monkeypatch.chdir(tmp_path)
    for block in blocks:
        for program, *arguments in _commands(block):
            assert program == "elmokit" and main(arguments) == 0, arguments


def test_the_readme_names_every_verb() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    names = [re.sub(r"(?<!^)(?=[A-Z])", "-", kind.__name__).lower() for kind in get_args(Verb)]
    assert [verb for verb in names if f"elmokit {verb}" not in readme.replace("\n", " ")] == []
