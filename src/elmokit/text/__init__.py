"""Text to ids, without torch: character ids, word vocabulary, tokenizers."""

from elmokit.text.characters import (
    BOS,
    EOS,
    MAX_CHARACTERS,
    PAD_CHARACTER,
    TruncationWarning,
    count_truncated,
    encode_sentences,
    encode_words,
    truncation_in,
    truncation_message,
)
from elmokit.text.tokenizer import (
    INVISIBLE,
    TOKENIZED,
    Sentence,
    Tokenizer,
    word_offsets,
)
from elmokit.text.tokenizers import (
    TOKENIZER_OF,
    get_tokenizer,
    tokenizer_for,
)
from elmokit.text.vocab import SPECIALS, Vocab, count_words, is_mark, read_words

__all__ = [
    "BOS",
    "EOS",
    "INVISIBLE",
    "MAX_CHARACTERS",
    "PAD_CHARACTER",
    "SPECIALS",
    "TOKENIZED",
    "TOKENIZER_OF",
    "Sentence",
    "Tokenizer",
    "TruncationWarning",
    "Vocab",
    "count_truncated",
    "count_words",
    "encode_sentences",
    "encode_words",
    "get_tokenizer",
    "is_mark",
    "read_words",
    "tokenizer_for",
    "truncation_in",
    "truncation_message",
    "word_offsets",
]
