"""The code and commands of the tutorials run as they stand, from top to bottom, and print what the tutorials show."""

import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from document_examples import BLOCK, run_tutorial, same_output

from elmokit.checkpoints.pretrained import Pretrained
from elmokit.config import BiLMConfig
from elmokit.nn.bilm import BiLM
from elmokit.tasks.config import FitConfig, WordsConfig
from elmokit.tasks.fit import fit
from elmokit.tasks.task import find_task

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


@pytest.fixture
def own_task(tmp_path: Path) -> Any:
    """The task of docs/tutorials/your-own-task.md, and its training set."""
    document = (ROOT / "docs" / "tutorials" / "your-own-task.md").read_text(encoding="utf-8")
    for block in filter(lambda block: block["file"], BLOCK.finditer(document)):
        with (tmp_path / block["file"]).open("a", encoding="utf-8") as file:
            file.write(block["content"])
    return find_task(f"{tmp_path / 'word_in_context.py'}:WordInContextTask")()


def test_own_task_of_the_tutorial_refuses_wrong_examples(own_task: Any, tmp_path: Path) -> None:
    (tmp_path / "wrong.tsv").write_text("bank\t0\t0\tbank\tbank\tsane\n")
    with pytest.raises(ValueError, match=r"line 1: expected a word, two positions, .* and same or different"):
        list(own_task.read(tmp_path / "wrong.tsv"))
    (pair,) = own_task.read(tmp_path / "wrong.tsv", with_answers=False)
    with pytest.raises(ValueError, match="does not say whether the sense is the same"):
        own_task.check(pair)
    for positions in ((-1, 0), (0, -1), (1, 0), (0, 1)):
        with pytest.raises(ValueError, match="is outside of its sentence"):
            own_task.check(replace(pair, same=True, positions=positions))
    own_task.check(replace(pair, same=True))


def test_own_task_of_the_tutorial_reads_elmo_at_its_output(own_task: Any, tmp_path: Path) -> None:
    model = Pretrained(BiLM(BiLMConfig.preset("tiny")))
    words, config = WordsConfig(elmo="output", word_dim=4), FitConfig(max_epochs=2, batch_size=4, device="cpu")
    examples = list(own_task.read(tmp_path / "train.tsv"))
    _, report = fit(own_task, examples, examples, model=model, words=words, config=config, cache=tmp_path / "cache")
    assert report.mixes[0].gamma != 1.0  # it was trained


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
