"""Task files: sentences, skipped lines, malformed files, and predictions in the same format."""

import gzip

import pytest

from elmokit.data.readers import TaggedFile, TaggedSentence

CONLL = """-DOCSTART- -X- -X- O

EU NNP B-NP B-ORG
rejects VBZ B-VP O

Peter NNP B-NP B-PER


-DOCSTART- -X- -X- O
Blackburn NNP B-NP I-PER
"""

CONLLU = """# sent_id = 1
# text = Don't go
1-2\tDon't\t_\t_\t_\t_\t_\t_\t_\t_
1\tDo\tdo\tAUX\tVB\t_\t3\taux\t_\t_
2\tn't\tnot\tPART\tRB\t_\t3\tadvmod\t_\t_
3\tgo\tgo\tVERB\tVB\t_\t0\troot\t_\t_
3.1\tthere\tthere\tADV\tRB\t_\t_\t_\t_\t_

# sent_id = 2
1\t10 000\t10000\tNUM\tCD\t_\t0\troot\t_\t_
"""


def conllu(*tokens):
    lines = (
        f"{token.replace(' ', chr(9))}{chr(9)}_" + "\t_" * 7 if token[:1].isdecimal() else token
        for token in tokens
    )
    return "".join(f"{line}\n" for line in lines)


def write(tmp_path, name, text):
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


def read(path, **options):
    return list(TaggedFile.of(path, **options).sentences())


def test_read_tagged_reads_columns(tmp_path):
    path = write(tmp_path, "train.txt", CONLL)
    assert read(path) == [
        TaggedSentence(("EU", "rejects"), ("B-ORG", "O")),
        TaggedSentence(("Peter",), ("B-PER",)),
        TaggedSentence(("Blackburn",), ("I-PER",)),
    ]
    assert read(path, tag_column=1)[0].tags == ("NNP", "VBZ")
    assert read(path, with_tags=False)[0] == TaggedSentence(("EU", "rejects"))


def test_comments_before_the_sentences_of_column_files_are_no_words(tmp_path):
    multiconer = (
        "# id dcf4bb99-ab\tdomain=en\njohn _ _ B-PER\nsings _ _ O\n\n# id "
        "27\tdomain=en\n# _ _ O\n5 _ _ O\n"
    )
    path = write(tmp_path, "train.txt", multiconer + "\n# sent_id = 3\n# text = x\nx _ _ O\n")
    expected = [(("john", "sings"), ("B-PER", "O")), (("#", "5"), ("O", "O")), (("x",), ("O",))]
    assert read(path) == [TaggedSentence(*each) for each in expected]
    TaggedFile.of(path).write_predictions([tags for _, tags in expected], tmp_path / "out.txt")
    assert (tmp_path / "out.txt").read_text().count("# id") == 2
    pound = write(tmp_path, "pound.txt", "# # B-NP\n5 CD I-NP\n\n# # B-NP\n")  # as in CoNLL-2000
    assert [sentence.words for sentence in read(pound)] == [("#", "5"), ("#",)]


def test_read_tagged_skips_conllu_comments_ranges_and_empty_nodes(tmp_path):
    path = write(tmp_path, "train.conllu.gz", CONLLU)
    expected = [
        TaggedSentence(("Do", "n't", "go"), ("AUX", "PART", "VERB")),
        TaggedSentence(("10 000",), ("NUM",)),
    ]
    assert read(path) == expected
    assert read(path, tag_column="xpos")[0].tags == ("VB", "RB", "VB")
    assert read(write(tmp_path, "train.dat", CONLLU), format="conllu") == expected
    for name in ("TRAIN.conllu.GZ", "train.CONLLU", "train.conllu"):
        assert TaggedFile.of(name).conllu


@pytest.mark.parametrize(
    "text, words",
    [
        ("# SYM\n1 CD\n", [("#", "1")]),
        ("10\u00a0000\tCD\n", [("10\u00a0000",)]),
        ("", []),
        ("\n\n", []),
        ("a X\r\n\r\nb Y\r\n", [("a",), ("b",)]),
        ("Hà Nội\tX\nlà\tY\n", [("Hà Nội", "là")]),
        ("#id X\n", [("#id",)]),
        ("#\thttp://x\t[2009]\n1\tBerlin\tB-LOC\tO\n", [("1",)]),
        ("#begin document (bc/x); part 000\nbc/x 0 In IN\n\n#end document\n", [("bc/x",)]),
    ],
)
def test_read_tagged_reads_words_of_columns_as_they_are(tmp_path, text, words):
    assert [sentence.words for sentence in read(write(tmp_path, "a.txt", text))] == words


@pytest.mark.parametrize(
    "name, text, options, message",
    [
        ("a.txt", "a X\nb\n", {}, r"a\.txt, line 2"),
        ("a.conllu", "1\ta\tX\n", {}, r"a\.conllu, line 1"),
        ("a.conllu", conllu("1 a", "2 b", "1 c"), {}, "line 3"),
        ("a.conllu", conllu("1 a", "# x", "1 c"), {}, "line 3"),
        ("a.conllu", conllu("1 a", "2a b", "3 c"), {}, "line 2"),
        ("a.conllu", conllu("1 _", "2 _", "", "1 _"), {}, "without its text"),
        ("a.txt", "a\tX\rb\tY\r\rc\tX\r", {}, "CR"),
        ("a.txt", "a X\n", {"tag_column": 5}, "line 1: there is no column 5"),
        ("a.conllu", "", {"tag_column": "pos"}, "no column 'pos'"),
        ("a.conll", "1 Hi UH\n\n1 a X\n2 b Y\n", {}, "the numbers 1 to 2"),
        ("a.txt", "a b X\n", {"word_column": -3, "tag_column": 0}, "no column of tags"),
        ("a.txt", "", {"tag_column": "upos"}, "upos"),
        ("a.txt", "", {"format": "json"}, "columns"),
    ],
)
def test_read_tagged_names_file_and_line_of_malformed_input(tmp_path, name, text, options, message):
    with pytest.raises(ValueError, match=message):
        read(write(tmp_path, name, text), **options)


def test_write_predictions_replaces_only_the_tag_column_of_conllu(tmp_path):
    source = write(tmp_path, "a.conllu", CONLLU)
    target = tmp_path / "out.conllu"
    TaggedFile.of(source).write_predictions([["X", "Y", "Z"], ["W"]], target)
    assert [sentence.tags for sentence in read(target)] == [("X", "Y", "Z"), ("W",)]
    back = tmp_path / "back.conllu"
    TaggedFile.of(target).write_predictions([["AUX", "PART", "VERB"], ["NUM"]], back)
    assert back.read_text() == CONLLU


def test_write_predictions_appends_a_column(tmp_path):
    source = write(tmp_path, "a.txt", CONLL)
    target = tmp_path / "out.txt.gz"
    TaggedFile.of(source).write_predictions([["O", "X"], ["Y"], ["Z"]], target)
    assert [sentence.tags for sentence in read(target)] == [("O", "X"), ("Y",), ("Z",)]
    assert [sentence.tags for sentence in read(target, tag_column=-2)] == [
        s.tags for s in read(source)
    ]


def test_the_words_and_tags_of_the_first_sentence_are_shown(tmp_path, capsys):
    path = write(tmp_path, "long.txt", "".join(f"w{number} O\n" for number in range(5_000)))
    read(path)
    read(path, with_tags=False)
    tagged, untagged = capsys.readouterr().err.splitlines()
    for line in (tagged, untagged):
        assert line.startswith("reading long.txt: w0 | w1 | ")
        assert "5,000 words" in line
    assert "O O O" in tagged
    assert "O O O" not in untagged
