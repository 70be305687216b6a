"""Readers of sense-tagged text on small files in the distributed formats, well-formed and malformed."""

import gzip
import json
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import ParseError

import pytest

from elmokit.analysis.sense_corpora import (
    SenseInstance,
    SenseSentence,
    coarse_wsd_folders,
    key_file_of,
    lemma_of_key,
    read_coarse_wsd,
    read_first_senses,
    read_raganato,
    read_semcor,
    split_token,
)

XML = """<?xml version="1.0" encoding="UTF-8" ?>
<corpus lang="en" source="toy">
<text id="d000">
<sentence id="d000.s000">
<wf lemma="the" pos="DET">The</wf>
<instance id="d000.s000.t000" lemma="Old_age" pos="NOUN">old age</instance>
<wf lemma="&amp;" pos="CONJ">&amp;</wf>
<instance id="d000.s000.t001" lemma="set_up" pos="VERB">set_up</instance>
</sentence>
<sentence id="d000.s001">
<wf lemma="yes" pos="X">Yes</wf>
</sentence>
</text>
</corpus>
"""
KEYS = "d000.s000.t000 old_age%1:28:00::\nd000.s000.t001 set_up%2:36:00:: set_up%2:41:00::\n"
SEMCOR: dict[str, Any] = {
    "tokens": ["The", "primary_election", "of", "Atlanta", "took_place", "_"],
    "instances": [
        {"tok": [1], "lemma": "primary_election", "pos": "NN", "lexkeys": ["1:04:00::"]},
        {"tok": [3], "lemma": "location", "pos": "NNP", "lexkeys": ["1:03:00::"]},
        {"tok": [4], "lemma": "Take_place", "pos": "VB", "lexkeys": ["2:30:00::;2:30:01::"]},
    ],
}


@pytest.fixture
def xml(tmp_path: Path) -> Path:
    (tmp_path / "toy.data.xml").write_text(XML)
    (tmp_path / "toy.gold.key.txt").write_text(KEYS)
    return tmp_path / "toy.data.xml"


@pytest.fixture
def bank(tmp_path: Path) -> Path:
    folder = tmp_path / "bank"
    folder.mkdir()
    (folder / "classes_map.txt").write_text('{"0": "bank_bank", "1": "bank_bank_(geography)"}')
    for split in ("train", "test"):
        (folder / f"{split}.data.txt").write_bytes(b"1\tthe bank lent money\r\n0\tbank of a river")
        (folder / f"{split}.gold.txt").write_bytes(b"0\r\n1")
    return folder


def test_split_token_keeps_every_word() -> None:
    assert split_token("primary_election") == ["primary", "election"]
    assert split_token("old age") == ["old", "age"]
    assert [split_token(token) for token in ("word", "_", "a__b", "d'être")] == [
        ["word"],
        ["_"],
        ["a", "b"],
        ["d'être"],
    ]


# --- Raganato's XML ------------------------------------------------------------------------------------------------


def test_read_raganato_reads_multiword_instances_as_spans(xml: Path) -> None:
    instances = (
        SenseInstance("d000.s000.t000", "old_age%n", 1, 3, ("old_age%1:28:00::",)),
        SenseInstance("d000.s000.t001", "set_up%v", 4, 6, ("set_up%2:36:00::", "set_up%2:41:00::")),
    )
    words = ("The", "old", "age", "&", "set", "up")
    assert list(read_raganato(xml)) == [SenseSentence(words, instances), SenseSentence(("Yes",), ())]


@pytest.mark.parametrize(
    ("xml_text", "keys", "message"),
    [
        (XML[:-30], KEYS, "no element found"),
        (XML, KEYS.splitlines()[0], "'d000.s000.t001'"),
        (XML, KEYS + "d000.s009.t000 old_age%1:28:00::\n", "2 instances.* 3"),
        (XML.replace('pos="VERB"', 'pos="PREP"'), KEYS, "'d000.s000.t001'.*PREP"),
    ],
)
def test_read_raganato_raises_for_malformed_files(xml: Path, xml_text: str, keys: str, message: str) -> None:
    xml.write_text(xml_text)
    key_file_of(xml).write_text(keys)
    with pytest.raises((ValueError, ParseError), match=message):
        list(read_raganato(xml))


def test_read_raganato_needs_the_key_file(xml: Path, tmp_path: Path) -> None:
    key_file_of(xml).unlink()
    with pytest.raises(FileNotFoundError, match="toy"):
        list(read_raganato(xml))
    with pytest.raises(ValueError, match="should be named"):
        list(read_raganato(tmp_path / "semcor.xml"))


# --- SemCor --------------------------------------------------------------------------------------------------------


def test_read_semcor_splits_tokens_and_skips_names(tmp_path: Path) -> None:
    path = tmp_path / "semcor.jsonl.gz"
    path.write_bytes(gzip.compress((json.dumps(SEMCOR) + "\n\n").encode()))
    (sentence,) = read_semcor(path)
    assert [each.name for each in sentence.instances] == [f"{path}, line 1, instance {number}" for number in (1, 3)]
    assert sentence.words == ("The", "primary", "election", "of", "Atlanta", "took", "place", "_")
    assert [(each.lemma, each.start, each.end, each.senses) for each in sentence.instances] == [
        ("primary_election%n", 1, 3, ("primary_election%1:04:00::",)),
        ("take_place%v", 5, 7, ("take_place%2:30:00::", "take_place%2:30:01::")),
    ]


@pytest.mark.parametrize(
    "change", [{"tok": [1, 4]}, {"tok": [6]}, {"tok": []}, {"lexkeys": ["9:04:00::"]}, {"lexkeys": None}, {"lemma": 3}]
)
def test_read_semcor_names_the_malformed_line(tmp_path: Path, change: dict[str, object]) -> None:
    instances = [SEMCOR["instances"][0] | change, *SEMCOR["instances"][1:]]
    for record in (json.dumps(SEMCOR | {"instances": instances}), "The jury said"):
        (tmp_path / "semcor.jsonl").write_text("\n" + record + "\n")
        with pytest.raises(ValueError, match=r"semcor\.jsonl, line 2"):
            list(read_semcor(tmp_path / "semcor.jsonl"))


# --- WordNet -------------------------------------------------------------------------------------------------------


def test_read_first_senses_counts_satellites_as_adjectives(tmp_path: Path) -> None:
    lines = [
        "peculiar%3:00:00:: 01 2 3", "peculiar%5:00:00:strange:00 02 1 8", "play%1:10:01:: 03 1 5",
        "play%2:33:00:: 04 1 70", "play%2:35:00:: 05 19 1",
    ]  # fmt: skip
    (tmp_path / "index.sense").write_text("\n".join(lines))
    expected = {
        "peculiar%a": "peculiar%5:00:00:strange:00", "play%n": "play%1:10:01::", "play%v": "play%2:33:00::",
    }  # fmt: skip
    assert read_first_senses(tmp_path) == read_first_senses(tmp_path / "index.sense") == expected


@pytest.mark.parametrize("key", ["play", "play%n", "%1:10:01::", "play%1:10:01"])
def test_other_strings_are_no_sense_keys(key: str) -> None:
    with pytest.raises(ValueError, match="is not a WordNet sense key"):
        lemma_of_key(key)


# --- CoarseWSD -----------------------------------------------------------------------------------------------------


def test_read_coarse_wsd_yields_one_instance_per_line(bank: Path, tmp_path: Path) -> None:
    first, second = read_coarse_wsd(bank, "test")
    assert first.words == ("the", "bank", "lent", "money") and second.words == ("bank", "of", "a", "river")
    assert [each.instances[0][1:] for each in (first, second)] == [
        ("bank", 1, 2, ("bank_bank",)),
        ("bank", 0, 1, ("bank_bank_(geography)",)),
    ]
    (tmp_path / "no word").mkdir()
    assert coarse_wsd_folders(tmp_path) == coarse_wsd_folders(bank) == [bank]


def test_read_coarse_wsd_splits_tokens_at_spaces_alone(bank: Path) -> None:
    (bank / "test.data.txt").write_text("2\tthe 4\u00a01/2 bank  lent money \n0\tbank", encoding="utf-8")
    first, _ = read_coarse_wsd(bank, "test")
    assert first.words == ("the", "4\u00a01/2", "bank", "lent", "money")


@pytest.mark.parametrize(
    ("file", "content", "line"),
    [
        ("train.data.txt", "4\tthe bank lent money\n0\tbank\n", 1),
        ("train.data.txt", "the bank lent money\n0\tbank\n", 1),
        ("train.data.txt", "1\tthe bank\n", 2),
        ("train.gold.txt", "0\n7\n", 2),
    ],
)
def test_read_coarse_wsd_names_the_malformed_line(bank: Path, file: str, content: str, line: int) -> None:
    (bank / file).write_text(content)
    with pytest.raises(ValueError, match=rf"train\.data\.txt, line {line}"):
        list(read_coarse_wsd(bank, "train"))
