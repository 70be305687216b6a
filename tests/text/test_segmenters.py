"""The tokenizers of languages, warnings for unsupported ones, and tokenizers of other libraries."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmokit.cli import main
from elmokit.data.prepare import prepare, read_report
from elmokit.fs.reading import read_lines
from elmokit.text import segmenters
from elmokit.text.sentences import LANGUAGES
from elmokit.text.tokenizers import SEGMENTERS, TOKENIZER_OF, TOKENIZERS, get_tokenizer, missing_rules, tokenizer_for

GERMAN = "Am 3. Oktober 1990 kam z.B. Dr. Müller. Er blieb. Es war schön!"


def sentences_of(directory: Path) -> list[str]:
    return list(read_lines(directory / "shard-00000.txt.zst"))


def prepared(directory: Path, text: str, **options: object) -> list[str]:
    (directory / "raw.txt").write_text(text, encoding="utf-8")
    prepare([directory / "raw.txt"], directory / "out", processes=1, **options)  # pyright: ignore
    return sentences_of(directory / "out")


# --- Choice by language ---


def test_tokenizer_for_chooses_by_language() -> None:
    assert tokenizer_for().name == "english-1" == tokenizer_for(None, "en").name
    assert tokenizer_for(None, "de").name == "words-1" == tokenizer_for(None, "sv").name
    assert tokenizer_for(None, "zh").name == "characters-1" == tokenizer_for(None, "ja").name
    assert set(TOKENIZER_OF.values()) <= {*TOKENIZERS, *SEGMENTERS, None}


def test_prepare_keeps_german_dates_and_abbreviations(tmp_path: Path) -> None:
    expected = ["Am 3. Oktober 1990 kam z.B. Dr. Müller .", "Er blieb .", "Es war schön !"]
    assert prepared(tmp_path, GERMAN, language="de") == expected
    report = read_report(tmp_path / "out")
    assert (report.options.tokenizer, report.options.language) == ("words-1", "de")


def test_prepare_splits_chinese_by_character(tmp_path: Path) -> None:
    assert prepared(tmp_path, "他说：“好！”我走了。", language="zh") == ["他 说 ： “ 好 ！ ”", "我 走 了 。"]


def test_tokenizer_for_raises_for_mismatched_languages() -> None:
    for name, language, message in [
        (None, "klingon", r"'klingon' is not a language code.*am, ar,.* th and zh"),
        (None, "pt-BR", "'pt-BR' is not a language code"),
        (None, "km", r"no tokenizer for 'km'.*spacy:MODEL"),
        ("whitespace-1", "de", "omit the language"),
        ("words-1", None, "needs a language"),
        ("klingon-1", "de", "choose one of whitespace-1, english-1, words-1, characters-1, rjieba"),
    ]:
        with pytest.raises(ValueError, match=message):
            tokenizer_for(name, language)


def test_missing_rules_warns_of_unsupported_languages() -> None:
    for name, language, has_rules in [
        (None, "de", True),
        (None, "sv", False),
        ("english-1", "xx", False),
        (None, "zh", True),
        ("characters-1", "ko", False),
        ("english-1", None, True),
    ]:
        warning = missing_rules(tokenizer_for(name, language), language)
        assert (warning is None) == has_rules
        assert warning is None or f"no rules for sentences of '{language}'" in warning


def test_prepare_warns_of_a_language_without_rules(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="no rules for sentences of 'sv'"):
        assert prepared(tmp_path, "Hej där. Kom in!", language="sv") == ["Hej där .", "Kom in !"]


@pytest.mark.parametrize(
    ("text", "options", "share"),
    [
        ("我喜欢吃苹果。" * 20, {}, "86%"),
        ("Он живёт в Москве. " * 20, {"tokenizer": "english-1"}, "74%"),
        ("我喜欢吃苹果。" * 20, {"language": "de"}, "86%"),
        ("ฉันชอบกินแอปเปิ้ล" * 20, {"language": "zh"}, "100%"),
    ],
)
def test_prepare_warns_of_unknown_scripts(tmp_path: Path, text: str, options: dict[str, str], share: str) -> None:
    with pytest.warns(UserWarning, match=rf"has letters of scripts for which .* \({share} of"):
        prepared(tmp_path, text, **options)


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("Naïve œuvre, “café” – 5 € 😀 and a word of Greek: λόγος. " + "And English. " * 50, {}),
        ("Он живёт в Москве.", {"language": "ru"}),
        ("我喜欢吃苹果。私は学生です。", {"language": "zh"}),
        ("我 喜欢 吃 苹果 。", {"tokenizer": "whitespace-1"}),
    ],
)
def test_prepare_does_not_warn_of_known_scripts(tmp_path: Path, text: str, options: dict[str, str]) -> None:
    prepared(tmp_path, text, **options)  # a warning would be an error


def test_prepare_help_lists_languages_and_tokenizers(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["prepare", "--help"])
    words = set("".join(character if character.isalnum() or character in "-:" else " " for character in
                        capsys.readouterr().out).split())  # fmt: skip
    assert {*LANGUAGES, "zh", "th", *TOKENIZERS, *SEGMENTERS, "spacy:MODEL", "spacy:LANGUAGE"} <= words


# --- Segmenters of other libraries ---

EXTRA = {"rjieba": "chinese", "unidic-lite": "japanese", "pythainlp": "thai", "spacy:en_core_web_sm": "spacy"}


@pytest.mark.parametrize("name", EXTRA)
def test_segmenter_names_the_extra_of_a_missing_library(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(module: str) -> None:
        raise ImportError(f"No module named {module!r}")

    for loader in (*SEGMENTERS.values(), segmenters._spacy):
        loader.cache_clear()
    monkeypatch.setattr(segmenters, "import_module", missing)
    with pytest.raises(ValueError, match=rf"pip install {segmenters.PACKAGES[EXTRA[name]]} \(.*{EXTRA[name]}\)"):
        get_tokenizer(name)


def needs(*modules: str) -> None:
    for module in modules:
        pytest.importorskip(module, reason=f"{module} is not installed: it belongs to an optional extra")


def test_rjieba_splits_chinese_words(tmp_path: Path) -> None:
    needs("rjieba")
    assert prepared(tmp_path, "他在北京大学读书。 NLP 很好！", tokenizer="rjieba") == [
        "他 在 北京大学 读书 。",
        "NLP 很 好 ！",
    ]
    name = read_report(tmp_path / "out").options.tokenizer
    assert name.startswith("rjieba==") and get_tokenizer(name).name == name
    with pytest.raises(ValueError, match=r"requires rjieba 0\.0\.1, but .* is installed"):
        get_tokenizer("rjieba==0.0.1")


def test_unidic_lite_splits_japanese_words(tmp_path: Path) -> None:
    needs("fugashi", "unidic_lite")
    assert prepared(tmp_path, "私は昨日学校に行きました。はい！", tokenizer="unidic-lite") == [
        "私 は 昨日 学校 に 行き まし た 。",
        "はい ！",
    ]
    assert read_report(tmp_path / "out").options.tokenizer.startswith("unidic-lite==")


def test_pythainlp_splits_thai_words_and_sentences(tmp_path: Path) -> None:
    needs("pythainlp", "pycrfsuite")
    text = "ฉันชอบกินข้าว เขาเรียนที่มหาวิทยาลัย"
    result = prepared(tmp_path, text, language="th")
    assert "".join(result).replace(" ", "") == text.replace(" ", "")
    assert result == ["ฉัน ชอบ กินข้าว", "เขา เรียน ที่ มหาวิทยาลัย"]
    assert read_report(tmp_path / "out").options.tokenizer.startswith("pythainlp==")


@pytest.mark.parametrize(
    ("name", "module"), [("rjieba", "rjieba"), ("unidic-lite", "fugashi"), ("pythainlp", "pythainlp")]
)
@given(text=st.text(alphabet="我爱北京はい行กินข้า aB1. \n\u3000\u200b\x1c😀", max_size=30))
def test_segmenters_keep_every_visible_character(name: str, module: str, text: str) -> None:
    needs(module)
    tokenizer = get_tokenizer(name)
    tokens = tokenizer.tokenize(text)
    assert all(token.split() == [token] for token in tokens)
    assert "".join(tokens) == "".join(text.split())
    assert "".join("".join(tokenizer.split_sentences(text)).split()) == "".join(text.split())


class FakeSpacy(SimpleNamespace):
    """A stand-in for spaCy with one model and one language, whose tokens are words and a white space."""

    __version__ = "3.8.9"

    def __init__(self) -> None:
        super().__init__(loaded=[])

    def pipeline(self, name: str, version: str, pipes: list[str]) -> SimpleNamespace:
        self.loaded.append(name)
        tokens = [SimpleNamespace(text=text) for text in ("a", " ", "b c")]
        return SimpleNamespace(
            meta={"version": version}, pipe_names=pipes, make_doc=lambda text: tokens, add_pipe=pipes.append
        )

    def load(self, model: str, exclude: list[str]) -> SimpleNamespace:
        if model != "a_model":
            raise OSError("no such model")
        return self.pipeline(model, "3.8.0", ["parser"])

    def blank(self, language: str) -> SimpleNamespace:
        if language != "de":
            raise ImportError(f"[E048] Can't import language {language}")
        return self.pipeline(language, "0.0.0", [])


@pytest.fixture
def spacy(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSpacy]:
    segmenters._spacy.cache_clear()
    fake = FakeSpacy()
    monkeypatch.setitem(sys.modules, "spacy", fake)  # pyright: ignore[reportArgumentType]
    yield fake
    segmenters._spacy.cache_clear()  # of its tokenizers


def test_spacy_model_is_loaded_once_and_named_with_its_version(spacy: FakeSpacy) -> None:
    tokenizer = get_tokenizer("spacy:a_model")
    assert tokenizer.name == "spacy:a_model==3.8.0" and tokenizer.tokenize("") == ["a", "b", "c"]
    assert get_tokenizer(tokenizer.name).name == tokenizer.name
    assert spacy.loaded == ["a_model"]
    with pytest.raises(ValueError, match=r"requires a_model 3\.7\.0, but 3\.8\.0 is installed"):
        get_tokenizer("spacy:a_model==3.7.0")
    with pytest.raises(OSError):
        get_tokenizer("spacy:no_model")


def test_spacy_language_is_a_blank_pipeline_named_with_the_version_of_spacy(spacy: FakeSpacy) -> None:
    tokenizer = tokenizer_for("spacy:de", "de")
    assert tokenizer.name == "spacy:de==3.8.9"


def test_spacy_splits_words_and_sentences(tmp_path: Path) -> None:
    needs("spacy")
    result = prepared(tmp_path, GERMAN, tokenizer="spacy:de")
    assert " ".join(result).split()[:4] == ["Am", "3.", "Oktober", "1990"]
