"""Tokenizers and sentence splitters by name.

A model must read text that is tokenized like its training text, so the name of the tokenizer is stored with the
weights. Names end in a version, which changes whenever the tokens of any text change.
"""

from dataclasses import replace
from functools import partial

from elmokit.text.english import split_english_sentences, tokenize_english
from elmokit.text.scripts import (
    CHARACTERS,
    NOT_LATIN_LETTER,
    SOUTH_EAST_ASIAN_LETTER,
    UNSPACED_LETTER,
    split_chinese_sentences,
)
from elmokit.text.segmenters import LANGUAGE_CODE, SEGMENTERS, load_segmenter
from elmokit.text.sentences import LANGUAGES, split_sentences
from elmokit.text.tokenizer import Tokenizer
from elmokit.text.words import tokenize_words


def split_lines(text: str) -> list[str]:
    """Split a text into its lines, without blank ones."""
    return [line for line in text.split("\n") if line.strip()]


TOKENIZED = "whitespace-1"  # the tokenizer of text that is tokenized already

TOKENIZERS = {
    tokenizer.name: tokenizer
    for tokenizer in (
        Tokenizer(TOKENIZED, str.split, split_lines),
        Tokenizer("english-1", tokenize_english, split_english_sentences, NOT_LATIN_LETTER),
        Tokenizer("words-1", tokenize_words, partial(split_sentences, "en"), UNSPACED_LETTER),
        Tokenizer("characters-1", CHARACTERS.findall, split_chinese_sentences, SOUTH_EAST_ASIAN_LETTER),
    )
}

# The tokenizers of languages that do not use words-1; None for languages without a tokenizer.
TOKENIZER_OF: dict[str, str | None] = {
    "en": "english-1",
    "zh": "characters-1",
    "ja": "characters-1",
    "th": "pythainlp",
    **dict.fromkeys(("bo", "dz", "km", "lo", "my")),
}


def get_tokenizer(name: str) -> Tokenizer:
    """Get a tokenizer by name.

    Args:
        name: whitespace-1 (text that is already tokenized, one sentence per line), english-1, words-1 (other languages
            with spaces between words), characters-1 (Chinese and Japanese); or, with extras, rjieba (Chinese words),
            unidic-lite (Japanese words), pythainlp (Thai), spacy:MODEL or spacy:LANGUAGE. The full names of the latter
            are NAME==VERSION; such a name requires that version.

    Returns:
        The tokenizer.

    Raises:
        ValueError: There is no such tokenizer, or its library is not installed or has another version.
    """
    if name.startswith("spacy:") or name.partition("==")[0] in SEGMENTERS:
        return load_segmenter(name)
    if name not in TOKENIZERS:
        names = ", ".join([*TOKENIZERS, *SEGMENTERS, "spacy:MODEL and spacy:LANGUAGE"])
        raise ValueError(f"there is no tokenizer {name!r}: choose one of {names}")
    return TOKENIZERS[name]


# The languages for which a tokenizer has its own sentence splitter, in addition to spaCy's and PyThaiNLP's.
OWN_SENTENCES = {"english-1": ("en",), "characters-1": ("zh", "ja"), "rjieba": ("zh",), "unidic-lite": ("ja",)}


def _uses_sentencex(tokenizer: Tokenizer, language: str) -> bool:
    library = tokenizer.name.partition("==")[0]
    return not library.startswith(("spacy:", "pythainlp")) and language not in OWN_SENTENCES.get(library, ())


def tokenizer_for(name: str | None = None, language: str | None = None) -> Tokenizer:
    """Get a tokenizer that splits sentences by the rules of a language.

    Args:
        name: As in `get_tokenizer`; by default the tokenizer of the language: english-1, characters-1 (zh, ja),
            pythainlp (th) or words-1 (others).
        language: Code of two or three letters, such as "de"; by default the tokenizer's own language, or English if no
            name is given either.

    Returns:
        The tokenizer.

    Raises:
        ValueError: There is no such language or tokenizer, or they do not match.
    """
    if language is not None and not LANGUAGE_CODE.fullmatch(language):
        raise ValueError(f"{language!r} is not a language code: there are rules for {', '.join(LANGUAGES)}, th and zh")
    if name is None:
        name = TOKENIZER_OF.get(language or "en", "words-1")
    if name is None:
        raise ValueError(f"there is no tokenizer for {language!r}: use spacy:MODEL, or split its words yourself")
    tokenizer = get_tokenizer(name)
    if tokenizer.name == TOKENIZED and language is not None:
        raise ValueError("whitespace-1 reads one sentence per line in any language: omit the language")
    if tokenizer.name == "words-1" and language is None:
        raise ValueError("words-1 needs a language, such as de, to split sentences by: give one")
    if language is None or not _uses_sentencex(tokenizer, language):
        return replace(tokenizer, language=language)
    return replace(tokenizer, split_sentences=partial(split_sentences, language), language=language)


def missing_rules(tokenizer: Tokenizer, language: str | None) -> str | None:
    """A warning if there are no rules to split sentences of the language; otherwise None."""
    if language is None or language in LANGUAGES or not _uses_sentencex(tokenizer, language):
        return None
    return (
        f"there are no rules for sentences of {language!r}: those of a related language or of English are used, so "
        "that a sentence may end wrongly after an abbreviation; look at some of the sentences"
    )
