"""Settings that are checked where they are made, also from Python."""

from dataclasses import dataclass
from typing import Any, Literal

import pytest

from elmokit.tasks.classification import ClassificationConfig
from elmokit.tasks.config import ColumnsConfig, WordsConfig, check_choices
from elmokit.tasks.pairs import PairsConfig
from elmokit.tasks.tagging import TaggingConfig


@pytest.mark.parametrize(
    "kind, wrong",
    [
        (WordsConfig, {"elmo": "inputs"}),
        (WordsConfig, {"mix": "tops"}),
        (WordsConfig, {"encoder_pooling": "max"}),
        (WordsConfig, {"storage_dtype": "bfloat16"}),
        (ColumnsConfig, {"format": "CoNLL-U"}),
        (TaggingConfig, {"decoder": "CRF"}),
        (TaggingConfig, {"format": "tsv"}),
        (ClassificationConfig, {"network": "biatentive"}),
        (PairsConfig, {"target": "labels"}),
    ],
    ids=str,
)
def test_settings_refuse_a_misspelled_choice(kind: type, wrong: dict[str, Any]) -> None:
    ((name, value),) = wrong.items()
    with pytest.raises(ValueError, match=f"{name} must be one of .*, not '{value}'"):
        kind(**wrong)


def test_check_choices_accepts_each_choice_and_none_where_the_type_does() -> None:
    @dataclass
    class Settings:
        one: Literal["a", "b"]
        other: Literal[1, 2] | None
        text: str = "c"

    check_choices(Settings("b", None))
    check_choices(Settings("a", 2))
    for wrong in (Settings("a", 3), Settings(None, 1)):  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="must be one of"):
            check_choices(wrong)
