"""Write random models of the published sizes for speed measurements. Their layers are the same for
every peer.

    python benchmarks/peers/make_models.py DIRECTORY [small original ...]

Writes DIRECTORY/SIZE (options.json and weights.hdf5, which AllenNLP, bilm-tf, simple_elmo and
elmokit read) and DIRECTORY/SIZE-efml (for ELMoForManyLangs: a character CNN with the same filters,
no word table, LSTMs of the same size). Existing models are left unchanged.
"""

import argparse
import json
import math
from pathlib import Path

import h5py
import numpy as np
import torch

from elmokit.checkpoints.bilm_hdf5 import table_of
from elmokit.config import BiLMConfig, CharCNNConfig, LSTMConfig
from elmokit.fs.atomic import atomic_directory

SEED = 13
# Large enough that the cells do not stay near zero, and small enough that not every gate is closed.
SCALE, BIAS_SCALE = 0.8, 0.05
EFML_MARKS = ("<oov>", "<bos>", "<eos>", "<pad>", "<bow>", "<eow>")
EFML_CHARACTERS = [
    *EFML_MARKS,
    *map(chr, range(33, 127)),
    *map(chr, range(161, 322)),
]  # 261, as many as the others


class Weights:
    """Reproducible random arrays: standard deviation SCALE / sqrt(inputs) for matrices, BIAS_SCALE
    for biases.
    """

    def __init__(self) -> None:
        self.generator = np.random.default_rng(SEED)

    def array(self, *shape: int, inputs: int | None = None) -> np.ndarray:
        scale = BIAS_SCALE if inputs is None else SCALE / math.sqrt(inputs)
        return self.generator.standard_normal(shape, dtype=np.float32) * np.float32(scale)


def write_hdf5(config: BiLMConfig, directory: Path) -> None:
    weights = Weights()
    (directory / "options.json").write_text(json.dumps(config.to_options()), encoding="utf-8")
    shapes = {piece.dataset: piece.shape for piece in table_of(config)}
    with h5py.File(directory / "weights.hdf5", "w") as file:
        for name, shape in shapes.items():
            # The last axis is the output's. Of the character table only one row is used at a time,
            # so it has one input.
            inputs = {"char_embed": 1}.get(name, math.prod(shape[:-1]) if len(shape) > 1 else None)
            file.create_dataset(name, data=weights.array(*shape, inputs=inputs))


def efml_token_embedder(config: CharCNNConfig, dim: int, weights: Weights) -> dict[str, np.ndarray]:
    """The state_dict of ELMoForManyLangs' ConvTokenEmbedder."""
    filters, characters = config.num_filters, len(EFML_CHARACTERS)
    state = {
        "char_emb_layer.embedding.weight": weights.array(characters, config.embedding_dim, inputs=1)
    }
    for i, (width, number) in enumerate(config.filters):
        inputs = config.embedding_dim * width
        state[f"convolutions.{i}.weight"] = weights.array(
            number, config.embedding_dim, width, inputs=inputs
        )
        state[f"convolutions.{i}.bias"] = weights.array(number)
    for k in range(config.num_highway):
        state[f"highways._layers.{k}.weight"] = weights.array(2 * filters, filters, inputs=filters)
        state[f"highways._layers.{k}.bias"] = weights.array(2 * filters)
    state["projection.weight"] = weights.array(dim, filters, inputs=filters)
    state["projection.bias"] = weights.array(dim)
    return state


def efml_encoder(config: LSTMConfig, weights: Weights) -> dict[str, np.ndarray]:
    """The state_dict of ELMoForManyLangs' ElmobiLm."""
    dim, cell_dim, state = config.projection_dim, config.cell_dim, {}
    for name in (
        f"{way}_layer_{layer}"
        for layer in range(config.num_layers)
        for way in ("forward", "backward")
    ):
        state[f"{name}.input_linearity.weight"] = weights.array(4 * cell_dim, dim, inputs=2 * dim)
        state[f"{name}.state_linearity.weight"] = weights.array(4 * cell_dim, dim, inputs=2 * dim)
        state[f"{name}.state_linearity.bias"] = weights.array(4 * cell_dim)
        state[f"{name}.state_projection.weight"] = weights.array(dim, cell_dim, inputs=cell_dim)
    return state


def efml_options(lstm: LSTMConfig, char_cnn: CharCNNConfig) -> dict[str, object]:
    return {
        "encoder": {
            "name": "elmo",
            "projection_dim": lstm.projection_dim,
            "cell_clip": lstm.cell_clip,
            "proj_clip": lstm.proj_clip,
            "dim": lstm.cell_dim,
            "n_layers": lstm.num_layers,
        },
        "token_embedder": {
            "name": "cnn",
            "word_dim": 0,
            "char_dim": char_cnn.embedding_dim,
            "activation": char_cnn.activation,
            "filters": char_cnn.filters,
            "n_highway": char_cnn.num_highway,
            "max_characters_per_token": char_cnn.max_characters,
        },
        "classifier": {"name": "sampled_softmax", "n_samples": 8192},
        "dropout": 0.1,
    }


def write_efml(config: BiLMConfig, directory: Path) -> None:
    assert config.char_cnn is not None
    weights, lstm = Weights(), config.lstm
    (directory / "config.json").write_text('{"config_path": "cnn_config.json"}', encoding="utf-8")
    (directory / "cnn_config.json").write_text(
        json.dumps(efml_options(lstm, config.char_cnn)), encoding="utf-8"
    )
    lines = "".join(f"{character}\t{number}\n" for number, character in enumerate(EFML_CHARACTERS))
    (directory / "char.dic").write_text(lines, encoding="utf-8")
    parts = {
        "token_embedder.pkl": efml_token_embedder(config.char_cnn, lstm.projection_dim, weights),
        "encoder.pkl": efml_encoder(lstm, weights),
    }
    for name, state in parts.items():
        torch.save({key: torch.from_numpy(array) for key, array in state.items()}, directory / name)


def make_models(directory: Path, sizes: list[str]) -> None:
    """Write the models that do not exist yet."""
    for size in sizes:
        for path, write in (
            (directory / size, write_hdf5),
            (directory / f"{size}-efml", write_efml),
        ):
            if not path.exists():
                with atomic_directory(path) as partial:
                    write(BiLMConfig.preset(size), partial)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument("sizes", nargs="*", default=["small", "original"])
    arguments = parser.parse_args()
    make_models(arguments.directory, arguments.sizes)


if __name__ == "__main__":
    main()
