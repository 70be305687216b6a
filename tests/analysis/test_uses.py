"""The search for uses of a word in files."""

from pathlib import Path

import numpy as np
import pytest

from elmokit.analysis.uses import Use, uses_in_files, vectors_of_uses
from elmokit.checkpoints.pretrained import Pretrained
from elmokit.config import BiLMConfig
from elmokit.embed.embedder import Embedder
from elmokit.nn.bilm import BiLM


class Ended(Exception):
    """What a caller raises to end a search."""


def test_a_search_for_a_word_that_does_not_occur_can_be_ended(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("a b\n" * 10)
    lines = 0

    def end_at_the_fifth() -> None:
        nonlocal lines
        lines += 1
        if lines == 5:
            raise Ended

    with pytest.raises(Ended):
        list(uses_in_files("c", [tmp_path / "text.txt"], Embedder(), progress=False, on_line=end_at_the_fifth))
    assert lines == 5


def test_a_search_finds_words_in_which_the_tokenizer_removes_invisible_characters(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("The chil\u00addren play.\nThe children sleep.\nNo one.\n", encoding="utf-8")
    found = list(uses_in_files("children", [tmp_path / "text.txt"], Embedder(), progress=False))
    assert [use.sentence for uses in found for use in uses] == [
        ("The", "children", "play", "."),
        ("The", "children", "sleep", "."),
    ]


def test_vectors_of_uses_are_those_of_the_embedder() -> None:
    sentence = tuple(f"word{number}" for number in range(50))
    embedder = Embedder(Pretrained(BiLM(BiLMConfig.preset("tiny"))), device="cpu")
    vectors = vectors_of_uses([Use(sentence, position) for position in range(50)], embedder, "top")
    np.testing.assert_allclose(vectors, embedder.embed([list(sentence)], "top")[0], atol=1e-5)
