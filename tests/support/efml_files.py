"""Writes tiny random models in the files of ELMoForManyLangs."""

import json
from pathlib import Path
from typing import Any

import torch

from elmokit.checkpoints.formats.efml import tables_of
from elmokit.checkpoints.formats.efml_settings import read_config

WORDS = ["<oov>", "<bos>", "<eos>", "<pad>", "the", "cat", "今"]
CHARACTERS = [*"abcdeht", "今", "\u3000", "<bos>", "<eos>", "<oov>", "<pad>", "<bow>", "<eow>"]
SETTINGS: dict[str, Any] = {
    "encoder": {"name": "elmo", "projection_dim": 16, "cell_clip": 3, "proj_clip": 3, "dim": 32, "n_layers": 2},
    "token_embedder": {
        "name": "cnn", "word_dim": 6, "char_dim": 5, "activation": "relu", "filters": [[1, 4], [3, 8]],
        "n_highway": 1, "max_characters_per_token": 12,
    },
    "dropout": 0.1,
}  # fmt: skip


def write_dictionary(path: Path, entries: list[str]) -> None:
    path.write_text("".join(f"{entry}\t{row}\n" for row, entry in enumerate(entries)), encoding="utf-8")


def changed(**changes: dict[str, Any]) -> dict[str, Any]:
    """`SETTINGS` with changes in its parts."""
    return {name: part | changes.get(name, {}) if isinstance(part, dict) else part for name, part in SETTINGS.items()}


def write_efml(folder: Path, settings: dict[str, Any] = SETTINGS, **save: Any) -> Path:
    """A model directory; `save` goes to torch.save."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"config_path": "/home/who/trained/it/cnn.json", "gpu": 0}))
    (folder / "cnn.json").write_text(json.dumps(settings))
    write_dictionary(folder / "word.dic", WORDS)
    write_dictionary(folder / "char.dic", CHARACTERS)
    torch.manual_seed(1)
    for file, pieces in tables_of(read_config(folder)).items():
        torch.save({piece.name: torch.randn(piece.shape) * 0.4 for piece in pieces}, folder / file, **save)
    return folder
