"""The native format: saving and loading is exact, and damaged models are refused with every reason."""

import json
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file, save_model
from same_weights import assert_same_weights
from sequence_encoders import CARRYING, CONFIGS, random_bilm
from tensor_files import read_tensors
from torch.nn.utils import prune

import elmokit.checkpoints.loading as checkpoint
import elmokit.checkpoints.native as native
from elmokit.checkpoints.loading import CheckpointError, MixWeights, Pretrained, describe, fingerprint, load, save
from elmokit.checkpoints.pretrained import on_device
from elmokit.config import BiLMConfig, LSTMConfig
from elmokit.embed.embedder import Embedder
from elmokit.nn.bilm import BiLM, BiLMState
from elmokit.nn.elmo import Elmo
from elmokit.nn.inference import PrepackedBiLM, prepack
from elmokit.nn.scalar_mix import ScalarMix
from elmokit.nn.softmax import FullSoftmax
from elmokit.text.vocab import Vocab

HDF5_MODELS = [
    "bilm_tf_fixture/lm_weights.hdf5",
    "bilm_tf_training",
    "char-2layer",
    "clips-bind-3layer-tanh",
    "no-char-projection",
    "no-highway",
    "no-lstm-projection",
    "no-skip",
    "published-filters",
]


def everything() -> Pretrained:
    """A tiny model with all that a directory can hold."""
    torch.manual_seed(1)
    vocab = Vocab(["<S>", "</S>", "<UNK>", "naïve", "the"])
    return Pretrained(
        BiLM(BiLMConfig.preset("tiny")),
        softmax=FullSoftmax(len(vocab), 16),
        vocab=vocab,
        card="# Tiny\n\nA model for tests.\n",
        tokenizer="english-1",
        state_policy="warm",
        mix=MixWeights((0.5, 0.0, -0.5), gamma=1.5),
        warm_state=BiLMState(torch.randn(2, 2, 1, 16), torch.randn(2, 2, 1, 32)),
    )


def test_load_restores_everything_that_was_saved(tmp_path: Path) -> None:
    saved = everything()
    save(saved, tmp_path / "model")
    loaded = load(tmp_path / "model")
    assert saved.softmax is not None and loaded.softmax is not None
    assert saved.warm_state is not None and loaded.warm_state is not None
    assert loaded.bilm.config == saved.bilm.config
    assert_same_weights(saved.bilm, loaded.bilm)
    assert_same_weights(saved.softmax, loaded.softmax)
    assert torch.equal(saved.warm_state.h, loaded.warm_state.h)
    assert torch.equal(saved.warm_state.c, loaded.warm_state.c)
    for attribute in ("vocab", "card", "tokenizer", "state_policy", "mix"):
        assert getattr(loaded, attribute) == getattr(saved, attribute)
    assert fingerprint(loaded) == fingerprint(saved)
    assert all(parameter.requires_grad for parameter in loaded.bilm.parameters())


def test_a_mix_that_was_learned_can_be_saved(tmp_path: Path) -> None:
    learned = ScalarMix(3)
    mix = MixWeights(tuple(learned.weights.detach().numpy()), learned.gamma)  # type: ignore[arg-type]
    save(replace(everything(), mix=mix), tmp_path / "model")
    assert load(tmp_path / "model").mix == MixWeights((0.0, 0.0, 0.0), 1.0)
    save(replace(everything(), mix=MixWeights((-inf, 0.0, -inf))), tmp_path / "layer")  # one layer alone
    loaded = load(tmp_path / "layer").mix
    assert loaded is not None and torch.tensor(loaded.weights).softmax(0).tolist() == [0, 1, 0]
    save(replace(everything(), mix=MixWeights((-20_000.0, -30_000.0, -20_000.0))), tmp_path / "low")
    assert load(tmp_path / "low").mix == MixWeights((-20_000.0, -30_000.0, -20_000.0))
    save(replace(everything(), mix=MixWeights((-inf, -20_000.0, -20_000.0))), tmp_path / "two")
    loaded = load(tmp_path / "two").mix
    assert loaded is not None and torch.tensor(loaded.weights).softmax(0).tolist() == [0, 0.5, 0.5]
    for weights in ((0.0, float("nan"), 0.0), (-inf, -inf, -inf)):
        with pytest.raises(ValueError, match="the weights and gamma of a mix must be finite"):
            MixWeights(weights)


def test_boundaries_in_other_rows_than_in_the_vocabulary_are_refused() -> None:
    """`Elmo` takes them from the configuration, and `Embedder` from the vocabulary."""
    config = BiLMConfig(LSTMConfig(1, 4, 4), None, num_words=5)
    vocab = Vocab(["<UNK>", "a", "b", "<S>", "</S>"])
    with pytest.raises(ValueError, match=r"are words \(3, 4\) of the vocabulary, .* \(0, 1\): set these to \(3, 4\)"):
        Pretrained(BiLM(config), vocab=vocab)
    assert Pretrained(BiLM(replace(config, boundary_words=(3, 4))), vocab=vocab).vocab is vocab


def test_the_home_directory_may_be_written_as_a_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    save(everything(), "~/model")
    assert (tmp_path / "model" / "config.json").is_file() and load("~/model").vocab == everything().vocab


def test_a_softmax_of_other_words_or_another_bilm_is_refused() -> None:
    model = everything()
    assert model.vocab is not None
    count = len(model.vocab)
    with pytest.raises(ValueError, match=f"the softmax has {count + 1} words but the vocabulary {count}"):
        replace(model, softmax=FullSoftmax(count + 1, 16))
    with pytest.raises(ValueError, match="the softmax reads vectors of 17 numbers, and the biLM makes vectors of 16"):
        replace(model, softmax=FullSoftmax(count, 17))
    with pytest.raises(ValueError, match="Pretrained holds a BiLM, not str"):
        Pretrained("model")  # type: ignore[arg-type]


def test_a_loaded_model_as_a_part_of_another_is_written_by_safetensors(tmp_path: Path) -> None:
    save(everything(), tmp_path / "model")
    bilm = load(tmp_path / "model").bilm
    save_model(torch.nn.Sequential(Elmo(bilm)), str(tmp_path / "own.safetensors"))
    stored = {f"0.bilm.{name}": tensor for name, tensor in bilm.state_dict().items()}
    written = load_file(tmp_path / "own.safetensors")
    assert all(torch.equal(tensor, written[name]) for name, tensor in stored.items())
    shared = {weight.untyped_storage().data_ptr() for weight in bilm.parameters()}
    assert len(shared) == len(list(bilm.parameters()))


def test_a_warm_state_of_another_shape_is_refused_before_it_is_saved() -> None:
    with pytest.raises(ValueError, match="the state of 1 rows"):
        replace(everything(), warm_state=BiLMState(torch.zeros(2, 2, 3, 16), torch.zeros(2, 2, 3, 32)))


def test_a_model_that_was_pruned_in_one_direction_says_what_to_do(tmp_path: Path) -> None:
    model = everything()
    stacks = model.bilm.sequence_encoder.stacks  # type: ignore[union-attr]
    prune.l1_unstructured(stacks[0].layers[0], "recurrent_weight", 0.5)
    with pytest.raises(ValueError, match="recurrent_weight"):
        save(model, tmp_path / "model")
    prune.remove(stacks[0].layers[0], "recurrent_weight")
    save(model, tmp_path / "model")


def test_training_a_loaded_model_leaves_its_file_unchanged(tmp_path: Path) -> None:
    save(everything(), tmp_path / "model")
    before = (tmp_path / "model" / "model.safetensors").read_bytes()
    with torch.no_grad():
        for parameter in load(tmp_path / "model").bilm.parameters():  # weights may be mapped from the file
            parameter.fill_(7)
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == before


def test_bilm_alone_is_saved_in_two_files(tmp_path: Path) -> None:
    save(Pretrained(BiLM(BiLMConfig.preset("tiny"))), tmp_path / "model")
    assert {path.name for path in (tmp_path / "model").iterdir()} == {"config.json", "model.safetensors"}
    loaded = load(tmp_path / "model")
    assert (loaded.softmax, loaded.vocab, loaded.tokenizer, loaded.mix, loaded.warm_state) == (None,) * 5
    assert loaded.state_policy == "zeros"


@pytest.mark.parametrize("name", HDF5_MODELS)
def test_hdf5_model_saved_as_native_loads_equal(goldens: Callable[[str], Path], tmp_path: Path, name: str) -> None:
    model = load(goldens(name))
    save(model, tmp_path / "model")
    loaded = load(tmp_path / "model")
    assert_same_weights(model.bilm, loaded.bilm)
    assert loaded.bilm.config == model.bilm.config
    assert fingerprint(loaded) == fingerprint(model)


def test_float16_weights_load_as_float32(tmp_path: Path) -> None:
    saved = everything()
    save(saved, tmp_path / "half", storage_dtype="float16")
    loaded = load(tmp_path / "half")
    for name, tensor in loaded.bilm.state_dict().items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, saved.bilm.state_dict()[name].half().float())
    with torch.no_grad():
        saved.bilm.sequence_encoder.stacks[0].layers[0].bias[:] = 1e6
    with pytest.raises(ValueError, match=r"not finite as float16: .*layers\.0\.bias"):
        save(saved, tmp_path / "overflown", storage_dtype="float16")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["half"]


def test_weights_are_aligned_as_pytorch_aligns_them() -> None:
    memory = torch.arange(32.0)
    skipped = -memory.data_ptr() // 4 % 16  # numbers to the next multiple of 64 bytes
    tensors = {"weight": memory[skipped : skipped + 4].view(2, 2), "bias": memory[skipped + 1 : skipped + 3]}
    module = native.filled(lambda: torch.nn.Linear(2, 2), tensors)
    assert module.weight.data_ptr() == tensors["weight"].data_ptr() and module.bias.data_ptr() % 64 == 0
    assert torch.equal(module.bias, tensors["bias"])


def test_load_without_softmax_does_not_open_its_file(tmp_path: Path) -> None:
    save(everything(), tmp_path / "model")
    (tmp_path / "model" / "softmax.safetensors").write_bytes(b"")
    assert load(tmp_path / "model", softmax=False).softmax is None
    with pytest.raises(CheckpointError, match=r"softmax\.safetensors is truncated"):
        load(tmp_path / "model")


def test_card_with_undecodable_bytes_is_read(tmp_path: Path) -> None:
    save(everything(), tmp_path / "model")
    (tmp_path / "model" / "README.md").write_bytes(b"na\xefve")
    assert load(tmp_path / "model").card == "na\ufffdve" and describe(tmp_path / "model")["card"] == ["na\ufffdve"]


def test_a_part_on_another_device_is_moved_and_a_prepacked_model_refuses() -> None:
    model, meta = everything(), torch.device("meta")
    assert on_device(model, torch.device("cpu")) is model
    moved = on_device(model, meta)
    assert moved.bilm.device == meta and model.bilm.device.type == "cpu"
    assert moved.softmax is not None and moved.softmax.weight.device == meta
    assert moved.warm_state is not None and moved.warm_state.h.device == meta
    half_moved = on_device(replace(model, bilm=moved.bilm), meta)
    assert half_moved.bilm is moved.bilm and half_moved.softmax is not None
    assert half_moved.softmax.weight.device == meta and model.softmax.weight.device.type == "cpu"
    prepacked = replace(model, bilm=prepack(model.bilm, torch.float32))
    with pytest.raises(ValueError, match=r"prepacked for float32 on cpu, and cannot be moved.*load the model again"):
        on_device(prepacked, meta)


def test_loaded_model_does_not_need_its_files(tmp_path: Path) -> None:
    save(everything(), tmp_path / "model")
    loaded = load(tmp_path / "model")
    shutil.rmtree(tmp_path / "model")
    save(loaded, tmp_path / "copy")
    assert fingerprint(load(tmp_path / "copy")) == fingerprint(everything())
    assert_same_weights(load(tmp_path / "copy").softmax, everything().softmax)


def test_prepacked_model_can_be_neither_saved_nor_fingerprinted(tmp_path: Path) -> None:
    prepacked = replace(everything(), bilm=prepack(everything().bilm, torch.float32))
    for use in (fingerprint, lambda model: save(model, tmp_path / "model")):
        with pytest.raises(ValueError, match=r"prepacked.*use `elmokit\.load`"):
            use(prepacked)
    assert not list(tmp_path.iterdir())


def test_embedder_load_drops_weights_but_not_the_fingerprint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(everything(), tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    embedder = Embedder.load("model", "cpu")
    monkeypatch.chdir("/")
    assert isinstance(embedder.model.bilm, PrepackedBiLM) and embedder.model.softmax is None
    assert embedder.fingerprint() == Embedder(everything(), "cpu").fingerprint() == fingerprint(everything())
    embedder.model.state_policy = "zeros"
    assert embedder.fingerprint() == fingerprint(replace(everything(), state_policy="zeros"))


def test_fingerprint_reads_the_files_once(tmp_path: Path) -> None:
    save(everything(), tmp_path / "model")
    embedder = Embedder(tmp_path / "model", "cpu")
    expected = embedder.fingerprint()
    shutil.rmtree(tmp_path / "model")
    assert embedder.fingerprint() == expected


def test_embedder_of_a_name_is_that_of_load(tmp_path: Path) -> None:
    save(everything(), tmp_path / "model")
    for embedder in (Embedder(tmp_path / "model", "cpu"), Embedder(str(tmp_path / "model"), "cpu", softmax=True)):
        assert isinstance(embedder.model.bilm, PrepackedBiLM) and embedder.fingerprint() == fingerprint(everything())
        np.testing.assert_array_equal(embedder.encode("a b"), Embedder.load(tmp_path / "model", "cpu").encode("a b"))
    assert embedder.model.softmax is not None


def test_save_and_load_say_what_they_take(tmp_path: Path) -> None:
    embedder = Embedder(everything(), "cpu")
    with pytest.raises(ValueError, match=r"not Embedder: write save\(load"):
        save(embedder, tmp_path / "model")  # type: ignore[arg-type]
    for model in (embedder, everything().bilm):
        with pytest.raises(ValueError, match=r"the result of elmokit.load, not (Embedder|BiLM)"):
            load(model)  # type: ignore[arg-type]


def test_repr_shows_sizes_and_settings() -> None:
    size = sum(parameter.numel() for parameter in everything().bilm.parameters())
    assert repr(everything()) == (
        f"Pretrained(3 layers of 32 dimensions, {size:,} parameters, softmax over 5 words, reads characters, "
        "tokenizer english-1, state warm)"
    )
    bare = Pretrained(prepack(everything().bilm, torch.float32))
    assert "prepacked weights, no softmax, reads characters, tokenizer unknown, state zeros" in repr(bare)


def test_save_replaces_only_models_and_only_with_overwrite(tmp_path: Path) -> None:
    model = everything()
    save(model, tmp_path / "model")
    with pytest.raises(FileExistsError, match="ask to overwrite it"):
        save(replace(model, card="another"), tmp_path / "model")
    save(load(tmp_path / "model"), tmp_path / "model", overwrite=True)
    assert load(tmp_path / "model").softmax is not None
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"cat")
    with pytest.raises(FileExistsError, match="holds no model"):
        save(everything(), tmp_path / "photos", overwrite=True)
    assert (tmp_path / "photos" / "cat.jpg").read_bytes() == b"cat"


def test_failed_save_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError):
        save(everything(), tmp_path / "file" / "model")

    def full_disk(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(native, "save_file", full_disk)
    with pytest.raises(OSError, match="No space left"):
        save(everything(), tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_softmax_is_not_saved_without_vocabulary(tmp_path: Path) -> None:
    bilm = BiLM(BiLMConfig.preset("tiny"))
    with pytest.raises(ValueError, match="5 words needs their vocabulary, not None"):
        save(Pretrained(bilm, softmax=FullSoftmax(5, 16)), tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_damaged_vocabulary_is_refused(tmp_path: Path) -> None:
    save(everything(), tmp_path / "model")
    (tmp_path / "model" / "vocab.txt").write_text("the\ncat\n")
    with pytest.raises(CheckpointError, match=r"vocab\.txt: the vocabulary lacks <S> </S> <UNK>"):
        load(tmp_path / "model")


def test_every_offending_key_is_named_at_once(tmp_path: Path) -> None:
    save(everything(), tmp_path / "model")
    path = tmp_path / "model" / "model.safetensors"
    tensors = read_tensors(path)
    del tensors["sequence_encoder.stacks.0.layers.0.bias"]
    tensors |= {"classifier.weight": torch.zeros(2), "sequence_encoder.stacks.0.layers.1.bias": torch.zeros(64)}
    save_file(tensors, path)
    with pytest.raises(CheckpointError) as error:
        load(tmp_path / "model")
    assert str(error.value).splitlines()[1:] == [
        "  missing: sequence_encoder.stacks.0.layers.0.bias (128,)",
        "  unexpected: classifier.weight (2,)",
        "  wrong shape: sequence_encoder.stacks.0.layers.1.bias is (64,), the configuration asks for (128,)",
    ]


def test_truncated_weights_are_refused_at_any_length(tmp_path: Path) -> None:
    save(everything(), tmp_path / "model")
    path = tmp_path / "model" / "model.safetensors"
    whole = path.read_bytes()
    for length in np.linspace(0, len(whole) - 1, 25, dtype=int):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=r"model\.safetensors is truncated"):
            load(tmp_path / "model")
    path.unlink()
    with pytest.raises(CheckpointError, match=r"model\.safetensors is missing"):
        load(tmp_path / "model")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format_version": 2}, "format_version is 2, not 1: upgrade elmokit"),
        ({"format_version": "1"}, "format_version is 1, not 1: fetch it again"),
        ({"format_version": None}, "no format_version, so it is the config.json of another program"),
        ({"extra": 1}, "missing or unknown settings extra"),
        ({"tokenizer": 3}, "tokenizer must be a string, not 3"),
        ({"tokenizer": ["english-1"]}, "tokenizer must be a string"),
        ({"mix": {"weights": "123", "gamma": 1.0}}, "mix.weights must be"),
        ({"model": {"lstm": {"dropout": 0}}}, "missing or unknown settings"),
        ({"model": None}, "not the configuration"),
        ({"mix": {"weights": [1.0]}}, "missing or unknown settings gamma"),
        ({"mix": {"weights": [1.0], "gamma": 1.0}}, "1 weights for 3 layers"),
        ({"state": "lukewarm"}, "must be one of zeros, warm, carry, not 'lukewarm'"),
    ],
)
def test_invalid_configuration_is_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    save(everything(), tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(CheckpointError, match=message):
        load(tmp_path / "model")


def test_weights_of_another_configuration_are_refused(tmp_path: Path) -> None:
    save(everything(), tmp_path / "model")
    other = BiLMConfig(LSTMConfig(num_layers=1, cell_dim=8, projection_dim=4), BiLMConfig.preset("tiny").char_cnn)
    save(Pretrained(BiLM(other)), tmp_path / "other")
    (tmp_path / "other" / "model.safetensors").rename(tmp_path / "model" / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"missing: .*layers\.1\.bias(.|\n)*wrong shape: .*layers\.0\.bias"):
        load(tmp_path / "model")


def test_error_lists_the_places_that_were_searched(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no model 'no-such'.*config\.json.*options\.json"):
        load("no-such")
    (tmp_path / "a.hdf5").touch()
    (tmp_path / "b.hdf5").touch()
    with pytest.raises(CheckpointError, match=r"several.*a\.hdf5.*b\.hdf5"):
        load(tmp_path)


def test_bundled_models_are_loaded_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "BUNDLED_MODELS", tmp_path)
    save(everything(), tmp_path / "en-small")
    assert load().card == load("en-small").card == "# Tiny\n\nA model for tests.\n"
    with pytest.raises(FileNotFoundError, match=r"there are: en-small"):
        load("en-large")


def test_published_file_pairs_are_detected(goldens: Callable[[str], Path], tmp_path: Path) -> None:
    for name in ("options.json", "weights.hdf5"):
        (tmp_path / f"elmo_2x64_{name}").write_bytes(goldens(f"char-2layer/{name}").read_bytes())
    assert load(tmp_path / "elmo_2x64_weights.hdf5").bilm.config.lstm.cell_dim == 64
    assert describe(tmp_path)["files"] == {"elmo_2x64_options.json": 297, "elmo_2x64_weights.hdf5": 219592}


def test_describe_lists_sizes_and_settings(tmp_path: Path) -> None:
    model = everything()
    save(model, tmp_path / "model")
    found = describe(tmp_path / "model")
    assert found["parameters"] == sum(parameter.numel() for parameter in model.bilm.parameters())
    assert found["card"] == ["# Tiny", "", "A model for tests."]
    shown = ("format", "input", "representations", "output_dim", "vocabulary", "softmax", "tokenizer", "state")
    assert [found[name] for name in shown] == ["elmokit 1", "characters", 3, 32, 5, True, "english-1", "warm"]
    json.dumps(found)  # can be printed as JSON


def test_fingerprint_changes_with_one_weight() -> None:
    model = everything()
    before = fingerprint(model)
    with torch.no_grad():
        model.bilm.sequence_encoder.stacks[1].layers[1].bias[3] += 1
    assert fingerprint(model) != before


def test_fingerprint_of_word_ids_depends_on_the_vocabulary() -> None:
    torch.manual_seed(1)
    bilm = BiLM(BiLMConfig(LSTMConfig(1, 6, 4), char_cnn=None, num_words=5))
    words = ["<S>", "</S>", "<UNK>", "a", "b"]
    models = [Pretrained(bilm, vocab=Vocab(order)) for order in (words, words, [*words[:3], "b", "a"])]
    first, same, other = map(fingerprint, models)
    assert first == same != other


def test_loaded_model_can_be_pickled(tmp_path: Path) -> None:
    save(everything(), tmp_path / "model")
    loaded = load(tmp_path / "model")
    sent = pickle.loads(pickle.dumps(loaded))
    assert_same_weights(sent.bilm, loaded.bilm)
    assert_same_weights(sent.softmax, everything().softmax)
    assert fingerprint(sent) == fingerprint(loaded)


# --- Sequence encoders -------------------------------------------------------------------------------------------


def small_model(name: str) -> Pretrained:
    return Pretrained(random_bilm(name, characters=True).float())


@pytest.mark.parametrize("name", CONFIGS)
def test_every_sequence_encoder_is_loaded_as_it_was_saved(name: str, tmp_path: Path) -> None:
    model = small_model(name)
    save(model, tmp_path / "model")
    again = load(tmp_path / "model")
    assert again.config == model.config and fingerprint(again) == fingerprint(model)
    assert_same_weights(model.bilm, again.bilm)
    save(again, tmp_path / "again")
    for file in ("config.json", "model.safetensors"):
        assert (tmp_path / "model" / file).read_bytes() == (tmp_path / "again" / file).read_bytes()


@pytest.mark.parametrize("name", CARRYING)
def test_a_warm_state_of_any_encoder_is_loaded_as_it_was_saved(name: str, tmp_path: Path) -> None:
    bilm = small_model(name).bilm
    zeros = bilm.initial_state(1)
    warm = BiLMState(torch.randn_like(zeros.h), torch.randn_like(zeros.c))
    save(Pretrained(bilm, warm_state=warm, state_policy="warm"), tmp_path / "model")
    again = load(tmp_path / "model").warm_state
    assert again is not None and torch.equal(again.h, warm.h) and torch.equal(again.c, warm.c)


@pytest.mark.parametrize("name", CONFIGS)
def test_weights_that_do_not_fit_the_sequence_encoder_are_named(name: str, tmp_path: Path) -> None:
    save(small_model(name), tmp_path / "model")
    path = tmp_path / "model" / "model.safetensors"
    tensors = read_tensors(path)
    for key in tensors:
        for changed in ({}, {key: tensors[key][..., :-1].contiguous()}):
            save_file({other: tensors[other] for other in tensors if other != key} | changed, path)
            with pytest.raises(CheckpointError, match=key.replace(".", r"\.")):
                load(tmp_path / "model")


@pytest.mark.parametrize(
    ("name", "settings", "reason"),
    [
        ("interleaved", {"projects_layers": 1}, "projects_layers must be true or false"),
        ("interleaved", {"cell_dim": 0}, "cell_dim must be from 1"),
        ("interleaved", {"forget_bias": "1"}, "forget_bias must be a finite number"),
        ("interleaved", {"dropout": 0.1}, "unknown settings dropout"),
        ("transformer", {"num_heads": 3}, "multiple of twice the 3 heads"),
        ("transformer", {"context": 10**9}, "context must be from"),
        ("transformer", {"feedforward_dim": 10**12}, "feedforward_dim must be from"),
        ("transformer", {"num_layers": 10**6}, "num_layers must be from"),
        ("gated_cnn", {"width": 0}, "width must be from"),
        ("gated_cnn", {"hidden_dim": 2.5}, "hidden_dim must be an integer"),
        ("gated_cnn", {"projection_dim": None}, "projection_dim must be an integer"),
    ],
)
def test_invalid_settings_of_a_sequence_encoder_are_refused(
    name: str, settings: dict[str, object], reason: str, tmp_path: Path
) -> None:
    save(small_model(name), tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["model"][name] |= settings
    path.write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(CheckpointError, match=reason):
        load(tmp_path / "model")


@pytest.mark.parametrize(
    "encoders", [{}, {"lstm": None}, {"transformer": {}, "lstm": {}}, {"lstm": 3}, {"gated_cnn": []}]
)
def test_a_configuration_has_one_sequence_encoder(encoders: dict[str, object], tmp_path: Path) -> None:
    save(small_model("lstm"), tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    del config["model"]["lstm"]
    config["model"] |= encoders
    path.write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(CheckpointError, match="is not the configuration of an elmokit model"):
        load(tmp_path / "model")
