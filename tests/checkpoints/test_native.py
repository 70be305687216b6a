"""The native format and the model in memory: saving and loading is exact, and damaged models are
refused.
"""

import json
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
import torch
from mutants_of_files import tiny
from safetensors.torch import save_file
from same_weights import assert_same_bilm, assert_same_weights, read_tensors
from sequence_encoders import CARRYING, CONFIGS, random_bilm

from elmokit.checkpoints.loading import load, save
from elmokit.checkpoints.pretrained import CheckpointError, MixWeights, Pretrained
from elmokit.config import BiLMConfig, LSTMConfig
from elmokit.embed.embedder import Embedder
from elmokit.nn.bilm import BiLM, BiLMState
from elmokit.nn.inference import prepack
from elmokit.nn.softmax import FullSoftmax
from elmokit.text.vocab import Vocab


@pytest.fixture
def model() -> Pretrained:
    """A tiny model with all that a directory can hold."""
    return tiny()


@pytest.fixture
def saved(model: Pretrained, tmp_path: Path) -> Path:
    save(model, tmp_path / "model")
    return tmp_path / "model"


# --- Round trips ----------------------------------------------------------------------------------


def test_load_restores_everything_that_was_saved(model: Pretrained, saved: Path) -> None:
    loaded = load(saved)
    assert model.softmax is not None
    assert loaded.softmax is not None
    assert_same_bilm(loaded.bilm, model.bilm)
    assert_same_weights(model.softmax, loaded.softmax)
    assert torch.equal(model.warm_state.h, loaded.warm_state.h)
    assert torch.equal(model.warm_state.c, loaded.warm_state.c)
    for attribute in ("vocab", "card", "tokenizer", "state_policy", "mix"):
        assert getattr(loaded, attribute) == getattr(model, attribute)
    assert loaded.fingerprint() == model.fingerprint()
    assert all(parameter.requires_grad for parameter in loaded.bilm.parameters())
    assert load(saved, softmax=False).softmax is None


@pytest.mark.parametrize("name", CONFIGS)
def test_every_sequence_encoder_is_loaded_as_it_was_saved(name: str, tmp_path: Path) -> None:
    model = Pretrained(random_bilm(name, characters=True).float())
    if name in CARRYING:
        zeros = model.bilm.initial_state(1)
        warm = BiLMState(torch.randn_like(zeros.h), torch.randn_like(zeros.c))
        model = replace(model, warm_state=warm, state_policy="warm")
    save(model, tmp_path / "model")
    again = load(tmp_path / "model")
    assert again.fingerprint() == model.fingerprint()
    assert_same_bilm(again.bilm, model.bilm)
    save(again, tmp_path / "again")
    for file in (tmp_path / "model").iterdir():
        assert file.read_bytes() == (tmp_path / "again" / file.name).read_bytes()


@pytest.mark.parametrize(
    ("weights", "shares"),
    [
        ((-inf, 0.0, -inf), [0, 1, 0]),
        ((-2e4, -3e4, -2e4), [0.5, 0, 0.5]),
        ((-inf, -2e4, -2e4), [0, 0.5, 0.5]),
    ],
)
def test_a_mix_that_leaves_layers_out_is_saved(
    weights: tuple[float, ...], shares: list[float], model: Pretrained, tmp_path: Path
) -> None:
    save(replace(model, mix=MixWeights(weights)), tmp_path / "model")
    mix = load(tmp_path / "model").mix
    assert torch.tensor(mix.weights).softmax(0).tolist() == shares


def test_float16_weights_load_as_float32(model: Pretrained, tmp_path: Path) -> None:
    save(model, tmp_path / "half", storage_dtype="float16")
    for name, tensor in load(tmp_path / "half").bilm.state_dict().items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, model.bilm.state_dict()[name].half().float())
    with torch.no_grad():
        model.bilm.sequence_encoder.stacks[0].layers[0].bias[:] = 1e6
    with pytest.raises(ValueError, match=r"not finite as float16: .*layers\.0\.bias"):
        save(model, tmp_path / "overflown", storage_dtype="float16")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["half"]


# --- Weights and files ----------------------------------------------------------------------------


def test_loaded_model_and_its_file_do_not_need_each_other(
    model: Pretrained, saved: Path, tmp_path: Path
) -> None:
    loaded = load(saved)
    before = (saved / "model.safetensors").read_bytes()
    with torch.no_grad():
        for parameter in load(saved).bilm.parameters():  # weights may be mapped from the file
            parameter.fill_(7)
    assert (saved / "model.safetensors").read_bytes() == before
    shutil.rmtree(saved)
    sent = pickle.loads(pickle.dumps(loaded))
    save(sent, tmp_path / "copy")
    assert load(tmp_path / "copy").fingerprint() == sent.fingerprint() == model.fingerprint()
    assert_same_weights(load(tmp_path / "copy").softmax, model.softmax)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda model: replace(model, vocab=None), "vocabulary"),
        (
            lambda model: replace(model, bilm=prepack(model.bilm, torch.float32)),
            r"prepacked.*use `elmokit\.load`",
        ),
        (lambda model: model.bilm, "not BiLM"),
    ],
)
def test_what_could_not_be_read_back_is_not_saved(
    change: Callable[[Pretrained], Any], message: str, model: Pretrained, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        save(change(model), tmp_path / "model")
    assert not list(tmp_path.iterdir())


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: edit(path / "config.json", format_version=2), "format_version"),
        (lambda path: edit(path / "config.json", extra=1), "config.json.*extra"),
        (
            lambda path: edit(path / "config.json", mix={"weights": "123", "gamma": 1.0}),
            "mix.weights",
        ),
        (lambda path: edit(path / "config.json", model={"lstm": {"dropout": 0}}), "dropout"),
        (
            lambda path: edit(path / "config.json", model={"lstm": {}, "transformer": {}}),
            "one sequence encoder",
        ),
        (lambda path: (path / "weights.safetensors").touch(), "elmokit predict"),
        (
            lambda path: (path / "vocab.txt").write_text("the\ncat\n"),
            r"vocab\.txt: .*lacks <S> </S> <UNK>",
        ),
        (lambda path: (path / "state.safetensors").write_bytes(b""), r"state\.safetensors"),
        (lambda path: (path / "model.safetensors").unlink(), r"model\.safetensors"),
    ],
)
def test_damaged_files_are_named(
    damage: Callable[[Path], object], message: str, saved: Path
) -> None:
    damage(saved)
    with pytest.raises((CheckpointError, FileNotFoundError), match=message):
        load(saved)


@pytest.mark.parametrize("name", CONFIGS)
def test_weights_that_do_not_fit_the_sequence_encoder_are_named(name: str, tmp_path: Path) -> None:
    save(Pretrained(random_bilm(name, characters=True).float()), tmp_path / "model")
    path = tmp_path / "model" / "model.safetensors"
    tensors = read_tensors(path)
    for key in tensors:
        save_file({**tensors, key: tensors[key][..., :-1].contiguous()}, path)
        with pytest.raises(CheckpointError, match=key.replace(".", r"\.")):
            load(tmp_path / "model")


# --- The model in memory --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"softmax": FullSoftmax(6, 16)}, "6 words of the softmax, and 5"),
        ({"mix": MixWeights((1.0, 2.0))}, "2 weights of the mix, and 3"),
        (
            {"warm_state": BiLMState(torch.zeros(2, 2, 3, 16), torch.zeros(2, 2, 3, 32))},
            "state of 1 rows",
        ),
        (
            {
                "bilm": BiLM(
                    BiLMConfig(LSTMConfig(2, 32, 16), None, num_words=5, boundary_words=(3, 2))
                )
            },
            r"\(3, 2\)",
        ),
        (
            {"bilm": BiLM(BiLMConfig(LSTMConfig(2, 32, 16), None, num_words=9))},
            "5 words of the vocabulary, and 9",
        ),
    ],
)
def test_parts_that_do_not_fit_are_refused(
    parts: dict[str, Any], message: str, model: Pretrained
) -> None:
    with pytest.raises(ValueError, match=message):
        replace(model, **parts)


@pytest.mark.parametrize("weights", [(0.0, nan, 0.0), (-inf, -inf, -inf), (inf, 0.0, 0.0)])
def test_a_mix_of_no_numbers_is_refused(weights: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="must be finite"):
        MixWeights(weights)


def test_a_part_on_another_device_is_moved_and_a_prepacked_model_refuses(model: Pretrained) -> None:
    meta = torch.device("meta")
    assert model.to(torch.device("cpu")) is model
    moved = model.to(meta)
    assert moved.bilm.device == meta
    assert model.bilm.device.type == "cpu"
    assert moved.softmax.weight.device == meta
    assert moved.warm_state.h.device == meta
    prepacked = replace(model, bilm=prepack(model.bilm, torch.float32))
    with pytest.raises(
        ValueError, match=r"prepacked for float32 on cpu, and cannot be moved.*load the model again"
    ):
        prepacked.to(meta)


def test_embedder_of_files_drops_weights_but_not_the_fingerprint(
    model: Pretrained, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(saved.parent)
    embedder = Embedder("model", "cpu", softmax=True)
    assert embedder.model.softmax is not None
    assert Embedder("model", "cpu").model.softmax is None
    monkeypatch.chdir("/")  # the files are found from anywhere
    assert embedder.model.bilm.is_prepacked
    assert embedder.fingerprint() == Embedder(model, "cpu").fingerprint() == model.fingerprint()
    embedder.model.state_policy = "zeros"
    assert embedder.fingerprint() == replace(model, state_policy="zeros").fingerprint()


def test_embedder_whose_weights_were_replaced_since_gives_no_fingerprint(
    model: Pretrained, saved: Path
) -> None:
    """Else its vectors would be stored under the name of other ones."""
    of_files = Embedder(saved, "cpu")
    of_memory = Embedder(model, "cpu")
    with torch.no_grad():
        for weight in model.bilm.parameters():
            weight.mul_(1.01)
    save(model, saved, overwrite=True)
    for embedder in (of_files, of_memory):
        with pytest.raises(ValueError, match="have changed since"):
            embedder.fingerprint()


def test_fingerprint_depends_on_each_weight_and_on_the_words_of_a_word_table(
    model: Pretrained,
) -> None:
    before = model.fingerprint()
    with torch.no_grad():
        model.bilm.sequence_encoder.stacks[1].layers[1].bias[3] += 1
    assert model.fingerprint() != before
    bilm = BiLM(BiLMConfig(LSTMConfig(1, 6, 4), char_cnn=None, num_words=5))
    words = ["<S>", "</S>", "<UNK>", "a", "b"]
    models = [
        Pretrained(bilm, vocab=Vocab(order)) for order in (words, words, [*words[:3], "b", "a"])
    ]
    first, same, other = map(Pretrained.fingerprint, models)
    assert first == same != other
