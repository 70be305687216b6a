"""Tokenizers and sentence splitters by name.

A model must read text that is tokenized like its training text, so the name of the tokenizer is
stored with the weights. Names end in a version, which changes whenever the tokens of any text
change. english-1 and words-1 have modules of their own. characters-1, for Chinese and Japanese,
makes every ideograph a token; text between ideographs, including kana, is split into runs of
letters and single punctuation marks. Tokenizers of other libraries (extras) have names that end in
the version of the library or model.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from importlib import import_module
from importlib.metadata import version
from threading import Lock
from typing import Any

from elmokit.text.english import split_english_sentences, tokenize_english
from elmokit.text.sentences import LANGUAGES, split_sentences
from elmokit.text.tokenizer import Tokenizer
from elmokit.text.words import tokenize_words

# --- characters-1 ---------------------------------------------------------------------------------

IDEOGRAPHS = (
    r"\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    r"\U00020000-\U000323af"
)
KANA = r"\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f"
# Thai, Lao, Tibetan, Burmese, Khmer.
SOUTH_EAST_ASIAN = r"\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u19e0-\u19ff\uaa60-\uaa7f"

UNSPACED_LETTER = re.compile(rf"[{IDEOGRAPHS}{KANA}{SOUTH_EAST_ASIAN}]")
SOUTH_EAST_ASIAN_LETTER = re.compile(rf"[{SOUTH_EAST_ASIAN}]")
# Without emoji, punctuation and digits.
NOT_LATIN_LETTER = re.compile(
    r"[\u0370-\u1cff\u1f00-\u1fff\u2c00-\u2c5f\u2c80-\u2dff\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3040-\u318f"
    r"\u31a0-\u31ff\u3400-\ua71f\ua800-\uab2f\uab70-\ud7ff\uf900-\ufaff\ufb13-\ufdff\ufe70-\ufefc\uff66-\uffdc"
    r"\U00010000-\U0001cfff\U0001e000-\U0001efff\U00020000-\U000323af]"
)

IDEOGRAPH = f"[{IDEOGRAPHS}]"
CHARACTERS = re.compile(rf"{IDEOGRAPH}|(?:(?!{IDEOGRAPH})\w)+|\S")
CHINESE_SENTENCE = re.compile(
    r".+?(?:[\u3002\uff01\uff1f!?\u2026]+[\u201d\u2019\u300d\u300f\uff09)\"]*|$)", re.DOTALL
)


def split_chinese_sentences(paragraph: str) -> list[str]:
    """Split a paragraph into sentences, each with its final punctuation and closing quotes."""
    return [
        stripped
        for sentence in CHINESE_SENTENCE.findall(paragraph)
        if (stripped := sentence.strip())
    ]


# --- Tokenizers of other libraries ----------------------------------------------------------------


def _module(name: str, extra: str) -> Any:
    """Import a library of an extra. ValueError says which one if it is missing."""
    try:
        return import_module(name)
    except ImportError as error:
        raise ValueError(f"{error}: install elmokit's extra {extra}") from error


@lru_cache(
    maxsize=4
)  # loading takes a second, and callers may load the tokenizer once per document
def _spacy(model: str) -> Tokenizer:
    """The pipeline of a model, or the blank pipeline of a language."""
    spacy = _module("spacy", "spacy")
    if re.fullmatch("[a-z]{2,3}", model):
        pipeline, installed = spacy.blank(model), spacy.__version__
    else:
        pipeline = spacy.load(
            model, exclude=["tagger", "ner", "lemmatizer", "attribute_ruler", "textcat"]
        )
        installed = pipeline.meta["version"]
    if not {"parser", "senter", "sentencizer"} & set(pipeline.pipe_names):
        pipeline.add_pipe("sentencizer")

    def tokenize(text: str) -> list[str]:
        return [part for token in pipeline.make_doc(text) for part in token.text.split()]

    def split_sentences(text: str) -> list[str]:
        return [sentence for span in pipeline(text).sents if (sentence := span.text.strip())]

    return Tokenizer(f"spacy:{model}=={installed}", tokenize, split_sentences)


@lru_cache(maxsize=1)
def _rjieba() -> Tokenizer:
    """Chinese words, by jieba's dictionary and its hidden Markov model for other words."""
    cut: Callable[[str], list[str]] = _module("rjieba", "chinese").cut

    def tokenize(text: str) -> list[str]:
        return " ".join(cut(text)).split()

    return Tokenizer(
        f"rjieba=={version('rjieba')}", tokenize, split_chinese_sentences, SOUTH_EAST_ASIAN_LETTER
    )


@lru_cache(maxsize=1)
def _unidic_lite() -> Tokenizer:
    """Japanese short-unit words, as in Universal Dependencies, by MeCab (fugashi) and the
    dictionary unidic-lite.
    """
    fugashi, dictionary = _module("fugashi", "japanese"), _module("unidic_lite", "japanese").DICDIR
    tagger = fugashi.GenericTagger(f'-Owakati -d "{dictionary}" -r "{dictionary}/mecabrc"')

    lock = Lock()  # MeCab is not thread-safe

    def tokenize(text: str) -> list[str]:
        with lock:
            return tagger.parse(text).split()

    return Tokenizer(
        f"unidic-lite=={version('unidic-lite')}",
        tokenize,
        split_chinese_sentences,
        SOUTH_EAST_ASIAN_LETTER,
    )


@lru_cache(maxsize=1)
def _pythainlp() -> Tokenizer:
    """Thai words by PyThaiNLP's dictionary (newmm), sentences by its conditional random field
    (crfcut).
    """
    thai = _module("pythainlp.tokenize", "thai")
    _module("pycrfsuite", "thai")

    def tokenize(text: str) -> list[str]:
        return " ".join(thai.word_tokenize(text, engine="newmm", keep_whitespace=False)).split()

    def split_sentences(text: str) -> list[str]:
        sentences = thai.sent_tokenize(text, engine="crfcut")
        return [stripped for sentence in sentences if (stripped := sentence.strip())]

    return Tokenizer(f"pythainlp=={version('pythainlp')}", tokenize, split_sentences)


SEGMENTERS = {"rjieba": _rjieba, "unidic-lite": _unidic_lite, "pythainlp": _pythainlp}


# --- By name --------------------------------------------------------------------------------------


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
        Tokenizer(
            "characters-1", CHARACTERS.findall, split_chinese_sentences, SOUTH_EAST_ASIAN_LETTER
        ),
    )
}

# The tokenizers of languages that do not use words-1.
TOKENIZER_OF = {"en": "english-1", "zh": "characters-1", "ja": "characters-1", "th": "pythainlp"}


def get_tokenizer(name: str) -> Tokenizer:
    """Get a tokenizer by name.

    Args:
        name: whitespace-1 (text that is already tokenized, one sentence per line), english-1,
            words-1 (other languages with spaces between words), characters-1 (Chinese and
            Japanese); or, with extras, rjieba (Chinese words), unidic-lite (Japanese words),
            pythainlp (Thai), spacy:MODEL or spacy:LANGUAGE. The full names of the latter are
            NAME==VERSION; such a name requires that version.

    Returns:
        The tokenizer.

    Raises:
        ValueError: There is no such tokenizer, or its library is not installed or has another
            version.
    """
    library, _, required = name.partition("==")
    if library.startswith("spacy:"):
        tokenizer = _spacy(library.removeprefix("spacy:"))
    elif library in SEGMENTERS:
        tokenizer = SEGMENTERS[library]()
    elif name in TOKENIZERS:
        return TOKENIZERS[name]
    else:
        names = ", ".join([*TOKENIZERS, *SEGMENTERS, "spacy:MODEL and spacy:LANGUAGE"])
        raise ValueError(f"there is no tokenizer {name!r}: choose one of {names}")
    if required and tokenizer.name != name:
        raise ValueError(
            f"{name!r} is required, but {tokenizer.name} is installed: install that version"
        )
    return tokenizer


# The languages for which a tokenizer has its own sentence splitter, in addition to spaCy's and
# PyThaiNLP's.
OWN_SENTENCES = {
    "english-1": ("en",),
    "characters-1": ("zh", "ja"),
    "rjieba": ("zh",),
    "unidic-lite": ("ja",),
}


def _uses_sentencex(tokenizer: Tokenizer, language: str) -> bool:
    library = tokenizer.name.partition("==")[0]
    return not library.startswith(("spacy:", "pythainlp")) and language not in OWN_SENTENCES.get(
        library, ()
    )


def tokenizer_for(name: str | None = None, language: str | None = None) -> Tokenizer:
    """Get a tokenizer that splits sentences by the rules of a language.

    Args:
        name: As in `get_tokenizer`; by default the tokenizer of the language: english-1,
            characters-1 (zh, ja), pythainlp (th) or words-1 (others).
        language: Code of two or three letters, such as "de"; by default the tokenizer's own
            language, or English if no name is given either.

    Returns:
        The tokenizer.

    Raises:
        ValueError: There is no such tokenizer, or it and the language do not match.
    """
    tokenizer = get_tokenizer(name or TOKENIZER_OF.get(language or "en", "words-1"))
    if tokenizer.name == TOKENIZED and language is not None:
        raise ValueError(
            "whitespace-1 reads one sentence per line in any language: omit the language"
        )
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
        f"there are no rules for sentences of {language!r}: those of a related language or of "
        "English are used, so that a sentence may end wrongly after an abbreviation; look at some "
        "of the sentences"
    )
