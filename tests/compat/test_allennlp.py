"""AllenNLP's interface, against the biLM itself, PyTorch's own operations, and the files that
AllenNLP wrote.
"""

import json
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from allennlp_state import allennlp_state_dict
from torch import Tensor

from elmokit.checkpoints.loading import load
from elmokit.compat.allennlp import (
    ConfigurationError,
    Elmo,
    ELMoCharacterMapper,
    ElmoEmbedder,
    ELMoTokenCharactersIndexer,
    ElmoTokenEmbedder,
    Params,
    ScalarMix,
    _ElmoBiLm,
    _ElmoCharacterEncoder,
    batch_to_ids,
)
from elmokit.compat.allennlp.embedder import main
from elmokit.nn.bilm import BiLM
from elmokit.text.characters import encode_words

SENTENCES = [["the", "cat", "is", "on"], [], ["dogs", "are"], [""]]
Files = tuple[Path, Path]


def stateless(elmo: Elmo) -> Elmo:
    for module in elmo.modules():  # as AllenNLP's trainers find it
        if hasattr(module, "stateful") and hasattr(module, "reset_states"):
            module.stateful = False
    return elmo


# --- Elmo -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("boundaries", [False, True])
def test_elmo_representations_are_mixes_of_the_layers(
    files: Files, bilm: BiLM, boundaries: bool
) -> None:
    ids = batch_to_ids(SENTENCES)
    elmo = stateless(Elmo(*files, 2, dropout=0.0, keep_sentence_boundaries=boundaries))
    with torch.no_grad():
        expected = bilm(bilm.token_encoder.add_boundaries(ids)).layers.mean(dim=0)
    out = elmo(ids)
    if not boundaries:
        expected = expected[:, 1:-1] * out["mask"].unsqueeze(-1)
    assert out["mask"].sum(dim=1).tolist() == [length + 2 * boundaries for length in (4, 0, 2, 1)]
    nested = elmo(ids.view(2, 2, *ids.shape[1:]))
    for found, of_nested in zip(
        out["elmo_representations"], nested["elmo_representations"], strict=True
    ):
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(of_nested.flatten(0, 1), expected)
    assert torch.equal(nested["mask"].flatten(0, 1), out["mask"])
    again = pickle.loads(pickle.dumps(elmo))(ids)  # as PyTorch saves whole models
    torch.testing.assert_close(again["elmo_representations"], out["elmo_representations"])


def test_the_state_is_a_pair_that_can_be_assigned_and_changed_in_place(files: Files) -> None:
    elmo = Elmo(*files, 1, dropout=0.0)
    ids = batch_to_ids([["the", "cat", "is", "on"], ["dogs"]])
    lstm = elmo._elmo_lstm._elmo_lstm
    assert lstm._states is None
    layers = elmo._elmo_lstm(ids)["activations"]
    h, c = lstm._states
    assert h.shape == (2, 2, 32)
    assert c.shape == (2, 2, 2 * lstm.cell_size)
    # The last output of the forward half, before the skip connection, is its state; the first layer
    # has none.
    torch.testing.assert_close(h[0, 0, :16], layers[1][0, 5, :16])
    torch.testing.assert_close(h[0, 1, 16:], layers[1][1, 0, 16:])
    second = elmo(ids)["elmo_representations"][0]
    lstm._states = tuple(state.to("cpu") for state in (h, c))
    torch.testing.assert_close(elmo(ids)["elmo_representations"][0], second)
    for part in lstm._states:
        part.zero_()
    torch.testing.assert_close(elmo._elmo_lstm(ids)["activations"][2], layers[2])
    lstm._states = None
    torch.testing.assert_close(elmo._elmo_lstm(ids)["activations"][2], layers[2])


def test_modules_of_the_bilm_work_alone(files: Files) -> None:
    bilm = _ElmoBiLm(*files)
    ids = batch_to_ids(SENTENCES)
    expected = bilm(ids)
    bilm._elmo_lstm.reset_states()
    embedded = bilm._token_embedder(ids)
    assert torch.equal(embedded["mask"], expected["mask"])
    words = embedded["token_embedding"]
    mask = embedded["mask"]
    torch.testing.assert_close(words.repeat(1, 1, 2) * mask[..., None], expected["activations"][0])
    layers = bilm._elmo_lstm(embedded["token_embedding"], embedded["mask"])
    torch.testing.assert_close(list(layers), expected["activations"][1:])


# --- Characters -----------------------------------------------------------------------------------


def by_pytorch(weights: dict[str, Tensor], ids: Tensor) -> Tensor:
    """The token vectors of words (U, 50) with PyTorch's own operations and AllenNLP's weights."""
    weights = {
        name.removeprefix("_elmo_lstm._token_embedder."): weight for name, weight in weights.items()
    }
    characters = F.embedding(ids, weights["_char_embedding_weights"]).transpose(1, 2)
    names = sorted(
        name.removesuffix(".bias")
        for name in weights
        if "char_conv" in name and name.endswith("bias")
    )
    pooled = [
        F.conv1d(characters, weights[f"{name}.weight"], weights[f"{name}.bias"]).amax(-1)
        for name in names
    ]
    x = torch.relu(torch.cat(pooled, dim=1))
    new, gate = F.linear(
        x, weights["_highways._layers.0.weight"], weights["_highways._layers.0.bias"]
    ).chunk(2, dim=1)
    x = gate.sigmoid() * x + (1 - gate.sigmoid()) * torch.relu(new)
    return F.linear(x, weights["_projection.weight"], weights["_projection.bias"])


def test_characters_of_id_0_in_a_word_have_a_row_of_the_table(files: Files) -> None:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1, 262, (3, 4, 50), generator=generator)
    ids[torch.rand(ids.shape, generator=generator) < 0.3] = 0
    ids[2, 2:] = 0
    mask = (ids > 0).any(dim=-1)
    weights = allennlp_state_dict(files[1], layers=2, highways=1)
    encoder = _ElmoCharacterEncoder(*files, requires_grad=True)
    bilm = _ElmoBiLm(*files)
    with torch.no_grad():
        for table in (
            encoder._char_embedding_weights,
            bilm._token_embedder._char_embedding_weights,
        ):
            table[0] = 0.5
    weights["_elmo_lstm._token_embedder._char_embedding_weights"][0] = 0.5
    expected = by_pytorch(weights, ids[mask])
    by_encoder = encoder(ids)["token_embedding"][:, 1:-1]
    torch.testing.assert_close(by_encoder[mask], expected, atol=2e-6, rtol=1e-5)
    at_padding = by_pytorch(weights, torch.zeros(1, 50, dtype=torch.long))
    torch.testing.assert_close(encoder(ids)["token_embedding"][2, -1:], at_padding)
    by_bilm = bilm(ids)["activations"][0][:, 1:-1]
    torch.testing.assert_close(by_bilm[mask], expected.repeat(1, 2), atol=2e-6, rtol=1e-5)
    by_encoder.square().sum().backward()
    assert all(weight.grad is not None and weight.grad.any() for weight in encoder.parameters())
    assert encoder._char_embedding_weights.grad[0].any()
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: encoder(ids)["token_embedding"][:, 1:-1], range(20)):
            torch.testing.assert_close(found, by_encoder)


@pytest.fixture
def narrow(files: Files, tmp_path: Path) -> Files:
    """The files of the same weights in a model that reads 8 characters of a word."""
    options = json.loads(files[0].read_text())
    options["char_cnn"]["max_characters_per_token"] = 8
    (tmp_path / "narrow.json").write_text(json.dumps(options))
    return tmp_path / "narrow.json", files[1]


def test_models_read_words_of_their_own_width(files: Files, narrow: Files) -> None:
    whole = batch_to_ids([["a", "bc"]])
    encoder = _ElmoCharacterEncoder(*files)
    torch.testing.assert_close(
        encoder(whole[..., :5])["token_embedding"], encoder(whole)["token_embedding"]
    )
    for module in (Elmo(*narrow, 1), _ElmoBiLm(*narrow), _ElmoCharacterEncoder(*narrow)):
        with pytest.raises(ConfigurationError, match="8"):
            module(whole)
    with pytest.warns(UserWarning, match="more than 6 bytes"):
        (found,) = ElmoEmbedder(*narrow).embed_batch([["the", "sentences"]])
    bilm = load(narrow[1].parent).bilm
    model = BiLM(replace(bilm.config, char_cnn=replace(bilm.config.char_cnn, max_characters=8)))
    model.load_state_dict(bilm.state_dict())
    with torch.no_grad():
        layers = model(
            torch.from_numpy(encode_words(["<S>", "the", "senten", "</S>"], 8)).long()[None]
        ).layers
    np.testing.assert_allclose(found, layers[:, 0, 1:-1], atol=1e-6)
    cached = _ElmoBiLm(*narrow, vocab_to_cache=["pad", "the", "sentences"])
    by_words = cached(torch.tensor([[1, 2]]), torch.tensor([[1, 2]]))["activations"]
    torch.testing.assert_close(torch.stack(by_words)[:, 0, 1:-1], torch.from_numpy(found))


@pytest.mark.parametrize(
    ("word", "ids"),
    [
        ("<S>", [259, 257, 260]),
        ("</S>", [259, 258, 260]),
        ("\u0100t", [259, 197, 129, 117, 260]),
        ("", [259, 260]),
        ("<first>", [259, 2, 260]),
    ],
)
def test_indexer_gives_the_bytes_of_a_word_plus_one(word: str, ids: list[int]) -> None:
    indexer = ELMoTokenCharactersIndexer(tokens_to_add={"<first>": 1})
    expected = [*ids, *[261] * (50 - len(ids))]
    for token in (word, SimpleNamespace(text=word)):
        assert indexer.tokens_to_indices([token], None) == {"elmo_tokens": [expected]}
        assert indexer.tokens_to_indices([token], None, "name") == {"name": [expected]}
    if word != "<first>":
        assert ELMoCharacterMapper.convert_word_to_char_ids(word) == expected  # as in AllenNLP 0.9
    assert indexer._mapper.convert_word_to_char_ids(word) == expected


# --- Words in place of characters -----------------------------------------------------------------


def test_word_ids_stand_for_words_of_a_cached_vocabulary(files: Files) -> None:
    words = ["@@PADDING@@", "the", "cat", "is", "on", "dogs"]
    elmo = stateless(Elmo(*files, 1, dropout=0.0, vocab_to_cache=words))
    sentences = [["the", "cat", "is", "on"], ["dogs"]]
    ids = torch.tensor([[1, 2, 3, 4], [5, 0, 0, 0]])
    characters = batch_to_ids(sentences)
    expected = elmo(characters)["elmo_representations"][0]
    # Nested ids, too; an id outside the vocabulary has its words read by character.
    for inputs in ((ids, ids), (ids.unsqueeze(0), ids.unsqueeze(0)), (characters, ids + 1)):
        torch.testing.assert_close(
            elmo(*inputs)["elmo_representations"][0].view_as(expected), expected
        )
    for rows in (ids + 5, torch.tensor([[[1, 2, 9]]]), torch.tensor([[[1, 2], [9, 0]]])):
        with pytest.raises(ConfigurationError, match="batch_to_ids"):
            elmo(rows, rows)


# --- Settings -------------------------------------------------------------------------------------


def test_from_params_builds_from_settings(files: Files, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"options_file": files[0], "weight_file": files[1]}
    spelled = {
        "num_output_representations": "2",
        "dropout": "0.25",
        "keep_sentence_boundaries": "false",
    }
    elmo = Elmo.from_params(Params({**settings, **spelled}))
    assert len(elmo._scalar_mixes) == 2
    assert elmo._dropout.p == 0.25
    assert elmo(batch_to_ids(SENTENCES))["mask"].shape == (4, 4)  # without boundaries
    params = Params({"embedder": {**settings, "type": "elmo_token_embedder", "projection_dim": 5}})
    embedder = ElmoTokenEmbedder.from_params(vocab=None, params=params["embedder"])
    ids = batch_to_ids(SENTENCES)
    assert (
        embedder(ids).shape
        == embedder(inputs=ids).shape
        == embedder(elmo_tokens=ids).shape
        == (4, 4, 5)
    )
    params["embedder"].assert_empty("ElmoTokenEmbedder")
    assert (
        ElmoTokenEmbedder.from_params(None, settings).get_output_dim() == 32
    )  # as in AllenNLP 0.9
    (tmp_path / "config.json").write_text('{"mixture_size": "2", "trainable": "false"}')
    assert not ScalarMix.from_params(Params.from_file(tmp_path / "config.json")).gamma.requires_grad
    for wrong in ({"typo": 1}, {"dropout": "half"}, {"requires_grad": "no"}):
        with pytest.raises(ValueError, match=r"typo|Expecting"):
            ElmoTokenEmbedder.from_params({**settings, **wrong})


# --- ElmoEmbedder ---------------------------------------------------------------------------------


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", ["allennlp", "elmo", *map(str, arguments)])
    main(prog="allennlp")


@pytest.mark.parametrize("flag", ["all", "top", "average"])
def test_allennlp_elmo_writes_the_layers_of_the_embedder(
    files: Files, tmp_path: Path, flag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ["the cat is on the mat", "dogs are in the fog", "the cat is on the mat"]
    text = tmp_path / "in.txt"
    out = tmp_path / "out.hdf5"
    text.write_text("\n".join(lines) + "\n")
    named = ["--options-file", files[0], "--weight-file", files[1], "--batch-size", 2]
    with pytest.warns(UserWarning, match="the last line of each"):
        run(monkeypatch, text, out, f"--{flag}", *named, "--include-package", "one")
    expected = list(
        ElmoEmbedder(*files).embed_sentences([line.split() for line in lines], batch_size=2)
    )
    choose = {
        "all": lambda x: x,
        "top": lambda x: x[-1],
        "average": lambda x: np.average(x, axis=0),
    }[flag]
    with h5py.File(out) as file:
        assert set(file) == {"0", "1", "2", "sentence_to_index"}
        for line, layers in enumerate(expected):
            np.testing.assert_allclose(file[str(line)], choose(layers), atol=1e-6)
        assert json.loads(file["sentence_to_index"][0]) == {lines[0]: "2", lines[1]: "1"}
    text.write_text("the cat\ndogs\n")
    for option, keys in (
        ("--forget-sentences", {"0", "1"}),
        ("--use-sentence-keys", {"the cat", "dogs"}),
    ):
        run(monkeypatch, text, out, f"--{flag}", *named, option)
        with h5py.File(out) as file:
            assert set(file) == keys


@pytest.mark.filterwarnings("ignore:HDF5 turns keys with a slash")
@pytest.mark.parametrize(
    ("lines", "by_sentence"),
    [
        (["the", ""], False),
        (["dogs", "dogs"], True),
        (["a", "a/b"], True),
        (["a/b", "a"], True),
        (["dogs", "."], True),
    ],
)
def test_lines_that_cannot_be_written_are_named_and_nothing_is_written(
    lines: list[str], by_sentence: bool, files: Files, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match="line 1"):
        ElmoEmbedder(*files).embed_file(lines, tmp_path / "out.hdf5", use_sentence_keys=by_sentence)
    assert list(tmp_path.iterdir()) == []
