"""Ids of words in the dictionaries of ELMoForManyLangs: the row of the word, then the rows of its
characters.

Sources: ELMoForManyLangs, `elmo.py` (read_list) and `frontend.py` (create_one_batch).
"""

from collections.abc import Sequence

import numpy as np

from elmokit.config import CHARACTER_SHIFT, CharCNNConfig, EfmlEncoderConfig
from elmokit.text.characters import BOS, EOS

# Entries of the dictionaries. Training swapped the two marks around a word (frontend.py:51), so
# that its models know them swapped.
EFML_BEGIN_WORD, EFML_END_WORD = "<eow>", "<bow>"
EFML_BOUNDARIES = "<bos>", "<eos>"
EFML_OOV, EFML_PAD = "<oov>", "<pad>"
BOUNDARY_NAMES: dict[str, str] = dict(zip((BOS, EOS), EFML_BOUNDARIES, strict=True))


def _truncated(words: Sequence[str], max_characters: int | None) -> list[str]:
    """Truncate words, except boundaries, which are renamed as in the dictionaries."""
    limit = None if max_characters is None else max_characters - 2
    words = [BOUNDARY_NAMES.get(word, word) for word in words]
    return [word if word in EFML_BOUNDARIES else word[:limit] for word in words]


def count_truncated_efml(words: Sequence[str], config: EfmlEncoderConfig) -> int:
    """Number of words with more characters than the model reads, without boundaries, which are kept
    whole.
    """
    if config.max_characters is None:
        return 0
    long = [word for word in words if len(word) > config.max_characters - 2]
    return sum(BOUNDARY_NAMES.get(word, word) not in EFML_BOUNDARIES for word in long)


def _character_ids(
    words: Sequence[str], config: EfmlEncoderConfig, char_cnn: CharCNNConfig
) -> np.ndarray:
    """Rows of begin-word, the characters, end-word and padding, (N, C); C is as small as the
    longest word allows.
    """
    rows = config.character_rows
    begin, end, unknown, padding = (
        rows[name] for name in (EFML_BEGIN_WORD, EFML_END_WORD, EFML_OOV, EFML_PAD)
    )
    spelled = [[word] if word in EFML_BOUNDARIES else word for word in words]
    ids = [[begin, *(rows.get(character, unknown) for character in word), end] for word in spelled]
    # As in `encode_words`, every filter must see a window of padding only.
    width = min(char_cnn.max_characters, max(map(len, ids), default=2) + char_cnn.widest_filter)
    return np.array(
        [each + [padding] * (width - len(each)) for each in ids], dtype=np.int64
    ).reshape(-1, width)


def encode_efml(words: Sequence[str], config: EfmlEncoderConfig) -> np.ndarray:
    """Encode words for the ELMoForManyLangs token encoder.

    Args:
        words: N words; <S> and </S>, or <bos> and <eos> as in the dictionaries, are sentence
            boundaries.
        config: The encoder, with its dictionaries.

    Returns:
        Rows plus one, (N, 1 + C) int64: the word (if the model has word vectors), then its
        characters (if it has a character CNN).
    """
    words, columns = _truncated(words, config.max_characters), []
    if config.words:
        rows = config.word_rows
        columns.append(
            np.array([[rows.get(word, rows[EFML_OOV])] for word in words], dtype=np.int64).reshape(
                -1, 1
            )
        )
    if config.char_cnn is not None:
        columns.append(_character_ids(words, config, config.char_cnn))
    return np.concatenate(columns, axis=1) + CHARACTER_SHIFT


def boundary_ids(config: EfmlEncoderConfig, which: int, width: int) -> list[int]:
    """The ids of <S> (`which` = 0) or </S> (1), (width,): padded as ELMoForManyLangs pads, by the
    rows of <pad>.
    """
    (ids,) = encode_efml([EFML_BOUNDARIES[which]], config).tolist()
    padding = config.character_rows[EFML_PAD] + CHARACTER_SHIFT if config.characters else 0
    return [*ids, *[padding] * (width - len(ids))][:width]
