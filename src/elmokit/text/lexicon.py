"""Words to the ids of ELMoForManyLangs' dictionaries: the row of the word, then those of its characters.

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

LEXICON_NAMES: dict[str, str] = dict(zip((BOS, EOS), EFML_BOUNDARIES, strict=True))


def _cut(words: Sequence[str], max_characters: int | None) -> list[str]:
    """Words as the model sees them; boundaries are called as in its dictionaries, and are never cut."""
    limit = None if max_characters is None else max_characters - 2
    words = [LEXICON_NAMES.get(word, word) for word in words]
    return [word if word in EFML_BOUNDARIES else word[:limit] for word in words]


def count_cut(words: Sequence[str], config: EfmlEncoderConfig) -> int:
    """How many of the words have more characters than the model reads."""
    return 0 if config.max_characters is None else sum(len(word) > config.max_characters - 2 for word in words)


def _code_points(words: Sequence[str]) -> np.ndarray:
    return np.frombuffer("".join(words).encode("utf-32-le", "surrogatepass"), dtype=np.uint32)


def _character_ids(words: Sequence[str], config: EfmlEncoderConfig, char_cnn: CharCNNConfig) -> np.ndarray:
    """(N, C): begin-word, the characters, end-word, padding; C is only what the longest word needs."""
    rows, lengths = config.character_rows, np.fromiter(map(len, words), dtype=np.int64, count=len(words))
    boundaries = [number for number, word in enumerate(words) if word in EFML_BOUNDARIES]
    lengths[boundaries] = 1
    # As in `encode_words`: one window of padding alone survives for every filter.
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


def encode_with_lexicon(words: Sequence[str], config: EfmlEncoderConfig) -> np.ndarray:
    """Ids (N, 1 + C) int64 of words, shifted by one: the word where the model has a table, and its characters.

    <S> and </S>, and <bos> and <eos> as its dictionaries call them, are the boundaries.
    """
    words, columns = _cut(words, config.max_characters), []
    if config.words:
        rows = config.word_rows
        columns.append(np.array([[rows.get(word, rows[EFML_OOV])] for word in words], dtype=np.int64).reshape(-1, 1))
    if config.char_cnn is not None:
        columns.append(_character_ids(words, config, config.char_cnn))
    return np.concatenate(columns, axis=1) + CHARACTER_SHIFT


def padding_ids(width: int, config: EfmlEncoderConfig) -> np.ndarray:
    """(width,): what ELMoForManyLangs puts behind a sentence that is shorter than others of its batch."""
    padding = np.empty(width, dtype=np.int64)
    if config.words:
        padding[0] = config.word_rows[EFML_PAD]
    if config.characters:
        padding[len(config.words) > 0 :] = config.character_rows[EFML_PAD]
    return padding + CHARACTER_SHIFT
