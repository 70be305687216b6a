"""The public names of elmokit, and the arguments that mean the same everywhere."""

from collections.abc import Callable
from dataclasses import astuple, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import elmokit
from elmokit.nn.softmax import FullSoftmax


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
    torch.manual_seed(1)
    vocab = elmokit.Vocab(["<S>", "</S>", "<UNK>", "a", "b"])
    bilm = elmokit.BiLM(elmokit.BiLMConfig.preset("tiny"))
    return elmokit.Pretrained(bilm, softmax=FullSoftmax(len(vocab), 16), vocab=vocab)


def embed_lines(directory: Path, model: Any) -> np.ndarray:
    elmokit.embed_file(directory / "text.txt", directory / "vectors", model, device="cpu")
    return np.concatenate([vectors for _, vectors in elmokit.EmbeddingStore(directory / "vectors")])


def encode_lines(directory: Path, model: Any) -> np.ndarray:
    elmokit.encode_file(directory / "text.txt", directory / "lines.npy", model, device="cpu")
    return np.load(directory / "lines.npy")


USES: dict[str, Callable[[Path, Any], Any]] = {
    "evaluate": lambda directory, model: (
        elmokit.evaluate([directory / "text.txt"], model, device="cpu").total
    ),
    "score": lambda _, model: [
        score.surprisal.tolist() for score in elmokit.score(SENTENCES, model, device="cpu")
    ],
    "substitutes": lambda _, model: elmokit.substitutes(SENTENCES[0], model, device="cpu"),
    "next_words": lambda _, model: elmokit.next_words(SENTENCES[0], model, device="cpu"),
    "embed_file": embed_lines,
    "encode_file": encode_lines,
}


def as_lists(result: Any) -> Any:
    """Dataclasses, tuples and arrays as nested lists."""
    if isinstance(result, np.ndarray):
        return result.tolist()
    if is_dataclass(result):
        result = astuple(result)  # type: ignore[arg-type]
    return list(map(as_lists, result)) if isinstance(result, list | tuple) else result


def assert_close(result: Any, expected: Any) -> None:
    """Words are equal, numbers to the last digits of float32."""
    if isinstance(expected, list):
        for one, other in zip(result, expected, strict=True):
            assert_close(one, other)
    else:
        assert result == (
            pytest.approx(expected, rel=1e-5, abs=1e-6) if isinstance(expected, float) else expected
        )


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
        assert_close(as_lists(other), as_lists(found[0]))


def test_list_models_names_what_load_finds() -> None:
    assert "en-small" in elmokit.list_models()
    assert elmokit.load("en-small", softmax=False).config == elmokit.load(softmax=False).config
