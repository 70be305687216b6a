"""A tiny model of each sequence encoder, on a tiny character CNN."""

from __future__ import annotations

from pathlib import Path

from elmokit.config import (
    BiLMConfig,
    CharCNNConfig,
    InterleavedConfig,
    LSTMConfig,
    TransformerConfig,
)

CHAR_CNN = CharCNNConfig(4, ((1, 8), (2, 8), (3, 16)), num_highway=1)
CONFIGS = {
    "lstm": BiLMConfig(LSTMConfig(cell_dim=32, projection_dim=16), CHAR_CNN),
    "interleaved": BiLMConfig(None, CHAR_CNN, interleaved=InterleavedConfig(2, 24, 16)),
    "transformer": BiLMConfig(None, CHAR_CNN, transformer=TransformerConfig(2, 16, 2, 32)),
}
ENCODERS = tuple(CONFIGS)


def write_config(encoder: str, path: Path) -> Path:
    """Write the configuration of one of them, for `PretrainConfig.config`."""
    import json

    path.write_text(json.dumps(CONFIGS[encoder].to_dict()))
    return path
