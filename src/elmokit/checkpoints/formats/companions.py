"""The files next to the weights of an older format: vocabulary and card."""

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
    """Read the vocabulary of a model, if it has one.

    A model that reads characters needs it for its softmax only, so that a damaged one is ignored with a warning.

    Raises:
        CheckpointError: The vocabulary of a model that reads word ids is damaged.
    """
    if path is None:
        return None
    try:
        return Vocab.read(path)
    except ValueError as error:
        if config.char_cnn is None:
            raise CheckpointError(str(error)) from error
        reason = str(error).replace(f"{path.parent}/", "")
        warnings.warn(
            f"{reason}; the model is loaded without its vocabulary, which only its softmax needs", stacklevel=4
        )
        return None


def with_boundary_words(config: BiLMConfig, vocab: Vocab | None) -> BiLMConfig:
    """The configuration; that of a model that reads word ids gets the rows of <S> and </S> from its vocabulary."""
    if config.char_cnn is not None or vocab is None:
        return config
    return replace(config, boundary_words=(vocab.bos, vocab.eos))


def read_card_or_metadata(directory: Path) -> str:
    """README.md, or without it the meta.json of the NLPL repository, as a code block; empty without either."""
    meta = directory / "meta.json"
    if (directory / "README.md").is_file() or not meta.is_file():
        return read_card(directory)
    try:
        text = json.dumps(read_json(meta), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{meta} is damaged ({error}): remove it or fetch it again") from error
    return f"```json\n{text}\n```\n"
