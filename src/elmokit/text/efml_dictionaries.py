"""Ids of words in the dictionaries of ELMoForManyLangs: the row of the word, then the rows of its characters.

Sources: ELMoForManyLangs, `elmo.py` (read_list) and `frontend.py` (create_one_batch).
"""

from collections.abc import Sequence

import numpy as np

from elmokit.config import (
    CHARACTER_SHIFT,
    EFML_BEGIN_WORD,
    EFML_BOUNDARIES,
    EFML_END_WORD,
    EFML_OOV,
    EFML_PAD,
    CharCNNConfig,
    EfmlEncoderConfig,
)
from elmokit.text.characters import BOS, EOS

BOUNDARY_NAMES: dict[str, str] = dict(zip((BOS, EOS), EFML_BOUNDARIES, strict=True))


def _truncated(words: Sequence[str], max_characters: int | None) -> list[str]:
    """Truncate words, except boundaries, which are renamed as in the dictionaries."""
    limit = None if max_characters is None else max_characters - 2
    words = [BOUNDARY_NAMES.get(word, word) for word in words]
    return [word if word in EFML_BOUNDARIES else word[:limit] for word in words]


def count_truncated_efml(words: Sequence[str], config: EfmlEncoderConfig) -> int:
    """Number of words with more characters than the model reads, without boundaries, which are kept whole."""
    if config.max_characters is None:
        return 0
    long = [word for word in words if len(word) > config.max_characters - 2]
    return sum(BOUNDARY_NAMES.get(word, word) not in EFML_BOUNDARIES for word in long)


def _code_points(words: Sequence[str]) -> np.ndarray:
    return np.frombuffer("".join(words).encode("utf-32-le", "surrogatepass"), dtype=np.uint32)


def _character_ids(words: Sequence[str], config: EfmlEncoderConfig, char_cnn: CharCNNConfig) -> np.ndarray:
    """Rows of begin-word, the characters, end-word and padding, (N, C); C is as small as the longest word allows."""
    rows, lengths = config.character_rows, np.fromiter(map(len, words), dtype=np.int64, count=len(words))
    boundaries = [number for number, word in enumerate(words) if word in EFML_BOUNDARIES]
    lengths[boundaries] = 1
    # As in `encode_words`, every filter must see a window of padding only.
    width = min(char_cnn.max_characters, int(lengths.max(initial=0)) + 2 + char_cnn.widest_filter)
    spelled = ["?" if word in EFML_BOUNDARIES else word for word in words]
    distinct, inverse = np.unique(_code_points(spelled), return_inverse=True)
    known = np.array([rows.get(chr(point), rows[EFML_OOV]) for point in distinct], dtype=np.int64)

    ids = np.full((len(words), width), rows[EFML_PAD], dtype=np.int64)
    ids[:, 1:][np.arange(width - 1) < lengths[:, None]] = known[inverse]
    ids[:, 0] = rows[EFML_BEGIN_WORD]
    ids[np.arange(len(words)), lengths + 1] = rows[EFML_END_WORD]
    for number in boundaries:
        ids[number, 1] = rows[words[number]]
    return ids


def encode_efml(words: Sequence[str], config: EfmlEncoderConfig) -> np.ndarray:
    """Encode words for the ELMoForManyLangs token encoder.

    Args:
        words: N words; <S> and </S>, or <bos> and <eos> as in the dictionaries, are sentence boundaries.
        config: The encoder, with its dictionaries.

    Returns:
        Rows plus one, (N, 1 + C) int64: the word (if the model has word vectors), then its characters (if it has a
        character CNN).
    """
    words, columns = _truncated(words, config.max_characters), []
    if config.words:
        rows = config.word_rows
        columns.append(np.array([[rows.get(word, rows[EFML_OOV])] for word in words], dtype=np.int64).reshape(-1, 1))
    if config.char_cnn is not None:
        columns.append(_character_ids(words, config, config.char_cnn))
    return np.concatenate(columns, axis=1) + CHARACTER_SHIFT


def padding_ids(width: int, config: EfmlEncoderConfig) -> np.ndarray:
    """The ids with which ELMoForManyLangs pads the shorter sentences of a batch, (width,) int64."""
    padding = np.empty(width, dtype=np.int64)
    if config.words:
        padding[0] = config.word_rows[EFML_PAD]
    if config.characters:
        padding[len(config.words) > 0 :] = config.character_rows[EFML_PAD]
    return padding + CHARACTER_SHIFT
