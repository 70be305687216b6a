"""Raw and tokenized text files: the one rule by which verbs read them, and warnings where it seems
to be wrong.
"""

import json
import unicodedata
import warnings
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import pytest
import torch

from elmokit.checkpoints.pretrained import Pretrained
from elmokit.config import BiLMConfig
from elmokit.data.documents import read_documents
from elmokit.data.preparation import prepare
from elmokit.data.text_files import file_tokenizers, tokenized_files
from elmokit.embed.embedder import Embedder
from elmokit.embed.files import embed_file
from elmokit.fs.reading import read_lines
from elmokit.lm.evaluation import evaluate, score_file
from elmokit.nn.bilm import BiLM
from elmokit.nn.softmax import FullSoftmax
from elmokit.storage.store import EmbeddingStore
from elmokit.text.tokenizers import get_tokenizer
from elmokit.text.vocab import Vocab

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
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture
def model() -> Pretrained:
    """A tiny language model that records english-1 and knows all words of the text."""
    torch.manual_seed(0)
    vocab = Vocab.from_counts({word: 1 for sentence in SENTENCES for word in sentence.split()})
    bilm = BiLM(BiLMConfig.preset("tiny"))
    return Pretrained(bilm, softmax=FullSoftmax(len(vocab), 16), vocab=vocab, tokenizer="english-1")


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    """The text as `elmokit prepare` writes it."""
    prepare([write(tmp_path / "paragraphs.txt", PARAGRAPHS)], tmp_path / "shards", processes=1)
    return tmp_path / "shards" / "shard-00000.txt.zst"


# --- The rule -------------------------------------------------------------------------------------


def test_evaluate_gives_one_perplexity_for_raw_prepared_and_tokenized_text(
    model: Pretrained, shard: Path, tmp_path: Path
) -> None:
    raw, tokenized = (
        write(tmp_path / "raw.txt", PARAGRAPHS),
        write(tmp_path / "tokenized.txt", SENTENCES),
    )
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


def test_tokenized_files_copies_raw_text_once_and_leaves_the_rest(
    shard: Path, tmp_path: Path
) -> None:
    raw = write(tmp_path / "raw.txt", PARAGRAPHS)
    copy, same = tokenized_files([raw, shard], tmp_path / "copies", "english-1")
    assert same == shard and list(read_lines(copy)) == SENTENCES
    written = copy.stat().st_mtime_ns
    assert (
        tokenized_files([raw], tmp_path / "copies", "english-1") == [copy]
        and copy.stat().st_mtime_ns == written
    )
    others = [
        tokenized_files([raw], tmp_path / "copies", "words-1", True, language)
        for language in ("en", "de")
    ]
    assert len({copy, *chain.from_iterable(others)}) == 3  # other tokens or sentences
    write(raw, PARAGRAPHS[:1])
    assert tokenized_files([raw], tmp_path / "copies", "english-1") != [copy]


# --- Warnings -------------------------------------------------------------------------------------

GERMAN = [
    "Der Mann ging am 3. Oktober mit seiner Frau in die Stadt, weil sie ein neues Fahrrad kaufen "
    "wollten."
] * 20
CHINESE = ["春天来了，花开了，鸟儿在树上唱歌，孩子们在公园里玩耍。"] * 3


def doubts(
    tmp_path: Path, lines: list[str], tokenizer: str, language: str | None = None
) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        file_tokenizers([write(tmp_path / "text.txt", lines)], tokenizer, language=language)
    return [str(each.message) for each in caught]


@pytest.mark.parametrize("lines", [PARAGRAPHS, ["I like to eat apple."] * 2, GERMAN, CHINESE])
def test_raw_text_that_is_taken_for_tokenized_is_reported(lines: list[str], tmp_path: Path) -> None:
    (message,) = doubts(tmp_path, lines, "whitespace-1")
    assert "looks raw" in message and "--tokenize" in message


@pytest.mark.parametrize(
    ("lines", "tokenizer", "language"),
    [
        (PARAGRAPHS, "english-1", None),
        (SENTENCES, "whitespace-1", None),
        (GERMAN, "words-1", "de"),
        (CHINESE, "characters-1", None),
        (
            [" ".join(get_tokenizer("characters-1").tokenize(line)) for line in CHINESE],
            "whitespace-1",
            None,
        ),
        (["a b c", "b zebra"], "whitespace-1", None),
    ],
)
def test_text_that_is_what_it_is_taken_for_is_not_reported(
    lines: list[str], tokenizer: str, language: str | None, tmp_path: Path
) -> None:
    assert doubts(tmp_path, lines, tokenizer, language) == []


@pytest.mark.parametrize(
    "row", ["{}\t{}\t{}", '{},{},"{}"', '{{"id": "{}", "stars": "{}", "text": "{}"}}']
)
def test_rows_of_a_table_in_a_text_file_are_reported(row: str, tmp_path: Path) -> None:
    lines = [
        row.format(*cells)
        for cells in (("id", "stars", "text"), *((n, 5, text) for n, text in enumerate(PARAGRAPHS)))
    ]
    (message,) = doubts(tmp_path, lines, "english-1")
    assert "table" in message


DECOMPOSED = [
    unicodedata.normalize("NFD", f"The café number {n} in Zürich is open.") for n in range(3)
]


def test_decomposed_letters_are_reported_once_and_composed_by_prepare(
    model: Pretrained, tmp_path: Path
) -> None:
    composed = [unicodedata.normalize("NFC", line) for line in DECOMPOSED]
    (message,) = doubts(tmp_path, DECOMPOSED, "english-1")
    assert "NFC" in message and not doubts(tmp_path, composed, "english-1")
    embedder = Embedder(model, "cpu")
    with pytest.warns(UserWarning, match="NFC") as caught:
        embedder.encode(DECOMPOSED)
    assert len({(each.filename, each.lineno, str(each.message)) for each in caught}) == 1
    embedder.encode([*composed, "\u212bngström sign: no marks"])  # without a warning
    raw = write(
        tmp_path / "raw.txt",
        [line for pair in zip(DECOMPOSED, composed, strict=True) for line in (*pair, "")],
    )
    with pytest.warns(UserWarning, match="composed here"):
        prepare([raw], tmp_path / "composed", drop_duplicates="none", processes=1)
    (shard,) = (tmp_path / "composed").glob("shard-*")
    assert sorted(read_lines(shard)) == sorted(
        2 * [" ".join(ENGLISH.tokenize(line)) for line in composed]
    )


# --- No text --------------------------------------------------------------------------------------

CONLLU = (
    "# sent_id = 1\n# text = The cat.\n1-2\tThe cat"
    + "\t_" * 8
    + "\n1\tThe\t_\tDET"
    + "\t_" * 6
    + "\n"
)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.conllu", CONLLU),
        ("a.txt", CONLLU),
        ("a.fa", "\n>p\nMVL\n"),
        ("a.jsonl", "{}\n"),
        ("a.parquet", "PAR1"),
        ("a.csv", "id,text\n1,Hello\n"),
        ("eng.train", "-DOCSTART- -X- O\n\nEU NNP B-ORG\nrejects VBZ O\n"),
        ("wnut", "Empire\tB-location\nState\tI-location\n\nfog\tO\n"),
    ],
)
def test_records_are_refused_in_place_of_lines_of_text(
    name: str, content: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match="not lines of text"):
        file_tokenizers([tmp_path / name], "english-1")
    if content == CONLLU:
        with pytest.raises(ValueError, match="CoNLL-U"):
            list(read_documents(str(tmp_path / name)))
