"""Readers of sense-tagged text on small files in the distributed formats, well-formed and
malformed.
"""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import ParseError

import pytest

from elmokit.analysis.sense_corpora import (
    SenseInstance,
    SenseSentence,
    coarse_wsd_folders,
    read_coarse_wsd,
    read_first_senses,
    read_raganato,
    read_semcor,
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
        (folder / f"{split}.data.txt").write_bytes(
            "2\tthe 4\u00a01/2 bank  lent money\r\n0\tbank of a river".encode()
        )
        (folder / f"{split}.gold.txt").write_bytes(b"0\r\n1")
    return folder


# --- Raganato's XML -------------------------------------------------------------------------------


def test_read_raganato_reads_multiword_instances_as_spans(xml: Path) -> None:
    instances = (
        SenseInstance("d000.s000.t000", "old_age%n", 1, 3, ("old_age%1:28:00::",)),
        SenseInstance("d000.s000.t001", "set_up%v", 4, 6, ("set_up%2:36:00::", "set_up%2:41:00::")),
    )
    words = ("The", "old", "age", "&", "set", "up")
    assert list(read_raganato(xml)) == [
        SenseSentence(words, instances),
        SenseSentence(("Yes",), ()),
    ]


# --- SemCor ---------------------------------------------------------------------------------------


def test_read_semcor_splits_tokens_and_skips_names(tmp_path: Path) -> None:
    path = tmp_path / "semcor.jsonl.gz"
    path.write_bytes(gzip.compress((json.dumps(SEMCOR) + "\n\n").encode()))
    (sentence,) = read_semcor(path)
    assert [each.name for each in sentence.instances] == [
        f"{path}, line 1, instance {number}" for number in (1, 3)
    ]
    assert sentence.words == ("The", "primary", "election", "of", "Atlanta", "took", "place", "_")
    assert [(each.lemma, each.start, each.end, each.senses) for each in sentence.instances] == [
        ("primary_election%n", 1, 3, ("primary_election%1:04:00::",)),
        ("take_place%v", 5, 7, ("take_place%2:30:00::", "take_place%2:30:01::")),
    ]


# --- WordNet --------------------------------------------------------------------------------------


def test_read_first_senses_counts_satellites_as_adjectives(tmp_path: Path) -> None:
    lines = [
        "peculiar%3:00:00:: 01 2 3",
        "peculiar%5:00:00:strange:00 02 1 8",
        "play%1:10:01:: 03 1 5",
        "play%2:33:00:: 04 1 70",
        "play%2:35:00:: 05 19 1",
    ]
    (tmp_path / "index.sense").write_text("\n".join(lines))
    expected = {
        "peculiar%a": "peculiar%5:00:00:strange:00",
        "play%n": "play%1:10:01::",
        "play%v": "play%2:33:00::",
    }
    assert read_first_senses(tmp_path) == read_first_senses(tmp_path / "index.sense") == expected


# --- CoarseWSD ------------------------------------------------------------------------------------


def test_read_coarse_wsd_yields_one_instance_per_line(bank: Path, tmp_path: Path) -> None:
    first, second = read_coarse_wsd(bank, "test")
    assert first.words == ("the", "4\u00a01/2", "bank", "lent", "money") and second.words == (
        "bank",
        "of",
        "a",
        "river",
    )
    assert [each.instances[0][1:] for each in (first, second)] == [
        ("bank", 2, 3, ("bank_bank",)),
        ("bank", 0, 1, ("bank_bank_(geography)",)),
    ]
    (tmp_path / "no word").mkdir()
    assert coarse_wsd_folders(tmp_path) == coarse_wsd_folders(bank) == [bank]


# --- Malformed files ------------------------------------------------------------------------------


def semcor(**change: object) -> str:
    return json.dumps(
        SEMCOR | {"instances": [SEMCOR["instances"][0] | change, *SEMCOR["instances"][1:]]}
    )


@pytest.mark.parametrize(
    ("read", "file", "content", "message"),
    [
        (read_raganato, "toy.data.xml", XML[:-30], "no element found"),
        (read_raganato, "toy.gold.key.txt", KEYS.splitlines()[0], "'d000.s000.t001'"),
        (read_raganato, "toy.data.xml", XML.replace('"VERB"', '"PREP"'), "'d000.s000.t001'.*PREP"),
        (read_semcor, "semcor.jsonl", "\nThe jury said\n", r"semcor\.jsonl, line 2"),
        *(
            (read_semcor, "semcor.jsonl", "\n" + semcor(**change), r"semcor\.jsonl, line 2")
            for change in (
                {"tok": [6]},
                {"tok": []},
                {"lexkeys": ["9:04:00::"]},
                {"lexkeys": None},
                {"lemma": 3},
            )
        ),
        (
            read_coarse_wsd,
            "bank/train.data.txt",
            "4\tthe bank lent money\n0\tbank\n",
            r"data\.txt, line 1",
        ),
        (
            read_coarse_wsd,
            "bank/train.data.txt",
            "the bank lent money\n0\tbank\n",
            r"data\.txt, line 1",
        ),
        (read_coarse_wsd, "bank/train.data.txt", "1\tthe bank\n", r"data\.txt, line 2"),
        (read_coarse_wsd, "bank/train.gold.txt", "0\n7\n", r"data\.txt, line 2"),
        (read_first_senses, "index.sense", "play%1:10:01 03 1 5", "sense key"),
    ],
)
def test_malformed_files_are_refused_with_their_place(
    read: Callable[..., Any],
    file: str,
    content: str,
    message: str,
    xml: Path,
    bank: Path,
    tmp_path: Path,
) -> None:
    (tmp_path / file).write_text(content)
    arguments = {read_raganato: [xml], read_coarse_wsd: [bank, "train"]}.get(
        read, [tmp_path / file]
    )
    with pytest.raises((ValueError, ParseError), match=message):
        list(read(*arguments))
