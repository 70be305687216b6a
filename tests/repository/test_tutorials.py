"""The code and commands of the tutorials run as they stand, from top to bottom, and print what the
tutorials show.
"""

import shutil
import sys
from pathlib import Path

import pytest
from document_examples import run_tutorial, same_output

ROOT = Path(__file__).parents[2]
# The libraries of elmokit.integrations that the code of a tutorial needs.
LIBRARIES = {
    "onnx": ("onnx", "onnxruntime"),
    "scale-out": ("pyarrow", "ray"),
    "scikit-learn": ("sklearn", "pandas"),
    "sentence-transformers": ("sentence_transformers", "datasets", "accelerate"),
    "spacy": ("spacy",),
    "tables": ("pandas", "pyarrow", "datasets"),
}
# These have a test of their own.
ELSEWHERE = {"serve": "tests/serve/test_server.py"}
DOCS = ROOT / "docs"
FILES = {
    **{path.stem: path for path in sorted((DOCS / "tutorials").glob("*.md"))},
    **{f"zh/{path.stem}": path for path in sorted((DOCS / "zh").glob("*.md"))},
    "extending": DOCS / "extending.md",
    "how-elmo-works": DOCS / "how-elmo-works.md",
}
TUTORIALS = [
    pytest.param(path, id=name, marks=[pytest.mark.integrations] if name in LIBRARIES else [])
    for name, path in FILES.items()
    if name not in ELSEWHERE
]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")  # as a reader sees them
@pytest.mark.filterwarnings(  # of Ray itself
    "ignore::DeprecationWarning:ray", "ignore::FutureWarning:ray", "ignore::ResourceWarning"
)
@pytest.mark.parametrize("tutorial", TUTORIALS)
def test_tutorial_runs(tutorial: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for library in LIBRARIES.get(tutorial.stem, ()):
        pytest.importorskip(library, reason=f"{library} is not installed: make test-integrations")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ELMOKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(tmp_path)
    modules = set(sys.modules)
    different = [
        output for output in run_tutorial(tutorial) if not same_output(output.shown, output.printed)
    ]
    for name in set(sys.modules) - modules:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]
    for output in different:  # python tools/make_tutorials.py writes what is printed now
        assert output.printed == output.shown
