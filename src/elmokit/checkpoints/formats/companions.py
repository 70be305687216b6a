"""The files beside the weights of an older format: its vocabulary and its card."""

import json
import warnings
from dataclasses import replace
from pathlib import Path

from elmokit.checkpoints.errors import CheckpointError
from elmokit.checkpoints.native import read_card
from elmokit.config import BiLMConfig
from elmokit.fs.json_files import read_json
from elmokit.text.vocab import Vocab

VOCABULARIES = ("vocab.txt", "vocab.txt.gz")


def read_vocabulary(path: Path | None, config: BiLMConfig) -> Vocab | None:
    """Read the vocabulary of a model, where it has one.

    A model of characters needs it for its softmax only, so a damaged one is left out with a warning.

    Raises:
        ValueError: The vocabulary of a model of word ids cannot be read.
    """
    if path is None:
        return None
    try:
        return Vocab.read(path)
    except ValueError as error:
        if config.char_cnn is None:
            raise
        reason = str(error).replace(f"{path.parent}/", "")
        warnings.warn(f"{reason}; the model is loaded without words, which only its softmax needs", stacklevel=4)
        return None


def with_boundary_words(config: BiLMConfig, vocab: Vocab | None) -> BiLMConfig:
    """The configuration of a model of word ids with the rows of <S> and </S>, which its vocabulary knows."""
    if config.char_cnn is not None or vocab is None:
        return config
    return replace(config, boundary_words=(vocab.bos, vocab.eos))


def read_card_or_metadata(directory: Path) -> str:
    """README.md, or in its place the meta.json that the NLPL repository gives its models; empty without either."""
    meta = directory / "meta.json"
    if (directory / "README.md").is_file() or not meta.is_file():
        return read_card(directory)
    try:
        text = json.dumps(read_json(meta), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{meta} is damaged ({error}): remove it or fetch it again") from error
    return f"```json\n{text}\n```\n"
