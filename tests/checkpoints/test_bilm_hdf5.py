"""The pair options.json + weights.hdf5: every variant is read, and every defect is named."""

import copy
import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from elmokit.checkpoints.bilm_hdf5 import read_bilm_hdf5
from elmokit.checkpoints.pretrained import CheckpointError
from elmokit.config import BiLMConfig
from elmokit.nn.bilm import BiLM

OPTIONS: dict[str, Any] = {
    "lstm": {
        "dim": 6,
        "projection_dim": 4,
        "n_layers": 1,
        "cell_clip": 3,
        "proj_clip": 3,
        "use_skip_connections": True,
    },
    "char_cnn": {
        "activation": "relu",
        "embedding": {"dim": 2},
        "filters": [[1, 3], [2, 5]],
        "max_characters_per_token": 50,
        "n_characters": 262,
        "n_highway": 1,
    },
}
CELLS = [f"RNN_{direction}/RNN/MultiRNNCell/Cell0/LSTMCell" for direction in range(2)]
LSTM_SHAPES = {
    f"{cell}/{name}": shape
    for cell in CELLS
    for name, shape in {"W_0": (8, 24), "B": (24,), "W_P_0": (6, 4)}.items()
}
SHAPES = LSTM_SHAPES | {
    "char_embed": (261, 2),
    "CNN/W_cnn_0": (1, 1, 2, 3),
    "CNN/b_cnn_0": (3,),
    "CNN/W_cnn_1": (1, 2, 2, 5),
    "CNN/b_cnn_1": (5,),
    "CNN_high_0/W_carry": (8, 8),
    "CNN_high_0/b_carry": (8,),
    "CNN_high_0/W_transform": (8, 8),
    "CNN_high_0/b_transform": (8,),
    "CNN_proj/W_proj": (8, 4),
    "CNN_proj/b_proj": (4,),
}


def random_arrays(shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(3).standard_normal
    return {name: draw(shape).astype(np.float32) for name, shape in shapes.items()}


def write_pair(
    folder: Path, arrays: dict[str, np.ndarray], options: Any = OPTIONS
) -> tuple[Path, Path]:
    (folder / "options.json").write_text(json.dumps(options))
    with h5py.File(folder / "weights.hdf5", "w") as file:
        for name, array in arrays.items():
            file[name] = array
    return folder / "options.json", folder / "weights.hdf5"


def changed(**lstm_or_char_cnn: dict[str, Any]) -> dict[str, Any]:
    options = copy.deepcopy(OPTIONS)
    for part, values in lstm_or_char_cnn.items():
        options[part] |= values
    return options


def test_262nd_character_is_dropped_first_or_last(tmp_path: Path) -> None:
    arrays = random_arrays(SHAPES)
    table = arrays["char_embed"]
    for spare in (np.vstack([np.zeros((1, 2), np.float32), table]), np.vstack([table, table[:1]])):
        _, state = read_bilm_hdf5(*write_pair(tmp_path, arrays | {"char_embed": spare}))
        np.testing.assert_array_equal(state["token_encoder.char_embedding"], table)


def test_model_of_one_layer_is_read_as_bilm_tf_dumps_it(tmp_path: Path) -> None:
    """Its `dump_weights` names the cell of a single layer RNN_0/RNN/LSTMCell, without
    MultiRNNCell/Cell0.
    """
    arrays = random_arrays(SHAPES)
    _, expected = read_bilm_hdf5(*write_pair(tmp_path, arrays))
    dumped = {name.replace("/MultiRNNCell/Cell0", ""): array for name, array in arrays.items()}
    assert {"RNN_0/RNN/LSTMCell/W_0", "RNN_1/RNN/LSTMCell/W_P_0"} < dumped.keys()
    config, state = read_bilm_hdf5(*write_pair(tmp_path, dumped))
    assert config.lstm.num_layers == 1
    assert state.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(state[name], tensor), name


def test_zero_null_or_missing_clip_means_none() -> None:
    lstm = BiLMConfig.from_options(changed(lstm={"cell_clip": 0, "proj_clip": None})).lstm
    assert (lstm.cell_clip, lstm.proj_clip) == (None, None)
    without = {
        "lstm": {"dim": 6, "projection_dim": 4, "n_layers": 1},
        "char_cnn": OPTIONS["char_cnn"],
    }
    lstm = BiLMConfig.from_options(without).lstm
    assert (lstm.cell_clip, lstm.proj_clip, lstm.use_skip_connections) == (None, None, False)


def test_model_of_word_ids_is_read(tmp_path: Path) -> None:
    arrays = random_arrays(LSTM_SHAPES | {"embedding": (7, 4)})
    paths = write_pair(tmp_path, arrays, {"lstm": OPTIONS["lstm"]})
    with torch.device("meta"):  # stands for a GPU that is the default: weights are read into memory
        config, state = read_bilm_hdf5(*paths)
    assert config == BiLMConfig(config.lstm, char_cnn=None, num_words=7)
    np.testing.assert_array_equal(state["token_encoder.weight"], arrays["embedding"])
    BiLM(config).load_state_dict(state)


def test_every_offending_key_is_named_at_once(tmp_path: Path) -> None:
    arrays = random_arrays(SHAPES)
    del arrays["CNN_proj/b_proj"], arrays[f"{CELLS[1]}/B"]
    arrays |= {
        "softmax/W": np.zeros((9, 4), np.float32),
        f"{CELLS[0]}/W_P_0": np.zeros((6, 5), np.float32),
    }
    with pytest.raises(CheckpointError) as error:
        read_bilm_hdf5(*write_pair(tmp_path, arrays))
    assert sorted(str(error.value).splitlines()[1:]) == [
        "  missing: CNN_proj/b_proj (4,)",
        f"  missing: {CELLS[1]}/B (24,)",
        "  unexpected: softmax/W (9, 4)",
        f"  wrong shape: {CELLS[0]}/W_P_0 is (6, 5), the configuration asks for (6, 4)",
    ]


WORDS: dict[str, Any] = {"lstm": OPTIONS["lstm"]}


@pytest.mark.parametrize(
    ("options", "arrays", "message"),
    [
        (changed(lstm={"dim": "6"}), {}, r"options\.json.* cell_dim must be an integer"),
        (
            changed(lstm={"use_skip_connections": "false"}),
            {},
            "use_skip_connections must be true or false",
        ),
        ({"lstm": {"dim": 6}}, {}, r"options\.json .*'projection_dim' is missing"),
        ({"lstm": 3}, {}, r"options\.json"),
        (WORDS, {"embedding": np.float32(1)}, "embedding"),
        (OPTIONS, {"sentence_to_index": "{}"}, "unexpected: sentence_to_index"),
        (OPTIONS, {"char_embed": h5py.Empty("f4")}, "char_embed is no weight"),
    ],
)
def test_what_is_no_model_is_refused_by_name(
    options: Any, arrays: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_bilm_hdf5(*write_pair(tmp_path, random_arrays(SHAPES) | arrays, options))


def test_weights_elsewhere_and_impossible_sizes_are_refused(tmp_path: Path) -> None:
    options, weights = write_pair(tmp_path, random_arrays(SHAPES))
    with pytest.raises(FileNotFoundError, match=r"other\.hdf5"):
        read_bilm_hdf5(options, tmp_path / "other.hdf5")
    (tmp_path / "secret").write_bytes(bytes(261 * 2 * 4))
    for place, message in (
        ([(tmp_path / "secret", 0, 261 * 2 * 4)], "char_embed is no weight"),
        (None, "impossible"),
    ):
        with h5py.File(weights, "r+") as file:
            del file["char_embed"]
            shape = (1 << 40, 2) if place is None else (261, 2)
            file.create_dataset("char_embed", shape, "f4", external=place)
        with pytest.raises(CheckpointError, match=message):
            read_bilm_hdf5(options, weights)
