"""TensorFlow checkpoints: read exactly as TensorFlow wrote them, with every mismatch named."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tiny_model import tiny_bilm

from elmokit.checkpoints.bilm_hdf5 import arrays_of
from elmokit.checkpoints.loading import describe, load
from elmokit.checkpoints.pretrained import CheckpointError, MixWeights
from elmokit.checkpoints.tf_checkpoint import crc32c, dataset_name, find_prefix, read_index
from elmokit.config import BiLMConfig, CharCNNConfig, LSTMConfig
from elmokit.lm.scoring import score

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS / "fixtures"))

import make_tf_hub_like as hub_like  # noqa: E402
from same_weights import assert_same_bilm  # noqa: E402
from tf_bundle import entry, variable_name, write_bundle, write_index  # noqa: E402

MODULE = TESTS / "fixtures" / "tf_hub_like"


def tiny_checkpoint(folder: Path, **changed: np.ndarray | None) -> dict[str, np.ndarray]:
    """A checkpoint of bilm-tf's kind with options.json; `changed` replaces variables, or leaves
    them out if None.
    """
    bilm = tiny_bilm()
    arrays = {variable_name(name): array for name, array in arrays_of(bilm).items()}
    arrays |= {"global_step": np.array(3, np.int64)}
    arrays = {name: array for name, array in (arrays | changed).items() if array is not None}
    write_bundle(folder / "model.ckpt-3", arrays)
    (folder / "options.json").write_text(json.dumps(bilm.config.to_options()))
    return arrays


def bitwise_crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def test_crc32c_equals_the_vectors_of_the_standard_and_a_bitwise_one_at_any_length() -> None:
    standard = {
        bytes(32): 0x8A9136AA,
        b"\xff" * 32: 0x62A8AB43,
        bytes(range(32)): 0x46DD794E,
        b"123456789": 0xE3069283,
    }
    assert {data: crc32c(data) for data in standard} == standard  # RFC 3720, appendix B.4
    for size in (0, 1, 5, 1019, 1020, 1023, 1024, 1027, 3 * 1024, 7 * 1024 + 6, 50_001):
        data = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8).tobytes()
        assert crc32c(data) == bitwise_crc32c(data), size


def test_bilm_tf_checkpoint_equals_its_hdf5_export(goldens: Callable[[str], Path]) -> None:
    folder = goldens("bilm_tf_training")
    found = load(folder / "tf_checkpoint")
    exported = load(folder)
    assert_same_bilm(found.bilm, exported.bilm)
    assert found.vocab == exported.vocab
    assert found.vocab is not None
    with np.load(folder / "softmax.npz") as softmax:
        np.testing.assert_array_equal(found.softmax.weight.detach(), softmax["W"])
        np.testing.assert_array_equal(found.softmax.bias.detach(), softmax["b"])
    told = describe(folder / "tf_checkpoint")
    assert (told["format"], told["vocabulary"], told["softmax"]) == (
        "TensorFlow variables",
        703,
        True,
    )
    assert set(told["files"]) == {
        "model.ckpt-124.index",
        "model.ckpt-124.data-00000-of-00001",
    }


def test_find_prefix_takes_every_name_and_the_recorded_or_the_highest_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (9, 10):
        write_bundle(tmp_path / f"model.ckpt-{step}", {})
    for path in ("model.ckpt-9", "model.ckpt-9.index"):
        assert find_prefix(tmp_path / path) == tmp_path / "model.ckpt-9"
    assert find_prefix(tmp_path) == tmp_path / "model.ckpt-10"
    (tmp_path / "checkpoint").write_text(
        'model_checkpoint_path: "/home/someone/run/model.ckpt-9"\n'
    )
    assert find_prefix(tmp_path) == tmp_path / "model.ckpt-9"
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-8"\n')
    assert find_prefix(tmp_path) == tmp_path / "model.ckpt-10"
    monkeypatch.chdir(tmp_path)
    assert find_prefix(Path(".")) == Path("model.ckpt-10")


def test_module_of_tensorflow_hub_is_read() -> None:
    values = {
        name: hub_like.value(number, shape)
        for number, (name, shape) in enumerate(hub_like.shapes())
    }
    model = load(MODULE)
    assert model.bilm.config == BiLMConfig(
        LSTMConfig(2, 10, 6), CharCNNConfig(3, ((1, 4), (2, 8)), num_highway=2)
    )
    found = arrays_of(model.bilm)
    expected = {
        dataset_name(name): value for name, value in values.items() if name.startswith("bilm/")
    }
    assert found.keys() == expected.keys()
    for name, array in found.items():
        np.testing.assert_array_equal(array, expected[name])
    assert model.softmax is None
    np.testing.assert_array_equal(np.float32(model.mix.weights), values["aggregation/weights"])
    assert np.float32(model.mix.gamma) == values["aggregation/scaling"]
    assert describe(MODULE)["format"] == "TensorFlow variables"


def test_softmax_may_share_the_word_table(tmp_path: Path) -> None:
    cells = {
        name: array
        for name, array in tiny_checkpoint(tmp_path / "words").items()
        if "/RNN_" in name
    }
    table = np.random.default_rng(1).standard_normal((3, 16)).astype(np.float32)
    write_bundle(
        tmp_path / "words/model.ckpt-3",
        cells | {"lm/embedding": table, "lm/softmax/b": np.zeros(3, np.float32)},
    )
    options = json.loads((tmp_path / "words/options.json").read_text())
    del options["char_cnn"]
    (tmp_path / "words/options.json").write_text(json.dumps(options))
    model = load(tmp_path / "words")
    assert model.bilm.config.num_words == 3
    np.testing.assert_array_equal(model.bilm.token_encoder.weight.detach(), table)
    np.testing.assert_array_equal(model.softmax.weight.detach(), table)


@pytest.mark.parametrize("folder", [".", ".."])
def test_vocabulary_under_another_name_is_the_only_one_that_fits(
    folder: str, tmp_path: Path
) -> None:
    place = tmp_path / "run" / "checkpoint"
    place.mkdir(parents=True)
    tiny_checkpoint(
        place,
        **{"lm/softmax/W": np.ones((4, 16), np.float32), "lm/softmax/b": np.zeros(4, np.float32)},
    )
    words = ["<S>", "</S>", "<UNK>", "cat"]
    for name, lines in (
        ("vocab-2016-09-10.txt", words),
        ("small_vocab.txt", words[:3]),
        ("vocab-b.txt", ["\xe9"]),
    ):
        (place / folder / name).write_bytes("".join(f"{word}\n" for word in lines).encode("latin1"))
    model = load(place)
    assert list(model.vocab.words) == words
    assert len(score(["the cat"], model)) == 1
    shutil.copy(place / folder / "vocab-2016-09-10.txt", place / folder / "my_vocab.txt")
    model = load(place)
    assert model.softmax is not None
    assert model.vocab is None
    with pytest.raises(ValueError, match=r"4 words of the softmax.*vocab\.txt"):
        score(["the cat"], model)


@pytest.mark.parametrize("scope", ["aggregation/", "module/aggregation/", "", "input.0-"])
def test_module_of_deeppavlov_is_read(scope: str, tmp_path: Path) -> None:
    """Its mix was made by bilm-tf's `weight_layers`, and the carried states are saved."""
    mix = {
        "elmo_output_ELMo_W": np.array([0.5, -1, 2], np.float32),
        "elmo_output_ELMo_gamma": np.array([1.5], np.float32),
    }
    changed = {f"{scope}{name}": array for name, array in mix.items()}
    changed |= {
        f"bilm/Variable{suffix}": np.ones((4, 16), np.float32) for suffix in ("", "_1", "_12")
    }
    arrays = tiny_checkpoint(tmp_path, **changed)
    model = load(tmp_path)
    assert model.mix == MixWeights((0.5, -1.0, 2.0), 1.5)
    np.testing.assert_array_equal(
        model.bilm.state_dict()["token_encoder.char_embedding"], arrays["lm/char_embed"]
    )


def test_checkpoint_of_one_layer_is_read(tmp_path: Path) -> None:
    """TensorFlow wraps a single cell into no MultiRNNCell, so its name has no number."""
    arrays = tiny_checkpoint(tmp_path)
    first = "rnn/multi_rnn_cell/cell_0/lstm_cell"
    one = {
        name.replace(first, "rnn/lstm_cell"): array
        for name, array in arrays.items()
        if "/cell_1/" not in name
    }
    assert "lm/RNN_1/rnn/lstm_cell/kernel" in one
    write_bundle(tmp_path / "model.ckpt-3", one)
    options = json.loads((tmp_path / "options.json").read_text())
    options["lstm"]["n_layers"] = 1
    (tmp_path / "options.json").write_text(json.dumps(options))
    bilm = load(tmp_path).bilm
    assert bilm.config.lstm.num_layers == 1
    for name, array in arrays_of(bilm).items():
        np.testing.assert_array_equal(array, arrays[variable_name(name)])


def test_missing_unknown_and_wrong_shaped_variables_are_named(tmp_path: Path) -> None:
    wide = np.zeros((261, 5), np.float32)
    other = np.ones(3, np.float32)
    changed = {"lm/CNN_proj/b_proj": None, "lm/layer_norm": other, "lm/char_embed": wide}
    tiny_checkpoint(tmp_path, **changed)
    with pytest.raises(CheckpointError) as error:
        load(tmp_path)
    for problem in (
        "missing: CNN_proj/b_proj (16,)",
        "unexpected: lm/layer_norm (3,)",
        "wrong shape: char_embed is (261, 5)",
    ):
        assert problem in str(error.value)


def test_any_flipped_bit_is_detected(tmp_path: Path) -> None:
    tiny_checkpoint(tmp_path)
    for file in tmp_path.glob("model.ckpt-3.*"):
        whole = file.read_bytes()
        for at in np.linspace(0, len(whole) - 1, 20, dtype=int):
            damaged = bytearray(whole)
            damaged[at] ^= 0x10
            file.write_bytes(damaged)
            try:
                found = load(tmp_path)
            except CheckpointError:
                continue
            # Nobody reads some bytes of the index's footer, nor the count of steps, which is last.
            assert file.suffix == ".index" or at >= len(whole) - 8, at
            assert found.bilm.config == BiLMConfig.preset("tiny")
        file.write_bytes(whole)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (entry("float32", (1 << 40,), 12, 4 << 40), "more bytes than its files"),
        (entry("float32", (3,), 0, 12), "more bytes than its files"),
        (b"\x80", r"variables\.index"),
    ],
)
def test_absurd_index_entries_are_refused_without_allocating(
    tmp_path: Path, wrong: bytes, message: str
) -> None:
    prefix = tmp_path / "variables"
    write_bundle(prefix, {"a": np.zeros(2, np.float32), "b": np.zeros(2, np.float32)})
    write_index(prefix, {"a": entry("float32", (2,), 4, 8), "b": wrong})
    with pytest.raises(CheckpointError, match=message):
        read_index(prefix)
