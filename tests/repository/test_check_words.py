"""The check of names and prose, on small violations of every rule and on lines that only look like one."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from check_words import OWN_FILES, RULES, _files, check, check_names, check_patches, check_text, main  # noqa: E402

# A violation of each rule, in order, in a file to which the rule applies.
EXAMPLES = [
    "    room = rooms.take(size)",
    "# The pool lends its memory.",
    "    give_back_freed_memory()",
    "# what is multiplied beside h",
    "# used behind the caller",
    "# its result comes back",
    "    then_leave(worker)",
    "    call_for(memory)",
    "packed weights of a layer",
    "the layers are made ready once",
    "must be a whole number",
    "gates lie K rows apart",
    "kept_graph = True",
    "vectors in text order",
    "if config.joins_directions:",
    "class WordsAndCharactersEncoder:",
    "from elmokit.text.lexicon import encode",
    "a missing file is told of",
    "named as one likes",
    "embed_file(text, output, products=dtype)",
]


@pytest.mark.parametrize(("rule", "line"), list(zip(RULES, EXAMPLES, strict=True)))
def test_check_text_reports_each_expression_with_its_line(rule, line: str) -> None:
    path = f"{rule.where[0]}example.py" if rule.where[0] else "src/elmokit/example.py"
    (violation,) = check_text(path, f"first = 1\n{line}\n")
    assert (violation.path, violation.line) == (path, 2) and rule.instead in violation.message


def test_check_text_accepts_terms_of_the_field_and_other_packages() -> None:
    lines = ["prepacked weights", "the packed stream", "an interleaved LSTM", "mushrooms", "lexical", "a fresh start"]
    assert not list(check_text("src/elmokit/nn/example.py", "\n".join(lines)))
    assert not list(check_text("src/elmokit/analysis/example.py", "the river beside the bank that lent money"))


def test_check_text_accepts_older_keys_where_they_are_read() -> None:
    assert not list(check_text("src/elmokit/config.py", 'LATER = {"interleaved": "joins_directions"}'))
    assert list(check_text("src/elmokit/nn/lstm.py", 'LATER = {"interleaved": "joins_directions"}'))


@pytest.mark.parametrize(
    "code", ["found = 1", "for piece in text: pass", "def f(wanted): pass", "made: int = 2", "(found, b) = 1, 2"]
)
def test_check_names_reports_vague_variables_and_arguments(code: str) -> None:
    (violation,) = check_names("src/elmokit/example.py", code)
    assert violation.line == 1 and "noun" in violation.message


def test_check_names_accepts_attributes_and_other_names() -> None:
    assert not list(check_names("src/elmokit/example.py", "matches = report.found\nfounded = found_files"))


@pytest.mark.parametrize(
    "patch",
    [
        'import elmokit.ops.native.lstm as kernel\nmonkeypatch.setattr(kernel, "_fits", None)',
        'from elmokit.ops import dispatch\nmonkeypatch.setattr(dispatch, "_available", lambda: ())',
        'from elmokit.nn.inference import Frozen\nmonkeypatch.delattr(Frozen, "_check")',
        'monkeypatch.setattr("elmokit.embed.pipeline._kernel", None)',
        'from unittest import mock\nmock.patch("elmokit.ops._library.load")',
        'from unittest.mock import patch\nfrom elmokit.ops import gemm\npatch.object(gemm, "_product")',
    ],
)
def test_check_patches_reports_private_names_of_computing_packages(patch: str) -> None:
    (violation,) = check_patches("tests/ops/test_example.py", patch)
    assert violation.line == patch.count("\n") + 1 and "private name elmokit." in violation.message


@pytest.mark.parametrize(
    "patch",
    [
        'import elmokit.ops.native.lstm as kernel\nmonkeypatch.setattr(kernel, "ROWS", 1)',
        'from elmokit.data import corpus\nmonkeypatch.setattr(corpus, "_blocks", None)',
        'import torch\nmonkeypatch.setattr(torch, "_C", None)',
        'monkeypatch.setenv("ELMOKIT_BACKEND", "reference")',
        'monkeypatch.setattr("elmokit.ops.workspace._Block", fail)',  # a failure, listed as allowed
        'from elmokit.nn.bilm import BiLM\nmonkeypatch.setattr(BiLM, "__call__", None)',
    ],
)
def test_check_patches_accepts_public_names_and_other_packages(patch: str) -> None:
    assert not list(check_patches("tests/ops/test_example.py", patch))


def test_check_skips_history() -> None:
    assert check([ROOT / "docs" / "log.md", *(ROOT / "docs" / "decisions").iterdir()]) == []


def test_check_skips_its_own_rules_and_examples() -> None:
    assert check([ROOT / name for name in OWN_FILES]) == []


def test_files_are_all_of_the_repository_that_have_code_or_prose() -> None:
    named = {*ROOT.glob("*.md"), *ROOT.glob("*.py"), *(ROOT / "tools").glob("*.py"), *(ROOT / "examples").rglob("*.py")}
    assert named <= set(_files()) and ROOT / "examples" / "demo.sh" in _files()


def test_main_returns_0_for_a_file_without_violations(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(ROOT / "src" / "elmokit" / "cli" / "verbs.py")]) == 0
    assert not capsys.readouterr().out


def test_main_prints_file_and_line_and_returns_1(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("check_words.ROOT", tmp_path)
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "bad.py").write_text("# fine\n# a whole number\n")
    assert main([]) == 1
    assert capsys.readouterr().out.startswith('src/bad.py:2: "whole number" (integers): write integers')
