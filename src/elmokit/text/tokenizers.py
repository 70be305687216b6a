"""Text to sentences and sentences to tokens, by name.

The tokenizer is part of a model: the model's text was split by it, and so must be the text it reads later. Its name,
kept with the weights, therefore ends in a version; other tokens for the same text mean another name.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from elmokit.text.english import split_english_sentences, tokenize_english


@dataclass(frozen=True)
class Tokenizer:
    """A named way to split text: `tokenize(text)` into tokens, `split_sentences(text)` into sentences."""

    name: str
    tokenize: Callable[[str], list[str]]
    split_sentences: Callable[[str], list[str]]


def split_lines(text: str) -> list[str]:
    """The lines of a text that are not blank."""
    return [line for line in text.split("\n") if line.strip()]


# Chinese: every ideograph is a token; what stands between ideographs is split into words and marks.
IDEOGRAPH = (
    r"[\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    r"\U00020000-\U000323af]"
)
CHARACTERS = re.compile(rf"{IDEOGRAPH}|(?:(?!{IDEOGRAPH})\w)+|\S")
CHINESE_SENTENCE = re.compile(r".+?(?:[\u3002\uff01\uff1f!?\u2026]+[\u201d\u2019\u300d\u300f\uff09)\"]*|$)", re.DOTALL)


def split_chinese_sentences(paragraph: str) -> list[str]:
    """The sentences of one paragraph, each with its closing mark and the quotes after it."""
    return [sentence for piece in CHINESE_SENTENCE.findall(paragraph) if (sentence := piece.strip())]


@lru_cache(maxsize=4)  # loading takes a second, and a tokenizer may be asked for again with every document
def _load_spacy(model: str) -> Any:
    try:
        import spacy  # pyright: ignore[reportMissingImports]  (an extra)
    except ImportError as error:
        raise ValueError("a spaCy tokenizer needs spaCy: pip install 'elmokit[spacy]'") from error
    try:
        pipeline = spacy.load(model, exclude=["tagger", "ner", "lemmatizer", "attribute_ruler", "textcat"])
    except OSError as error:
        raise ValueError(f"spaCy has no model {model!r}: python -m spacy download {model}") from error
    if not {"parser", "senter", "sentencizer"} & set(pipeline.pipe_names):
        pipeline.add_pipe("sentencizer")
    return pipeline


def _spacy_tokenizer(name: str) -> Tokenizer:
    """Of "spacy:MODEL" in the version that is installed, or "spacy:MODEL==VERSION" if it is that one."""
    model, _, version = name.removeprefix("spacy:").partition("==")
    pipeline = _load_spacy(model)
    installed = pipeline.meta["version"]
    if version not in ("", installed):
        raise ValueError(f"{name!r} asks for {model} {version}, but {installed} is installed: install that version")

    def tokenize(text: str) -> list[str]:
        return [token.text for token in pipeline.make_doc(text) if not token.is_space]

    def split_sentences(text: str) -> list[str]:
        return [sentence for span in pipeline(text).sents if (sentence := span.text.strip())]

    return Tokenizer(f"spacy:{model}=={installed}", tokenize, split_sentences)


TOKENIZERS = {
    tokenizer.name: tokenizer
    for tokenizer in (
        Tokenizer("whitespace-1", str.split, split_lines),
        Tokenizer("english-1", tokenize_english, split_english_sentences),
        Tokenizer("characters-1", CHARACTERS.findall, split_chinese_sentences),
    )
}


def get_tokenizer(name: str) -> Tokenizer:
    """The tokenizer of a name: whitespace-1, english-1, characters-1, or spacy:MODEL. ValueError for another name.

    spacy:MODEL is named spacy:MODEL==VERSION from then on, and by that name comes from no other version.
    whitespace-1 takes text that is already split: tokens between white space, one sentence a line.
    """
    if name.startswith("spacy:"):
        return _spacy_tokenizer(name)
    if name not in TOKENIZERS:
        raise ValueError(f"no tokenizer is called {name!r}: the names are {', '.join(TOKENIZERS)} and spacy:MODEL")
    return TOKENIZERS[name]
