"""Text to ids, without torch: character ids, word vocabulary, tokenizers.

- `BOS`, `EOS`: the words <S> and </S>; `SPECIALS`: these and <UNK>
- `Vocab`: words and their ids; counts words of files
- `encode_words`, `encode_sentences`: character ids, of at most `MAX_CHARACTERS` a word
- `count_truncated`, `TruncationWarning`: words that are too long for a model
- `Tokenizer`, got by `get_tokenizer` or `tokenizer_for` a language; `TOKENIZED` is the name of the
  one that splits at white space, `TOKENIZER_OF` the default of some languages
- `Sentence`: a string or its words; `word_offsets`: where the words are in it
- `INVISIBLE`: characters that tokenizers drop
"""

from elmokit.text.characters import (
    BOS,
    EOS,
    MAX_CHARACTERS,
    TruncationWarning,
    count_truncated,
    encode_sentences,
    encode_words,
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
from elmokit.text.vocab import SPECIALS, Vocab

__all__ = [
    "BOS",
    "EOS",
    "INVISIBLE",
    "MAX_CHARACTERS",
    "SPECIALS",
    "TOKENIZED",
    "TOKENIZER_OF",
    "Sentence",
    "Tokenizer",
    "TruncationWarning",
    "Vocab",
    "count_truncated",
    "encode_sentences",
    "encode_words",
    "get_tokenizer",
    "tokenizer_for",
    "word_offsets",
]
