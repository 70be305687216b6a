"""Tests lie as the code does: `tests/<package>/test_<module>.py`, or `test_<module>_<subject>.py`.

A module that each backend has, such as `lstm`, is tested for all of them in `tests/ops`.
"""

from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PACKAGE = TESTS.parent / "src" / "elmokit"
OF_NO_MODULE = {
    "cli/test_cli.py": "the command line as a whole",
    "cli/test_sequence_encoders.py": "all verbs with models of every kind",
    "compat/test_flair.py": "a library that imports another one",
    "compat/test_goldens.py": "several libraries against what they computed",
    "compat/test_prepacking.py": "the same promise of several libraries",
    "compat/test_snippets.py": "programs as people wrote them",
    "compat/test_stateless_models.py": "what several libraries refuse",
    "embed/test_sequence_encoders.py": "all of embedding with models of every kind",
    "golden/test_goldens.py": "the network as a whole",
    "nn/test_sequence_encoders.py": "the same promises of several modules",
    "ops/test_dropout.py": "an op without a module of its own",
    "test_public_surface.py": "the package as a whole",
}
FILES = sorted(path.relative_to(TESTS) for path in TESTS.rglob("test_*.py"))


@pytest.mark.parametrize("file", [file for file in FILES if file.parts[0] != "repository"], ids=str)
def test_every_test_file_is_named_after_a_module(file: Path) -> None:
    modules = {path.stem for path in (PACKAGE / file.parent).rglob("*") if path.suffix in ("", ".py")}
    words = file.stem.split("_")[1:]
    names = {"_".join(words[:count]) for count in range(1, len(words) + 1)}
    assert (file.as_posix() in OF_NO_MODULE) != bool(names & modules)


def test_exceptions_of_the_layout_exist() -> None:
    assert set(OF_NO_MODULE) <= {file.as_posix() for file in FILES}
