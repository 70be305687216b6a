"""The content of examples, by which two runs are known to have the same data."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elmokit.tasks.identity import _content

SOURCE = Path(__file__).parents[2] / "src"


class Words:
    """An object without a `repr` of its own, which would show its address."""

    def __init__(self, words: list[str]) -> None:
        self.words = words


class Slotted:
    __slots__ = ("words",)

    def __init__(self, words: list[str]) -> None:
        self.words = words


def content(value: Any) -> bytes:
    return b"".join(_content(value))


@pytest.mark.parametrize(
    "of_words",
    [lambda words: np.array(words, dtype=object), lambda words: {"of": np.array(words, dtype=object)}, Words, Slotted],
)
def test_content_depends_on_every_word_and_on_nothing_else(of_words: Any) -> None:
    words = [f"word{number}" for number in range(2000)]  # NumPy's `repr` shows six of them
    changed = [*words[:700], "other", *words[701:]]
    assert content(of_words(words)) == content(of_words(list(words))) != content(of_words(changed))


def test_content_of_a_set_is_the_same_in_every_process() -> None:
    code = "from elmokit.tasks.identity import _content; print(b''.join(_content(frozenset('abcdefgh'))))"
    printed = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(SOURCE)},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert printed == {f"{content(set('abcdefgh'))}\n"}
    assert content({"a", "b"}) != content({"a", "c"}) and content({"ab"}) != content({"a", "b"})
