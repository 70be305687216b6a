"""AllenNLP's arguments, against the biLM itself; and the files of its command."""

import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from allennlp_state import allennlp_state_dict
from efml_files import changed, write_efml
from torch import Tensor, nn

from elmokit.checkpoints.loading import load
from elmokit.compat.allennlp import (
    DEFAULT_OPTIONS_FILE,
    DEFAULT_WEIGHT_FILE,
    ConfigurationError,
    Elmo,
    ElmoEmbedder,
    ElmoTokenEmbedder,
    _ElmoBiLm,
    _ElmoCharacterEncoder,
    allennlp_elmo,
    batch_to_ids,
)
from elmokit.nn.bilm import BiLM
from elmokit.nn.elmo import add_boundaries
from elmokit.text.characters import encode_words

SENTENCES = [["the", "cat", "is", "on"], [], ["dogs", "are"], [""]]


def mean_layer(bilm: BiLM, ids: Tensor) -> Tensor:
    """The average of the layers of the biLM, boundaries included."""
    with torch.no_grad():
        return bilm(add_boundaries(ids, bilm.token_encoder)).layers.mean(dim=0)


def test_elmo_representations_are_mixes_of_the_layers(files: tuple[Path, Path], bilm: BiLM) -> None:
    ids = batch_to_ids(SENTENCES)
    out = Elmo(*files, 2, dropout=0.0)(ids)
    assert out["mask"].sum(dim=1).tolist() == [4, 0, 2, 1]
    for representation in out["elmo_representations"]:
        expected = mean_layer(bilm, ids)[:, 1:-1] * out["mask"].unsqueeze(-1)
        torch.testing.assert_close(representation, expected)


def test_elmo_keeps_boundaries_on_request(files: tuple[Path, Path], bilm: BiLM) -> None:
    ids = batch_to_ids(SENTENCES)
    out = Elmo(*files, 1, dropout=0.0, keep_sentence_boundaries=True)(ids)
    assert out["mask"].sum(dim=1).tolist() == [6, 2, 4, 3]
    torch.testing.assert_close(out["elmo_representations"][0], mean_layer(bilm, ids))


def test_elmo_restores_additional_dimensions(files: tuple[Path, Path]) -> None:
    ids = batch_to_ids(SENTENCES)
    elmo = Elmo(*files, 1, dropout=0.0)
    flat = elmo(ids)
    elmo._elmo_lstm._elmo_lstm.reset_states()
    nested = elmo(ids.view(2, 2, *ids.shape[1:]))
    assert nested["elmo_representations"][0].shape == (2, 2, 4, 32)
    assert nested["mask"].shape == (2, 2, 4)
    torch.testing.assert_close(nested["elmo_representations"][0].flatten(0, 1), flat["elmo_representations"][0])


def test_elmo_trains_only_mixes_unless_requires_grad(files: tuple[Path, Path]) -> None:
    ids = batch_to_ids(SENTENCES)
    for requires_grad in (False, True):
        elmo = Elmo(*files, 1, requires_grad=requires_grad, dropout=0.0)
        elmo(ids)["elmo_representations"][0].sum().backward()
        grads = {name: parameter.grad for name, parameter in elmo.named_parameters()}
        assert grads["scalar_mix_0.gamma"] is not None and grads["scalar_mix_0.scalar_parameters.0"] is not None
        assert all((grad is not None) == requires_grad for name, grad in grads.items() if "bilm" in name)
        elmo(ids)["elmo_representations"][0].sum().backward()  # the carried state is detached


def test_gradients_follow_requires_grad_as_it_is_now(files: tuple[Path, Path]) -> None:
    ids, elmo = batch_to_ids(SENTENCES), Elmo(*files, 1, requires_grad=False)
    elmo._elmo_lstm.requires_grad_(True)
    elmo(ids)["elmo_representations"][0].sum().backward()
    assert all(weight.grad is not None for weight in elmo._elmo_lstm.parameters())
    elmo._elmo_lstm.requires_grad_(False)
    elmo.zero_grad()
    elmo(ids)["elmo_representations"][0].sum().backward()
    assert all(weight.grad is None for weight in elmo._elmo_lstm.parameters())


def test_elmo_loads_the_state_dict_of_allennlp(files: tuple[Path, Path]) -> None:
    state = allennlp_state_dict(files[1], layers=2, highways=1)
    state |= {"scalar_mix_0.gamma": torch.tensor([1.5])}
    state |= {f"scalar_mix_0.scalar_parameters.{k}": torch.tensor([float(k)]) for k in range(3)}
    state["_elmo_lstm._token_embedder._beginning_of_sentence_characters"] = torch.zeros(50)
    expected = Elmo(*files, 1, dropout=0.0, scalar_mix_parameters=[0.0, 1.0, 2.0])
    model = nn.Sequential(Elmo(*files, 1, dropout=0.0))
    with torch.no_grad():
        for weight in model.parameters():
            weight.fill_(0.3)
    model.load_state_dict({f"0.{name}": tensor for name, tensor in state.items()})
    ids = batch_to_ids(SENTENCES)
    (found,), (known,) = model(ids)["elmo_representations"], expected(ids)["elmo_representations"]
    torch.testing.assert_close(found, 1.5 * known, atol=2e-6, rtol=0)


def test_the_module_that_carries_the_state_is_found_by_its_attributes(files: tuple[Path, Path]) -> None:
    elmo, ids = Elmo(*files, 1, dropout=0.0), batch_to_ids(SENTENCES)
    first = elmo(ids)["elmo_representations"][0]
    assert not torch.allclose(elmo(ids)["elmo_representations"][0], first)
    for module in nn.Sequential(elmo).modules():
        if hasattr(module, "stateful") and hasattr(module, "reset_states"):
            module.reset_states()
            module.stateful = False
    for _ in range(2):
        torch.testing.assert_close(elmo(ids)["elmo_representations"][0], first)


def test_elmo_cached_words_receive_gradients(files: tuple[Path, Path]) -> None:
    elmo = Elmo(*files, 1, requires_grad=True, dropout=0.0, vocab_to_cache=["pad", "the", "cat"])
    elmo._elmo_lstm._elmo_lstm.stateful = False
    ids = batch_to_ids([["the", "cat"], ["mat"]])
    for words in (torch.tensor([[1, 2], [7, 0]]), None):
        elmo(ids, words)["elmo_representations"][0].sum().backward()
    known = elmo(torch.zeros_like(ids), torch.tensor([[1, 2], [2, 0]]))
    by_characters = elmo(batch_to_ids([["the", "cat"], ["cat"]]))
    torch.testing.assert_close(known["elmo_representations"][0], by_characters["elmo_representations"][0])
    assert "_elmo_lstm._cached_words" not in elmo.state_dict()


def test_elmo_warns_of_word_inputs_without_vocab_to_cache(files: tuple[Path, Path]) -> None:
    ids = batch_to_ids([["the", "cat"]])
    with pytest.warns(UserWarning, match="without vocab_to_cache"):
        out = Elmo(*files, 1)(ids, torch.tensor([[1, 2]]))
    assert out["mask"].all()


def test_elmo_accepts_a_custom_module(files: tuple[Path, Path]) -> None:
    ids = batch_to_ids([["the", "cat"]])
    shared_bilm = _ElmoBiLm(*files)
    elmo = Elmo(None, None, 1, dropout=0.0, module=shared_bilm)
    assert elmo._elmo_lstm is shared_bilm
    assert elmo(ids)["elmo_representations"][0].shape == (1, 2, 32)
    with pytest.raises(ValueError, match="module excludes options_file"):
        Elmo(*files, 1, module=nn.Identity())


def test_elmo_bilm_computes_the_token_layer(files: tuple[Path, Path], bilm: BiLM) -> None:
    ids = batch_to_ids(SENTENCES)
    result = _ElmoBiLm(*files)._token_embedder(ids)
    with torch.no_grad():
        expected = bilm(add_boundaries(ids, bilm.token_encoder))
    torch.testing.assert_close(result["token_embedding"], expected.layers[0][..., :16])
    assert torch.equal(result["mask"], expected.mask)


def test_elmo_token_embedder_projects_one_representation(files: tuple[Path, Path]) -> None:
    ids = batch_to_ids(SENTENCES)
    embedder = ElmoTokenEmbedder(*files, dropout=0.0, scalar_mix_parameters=[0.0, 1.0, 2.0])
    elmo = Elmo(*files, 1, dropout=0.0, scalar_mix_parameters=[0.0, 1.0, 2.0])
    torch.testing.assert_close(embedder(ids), elmo(ids)["elmo_representations"][0])
    assert embedder.get_output_dim() == 32


def test_elmo_token_embedder_takes_ids_by_their_name_in_either_version(files: tuple[Path, Path]) -> None:
    ids, embedder = batch_to_ids(SENTENCES), ElmoTokenEmbedder(*files, dropout=0.0)
    embedder._elmo._elmo_lstm._elmo_lstm.stateful = False
    for named in ({"elmo_tokens": ids}, {"inputs": ids}):  # AllenNLP 1 and 2; 0.x
        torch.testing.assert_close(embedder(**named), embedder(ids))
    with pytest.raises(ConfigurationError, match="needs character ids"):
        embedder()


def test_elmo_embedder_gives_empty_arrays_for_empty_sentences(files: tuple[Path, Path]) -> None:
    embedder = ElmoEmbedder(*files)  # in AllenNLP always (3, 0, 1024)
    assert embedder.embed_sentence([]).shape == (3, 0, 32)
    assert [array.shape for array in embedder.embed_batch(SENTENCES)] == [(3, n, 32) for n in (4, 0, 2, 1)]
    assert not embedder.batch_to_embeddings(SENTENCES)[0].requires_grad


def test_batch_to_ids_truncates_long_words_and_warns_once(recwarn: pytest.WarningsRecorder) -> None:
    for _ in range(2):
        ids = batch_to_ids([["x" * 60]])
    assert ids.shape == (1, 1, 50)
    assert [str(warning.message)[:30] for warning in recwarn] == ["some words have more than 48 b"]


@pytest.mark.parametrize("flag", ["all", "top", "average"])
def test_allennlp_elmo_writes_the_layers_of_the_embedder(files: tuple[Path, Path], tmp_path: Path, flag: str) -> None:
    lines = ["the cat is on the mat", "dogs are in the fog", "the cat is on the mat"]
    (tmp_path / "in.txt").write_text("\n".join(lines) + "\n")
    options, weights = files
    flags = {flag: True, "options_file": options, "weight_file": weights, "batch_size": 2}
    with pytest.warns(UserWarning, match="the last line of each"):
        allennlp_elmo(tmp_path / "in.txt", tmp_path / "out.hdf5", **flags)
    expected = list(ElmoEmbedder(*files).embed_sentences([line.split() for line in lines], batch_size=2))
    choose = {"all": lambda x: x, "top": lambda x: x[-1], "average": lambda x: np.average(x, axis=0)}[flag]
    with h5py.File(tmp_path / "out.hdf5") as file:
        assert set(file) == {"0", "1", "2", "sentence_to_index"}
        for line, layers in enumerate(expected):
            np.testing.assert_allclose(file[str(line)], choose(layers), atol=1e-6)
        assert json.loads(file["sentence_to_index"][0]) == {lines[0]: "2", lines[1]: "1"}


def test_allennlp_elmo_honors_its_other_flags(files: tuple[Path, Path], tmp_path: Path) -> None:
    text, out = tmp_path / "in.txt", tmp_path / "out.hdf5"
    text.write_text("the cat\ndogs\n")
    named = {"options_file": files[0], "weight_file": files[1]}
    allennlp_elmo(text, out, all=True, forget_sentences=True, **named)
    with h5py.File(out) as file:
        assert set(file) == {"0", "1"}
    with pytest.warns(UserWarning, match="are ignored"):
        allennlp_elmo(text, out, top=True, use_sentence_keys=True, vocab_path="vocab.txt", **named)
    with h5py.File(out) as file:
        assert set(file) == {"the cat", "dogs"}
    with pytest.raises(ValueError, match="set exactly one of"):
        allennlp_elmo(text, out, all=True, top=True, **named)


def test_allennlp_elmo_replaces_hdf5_files_alone(files: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("the cat\n")
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(FileExistsError, match="exists and is not an HDF5 file"):
        allennlp_elmo(
            tmp_path / "in.txt", tmp_path / "thesis.txt", all=True, options_file=files[0], weight_file=files[1]
        )
    assert (tmp_path / "thesis.txt").read_text() == "precious"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_elmo_embedder_says_that_there_is_no_gpu(files: tuple[Path, Path]) -> None:
    with pytest.raises(ValueError, match=r"this PyTorch sees no GPU|cannot be used"):
        ElmoEmbedder(*files, cuda_device=0)


def test_embed_file_raises_for_bad_lines_and_writes_nothing(files: tuple[Path, Path], tmp_path: Path) -> None:
    embedder, out = ElmoEmbedder(*files), tmp_path / "out.hdf5"
    with pytest.raises(ConfigurationError, match=r"line 1 .* is blank"):
        embedder.embed_file(["the cat", "", "dogs"], out)
    with pytest.raises(ConfigurationError, match="line 1 is a repetition"):
        embedder.embed_file(["dogs", "dogs"], out, use_sentence_keys=True)
    with pytest.warns(UserWarning, match="with a slash"):
        embedder.embed_file(["either/or"], tmp_path / "slash.hdf5", use_sentence_keys=True)
    (tmp_path / "slash.hdf5").unlink()
    with pytest.raises(ValueError, match="output_format"):
        embedder.embed_file(["dogs"], out, output_format="mix")
    assert list(tmp_path.iterdir()) == []


def test_sentences_that_cannot_be_keys_are_errors_that_name_their_line(
    files: tuple[Path, Path], tmp_path: Path
) -> None:
    embedder = ElmoEmbedder(*files)
    with pytest.warns(UserWarning, match="with a slash"):
        for lines in (["a", "a/b"], ["dogs", "."], ["a/b", "a"]):
            with pytest.raises(ConfigurationError, match="line 1 cannot be a key of HDF5: use line numbers"):
                embedder.embed_file(lines, tmp_path / "out.hdf5", use_sentence_keys=True)
    assert list(tmp_path.iterdir()) == []


def test_batches_of_no_sentences_are_refused_at_the_call(files: tuple[Path, Path], tmp_path: Path) -> None:
    embedder = ElmoEmbedder(*files)
    with pytest.raises(ConfigurationError, match="batch_size must be at least 1, not 0"):
        embedder.embed_sentences([["the"]], batch_size=0)
    with pytest.raises(ConfigurationError, match="batch_size must be at least 1, not -1"):
        embedder.embed_file(["the"], tmp_path / "out.hdf5", batch_size=-1)
    assert list(tmp_path.iterdir()) == []


def test_tokens_in_numpy_arrays_are_embedded(files: tuple[Path, Path]) -> None:
    found = ElmoEmbedder(*files).embed_batch([np.array(["the", "cat"]), np.array([], dtype=str)])
    expected = ElmoEmbedder(*files).embed_batch([["the", "cat"], []])
    assert all(map(np.array_equal, found, expected))


# --- Models that read another number of characters ---------------------------------------------------------------


@pytest.fixture
def narrow(files: tuple[Path, Path], tmp_path: Path) -> tuple[Path, Path]:
    """The files of the same weights in a model that reads 8 characters of a word."""
    options = json.loads(files[0].read_text())
    options["char_cnn"]["max_characters_per_token"] = 8
    (tmp_path / "narrow.json").write_text(json.dumps(options))
    return tmp_path / "narrow.json", files[1]


def test_ids_of_more_characters_than_a_model_reads_are_refused(narrow: tuple[Path, Path]) -> None:
    ids = batch_to_ids([["the", "cat"]])
    for module in (Elmo(*narrow, 1), _ElmoBiLm(*narrow), _ElmoCharacterEncoder(*narrow)):
        with pytest.raises(ConfigurationError, match="this model reads 8 characters of a word, not 50"):
            module(ids)


def test_elmo_embedder_encodes_words_as_its_model_reads_them(narrow: tuple[Path, Path]) -> None:
    bilm = load(narrow[1].parent).bilm
    with pytest.warns(UserWarning, match="more than 6 bytes"):
        (found,) = ElmoEmbedder(*narrow).embed_batch([["the", "sentences"]])
    # A word of 6 bytes fills all 8 characters; in a model of 50 only its padding makes the word another one.
    config = replace(bilm.config, char_cnn=replace(bilm.config.char_cnn, max_characters=8))
    model = BiLM(config)
    model.load_state_dict(bilm.state_dict())
    with torch.no_grad():
        layers = model(torch.from_numpy(encode_words(["<S>", "the", "senten", "</S>"], 8)).long()[None]).layers
    np.testing.assert_allclose(found, layers[:, 0, 1:-1], atol=1e-6)


def test_a_model_that_reads_no_bytes_is_refused(tmp_path: Path) -> None:
    characters_only = write_efml(tmp_path / "model", changed(token_embedder={"word_dim": 0}))
    assert load(characters_only).bilm.token_encoder.input == "characters"
    with pytest.raises(ConfigurationError, match="reads the UTF-8 bytes of words but this biLM does not"):
        _ElmoBiLm(None, characters_only)


def test_cached_words_are_encoded_as_the_model_reads_them(narrow: tuple[Path, Path]) -> None:
    words = ["pad", "the", "sentence"]
    with pytest.warns(UserWarning, match="more than 6 bytes"):
        cached, plain = _ElmoBiLm(*narrow, vocab_to_cache=words), _ElmoBiLm(*narrow)
    found = cached(torch.tensor([[1, 2]]), torch.tensor([[1, 2]]))["activations"]
    expected = plain(torch.from_numpy(encode_words(words[1:], 8)).long()[None])["activations"]
    for layer, known in zip(found, expected, strict=True):
        torch.testing.assert_close(layer, known)


def test_home_directory_is_expanded_in_paths(
    files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(files[0].parent))
    found = ElmoEmbedder(f"~/{files[0].name}", f"~/{files[1].name}").embed_sentence(["the"])
    np.testing.assert_array_equal(found, ElmoEmbedder(*files).embed_sentence(["the"]))


def test_elmo_embedder_raises_for_a_url_that_is_not_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALLENNLP_CACHE_ROOT", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="does not download it"):
        ElmoEmbedder()


def test_the_newest_cached_version_of_a_url_is_read(
    files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALLENNLP_CACHE_ROOT", str(tmp_path))
    (tmp_path / "cache").mkdir()
    for url, file in ((DEFAULT_OPTIONS_FILE, files[0]), (DEFAULT_WEIGHT_FILE, files[1])):
        name = hashlib.sha256(url.encode()).hexdigest()
        for number, (version, content) in enumerate((("a", b"old"), ("b", file.read_bytes()))):
            path = tmp_path / "cache" / f"{name}.{version}"
            path.write_bytes(content)
            os.utime(path, (number, number))
            (tmp_path / "cache" / f"{name}.{version}.json").write_text("{}")
    np.testing.assert_array_equal(ElmoEmbedder().embed_sentence(["the"]), ElmoEmbedder(*files).embed_sentence(["the"]))
