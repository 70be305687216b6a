"""Text to ids, without torch: character ids, word vocabulary, tokenizers."""

from elmokit.text.characters import (
    BOS,
    EOS,
    MAX_CHARACTERS,
    PAD_CHARACTER,
    UNK,
    TruncationWarning,
    count_truncated,
    encode_sentences,
    encode_words,
    truncation_in,
    truncation_message,
)
from elmokit.text.efml import boundary_ids, count_truncated_efml, encode_efml
from elmokit.text.tokenizer import (
    DECOMPOSED,
    INVISIBLE,
    Sentence,
    Tokenizer,
    is_decomposed,
    token_offsets,
    word_offsets,
)
from elmokit.text.tokenizers import (
    TOKENIZED,
    TOKENIZER_OF,
    UNSPACED_LETTER,
    get_tokenizer,
    missing_rules,
    tokenizer_for,
)
from elmokit.text.vocab import SPECIALS, Vocab, count_words, is_mark, read_words

__all__ = [
    "BOS",
    "DECOMPOSED",
    "EOS",
    "INVISIBLE",
    "MAX_CHARACTERS",
    "PAD_CHARACTER",
    "SPECIALS",
    "TOKENIZED",
    "TOKENIZER_OF",
    "UNK",
    "UNSPACED_LETTER",
    "Sentence",
    "Tokenizer",
    "TruncationWarning",
    "Vocab",
    "boundary_ids",
    "count_truncated",
    "count_truncated_efml",
    "count_words",
    "encode_efml",
    "encode_sentences",
    "encode_words",
    "get_tokenizer",
    "is_decomposed",
    "is_mark",
    "missing_rules",
    "read_words",
    "token_offsets",
    "tokenizer_for",
    "truncation_in",
    "truncation_message",
    "word_offsets",
]
