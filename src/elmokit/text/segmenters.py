"""Tokenizers of other libraries, which are extras, under names that end in the version of what decides the tokens."""

import re
import sys
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from importlib.metadata import version
from threading import Lock
from typing import Any

from elmokit.text.chinese import split_chinese_sentences
from elmokit.text.scripts import SOUTH_EAST_ASIAN_LETTER
from elmokit.text.tokenizer import Tokenizer

LANGUAGE_CODE = re.compile(r"[a-z]{2,3}")


# What each extra installs.
PACKAGES = {
    "chinese": "rjieba",
    "japanese": "fugashi unidic-lite",
    "spacy": "spacy",
    "thai": "pythainlp python-crfsuite",
}


def _module(name: str, extra: str) -> Any:
    """A library of an extra. ValueError, which says how to install it, where it is missing."""
    try:
        return import_module(name)
    except ImportError as error:
        raise ValueError(f"{error}: pip install {PACKAGES[extra]} (elmokit's extra {extra})") from error


def _spacy_pipeline(model: str) -> tuple[Any, str]:
    """spaCy's pipeline of a model, or its blank one of a language, and the version of it."""
    spacy = _module("spacy", "spacy")
    if LANGUAGE_CODE.fullmatch(model):
        try:
            pipeline, installed = spacy.blank(model), spacy.__version__
            pipeline.max_length = sys.maxsize  # it bounds the memory of parsers, of which a blank pipeline has none
        except ImportError as error:  # of a language that spaCy does not know, or whose segmenter is not installed
            raise ValueError(f"spaCy has no pipeline for the language {model!r}: {error}") from error
    else:
        try:
            pipeline = spacy.load(model, exclude=["tagger", "ner", "lemmatizer", "attribute_ruler", "textcat"])
        except OSError as error:
            raise ValueError(f"spaCy has no model {model!r}: python -m spacy download {model}") from error
        installed = pipeline.meta["version"]
    if not {"parser", "senter", "sentencizer"} & set(pipeline.pipe_names):
        pipeline.add_pipe("sentencizer")
    return pipeline, installed


@lru_cache(maxsize=4)  # loading takes a second, and a tokenizer may be asked for again with every document
def _spacy(model: str) -> Tokenizer:
    pipeline, installed = _spacy_pipeline(model)

    def tokenize(text: str) -> list[str]:
        return [part for token in pipeline.make_doc(text) for part in token.text.split()]

    def split_sentences(text: str) -> list[str]:
        return [sentence for span in pipeline(text).sents if (sentence := span.text.strip())]

    return Tokenizer(f"spacy:{model}=={installed}", tokenize, split_sentences)


@lru_cache(maxsize=1)
def _rjieba() -> Tokenizer:
    """Chinese words by jieba's dictionary, and by its hidden Markov model for those that are not in it."""
    cut: Callable[[str], list[str]] = _module("rjieba", "chinese").cut

    def tokenize(text: str) -> list[str]:
        return " ".join(cut(text)).split()

    return Tokenizer(f"rjieba=={version('rjieba')}", tokenize, split_chinese_sentences, SOUTH_EAST_ASIAN_LETTER)


@lru_cache(maxsize=1)
def _unidic_lite() -> Tokenizer:
    """Japanese short unit words, as in Universal Dependencies, by MeCab (fugashi) and the dictionary unidic-lite."""
    fugashi, dictionary = _module("fugashi", "japanese"), _module("unidic_lite", "japanese").DICDIR
    tagger = fugashi.GenericTagger(f'-Owakati -d "{dictionary}" -r "{dictionary}/mecabrc"')

    in_use = Lock()  # MeCab is not for several threads

    def tokenize(text: str) -> list[str]:
        with in_use:
            return tagger.parse(text).split()

    return Tokenizer(
        f"unidic-lite=={version('unidic-lite')}", tokenize, split_chinese_sentences, SOUTH_EAST_ASIAN_LETTER
    )


@lru_cache(maxsize=1)
def _pythainlp() -> Tokenizer:
    """Thai words by its dictionary (newmm), and sentences by its conditional random field (crfcut)."""
    thai = _module("pythainlp.tokenize", "thai")
    _module("pycrfsuite", "thai")

    def tokenize(text: str) -> list[str]:
        return " ".join(thai.word_tokenize(text, engine="newmm", keep_whitespace=False)).split()

    def split_sentences(text: str) -> list[str]:
        found = thai.sent_tokenize(text, engine="crfcut")
        return [sentence for each in found if (sentence := each.strip())]

    return Tokenizer(f"pythainlp=={version('pythainlp')}", tokenize, split_sentences)


SEGMENTERS = {"rjieba": _rjieba, "unidic-lite": _unidic_lite, "pythainlp": _pythainlp}


def load_segmenter(name: str) -> Tokenizer:
    """The tokenizer "LIBRARY" or "spacy:MODEL" in the version that is installed; "NAME==VERSION" if it is that one.

    Raises:
        ValueError: There is none, its library is not installed, or in another version.
    """
    library, _, wanted = name.partition("==")
    found = _spacy(library.removeprefix("spacy:")) if library.startswith("spacy:") else SEGMENTERS[library]()
    installed = found.name.partition("==")[2]
    if wanted not in ("", installed):
        model = library.removeprefix("spacy:")
        raise ValueError(f"{name!r} asks for {model} {wanted}, but {installed} is installed: install that version")
    return found
