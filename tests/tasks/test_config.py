"""Settings that are checked where they are made, also from Python."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from toy_tasks import toy_tasks

from elmokit.tasks.classification import ClassificationConfig
from elmokit.tasks.config import ColumnsConfig, FitConfig, WordsConfig, check_choices
from elmokit.tasks.coreference import CoreferenceConfig
from elmokit.tasks.fit import fit
from elmokit.tasks.pairs import PairsConfig
from elmokit.tasks.tagging import TaggingConfig, TaggingTask
from elmokit.tasks.task_model import load_task_model


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


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"batch_size": "4"}, "batch_size must be an integer, not '4'"),
        ({"max_epochs": 2.5}, "max_epochs must be an integer, not 2.5"),
        ({"learning_rate": None}, "learning_rate must be a number, not None"),
        ({"patience": True}, "patience must be an integer, not True"),
    ],
)
def test_settings_refuse_what_is_no_number(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FitConfig(**wrong)


def test_numbers_of_numpy_become_those_of_python(tmp_path: Path) -> None:
    """As in a search over settings. PyTorch would refuse NumPy's integers, and JSON all of its numbers."""
    settings = TaggingConfig(hidden_dim=np.int64(4), dropout=np.float32(0.5))  # type: ignore[arg-type]
    assert [type(settings.hidden_dim), type(settings.dropout)] == [int, float]
    toy, words = toy_tasks()["tagging"], WordsConfig(elmo="none", word_dim=np.int64(4))  # type: ignore[arg-type]
    config = FitConfig(max_epochs=np.int32(1), learning_rate=np.float32(0.001))  # type: ignore[arg-type]
    fit(TaggingTask(settings), toy.examples, toy.examples, output=tmp_path / "model", words=words, config=config)
    assert load_task_model(tmp_path / "model").task.config == TaggingConfig(hidden_dim=4, dropout=0.5)


@pytest.mark.parametrize(
    ("kind", "name"), [(WordsConfig, "rare_word_dropout"), (CoreferenceConfig, "mentions_per_word")]
)
@pytest.mark.parametrize("value", ["0.5", None, True])
def test_settings_with_bounds_of_their_own_refuse_what_is_no_number(kind: type, name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name} must be a number, not {value!r}"):
        kind(**{name: value})


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
