"""Text to ids, without torch: character ids, word vocabulary, tokenizers.

- `BOS`, `EOS`: the words <S> and </S>
- `Vocab`: words and their ids; counts words of files
- `encode_words`, `encode_sentences`: character ids
- `count_truncated`, `TruncationWarning`: words that are too long for a model
- `Tokenizer`, got by `get_tokenizer`; `TOKENIZED` is the name of the one that splits at white space
- `Sentence`: a string or its words; `word_offsets`: where the words are in it
"""

from elmokit.text.characters import (
    BOS,
    EOS,
    TruncationWarning,
    count_truncated,
    encode_sentences,
    encode_words,
)
from elmokit.text.tokenizer import TOKENIZED, Sentence, Tokenizer, word_offsets
from elmokit.text.tokenizers import get_tokenizer
from elmokit.text.vocab import Vocab

__all__ = [
    "BOS",
    "EOS",
    "TOKENIZED",
    "Sentence",
    "Tokenizer",
    "TruncationWarning",
    "Vocab",
    "count_truncated",
    "encode_sentences",
    "encode_words",
    "get_tokenizer",
    "word_offsets",
]
