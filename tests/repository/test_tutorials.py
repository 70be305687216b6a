"""The code and commands of the tutorials run as they stand, from top to bottom, and print what the tutorials show."""

import re
import shutil
import sys
from pathlib import Path

import pytest
from document_examples import run_tutorial, same_output

ROOT = Path(__file__).parents[2]
# The libraries that the code of a tutorial needs besides elmokit.
LIBRARIES = {
    "classification": ("sklearn",),
    "onnx": ("onnx", "onnxruntime"),
    "scale-out": ("pyarrow", "ray"),
    "scikit-learn": ("sklearn", "pandas"),
    "sentence-transformers": ("sentence_transformers", "datasets", "accelerate"),
    "spacy": ("spacy",),
    "tables": ("pyarrow", "datasets"),
}
# These have a test of their own.
ELSEWHERE = {"serve": "tests/serve/test_server_tutorial.py"}
FILES = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
TUTORIALS = [path for path in FILES if path.stem not in ELSEWHERE]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")  # as a reader sees them
@pytest.mark.usefixtures("num_threads")  # `pretrain` sets it
@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda path: path.stem)
def test_tutorial_runs(tutorial: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for library in LIBRARIES.get(tutorial.stem, ()):
        pytest.importorskip(library, reason=f"{library} is not installed: make test-integrations")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ELMOKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(tmp_path)
    modules = set(sys.modules)
    different = [output for output in run_tutorial(tutorial) if not same_output(output.shown, output.printed)]
    for name in set(sys.modules) - modules:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]
    for output in different:  # python tools/make_tutorials.py writes what is printed now
        assert output.printed == output.shown


def test_tutorials_are_in_the_navigation_of_the_site() -> None:
    listed = re.findall(r"tutorials/([\w-]+)\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert sorted(listed) == [path.stem for path in FILES]


@pytest.mark.parametrize(
    ("shown", "printed", "is_same"),
    [
        ("a  0.512\nseconds: 1\n", "a 0.533\nseconds: 99", True),
        ("a 0.512", "b 0.512", False),
        ("3 of 4", "4 of 4", False),
        ("accuracy 0.9", "accuracy 0.7", False),
        ("1,234.5 words", "1,300.5 words", True),
        ("one line", "one line\nanother", False),
    ],
)
def test_outputs_are_compared_by_words_integers_and_nearly_by_decimals(shown: str, printed: str, is_same: bool) -> None:
    assert same_output(shown, printed) == is_same


def test_a_tutorial_that_shows_something_else_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    document = tmp_path / "document.md"
    document.write_text(
        "<!-- file: a.txt -->\n```text\nthree\n```\n"
        '```python\nfrom pathlib import Path\nprint(Path("a.txt").read_text(), 0.25)\n```\n'
        "<!-- output -->\n```text\nthree\n 0.2\n```\n"
        "```python\nprint(1)  # 1\n```\n<!-- output -->\n```text\n2\n```\n"
    )
    right, wrong = run_tutorial(document)
    assert same_output(right.shown, right.printed) and right.printed == "three\n 0.25\n"
    assert (wrong.shown, wrong.printed) == ("2\n", "1\n")
    assert document.read_text()[slice(*wrong.span)] == "2\n"
