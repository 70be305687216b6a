"""Names around AllenNLP's ELMo: indexer, boundaries, settings, the state as a pair, characters of id 0."""

import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from elmokit.compat.allennlp import (
    ConfigurationError,
    Elmo,
    ELMoCharacterMapper,
    ELMoTokenCharactersIndexer,
    ElmoTokenEmbedder,
    Params,
    ScalarMix,
    _ElmoBiLm,
    _ElmoCharacterEncoder,
    add_sentence_boundary_token_ids,
    batch_to_ids,
    remove_sentence_boundaries,
)
from elmokit.nn.bilm import BiLM

SENTENCES = [["the", "cat", "is", "on"], ["dogs"]]
PADDING = [261] * 50


# --- Indexer -----------------------------------------------------------------------------------------------------


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
    expected = [*ids, *PADDING[len(ids) :]]
    for token in (word, SimpleNamespace(text=word)):
        assert indexer.tokens_to_indices([token], None) == {"elmo_tokens": [expected]}
        assert indexer.tokens_to_indices([token], None, "name") == {"name": [expected]}


def test_indexer_pads_to_a_length_as_batch_to_ids() -> None:
    indexer = ELMoTokenCharactersIndexer()
    expected = batch_to_ids(SENTENCES)
    for row, sentence in enumerate(SENTENCES):
        indices = indexer.tokens_to_indices(sentence, None)
        assert indexer.get_padding_lengths(indices) == {"elmo_tokens": len(sentence)}
        padded = indexer.as_padded_tensor_dict(indices, {"elmo_tokens": 4})
        assert torch.equal(padded["elmo_tokens"], expected[row])
        assert torch.equal(indexer.as_padded_tensor(indices, {"elmo_tokens": 4}, {})["elmo_tokens"], expected[row])


def test_mapper_of_other_additional_words_is_another() -> None:
    assert ELMoCharacterMapper() == ELMoCharacterMapper({})
    assert ELMoCharacterMapper({"x": 1}) != ELMoCharacterMapper()
    assert ELMoCharacterMapper.beginning_of_sentence_characters[:4] == [258, 256, 259, 260]


# --- Boundaries --------------------------------------------------------------------------------------------------


def test_boundaries_of_vectors_are_added_and_removed() -> None:
    mask = torch.tensor([[True, True, True], [True, False, False]])
    vectors = torch.rand(2, 3, 5) * mask.unsqueeze(-1)
    bounded, inside = add_sentence_boundary_token_ids(vectors, mask, torch.full((5,), 7.0), torch.full((5,), 9.0))
    assert bounded[0, [0, 4], 0].tolist() == [7, 9] and bounded[1, [0, 2], 0].tolist() == [7, 9]
    assert inside.tolist() == [[True] * 5, [True, True, True, False, False]]
    again, outside = remove_sentence_boundaries(bounded, inside.long())
    assert torch.equal(again, vectors) and torch.equal(outside, mask)


def test_boundaries_of_ids_are_added() -> None:
    ids, mask = torch.tensor([[3, 4], [5, 0]]), torch.tensor([[1, 1], [1, 0]])
    bounded, inside = add_sentence_boundary_token_ids(ids, mask, 1, 2)
    assert bounded.tolist() == [[1, 3, 4, 2], [1, 5, 2, 0]]
    assert inside.tolist() == [[True, True, True, True], [True, True, True, False]]


# --- Token layer and characters of id 0 --------------------------------------------------------------------------


def convolved_by_definition(bilm: BiLM, ids: Tensor) -> Tensor:
    """The token vectors of words (U, C) with PyTorch's own operations, and AllenNLP's table, whose row 0 is zero."""
    cnn, weights = bilm.token_encoder.config, bilm.state_dict()
    table = F.pad(weights["token_encoder.char_embedding"], (0, 0, 1, 0))
    characters = F.embedding(ids, table).transpose(1, 2)
    pooled = []
    for number in range(len(cnn.filters)):
        name = f"token_encoder.convolutions.{number}"
        sums = F.conv1d(characters, weights[f"{name}.weight"], weights[f"{name}.bias"])
        pooled.append(sums.amax(dim=-1))
    x = torch.cat(pooled, dim=1)
    x = torch.relu(x) if cnn.activation == "relu" else torch.tanh(x)
    for k in range(cnn.num_highway):
        gates = F.linear(
            x, weights[f"token_encoder.highways.{k}.gates.weight"], weights[f"token_encoder.highways.{k}.gates.bias"]
        )
        transform, carry = gates.chunk(2, dim=1)
        carry = torch.sigmoid(carry)
        x = carry * torch.relu(transform) + (1 - carry) * x
    return F.linear(x, weights["token_encoder.projection.weight"], weights["token_encoder.projection.bias"])


def test_a_character_of_id_0_in_a_word_is_a_vector_of_zeros(files: tuple[Path, Path], bilm: BiLM) -> None:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1, 262, (3, 4, 50), generator=generator)
    ids[torch.rand(ids.shape, generator=generator) < 0.3] = 0
    ids[2, 2:] = 0
    mask = (ids > 0).any(dim=-1)
    expected = convolved_by_definition(bilm, ids[mask])
    by_bilm = _ElmoBiLm(*files)(ids)["activations"][0][:, 1:-1]
    torch.testing.assert_close(by_bilm[mask], expected.repeat(1, 2), atol=2e-6, rtol=1e-5)
    by_encoder = _ElmoCharacterEncoder(*files)(ids)["token_embedding"][:, 1:-1]
    torch.testing.assert_close(by_encoder[mask], expected, atol=2e-6, rtol=1e-5)


def test_threads_may_share_a_module_that_reads_characters_of_id_0(files: tuple[Path, Path]) -> None:
    """The module is not changed for the time of a call."""
    encoder, ids = _ElmoCharacterEncoder(*files), batch_to_ids(SENTENCES)
    ids[0, 0, 1] = 0
    expected = encoder(ids)["token_embedding"]
    with ThreadPoolExecutor(4) as pool:
        for actual in pool.map(lambda _: encoder(ids)["token_embedding"], range(40)):
            torch.testing.assert_close(actual, expected)
    assert isinstance(encoder._encoder.char_embedding, torch.nn.Parameter)


def test_the_token_layer_reads_narrow_ids_as_the_model_does(files: tuple[Path, Path]) -> None:
    """Otherwise the widest filter would see less padding after a word, and the word have another vector."""
    whole = batch_to_ids([["a", "bc"]])
    encoder = _ElmoCharacterEncoder(*files)
    torch.testing.assert_close(encoder(whole[..., :5])["token_embedding"], encoder(whole)["token_embedding"])


def test_the_table_learns_next_to_a_character_of_id_0(files: tuple[Path, Path]) -> None:
    elmo, ids = Elmo(*files, 1, requires_grad=True), batch_to_ids(SENTENCES)
    ids[0, 0, 1] = 0
    elmo(ids)["elmo_representations"][0].sum().backward()
    gradients = [weight.grad for weight in elmo._elmo_lstm.parameters()]
    assert all(gradient is not None and gradient.any() for gradient in gradients)


def test_the_token_layer_is_an_object_with_its_size(files: tuple[Path, Path]) -> None:
    ids, bilm = batch_to_ids(SENTENCES), _ElmoBiLm(*files)
    encoder = _ElmoCharacterEncoder(*files, requires_grad=True)
    assert bilm._token_embedder.get_output_dim() == encoder.get_output_dim() == encoder.output_dim == 16
    layer = bilm._token_embedder(ids)
    torch.testing.assert_close(layer["token_embedding"], encoder(ids)["token_embedding"])
    assert all(weight.requires_grad for weight in encoder.parameters())
    assert not any("_token_embedder" in name for name in bilm.state_dict())


# --- State -------------------------------------------------------------------------------------------------------


def test_the_state_is_read_and_assigned_as_a_pair(files: tuple[Path, Path]) -> None:
    elmo, ids = Elmo(*files, 1, dropout=0.0), batch_to_ids(SENTENCES)
    lstm = elmo._elmo_lstm._elmo_lstm
    assert lstm._states is None and (lstm.hidden_size, lstm.num_layers) == (16, 2)
    layers = elmo._elmo_lstm(ids)["activations"]
    h, c = lstm._states
    assert h.shape == (2, 2, 32) and c.shape == (2, 2, 2 * lstm.cell_size)
    # The last output of the forward half, before the skip connection, is its state; the first layer has none.
    torch.testing.assert_close(h[0, 0, :16], layers[1][0, 5, :16])
    torch.testing.assert_close(h[0, 1, 16:], layers[1][1, 0, 16:])
    second = elmo(ids)["elmo_representations"][0]
    lstm._states = tuple(state.to("cpu") for state in (h, c))
    torch.testing.assert_close(elmo(ids)["elmo_representations"][0], second)
    lstm._states = None
    torch.testing.assert_close(elmo._elmo_lstm(ids)["activations"][2], layers[2])


def test_the_state_can_be_changed_in_place(files: tuple[Path, Path]) -> None:
    elmo, ids = Elmo(*files, 1, dropout=0.0), batch_to_ids(SENTENCES)
    lstm, first = elmo._elmo_lstm._elmo_lstm, elmo(ids)["elmo_representations"][0]
    states = lstm._states
    assert lstm._states[0].data_ptr() == states[0].data_ptr()
    for part in states:
        part.zero_()
    torch.testing.assert_close(elmo(ids)["elmo_representations"][0], first)


# --- Words in place of characters --------------------------------------------------------------------------------


def test_word_ids_may_stand_for_character_ids_with_a_cached_vocabulary(files: tuple[Path, Path]) -> None:
    words = ["@@PADDING@@", "the", "cat", "is", "on", "dogs"]
    elmo = Elmo(*files, 1, dropout=0.0, vocab_to_cache=words)
    elmo._elmo_lstm._elmo_lstm.stateful = False
    ids = torch.tensor([[1, 2, 3, 4], [5, 0, 0, 0]])
    expected = elmo(batch_to_ids(SENTENCES))
    for found in (elmo(ids, ids), elmo(ids.unsqueeze(0), ids.unsqueeze(0))):
        torch.testing.assert_close(found["elmo_representations"][0].view(2, 4, 32), expected["elmo_representations"][0])
    with pytest.raises(ConfigurationError, match="not in the cached vocabulary: pass batch_to_ids"):
        elmo(ids + 5, ids + 5)


@pytest.mark.parametrize("rows", [[[1, 2, 9]], [[1, 2], [9, 0]]])
def test_nested_word_ids_are_not_read_as_characters_when_a_word_is_unknown(
    rows: list[list[int]], files: tuple[Path, Path]
) -> None:
    elmo, ids = Elmo(*files, 1, vocab_to_cache=["", "the", "cat"]), torch.tensor([rows])
    with pytest.raises(ConfigurationError, match="not in the cached vocabulary: pass batch_to_ids"):
        elmo(ids, ids)


def test_a_vocabulary_may_be_cached_later(files: tuple[Path, Path]) -> None:
    bilm, ids = _ElmoBiLm(*files), torch.tensor([[1, 2]])
    bilm._elmo_lstm.stateful = False
    with pytest.raises(ConfigurationError, match=r"character ids \(B, T, 50\), not \(1, 2\): pass batch_to_ids"):
        bilm(ids, ids)
    bilm.create_cached_cnn_embeddings(["", "the", "cat"])
    expected = bilm(batch_to_ids([["the", "cat"]]))["activations"]
    torch.testing.assert_close(bilm(ids, ids)["activations"], expected)


# --- Settings ----------------------------------------------------------------------------------------------------


def test_from_params_takes_a_dictionary(files: tuple[Path, Path]) -> None:
    settings = {"options_file": files[0], "weight_file": files[1]}
    elmo = Elmo.from_params({**settings, "num_output_representations": 2, "dropout": 0.25})
    assert len(elmo._scalar_mixes) == 2 and elmo._dropout.p == 0.25
    embedder = ElmoTokenEmbedder.from_params(
        vocab=None, params={**settings, "type": "elmo_token_embedder", "projection_dim": 5}
    )
    assert embedder(batch_to_ids(SENTENCES)).shape == (2, 4, 5)
    assert ElmoTokenEmbedder.from_params(None, settings).get_output_dim() == 32  # as in AllenNLP 0.9
    with pytest.raises(ConfigurationError, match=r"settings of Elmo are wrong: .*typo"):
        Elmo.from_params({**settings, "num_output_representations": 2, "typo": 1})


def test_from_params_reads_numbers_and_booleans_that_are_spelled(files: tuple[Path, Path]) -> None:
    settings = {"options_file": files[0], "weight_file": files[1], "requires_grad": "false", "dropout": "0.25"}
    elmo = Elmo.from_params(
        Params({**settings, "num_output_representations": "2", "keep_sentence_boundaries": "false"})
    )
    assert len(elmo._scalar_mixes) == 2 and elmo._dropout.p == 0.25
    assert elmo(batch_to_ids(SENTENCES))["elmo_representations"][0].shape[1] == 4  # without boundaries
    assert not any(weight.requires_grad for weight in elmo._elmo_lstm.parameters())
    embedder = ElmoTokenEmbedder.from_params({**settings, "do_layer_norm": "false", "projection_dim": "5"})
    assert embedder.get_output_dim() == 5 and not embedder._elmo._scalar_mixes[0].do_layer_norm
    with pytest.raises(ValueError, match=r"do_layer_norm. must be true or false, not 'no'"):
        ElmoTokenEmbedder.from_params({**settings, "do_layer_norm": "no"})


def test_from_params_builds_the_small_classes() -> None:
    mix = ScalarMix.from_params(Params({"mixture_size": "2", "trainable": "false"}))
    assert mix.mixture_size == 2 and not mix.gamma.requires_grad
    indexer = ELMoTokenCharactersIndexer.from_params({"type": "elmo_characters", "token_min_padding_length": 3})
    assert indexer.get_token_min_padding_length() == 3


def test_params_of_a_file_are_overridden_as_in_allennlp(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model": {"dropout": 0.5, "layers": [{"dim": 3}, {"dim": 4}]}, "seed": 1}')
    overrides = '{"model.dropout": 0.25, "model.layers.1.dim": 5, "new": true}'
    params = Params.from_file(tmp_path / "config.json", overrides)
    flat = {"model.dropout": 0.25, "model.layers": [{"dim": 3}, {"dim": 5}], "seed": 1, "new": True}
    assert params.as_flat_dict() == flat and params.params == params
    whole = Params.from_file(tmp_path / "config.json", params_overrides={"model": {"dropout": 0}})
    assert whole.as_dict() == {"model": {"dropout": 0}, "seed": 1}
    for wrong in ({"modle.dropout": 0}, {"model.layers.2": 0}, {"seed.x": 0}):
        with pytest.raises(ConfigurationError, match="which does not exist"):
            Params.from_file(tmp_path / "config.json", wrong)
    with pytest.raises(ConfigurationError, match="params_overrides is not JSON"):
        Params.from_file(tmp_path / "config.json", "{dropout: 0}")


def test_from_params_reads_params_until_none_is_left(files: tuple[Path, Path]) -> None:
    params = Params({"embedder": {"options_file": files[0], "weight_file": files[1], "projection_dim": 5}})
    ElmoTokenEmbedder.from_params(params["embedder"])
    params["embedder"].assert_empty("ElmoTokenEmbedder")
    with pytest.raises(ConfigurationError, match=r"Model does not have the settings .*embedder"):
        params.assert_empty("Model")


def test_params_give_settings_of_a_type() -> None:
    params = Params({"int": "3", "float": 2, "bool": "false", "none": None, "choice": "b", "inside": {"flag": "yes"}})
    inside = params.pop("inside")
    assert [params.pop_int("int"), params.pop_float("float"), params.pop_bool("bool")] == [3, 2.0, False]
    assert params.pop_bool("none") is params.pop_float("none", None) is None
    assert [params.pop_choice("choice", ["a", "b"]), params.pop_choice("choice", ["a", "b"], True)] == ["b", "a"]
    with pytest.raises(ValueError, match=r"inside\.flag. must be true or false, not 'yes'"):
        inside.pop_bool("flag")
    with pytest.raises(ConfigurationError, match=r"inside\.flag. is required"):
        inside.pop("flag")
    with pytest.raises(ConfigurationError, match=r"must be one of \['a'\], not 'b'"):
        Params({"choice": "b"}).pop_choice("choice", ["a"])


def test_params_are_nested_wherever_they_come_from_and_none_may_be_spelled() -> None:
    params = Params({"dropout": "None", "list": ["None", "a"]})
    assert params.pop_float("dropout") is None and params.pop("list") == [None, "a"]
    assert params.pop("regularizer", {}).pop_int("size", 1) == params.get("other", {}).pop_int("size", 1) == 1
    params["inside"] = {"size": "many"}
    with pytest.raises(ConfigurationError, match=r"inside\.size. must be of type int, not 'many'"):
        params["inside"].pop_int("size")
    assert Params({"type": "my.Class"}).pop_choice("type", ["lstm"]) == "my.Class"
    with pytest.raises(ConfigurationError, match=r"must be one of \['lstm'\], not 'my\.Class'"):
        Params({"type": "my.Class"}).pop_choice("type", ["lstm"], allow_class_names=False)


def test_params_as_dict_copies_what_strings_spell_on_request() -> None:
    params = Params({"list": [{"lr": "0.1"}], "on": "True", "size": "3", "name": "adam", "none": None})
    assert type(params["list"][0]) is Params
    assert params.as_dict(quiet=True) == params and type(params.as_dict()["list"][0]) is dict
    cast = {"list": [{"lr": 0.1}], "on": True, "size": 3, "name": "adam", "none": None}
    assert params.as_dict(infer_type_and_cast=True) == cast
    copy = params.duplicate()
    copy["list"][0].pop("lr")
    assert params["list"] == [{"lr": "0.1"}] and copy["list"] == [{}] and type(copy) is Params
    restored = pickle.loads(pickle.dumps(Params({"inside": {"size": 3}}, "model.")))
    assert restored == {"inside": {"size": 3}} and restored["inside"].history == "model.inside."


def test_params_are_read_from_a_file_of_json(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text('{"dropout": 0.5}')
    assert Params.from_file(file).pop_float("dropout") == 0.5
    file.write_text("{dropout: 0.5}")
    with pytest.raises(ConfigurationError, match=r"config.json is not JSON .*: evaluate Jsonnet first"):
        Params.from_file(str(file))


def test_from_params_caches_the_words_of_a_namespace(files: tuple[Path, Path]) -> None:
    index = {"@@PADDING@@": 0, "@@UNKNOWN@@": 1, "the": 2}
    vocabulary = SimpleNamespace(get_token_to_index_vocabulary={"tokens": index}.get)
    settings = {"options_file": files[0], "weight_file": files[1], "namespace_to_cache": "tokens", "dropout": 0.0}
    embedder = ElmoTokenEmbedder.from_params(vocab=vocabulary, params=settings)
    by_word = embedder(torch.tensor([[2]]), torch.tensor([[2]]))
    embedder._elmo._elmo_lstm._elmo_lstm.reset_states()
    torch.testing.assert_close(by_word, embedder(batch_to_ids([["the"]])))
    with pytest.raises(ConfigurationError, match="namespace_to_cache='tokens' needs the vocabulary"):
        ElmoTokenEmbedder.from_params(settings)


def test_scalar_mix_reports_wrong_numbers_of_tensors_and_weights() -> None:
    with pytest.raises(ConfigurationError, match="5 tensors were passed to a module that mixes 3"):
        ScalarMix(3)([torch.ones(2, 2)] * 5)
    with pytest.raises(ConfigurationError, match="must be 3 numbers"):
        ScalarMix(3, initial_scalar_parameters=[0.0, 0.0])


def test_scalar_mix_of_float64_is_in_float64() -> None:
    tensors = torch.randn(2, 3, 4, dtype=torch.float64)
    torch.testing.assert_close(ScalarMix(2)(tensors), tensors.mean(dim=0))
    assert ScalarMix(2)(tensors.bfloat16()).dtype == torch.float32


def test_scalar_mix_equals_its_formula_for_a_list_and_for_a_tensor() -> None:
    mix, tensors = ScalarMix(3), torch.randn(3, 2, 4, 5)
    for parameter, value in zip(mix.scalar_parameters, (0.1, 0.2, 0.3), strict=True):
        parameter.data[0] = value
    mix.gamma.data[0] = 0.5
    weights = np.exp([0.1, 0.2, 0.3]) / np.exp([0.1, 0.2, 0.3]).sum()
    expected = 0.5 * np.tensordot(weights, tensors.numpy(), axes=1)
    for form in (list(tensors), tensors):
        np.testing.assert_allclose(mix(form).detach().numpy(), expected, atol=1e-6)
