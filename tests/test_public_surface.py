"""The public names of elmokit, and the arguments that mean the same everywhere."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_model import tiny_model

import elmokit


@pytest.mark.parametrize("name", elmokit.__all__)
def test_public_name_is_importable_listed_and_documented(name: str) -> None:
    value = getattr(elmokit, name)
    assert name in dir(elmokit)
    assert len(value.__doc__) > 20


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Elmoo"):
        elmokit.Elmoo  # noqa: B018


def test_state_policy_is_one_that_a_model_may_have(model: elmokit.Pretrained) -> None:
    with pytest.raises(ValueError, match="zeros, warm, carry, not 'cold'"):
        elmokit.Pretrained(model.bilm, state_policy="cold")  # type: ignore[arg-type]


# --- A model, by whatever it is called ------------------------------------------------------------

SENTENCES = [["a", "b", "b"], ["b", "a"]]
LINES = "".join(" ".join(sentence) + "\n" for sentence in SENTENCES)


@pytest.fixture(scope="module")
def model() -> elmokit.Pretrained:
    """A tiny language model."""
    return tiny_model(["a", "b"])


def embed_lines(directory: Path, model: Any) -> np.ndarray:
    elmokit.embed_file(directory / "text.txt", directory / "vectors", model, device="cpu")
    return np.concatenate([vectors for _, vectors in elmokit.EmbeddingStore(directory / "vectors")])


def encode_lines(directory: Path, model: Any) -> np.ndarray:
    elmokit.encode_file(directory / "text.txt", directory / "lines.npy", model, device="cpu")
    return np.load(directory / "lines.npy")


def values_of(row: Any) -> list[float]:
    return [candidate.log_probability for candidate in row]


USES: dict[str, Callable[[Path, Any], Any]] = {
    "evaluate": lambda directory, model: list(
        elmokit.evaluate([directory / "text.txt"], model, device="cpu").total.values.values()
    ),
    "score": lambda _, model: np.concatenate(
        [score.surprisal for score in elmokit.score(SENTENCES, model, device="cpu")], axis=1
    ),
    "substitutes": lambda _, model: [
        values_of(row) for row in elmokit.substitutes(SENTENCES[0], model, device="cpu")
    ],
    "next_words": lambda _, model: values_of(elmokit.next_words(SENTENCES[0], model, device="cpu")),
    "embed_file": embed_lines,
    "encode_file": encode_lines,
}


@pytest.mark.parametrize("name", USES)
def test_model_may_be_loaded_or_named_by_path(
    name: str, model: elmokit.Pretrained, tmp_path: Path
) -> None:
    elmokit.save(model, tmp_path / "model")
    found = []
    for number, each in enumerate((model, tmp_path / "model", str(tmp_path / "model"))):
        directory = tmp_path / str(number)
        directory.mkdir()
        (directory / "text.txt").write_text(LINES)
        found.append(USES[name](directory, each))
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], rtol=1e-5, atol=1e-6)


def test_bundled_models_are_listed() -> None:
    assert {"en-small", "zh-small"} <= set(elmokit.list_models())
