"""ELMoForManyLangs' vectors and files, and its silent errors."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from efml_files import changed, write_efml

import elmokit
from elmokit import cli
from elmokit.compat.elmoformanylangs import Embedder, elmoformanylangs_test
from elmokit.embed import embedder

MODELS = ["elmo_cnn", "elmo_word", "lstm_cnn"]
SENTENCES = [["the", "cat"], ["今"], ["the", "the", "cat", "."], ["cat", "a/b"]]
NOTICES = [
    "some words are too long",
    "batches are processed longest first",
    "as in ELMoForManyLangs, the encoder lstm",
    "as in ELMoForManyLangs, output_layer",
]

pytestmark = pytest.mark.filterwarnings(*(f"ignore:{notice}" for notice in NOTICES))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_efml(tmp_path / "model")


@pytest.fixture
def joined(tmp_path: Path) -> Path:
    return write_efml(tmp_path / "joined", changed(encoder={"name": "lstm"}))


# --- Vectors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_sents2elmo_equals_elmoformanylangs(goldens: Callable[[str], Path], name: str) -> None:
    folder = goldens("elmoformanylangs")
    sentences = json.loads((folder / "sentences.json").read_text(encoding="utf-8"))
    twice = Embedder(folder / name)
    twice.sents2elmo(sentences)
    result = {
        "second": twice.sents2elmo(sentences, -2),
        "b1_L-2": Embedder(folder / name, 1).sents2elmo(sentences[:2], -2),
    }
    for layer in (-1, 0, -2) if name == "lstm_cnn" else (-1, 0, 1, 2, -2):
        result[f"L{layer}"] = Embedder(folder / name).sents2elmo(sentences, output_layer=layer)
    with np.load(folder / name / "golden.npz") as golden:
        for key, arrays in result.items():
            for number, array in enumerate(arrays):
                assert array.dtype == np.float32
                np.testing.assert_allclose(array, golden[f"{key}_{number}"], atol=1e-6, rtol=0, err_msg=key)
        assert sum(map(len, result.values())) == len(golden.files)


def test_sents2elmo_carries_state_in_the_order_of_lengths(model: Path) -> None:
    """Five calls, beside the original's sorting and rows of state, written out a sentence at a time."""
    calls = [SENTENCES, SENTENCES[::-1], SENTENCES[1:], [["cat"], ["the", "the", "the"]], SENTENCES[:3]]
    bilm, states = elmokit.load(model).bilm, {}
    ours = Embedder(model, 2)
    for sentences in calls:
        expected = {}
        for place, number in enumerate(sorted(range(len(sentences)), key=lambda n: -len(sentences[n]))):
            ids = bilm.token_encoder.ids(["<S>", *sentences[number], "</S>"])
            with torch.no_grad():
                out = bilm(ids[None], state=states.get(place % 2))
            states[place % 2], expected[number] = out.state, out.layers[:, 0, 1:-1].numpy()
        for number, vectors in enumerate(ours.sents2elmo(sentences, -2)):
            np.testing.assert_allclose(vectors, expected[number], atol=1e-5)
    ours.reset_states()
    first = Embedder(model, 2).sents2elmo(SENTENCES, -2)
    np.testing.assert_array_equal(ours.sents2elmo(SENTENCES, -2)[1], first[1])


def test_sents2elmo_raises_for_missing_layers_of_any_model(language_model: Path) -> None:
    result = Embedder(language_model)
    assert result.sents2elmo(SENTENCES, 2)[0].shape == (2, 32)
    assert result.sents2elmo([[]], -2)[0].shape == (3, 0, 32)
    assert result.sents2elmo([]) == []
    with pytest.raises(ValueError, match="from 0 to 2, not 3"):
        result.sents2elmo(SENTENCES, 3)


def test_sents2elmo_reads_padding_only_with_interleaved_directions(joined: Path) -> None:
    alone, together = Embedder(joined, 1).sents2elmo(SENTENCES, -2), Embedder(joined).sents2elmo(SENTENCES, -2)
    assert np.abs(alone[1] - together[1]).max() > 1e-3
    for vectors, expected in zip(embedder.Embedder.load(joined).embed(SENTENCES), alone, strict=True):
        np.testing.assert_allclose(vectors, expected, atol=1e-6)


def test_sents2elmo_warns_of_everything_that_changes_results(model: Path, joined: Path) -> None:
    def notices(call) -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call()
        texts = [str(warning.message) for warning in caught]
        return [
            next(notice for notice in [*NOTICES, "a sentence is a string"] if text.startswith(notice)) for text in texts
        ]

    assert notices(lambda: Embedder(model).sents2elmo(SENTENCES)) == []
    assert notices(lambda: Embedder(model, 2).sents2elmo(SENTENCES)) == [NOTICES[1]]
    assert notices(lambda: Embedder(model).sents2elmo([["a" * 11]])) == [NOTICES[0]]
    assert notices(lambda: Embedder(joined).sents2elmo(SENTENCES)) == NOTICES[2:]
    assert notices(lambda: Embedder(model).sents2elmo(["cat"])) == ["a sentence is a string"]


def arguments(model: Path, folder: Path) -> dict[str, Any]:
    """Arguments of the command: reads in.txt, and writes files that begin with "out"."""
    return {"model": model, "input": folder / "in.txt", "output_prefix": f"{folder}/out", "output_layer": "1"}


# --- Files ---------------------------------------------------------------------------------------------------------


def one_by_one(model: Path, sentences: list[list[str]], batch_size: int) -> list[np.ndarray]:
    """All layers of each sentence, which starts from the final state of the one `batch_size` before it."""
    bilm, states, layers = elmokit.load(model).bilm, [None] * batch_size, []
    for number, words in enumerate(sentences):
        ids = bilm.token_encoder.ids(["<S>", *words, "</S>"])
        with torch.no_grad():
            out = bilm(ids[None], state=states[number % batch_size])
        states[number % batch_size] = out.state
        layers.append(out.layers[:, 0, 1:-1].numpy())
    return layers


def test_command_writes_every_layer_in_every_format(model: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("".join("\t".join(words) + "\n" for words in SENTENCES), encoding="utf-8")
    command = f"compat elmoformanylangs test --input_format plain --input {tmp_path}/in.txt --model {model}"
    command += f" --output_prefix {tmp_path}/out --output_format hdf5,txt --output_layer 0,1,-1 --gpu -1 --batch 3"
    assert cli.main(command.split()) == 0
    expected = one_by_one(model, SENTENCES, 3)
    for layer, choose in ((0, lambda x: x[0]), (1, lambda x: x[1]), (-1, lambda x: x.mean(axis=0))):
        lines = (tmp_path / f"out.ly{layer}.txt").read_text(encoding="utf-8").split("\n\n")
        with h5py.File(tmp_path / f"out.ly{layer}.hdf5") as file:
            assert set(file) == {"the\tcat", "今", "the\tthe\tcat\t$period$", "cat\ta$backslash$b"}
            for words, layers, text in zip(SENTENCES, expected, lines, strict=False):
                key = "\t".join(words).replace(".", "$period$").replace("/", "$backslash$")
                # Batches of 3 and of 1: float32 rounds them differently, by up to 1.5e-6 with AVX-512.
                np.testing.assert_allclose(file[key], choose(layers), atol=2e-6)
                rows = [line.split("\t") for line in text.splitlines()]
                assert [row[0] for row in rows] == words
                np.testing.assert_allclose(np.array([row[1:] for row in rows], float), choose(layers), atol=2e-6)
    assert len(list(tmp_path.glob("out.*"))) == 6


@pytest.mark.parametrize("chunk_sentences", [2, 5, 256])
def test_command_reads_sentences_in_the_order_of_the_file(
    chunk_sentences: int, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elmokit.compat.elmoformanylangs.command.CHUNK_SENTENCES", chunk_sentences)
    sentences = [["the"] * (number * 5 % 7 + 1) + [f"w{number}"] for number in range(9)]
    (tmp_path / "in.txt").write_text("".join("\t".join(words) + "\n" for words in sentences))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "batches are processed longest first")
        elmoformanylangs_test(**arguments(model, tmp_path), batch_size=2)
    with h5py.File(tmp_path / "out.ly1.hdf5") as file:
        for words, layers in zip(sentences, one_by_one(model, sentences, 2), strict=True):
            np.testing.assert_allclose(file["\t".join(words)], layers[1], atol=1e-5)  # rounding depends on the batch


CONLL = "# text = abc cat\n1-2\tabc\n1\tab c\t_\n2\tcat\n2.1\tnone\n\n\n1\tthe\n"


@pytest.mark.parametrize(
    ("format", "keys"),
    [
        ("conll", {"ab c\tcat", "the"}),
        ("conll_char", {"a\tb\t \tc\tc\ta\tt", "t\th\te"}),
        ("conll_char_vi", {"ab\tc\tcat", "the"}),
    ],
)
def test_command_reads_conll_formats(format: str, keys: set[str], model: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text(CONLL)
    elmoformanylangs_test(**arguments(model, tmp_path), input_format=format)
    with h5py.File(tmp_path / "out.ly1.hdf5") as file:
        assert set(file) == keys


def test_command_warns_of_repeated_sentences_and_blank_lines(model: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("the\tcat\n\nthe\tcat\n")
    with pytest.warns(UserWarning, match="are repeated"), pytest.warns(UserWarning, match="blank lines are omitted"):
        elmoformanylangs_test(**arguments(model, tmp_path), output_format="hdf5,txt")
    first, *_, last = (layers[1] for layers in one_by_one(model, [["the", "cat"], [], ["the", "cat"]], 1))
    with h5py.File(tmp_path / "out.ly1.hdf5") as file:
        assert list(file) == ["the\tcat"]
        np.testing.assert_allclose(file["the\tcat"], first, atol=1e-6)
    lines = (tmp_path / "out.ly1.txt").read_text().splitlines()
    assert [line.split("\t")[0] for line in lines] == ["the", "cat", "", "", "the", "cat", ""]
    np.testing.assert_allclose(float(lines[5].split("\t")[1]), last[1, 0], atol=1e-6)


def test_command_writes_words_with_interleaved_directions(joined: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("the\tcat\n")
    elmoformanylangs_test(**arguments(joined, tmp_path))
    with h5py.File(tmp_path / "out.ly1.hdf5") as file:
        assert file["the\tcat"].shape == (2, 32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"output_layer": "0,top"}, "comma-separated numbers"),
        ({"output_layer": "-2"}, "cannot be written"),
        ({"output_layer": "1,7"}, "from 0 to 2, not 7"),
        ({"output_format": "hdf5,npz"}, "not npz"),
        ({"input_format": "json"}, "input_format must be one of"),
        ({"input_format": "conll"}, "no second column"),
        ({"batch_size": 0}, "batch_size"),
    ],
)
def test_command_raises_for_invalid_arguments_and_writes_nothing(
    change: dict[str, str], message: str, model: Path, tmp_path: Path
) -> None:
    (tmp_path / "in.txt").write_text("the cat\n")
    with pytest.raises(ValueError, match=message):
        elmoformanylangs_test(**{**arguments(model, tmp_path), **change})
    assert not list(tmp_path.glob("out*")) and not list(tmp_path.glob(".partial*"))
