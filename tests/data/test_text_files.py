"""Raw and tokenized text files: the one rule by which verbs read them, and what is shown of it."""

import json
import unicodedata
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import pytest
from tiny_model import tiny_model

from elmokit.checkpoints.pretrained import Pretrained
from elmokit.data.preparation import prepare
from elmokit.data.text_files import TextFile
from elmokit.embed.embedder import Embedder
from elmokit.embed.files import embed_file
from elmokit.fs.reading import read_lines
from elmokit.lm.evaluation import evaluate, score_file
from elmokit.storage.store import EmbeddingStore
from elmokit.text.tokenizers import get_tokenizer

PARAGRAPHS = [
    "Mr. Smith didn't play the piano, he said. She could, and she did!",
    "The piano is a musical instrument, which one plays by its keys. It's heavy; few can carry it.",
]
SENTENCES = [
    "Mr. Smith did n't play the piano , he said .",
    "She could , and she did !",
    "The piano is a musical instrument , which one plays by its keys .",
    "It 's heavy ; few can carry it .",
]
ENGLISH = get_tokenizer("english-1")


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


@pytest.fixture
def model() -> Pretrained:
    """A tiny language model that records english-1 and knows all words of the text."""
    return tiny_model(sorted(set(" ".join(SENTENCES).split())), tokenizer="english-1")


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    """The text as `elmokit prepare` writes it."""
    prepare([write(tmp_path / "paragraphs.txt", PARAGRAPHS)], tmp_path / "shards", processes=1)
    return tmp_path / "shards" / "shard-00000.txt.zst"


# --- The rule -------------------------------------------------------------------------------------


def test_evaluate_gives_one_perplexity_for_raw_prepared_and_tokenized_text(
    model: Pretrained, shard: Path, tmp_path: Path
) -> None:
    raw = write(tmp_path / "raw.txt", PARAGRAPHS)
    tokenized = write(tmp_path / "tokenized.txt", SENTENCES)
    options = {"model": model, "state": "zeros", "device": "cpu"}
    found = [
        evaluate([raw], **options).total,
        evaluate([shard.parent], **options).total,
        evaluate([tokenized], **options, tokenize=False).total,
    ]
    predictions = sum(len(sentence.split()) + 1 for sentence in SENTENCES)
    for each in found:
        assert (each.sentences, each.predictions, each.unknown) == (4, predictions, 0)
        assert each.value == pytest.approx(found[0].value, rel=1e-6)


def words_by_embed(file: Path, model: Pretrained, tokenize: bool) -> list[list[str]]:
    output = file.parent / f"vectors-{tokenize}"
    embed_file(file, output, model, tokenize=tokenize, device="cpu")
    return [list(tokens) for tokens, _ in EmbeddingStore(output)]


def words_by_score(file: Path, model: Pretrained, tokenize: bool) -> list[list[str]]:
    output = file.parent / f"scores-{tokenize}.jsonl"
    score_file(file, output, model, tokenize=tokenize, device="cpu")
    return [json.loads(line)["words"] for line in read_lines(output)]


@pytest.mark.parametrize("words_of", [words_by_embed, words_by_score])
def test_verbs_by_line_tokenize_raw_text_and_leave_tokenized_text(
    words_of: Callable[[Path, Pretrained, bool], list[list[str]]],
    model: Pretrained,
    shard: Path,
    tmp_path: Path,
) -> None:
    expected = [sentence.split() for sentence in SENTENCES]
    raw = write(
        tmp_path / "raw.txt",
        [text for line in PARAGRAPHS for text in ENGLISH.split_sentences(line)],
    )
    tokenized = write(tmp_path / "tokenized.txt", SENTENCES)
    assert words_of(raw, model, True) == expected
    assert words_of(tokenized, model, False) == expected
    assert sorted(words_of(shard, model, True)) == sorted(expected)


def test_raw_text_is_copied_once_and_the_rest_is_left(shard: Path, tmp_path: Path) -> None:
    raw = write(tmp_path / "raw.txt", PARAGRAPHS)

    def copies(files: list[Path], tokenizer: str, language: str | None = None) -> list[Path]:
        texts = TextFile.open(files, tokenizer, language=language)
        return [text.tokenized(tmp_path / "copies") for text in texts]

    copy, same = copies([raw, shard], "english-1")
    assert same == shard
    assert list(read_lines(copy)) == SENTENCES
    written = copy.stat().st_mtime_ns
    assert copies([raw], "english-1") == [copy]
    assert copy.stat().st_mtime_ns == written
    others = [copies([raw], "words-1", language) for language in ("en", "de")]
    assert len({copy, *chain.from_iterable(others)}) == 3  # other tokens or sentences
    write(raw, PARAGRAPHS[:1])
    assert copies([raw], "english-1") != [copy]


# --- What is shown of a file ----------------------------------------------------------------------

CONLL = "-DOCSTART- -X- O\n\nEU NNP B-ORG\nrejects VBZ O\n"


@pytest.mark.parametrize(
    ("name", "content", "tokenizer", "shown"),
    [
        ("a.txt", "\nMr. Smith didn't.\n", "english-1", "Mr. | Smith | did | n't | ."),
        ("c.txt", "我喜欢吃苹果。\n", "characters-1", "我 | 喜 | 欢 | 吃 | 苹 | 果 | 。"),
        ("e.csv", "id,text\n1,Hello there\n", "english-1", "Hello | there (column: text)"),
        ("eng.train", CONLL, "english-1", "- | DOCSTART | - | - | X | - | O"),
        ("h.txt", "cafe\u0301\n", "english-1", "café"),
        ("j.txt", "a\x1b[2J b\n", "whitespace-1", "a\\x1b[2J | b"),
    ],
)
def test_how_a_file_is_read_is_shown_once(
    name: str,
    content: str,
    tokenizer: str,
    shown: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / name).write_text(content)
    for _ in range(2):
        TextFile.open([tmp_path / name], tokenizer)
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert line == f"reading {name}: {shown}"
    assert not captured.out


def test_lines_that_end_in_cr_alone_are_refused(tmp_path: Path) -> None:
    (tmp_path / "mac.txt").write_bytes(b"The cat.\rThe dog.\r")
    with pytest.raises(ValueError, match="CR"):
        TextFile.open([tmp_path / "mac.txt"], "english-1")


def test_decomposed_letters_are_composed_wherever_raw_text_is_read(
    model: Pretrained, tmp_path: Path
) -> None:
    composed = [f"The café number {number} in Zürich is open." for number in range(3)]
    decomposed = [unicodedata.normalize("NFD", line) for line in composed]
    embedder = Embedder(model, "cpu")
    for first, second in zip(embedder.embed(composed), embedder.embed(decomposed), strict=True):
        assert (first == second).all()
    lines = [line for pair in zip(decomposed, composed, strict=True) for line in (*pair, "")]
    raw = write(tmp_path / "raw.txt", lines)
    prepare([raw], tmp_path / "composed", drop_duplicates="none", processes=1)
    (shard,) = (tmp_path / "composed").glob("shard-*")
    expected = [" ".join(ENGLISH.tokenize(line)) for line in composed]
    assert sorted(read_lines(shard)) == sorted(2 * expected)
    (text,) = TextFile.open([raw], "english-1")
    assert sorted(map(" ".join, text.sentences())) == sorted(2 * expected)


def test_find_files_expands_directories_in_order(tmp_path: Path) -> None:
    for name in (
        "b.txt",
        "a.txt.gz",
        "c.txt.zst",
        "d.TXT",
        "notes.md",
        "._a.txt",
        ".partial-12345678-shard-00001.txt",
    ):
        (tmp_path / name).touch()
    assert [file.name for file in TextFile.find([tmp_path])] == [
        "a.txt.gz",
        "b.txt",
        "c.txt.zst",
        "d.TXT",
    ]
    assert TextFile.find([tmp_path / "notes.md"]) == [tmp_path / "notes.md"]
    (tmp_path / "folder.txt").mkdir()
    for name in ("gone", "folder.txt"):
        with pytest.raises(FileNotFoundError, match=name):
            TextFile.find([tmp_path / name])


@pytest.mark.parametrize("mark", ["<unk>", "@-@", "-LRB-", "</S>"])
def test_text_with_marks_of_tokenized_text_is_doubted(mark: str, tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text(f"Title\n\nThe {mark} of it .\n")
    with pytest.warns(UserWarning, match=mark):
        TextFile.open([file], "english-1")
    with pytest.warns(UserWarning, match=mark):
        prepare([file], tmp_path / "shards", processes=1)
    TextFile.open([file], "english-1", tokenize=False)
    file.write_text(f"The x{mark}y of it.\n")
    TextFile.open([file], "english-1")
