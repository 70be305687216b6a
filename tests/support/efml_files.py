"""Writes tiny random models in the files of ELMoForManyLangs."""

import json
import re
from pathlib import Path
from typing import Any

import torch

from elmokit.checkpoints.efml import read_config
from elmokit.checkpoints.native import weight_shapes

WORDS = ["<oov>", "<bos>", "<eos>", "<pad>", "the", "cat", "今"]
CHARACTERS = [*"abcdeht", "今", "\u3000", "<bos>", "<eos>", "<oov>", "<pad>", "<bow>", "<eow>"]
SETTINGS: dict[str, Any] = {
    "encoder": {
        "name": "elmo",
        "projection_dim": 16,
        "cell_clip": 3,
        "proj_clip": 3,
        "dim": 32,
        "n_layers": 2,
    },
    "token_embedder": {
        "name": "cnn",
        "word_dim": 6,
        "char_dim": 5,
        "activation": "relu",
        "filters": [[1, 4], [3, 8]],
        "n_highway": 1,
        "max_characters_per_token": 12,
    },
    "dropout": 0.1,
}


def write_dictionary(path: Path, entries: list[str]) -> None:
    path.write_text("".join(f"{entry}\t{row}\n" for row, entry in enumerate(entries)))


def changed(**changes: dict[str, Any]) -> dict[str, Any]:
    """`SETTINGS` with changes in its parts."""
    return {
        name: part | changes.get(name, {}) if isinstance(part, dict) else part
        for name, part in SETTINGS.items()
    }


LAYER = re.compile(r"sequence_encoder\.stacks\.(\d)\.layers\.(\d+)\.(\w+)")
ELMO = {
    "input_weight": ["input_linearity.weight"],
    "recurrent_weight": ["state_linearity.weight"],
    "bias": ["state_linearity.bias"],
    "projection_weight": ["state_projection.weight"],
}
LSTM = {
    "input_weight": ["weight_ih"],
    "recurrent_weight": ["weight_hh"],
    "bias": ["bias_ih", "bias_hh"],
}


def stored_names(name: str, kind: str) -> list[str]:
    """The names in ELMoForManyLangs' files of a weight of a `BiLM`; `kind` is that of the
    encoder.
    """
    if match := LAYER.fullmatch(name):
        direction, layer, weight = match.groups()
        if kind == "elmo":
            return [
                f"{('forward', 'backward')[int(direction)]}_layer_{layer}.{part}"
                for part in ELMO[weight]
            ]
        return [f"encoder.{part}_l{layer}{'_reverse' * int(direction)}" for part in LSTM[weight]]
    tables = {"word_embedding": "word_emb_layer", "char_embedding": "char_emb_layer"}
    if (last := name.rpartition(".")[2]) in tables:
        return [f"{tables[last]}.embedding.weight"]
    name = re.sub(r"highways\.(\d+)\.gates", r"highways._layers.\1", name)
    return [re.sub(r"token_encoder\.(char_cnn\.)?|sequence_encoder\.top_", "", name)]


def write_efml(folder: Path, settings: dict[str, Any] = SETTINGS, **save: Any) -> Path:
    """A model directory; `save` goes to torch.save."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(
        json.dumps({"config_path": "/home/who/trained/it/cnn.json", "gpu": 0})
    )
    (folder / "cnn.json").write_text(json.dumps(settings))
    write_dictionary(folder / "word.dic", WORDS)
    write_dictionary(folder / "char.dic", CHARACTERS)
    torch.manual_seed(1)
    files: dict[str, dict[str, torch.Tensor]] = {"token_embedder.pkl": {}, "encoder.pkl": {}}
    for ours, shape in weight_shapes(read_config(folder)).items():
        tensors = files["token_embedder.pkl" if ours.startswith("token_encoder") else "encoder.pkl"]
        tensors |= {
            name: torch.randn(shape) * 0.4
            for name in stored_names(ours, settings["encoder"]["name"])
        }
    for file, tensors in files.items():
        torch.save(tensors, folder / file, **save)
    return folder
