"""Update the outputs shown in the tutorials: the blocks after <!-- output -->.

    python tools/make_tutorials.py [NAME ...]   # e.g. embed; by default, all that can run here

Tutorials are run as in tests/repository/test_tutorials.py, each in a separate directory with a copy
of examples/. A tutorial that needs a library which is not installed is left unchanged. Read the
changes before you commit them: the sentences around an output must still be true.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [
    str(ROOT / "src"),
    str(ROOT / "tests" / "support"),
    str(ROOT / "tests" / "repository"),
]
from document_examples import run_tutorial  # noqa: E402
from test_tutorials import ELSEWHERE, FILES, LIBRARIES  # noqa: E402


def update(tutorial: Path) -> int:
    """Run a tutorial and write its outputs; returns the number of outputs that changed."""
    with TemporaryDirectory() as directory:
        shutil.copytree(ROOT / "examples", Path(directory) / "examples")
        os.chdir(directory)
        os.environ["ELMOKIT_CACHE"] = str(Path(directory) / "cache")
        sys.path.insert(0, directory)
        outputs = run_tutorial(tutorial)
        sys.path.remove(directory)
        os.chdir(ROOT)
    text = tutorial.read_text(encoding="utf-8")
    for (begin, end), _, printed in reversed(outputs):
        text = text[:begin] + printed.rstrip("\n") + "\n" + text[end:]
    tutorial.write_text(text, encoding="utf-8")
    return sum(printed != shown for _, shown, printed in outputs)


def main() -> None:
    tutorials = {name: path for name, path in FILES.items() if name not in ELSEWHERE}
    names = sys.argv[1:] or list(tutorials)
    if unknown := set(names) - set(tutorials):
        sys.exit(f"no tutorials of these names: {', '.join(sorted(unknown))}")
    for name in names:
        missing = [
            library for library in LIBRARIES.get(name, ()) if not importlib.util.find_spec(library)
        ]
        outcome = (
            f"needs {', '.join(missing)}"
            if missing
            else f"{update(tutorials[name])} outputs changed"
        )
        print(f"{name}: {outcome}", flush=True)


if __name__ == "__main__":
    main()
