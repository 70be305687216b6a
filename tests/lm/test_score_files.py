"""Files of scores, against the scores of their sentences and bilm-tf's figures."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from small_language_model import brute_force, small_language_model, three

import elmokit.lm.score_files as score_files
from elmokit.checkpoints.loading import load
from elmokit.checkpoints.pretrained import Pretrained
from elmokit.lm.evaluate import evaluate
from elmokit.lm.score_files import score_file
from elmokit.lm.scoring import score
from elmokit.nn.softmax import FullSoftmax
from elmokit.text.vocab import Vocab

# The vocabularies of tests have a handful of words.
pytestmark = [
    pytest.mark.any_backend,
    pytest.mark.filterwarnings("ignore:.* of the words are not in the model's vocabulary"),
]


@pytest.fixture
def model() -> Pretrained:
    return small_language_model()


def test_score_file_writes_one_object_per_sentence(model: Pretrained, tmp_path: Path) -> None:
    text, output = tmp_path / "text.txt", tmp_path / "scores.jsonl"
    text.write_text("a b zebra\n\n  \nc\n")
    total = score_file(text, output, model)
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert [line["line"] for line in lines] == [1, 4]
    for line, each in zip(lines, score([["a", "b", "zebra"], ["c"]], model), strict=True):
        assert line["words"] == list(each.words) and line["unknown"] == each.unknown
        assert line["forward"] == pytest.approx(each.forward.tolist())
        assert line["backward"] == pytest.approx(each.backward.tolist())
        assert line["perplexity"]["mean"] == pytest.approx(each.perplexity.mean)
    evaluated = evaluate([text], model, state="zeros").total
    assert three(total) == pytest.approx(three(evaluated), rel=1e-6)
    assert (total.sentences, total.predictions, total.unknown, total.truncated) == (2, 6, 1, 0)


def test_score_file_counts_truncated_words(model: Pretrained, tmp_path: Path) -> None:
    long = "b" * 49
    (tmp_path / "text.txt").write_text(f"a {long}\n\n{long} {long} c\n")
    assert score_file(tmp_path / "text.txt", tmp_path / "scores.jsonl", model).truncated == 3
    assert [each.perplexity.truncated for each in score([["a", long], ["c"]], model)] == [1, 0]


def test_score_file_without_sentences_writes_nothing(model: Pretrained, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n\n")
    with pytest.raises(ValueError, match=r"empty\.txt has no sentence"):
        score_file(tmp_path / "empty.txt", tmp_path / "scores.jsonl", model)
    assert not (tmp_path / "scores.jsonl").exists()


def test_score_file_replaces_neither_its_input_nor_unasked_another_file(
    model: Pretrained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, output = tmp_path / "text.txt", tmp_path / "scores.jsonl"
    text.write_text("a b\n")
    output.write_text("mine")
    with pytest.raises(ValueError, match="is the input"):
        score_file(text, text, model, overwrite=True)
    with pytest.raises(FileExistsError, match="ask to overwrite it"):
        score_file(text, output, model)
    assert (text.read_text(), output.read_text()) == ("a b\n", "mine")
    output.unlink()
    monkeypatch.setattr(score_files, "warn_of_unknown", None)  # not reached
    monkeypatch.setattr(score_files, "check_start", lambda *_: output.write_text("mine"))  # it appears meanwhile
    with pytest.raises(FileExistsError, match="ask to overwrite it"):
        score_file(text, output, model)
    assert output.read_text() == "mine"
    monkeypatch.undo()
    score_file(text, output, model, overwrite=True)
    assert json.loads(output.read_text())["words"] == ["a", "b"]


def test_score_file_equals_bilm_tf(goldens: Callable[[str], Path], tmp_path: Path) -> None:
    """bilm-tf's perplexity (state carried), and brute force on the first sentences (zero states)."""
    folder = goldens("bilm_tf_training/heldout.txt").parent
    with np.load(folder / "softmax.npz") as file:
        softmax = FullSoftmax(*file["W"].shape)
        softmax.load_state_dict({"weight": torch.from_numpy(file["W"]), "bias": torch.from_numpy(file["b"])})
    vocab = Vocab.read(folder / "vocab.txt")
    model = Pretrained(load(folder / "weights.hdf5").bilm, softmax=softmax, vocab=vocab)
    expected = json.loads((folder / "expected.json").read_text())
    total = score_file(folder / "heldout.txt", tmp_path / "scores.jsonl", model, "carry")
    directions = [expected[f"perplexity_batch_1_{direction}"] for direction in ("forward", "backward")]
    assert three(total) == pytest.approx((*directions, expected["perplexity_batch_1"]), rel=1e-6)
    sentences = [line.split() for line in (folder / "heldout.txt").read_text().splitlines()[:5]]
    for each in score(sentences, model):
        forward, backward = brute_force(model, each.words)
        places = np.arange(len(each.words) + 1)
        np.testing.assert_allclose(each.forward, forward[places, vocab.ids([*each.words, "</S>"])], atol=1e-4)
        np.testing.assert_allclose(each.backward, backward[places, vocab.ids(["<S>", *each.words])], atol=1e-4)


@pytest.mark.parametrize("bits", [True, False])
def test_score_file_writes_a_row_per_word_without_boundaries(model: Pretrained, tmp_path: Path, bits: bool) -> None:
    text, output = tmp_path / "text.txt", tmp_path / "surprisal.tsv"
    text.write_text('a "b zebra\n\n  \nc\n')  # a quote that opens and never closes
    total = score_file(text, output, model, tsv=True, bits=bits)
    header, *rows = [line.split("\t") for line in output.read_text().splitlines()]
    unit, scale = ("bits", 1) if bits else ("nats", np.log(2))
    assert header == ["line", "position", "word", f"forward_{unit}", f"backward_{unit}", "unknown"]
    expected = score([["a", '"b', "zebra"], ["c"]], model)
    assert [row[:3] + row[5:] for row in rows] == [
        ["1", "1", "a", "0"], ["1", "2", '"b', "1"], ["1", "3", "zebra", "1"], ["4", "1", "c", "0"],
    ]  # fmt: skip
    surprisal = np.concatenate([each.surprisal for each in expected], axis=1) * scale
    np.testing.assert_allclose(np.array([row[3:5] for row in rows], float).T, surprisal, atol=1e-5)
    assert (total.sentences, total.unknown) == (2, 2)


@pytest.mark.parametrize(
    ("name", "tsv", "message"),
    [("out.tsv.gz", False, "would hold JSON lines: a table needs --tsv"), ("out.jsonl", True, "would hold a table")],
)
def test_score_file_refuses_a_name_that_does_not_fit(
    model: Pretrained, tmp_path: Path, name: str, tsv: bool, message: str
) -> None:
    (tmp_path / "text.txt").write_text("a b\n")
    with pytest.raises(ValueError, match=message):
        score_file(tmp_path / "text.txt", tmp_path / name, model, tsv=tsv)
    assert not (tmp_path / name).exists()


def test_score_file_writes_logarithms_to_base_2_where_bits_are_asked_for(model: Pretrained, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("a b zebra\n")
    found = {}
    for bits in (False, True):
        score_file(tmp_path / "text.txt", tmp_path / f"{bits}.jsonl", model, bits=bits)
        found[bits] = json.loads((tmp_path / f"{bits}.jsonl").read_text())
    assert (found[False]["unit"], found[True]["unit"]) == ("nats", "bits")
    for direction in ("forward", "backward"):
        assert np.exp(found[False][direction]) == pytest.approx(np.exp2(found[True][direction]), rel=1e-5)
    assert found[False]["perplexity"] == found[True]["perplexity"]


def test_score_file_skips_lines_without_words_as_evaluate_does(model: Pretrained, tmp_path: Path) -> None:
    model.tokenizer = "english-1"
    (tmp_path / "text.txt").write_text("a b\n\u200b\nc\n")  # a zero-width space is no word
    total = score_file(tmp_path / "text.txt", tmp_path / "scores.jsonl", model)
    lines = [json.loads(line)["line"] for line in (tmp_path / "scores.jsonl").read_text().splitlines()]
    assert lines == [1, 3] and total.sentences == 2
    evaluated = evaluate([tmp_path / "text.txt"], model, state="zeros").total
    assert three(total) == pytest.approx(three(evaluated), rel=1e-6) and total.sentences == evaluated.sentences
    (tmp_path / "none.txt").write_text("\u200b\n")
    with pytest.raises(ValueError, match=r"none\.txt has no sentence to score"):
        score_file(tmp_path / "none.txt", tmp_path / "none.jsonl", model)
    assert not (tmp_path / "none.jsonl").exists()
