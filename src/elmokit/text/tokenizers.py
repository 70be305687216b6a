"""Tokenizers and sentence splitters by name.

A model must read text that is tokenized like its training text, so the name of the tokenizer is
stored with the weights. Names end in a version, which changes whenever the tokens of any text
change. english-1 and words-1 have modules of their own. characters-1, for Chinese and Japanese,
makes every ideograph a token; text between ideographs, including kana, is split into runs of
letters and single punctuation marks. Tokenizers of other libraries (extras) have names that end in
the version of the library or model.
"""

import re
from dataclasses import replace
from functools import lru_cache, partial
from importlib.metadata import version
from threading import Lock

from elmokit.extras import import_extra
from elmokit.text.english import split_english_sentences, tokenize_english
from elmokit.text.sentences import split_sentences
from elmokit.text.tokenizer import TOKENIZED, Tokenizer
from elmokit.text.words import tokenize_words

# --- characters-1 ---------------------------------------------------------------------------------

IDEOGRAPHS = (
    r"\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    r"\U00020000-\U000323af"
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


@lru_cache(maxsize=4)  # loading takes a second, and callers may ask once per document
def _spacy(model: str) -> Tokenizer:
    """The pipeline of a model, or the blank pipeline of a language."""
    spacy = import_extra("spacy", "spacy")
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


# What rjieba-1 makes of words in jieba's dictionary, words that are not, numbers and Latin letters.
RJIEBA_SAMPLE = (
    "他 来到 了 网易 杭研 大厦 ， 工信处 女干事 每月 经过 下属 科室 都 要 亲口 交代 24 "
    "口 交换机 等 技术性 器件 的 安装 工作 。 小明 硕士 毕业 于 中国科学院 计算所 ， 后 "
    "在 日本京都大学 深造 ； 我花 3000 元 买 了 台 iPhone 手机 ， 乒乓球 拍卖 完 了 。"
)


@lru_cache(maxsize=1)
def _rjieba() -> Tokenizer:
    """Chinese words, by jieba's dictionary and its hidden Markov model for other words.

    A release of rjieba that splits the sample in the same way is as good as the one that split the
    text of a model.
    """
    import rjieba  # its dictionary takes a while

    def tokenize(text: str) -> list[str]:
        return " ".join(rjieba.cut(text)).split()

    expected = RJIEBA_SAMPLE.split()
    if tokenize("".join(expected)) != expected:
        raise ValueError(
            f"rjieba {version('rjieba')} splits other words than rjieba-1, which models have read: "
            "install rjieba 0.2.2"
        )
    return Tokenizer("rjieba-1", tokenize, split_chinese_sentences)


@lru_cache(maxsize=1)
def _unidic_lite() -> Tokenizer:
    """Japanese short-unit words, as in Universal Dependencies, by MeCab (fugashi) and the
    dictionary unidic-lite.
    """
    fugashi, dictionary = (
        import_extra("fugashi", "japanese"),
        import_extra("unidic_lite", "japanese").DICDIR,
    )
    tagger = fugashi.GenericTagger(f'-Owakati -d "{dictionary}" -r "{dictionary}/mecabrc"')

    lock = Lock()  # MeCab is not thread-safe

    def tokenize(text: str) -> list[str]:
        with lock:
            return tagger.parse(text).split()

    return Tokenizer(f"unidic-lite=={version('unidic-lite')}", tokenize, split_chinese_sentences)


@lru_cache(maxsize=1)
def _pythainlp() -> Tokenizer:
    """Thai words by PyThaiNLP's dictionary (newmm), sentences by its conditional random field
    (crfcut).
    """
    thai = import_extra("pythainlp.tokenize", "thai")
    import_extra("pycrfsuite", "thai")

    def tokenize(text: str) -> list[str]:
        return " ".join(thai.word_tokenize(text, engine="newmm", keep_whitespace=False)).split()

    def split_sentences(text: str) -> list[str]:
        sentences = thai.sent_tokenize(text, engine="crfcut")
        return [stripped for sentence in sentences if (stripped := sentence.strip())]

    return Tokenizer(f"pythainlp=={version('pythainlp')}", tokenize, split_sentences)


SEGMENTERS = {
    "rjieba-1": _rjieba,
    "rjieba": _rjieba,
    "unidic-lite": _unidic_lite,
    "pythainlp": _pythainlp,
}


# --- By name --------------------------------------------------------------------------------------


def split_lines(text: str) -> list[str]:
    """Split a text into its lines, without blank ones."""
    return [line for line in text.split("\n") if line.strip()]


TOKENIZERS = {
    tokenizer.name: tokenizer
    for tokenizer in (
        Tokenizer(TOKENIZED, str.split, split_lines),
        Tokenizer("english-1", tokenize_english, split_english_sentences),
        Tokenizer("words-1", tokenize_words, partial(split_sentences, "en")),
        Tokenizer("characters-1", CHARACTERS.findall, split_chinese_sentences),
    )
}

# The tokenizers of languages that do not use words-1.
TOKENIZER_OF = {"en": "english-1", "zh": "characters-1", "ja": "characters-1", "th": "pythainlp"}


# The languages for which a tokenizer has its own sentence splitter, in addition to spaCy's and
# PyThaiNLP's.
OWN_SENTENCES = {
    "english-1": ("en",),
    "characters-1": ("zh", "ja"),
    "rjieba-1": ("zh",),
    "unidic-lite": ("ja",),
}


def _by_name(name: str) -> Tokenizer:
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


def get_tokenizer(name: str | None = None, language: str | None = None) -> Tokenizer:
    """Get a tokenizer, which splits sentences by the rules of a language.

    Args:
        name: whitespace-1 (text that is already tokenized, one sentence per line), english-1,
            words-1 (other languages with spaces between words), characters-1 (Chinese and
            Japanese), rjieba-1 or rjieba (Chinese words); or, with extras, unidic-lite (Japanese
            words), pythainlp (Thai), spacy:MODEL or spacy:LANGUAGE. The full names of the latter
            are NAME==VERSION; such a name requires that version. By default that of the language:
            english-1, characters-1 (zh, ja), pythainlp (th) or words-1 (others).
        language: Code of two or three letters, such as "de"; by default the tokenizer's own
            language, or English if no name is given either.

    Returns:
        The tokenizer.

    Raises:
        ValueError: There is no such tokenizer, its library is not installed or has another version,
            or it and the language do not match.
    """
    tokenizer = _by_name(name or TOKENIZER_OF.get(language or "en", "words-1"))
    if language is None:
        return tokenizer
    if tokenizer.name == TOKENIZED:
        raise ValueError(
            "whitespace-1 reads one sentence per line in any language: omit the language"
        )
    library = tokenizer.name.partition("==")[0]
    if library.startswith(("spacy:", "pythainlp")) or language in OWN_SENTENCES.get(library, ()):
        return replace(tokenizer, language=language)
    return replace(tokenizer, split_sentences=partial(split_sentences, language), language=language)
