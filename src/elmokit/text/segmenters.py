"""Adapters of other libraries' tokenizers (extras), whose names end in the version that determines the tokens."""

import re
import sys
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from importlib.metadata import version
from threading import Lock
from typing import Any

from elmokit.text.scripts import SOUTH_EAST_ASIAN_LETTER, split_chinese_sentences
from elmokit.text.tokenizer import Tokenizer

LANGUAGE_CODE = re.compile(r"[a-z]{2,3}")


# The packages of each extra.
PACKAGES = {
    "chinese": "rjieba",
    "japanese": "fugashi unidic-lite",
    "spacy": "spacy",
    "thai": "pythainlp python-crfsuite",
}


def _module(name: str, extra: str) -> Any:
    """Import a library of an extra. ValueError says how to install it if it is missing."""
    try:
        return import_module(name)
    except ImportError as error:
        raise ValueError(f"{error}: pip install {PACKAGES[extra]} (elmokit's extra {extra})") from error


@lru_cache(maxsize=4)  # loading takes a second, and callers may load the tokenizer once per document
def _spacy(model: str) -> Tokenizer:
    """The pipeline of a model, or the blank pipeline of a language."""
    spacy = _module("spacy", "spacy")
    if LANGUAGE_CODE.fullmatch(model):
        pipeline, installed = spacy.blank(model), spacy.__version__
        pipeline.max_length = sys.maxsize  # the limit protects parsers, which a blank pipeline does not have
    else:
        pipeline = spacy.load(model, exclude=["tagger", "ner", "lemmatizer", "attribute_ruler", "textcat"])
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

    return Tokenizer(f"rjieba=={version('rjieba')}", tokenize, split_chinese_sentences, SOUTH_EAST_ASIAN_LETTER)


@lru_cache(maxsize=1)
def _unidic_lite() -> Tokenizer:
    """Japanese short-unit words, as in Universal Dependencies, by MeCab (fugashi) and the dictionary unidic-lite."""
    fugashi, dictionary = _module("fugashi", "japanese"), _module("unidic_lite", "japanese").DICDIR
    tagger = fugashi.GenericTagger(f'-Owakati -d "{dictionary}" -r "{dictionary}/mecabrc"')

    lock = Lock()  # MeCab is not thread-safe

    def tokenize(text: str) -> list[str]:
        with lock:
            return tagger.parse(text).split()

    return Tokenizer(
        f"unidic-lite=={version('unidic-lite')}", tokenize, split_chinese_sentences, SOUTH_EAST_ASIAN_LETTER
    )


@lru_cache(maxsize=1)
def _pythainlp() -> Tokenizer:
    """Thai words by PyThaiNLP's dictionary (newmm), sentences by its conditional random field (crfcut)."""
    thai = _module("pythainlp.tokenize", "thai")
    _module("pycrfsuite", "thai")

    def tokenize(text: str) -> list[str]:
        return " ".join(thai.word_tokenize(text, engine="newmm", keep_whitespace=False)).split()

    def split_sentences(text: str) -> list[str]:
        sentences = thai.sent_tokenize(text, engine="crfcut")
        return [stripped for sentence in sentences if (stripped := sentence.strip())]

    return Tokenizer(f"pythainlp=={version('pythainlp')}", tokenize, split_sentences)


SEGMENTERS = {"rjieba": _rjieba, "unidic-lite": _unidic_lite, "pythainlp": _pythainlp}


def load_segmenter(name: str) -> Tokenizer:
    """Load another library's tokenizer.

    Args:
        name: "LIBRARY" or "spacy:MODEL" for the installed version; "NAME==VERSION" for that version.

    Returns:
        The tokenizer, whose name ends in its version.

    Raises:
        ValueError: The library is not installed, or it or the model has another version.
        OSError, ImportError: spaCy has no such model or language.
    """
    library, _, required = name.partition("==")
    tokenizer = _spacy(library.removeprefix("spacy:")) if library.startswith("spacy:") else SEGMENTERS[library]()
    installed = tokenizer.name.partition("==")[2]
    if required not in ("", installed):
        model = library.removeprefix("spacy:")
        raise ValueError(f"{name!r} requires {model} {required}, but {installed} is installed: install that version")
    return tokenizer
