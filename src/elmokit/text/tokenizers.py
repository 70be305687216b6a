"""Text to sentences and sentences to tokens, by name.

The tokenizer is part of a model: the model's text was split by it, and so must be the text it reads later. Its name,
kept with the weights, therefore ends in a version; other tokens for the same text mean another name.
"""

from dataclasses import replace
from functools import partial

from elmokit.text.chinese import CHARACTERS, split_chinese_sentences
from elmokit.text.english import split_english_sentences, tokenize_english
from elmokit.text.scripts import NOT_LATIN_LETTER, SOUTH_EAST_ASIAN_LETTER, UNSPACED_LETTER
from elmokit.text.segmenters import LANGUAGE_CODE, SEGMENTERS, load_segmenter
from elmokit.text.sentences import LANGUAGES, split_sentences
from elmokit.text.tokenizer import Tokenizer
from elmokit.text.words import tokenize_words


def split_lines(text: str) -> list[str]:
    """The lines of a text that are not blank."""
    return [line for line in text.split("\n") if line.strip()]


TOKENIZERS = {
    tokenizer.name: tokenizer
    for tokenizer in (
        Tokenizer("whitespace-1", str.split, split_lines),
        Tokenizer("english-1", tokenize_english, split_english_sentences, NOT_LATIN_LETTER),
        Tokenizer("words-1", tokenize_words, partial(split_sentences, "en"), UNSPACED_LETTER),
        Tokenizer("characters-1", CHARACTERS.findall, split_chinese_sentences, SOUTH_EAST_ASIAN_LETTER),
    )
}

# The tokenizer of a language where it is not words-1; None where there is none.
TOKENIZER_OF: dict[str, str | None] = {
    "en": "english-1",
    "zh": "characters-1",
    "ja": "characters-1",
    "th": "pythainlp",
    **dict.fromkeys(("bo", "dz", "km", "lo", "my")),
}


def get_tokenizer(name: str) -> Tokenizer:
    """The tokenizer of a name.

    Args:
        name: whitespace-1 (text that is split already: tokens between white space, one sentence a line), english-1,
            words-1 (other languages with spaces between words), characters-1 (Chinese and Japanese); with extras rjieba
            (Chinese words), unidic-lite (Japanese words), pythainlp (Thai), spacy:MODEL or spacy:LANGUAGE, which are
            called NAME==VERSION from then on and by that name come from no other version.

    Raises:
        ValueError: There is none of that name, its library is not installed, or in another version.
    """
    if name.startswith("spacy:") or name.partition("==")[0] in SEGMENTERS:
        return load_segmenter(name)
    if name not in TOKENIZERS:
        names = ", ".join([*TOKENIZERS, *SEGMENTERS, "spacy:MODEL and spacy:LANGUAGE"])
        raise ValueError(f"no tokenizer is called {name!r}: the names are {names}")
    return TOKENIZERS[name]


# The languages whose sentences a tokenizer finds by itself. Those of spaCy and pythainlp know theirs.
OWN_SENTENCES = {"english-1": ("en",), "characters-1": ("zh", "ja"), "rjieba": ("zh",), "unidic-lite": ("ja",)}


def _uses_sentencex(tokenizer: Tokenizer, language: str) -> bool:
    library = tokenizer.name.partition("==")[0]
    own = library.startswith("spacy:") or library == "pythainlp" or language in OWN_SENTENCES.get(library, ())
    return not own


def tokenizer_for(name: str | None = None, language: str | None = None) -> Tokenizer:
    """The tokenizer of a name, or else of a language, that finds sentences by the rules of the language.

    Args:
        name: As of `get_tokenizer`; when None, the tokenizer for the language: english-1, characters-1 (zh, ja),
            pythainlp (th), words-1 (all others).
        language: A code of two or three letters, such as "de"; when None, the one that the tokenizer is for: English if
            there is no name either.

    Raises:
        ValueError: There is no such language or tokenizer, or they do not go together.
    """
    if language is not None and not LANGUAGE_CODE.fullmatch(language):
        raise ValueError(
            f"{language!r} is no code of a language, which has two or three letters; there are rules for the sentences "
            f"of {', '.join(LANGUAGES)}, th and zh"
        )
    if name is None:
        name = TOKENIZER_OF.get(language or "en", "words-1")
    if name is None:
        raise ValueError(
            f"there is no tokenizer for {language!r}, which has no spaces between words: name one, spacy:MODEL, or "
            "whitespace-1 for text that is split already"
        )
    tokenizer = get_tokenizer(name)
    if tokenizer.name == "whitespace-1" and language is not None:
        raise ValueError("whitespace-1 takes each line for a sentence, in any language: leave the language out")
    if tokenizer.name == "words-1" and language is None:
        raise ValueError("words-1 splits the words of many languages: say which, such as de, to find sentences by")
    if language is None or not _uses_sentencex(tokenizer, language):
        return tokenizer
    return replace(tokenizer, split_sentences=partial(split_sentences, language))


def doubt_about(tokenizer: Tokenizer, language: str | None) -> str | None:
    """A sentence that says so where there are no rules for the sentences of a language; None where there are."""
    if language is None or language in LANGUAGES or not _uses_sentencex(tokenizer, language):
        return None
    return (
        f"sentencex has no rules of its own for {language!r}: sentences are split by those of a related language, or "
        f"by the English ones, so that abbreviations may end one (it has rules for {', '.join(LANGUAGES)})"
    )
