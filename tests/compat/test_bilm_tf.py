"""bilm-tf's vocabularies, batchers, datasets, mixes and dumps, on words whose ids are known."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from elmokit.checkpoints.exporting import save_hdf5
from elmokit.checkpoints.pretrained import Pretrained
from elmokit.compat.bilm_tf import (
    Batcher,
    BidirectionalLanguageModel,
    TokenBatcher,
    dump_bilm_embeddings,
    dump_token_embeddings,
    weight_layers,
)
from elmokit.compat.bilm_tf.data import (
    BidirectionalLMDataset,
    LMDataset,
    UnicodeCharsVocabulary,
    Vocabulary,
)
from elmokit.config import BiLMConfig, LSTMConfig
from elmokit.embed.embedder import Embedder
from elmokit.nn.bilm import BiLM
from elmokit.text.vocab import Vocab

WORDS = ["a", "</S>", "<UNK>", "bb", "<S>", "\u00e9"]
SENTENCES = [["a", "bb", "x"], ["bb"], ["\u00e9", "a"]]
BEGIN = 4
END = 1
UNKNOWN = 2


@pytest.fixture
def vocab_file(tmp_path: Path) -> Path:
    (tmp_path / "vocab.txt").write_text("\n".join(["!!!MAXTERMID", *WORDS]) + "\n")
    return tmp_path / "vocab.txt"


@pytest.fixture
def text(tmp_path: Path) -> str:
    (tmp_path / "text-1.txt").write_text("\n".join(map(" ".join, SENTENCES)) + "\n")
    return str(tmp_path / "text-*.txt")


# --- Vocabularies and batchers --------------------------------------------------------------------


def test_vocabulary_encodes_words_between_boundaries(vocab_file: Path, tmp_path: Path) -> None:
    vocab = Vocabulary(vocab_file)
    assert (vocab.size, vocab.bos, vocab.eos, vocab.unk) == (6, BEGIN, END, UNKNOWN)
    assert vocab.encode("a  unknown bb").tolist() == [BEGIN, 0, UNKNOWN, 3, END]
    assert vocab.encode(["bb", "a"], reverse=True, split=False).tolist() == [END, 3, 0, BEGIN]
    assert vocab.decode([3, 0]) == "bb a"
    assert vocab.encode("a").dtype == np.int32
    assert TokenBatcher(vocab_file).batch_sentences([["a", "x"], []]).tolist() == [
        [5, 1, 3, 2],
        [5, 2, 0, 0],
    ]
    (tmp_path / "words.txt").write_text("a\n<S>\n</S>\n")
    assert Vocabulary(tmp_path / "words.txt").unk == -1
    for read in (
        lambda: Vocabulary(tmp_path / "words.txt", validate_file=True),
        lambda: TokenBatcher(tmp_path / "words.txt").batch_sentences([["x"]]),  # in bilm-tf padding
    ):
        with pytest.raises(ValueError, match="<UNK>"):
            read()


@pytest.mark.parametrize(
    ("word", "characters"),
    [
        ("a", [258, 97, 259, 260, 260]),
        ("abcdef", [258, 97, 98, 99, 259]),
        ("\u00e9", [258, 0xC3, 0xA9, 259, 260]),
        ("<S>", [258, 256, 259, 260, 260]),
        ("</S>", [258, 257, 259, 260, 260]),
    ],
)
@pytest.mark.filterwarnings("ignore:some words have more")
def test_characters_of_a_word_are_its_bytes_between_marks(
    vocab_file: Path, word: str, characters: list[int]
) -> None:
    vocab = UnicodeCharsVocabulary(vocab_file, 5)
    assert vocab.word_to_char_ids(word).tolist() == characters
    if word in WORDS:
        assert vocab.word_char_ids[vocab.word_to_id(word)].tolist() == characters
    batch = Batcher(vocab_file, 5).batch_sentences([[word]])[0]
    assert batch.dtype == np.int64
    assert (batch[1] - 1).tolist() == characters
    assert np.array_equal(vocab.encode_chars(word), batch - 1)
    assert np.array_equal(vocab.encode_chars([word], reverse=True, split=False), batch[::-1] - 1)


# --- Datasets -------------------------------------------------------------------------------------


@pytest.mark.parametrize("reverse", [False, True])
def test_windows_of_one_row_are_the_stream_of_sentences(
    vocab_file: Path, text: str, reverse: bool
) -> None:
    number = {word: index for index, word in enumerate(WORDS)}
    stream = [
        [BEGIN, *(number.get(word, UNKNOWN) for word in sentence), END] for sentence in SENTENCES
    ]
    stream = [sentence[::-1] for sentence in stream] if reverse else stream
    data = LMDataset(text, Vocabulary(vocab_file), reverse=reverse, test=True)
    windows = list(data.iter_batches(1, 3))
    assert len(windows) == 3
    assert all(window["tokens_characters"] is None for window in windows)
    for name, part in (("token_ids", slice(None, -1)), ("next_token_id", slice(1, None))):
        found = np.concatenate([window[name][0] for window in windows]).tolist()
        assert found == [number for ids in stream for number in ids[part]]
    assert [window["token_ids"].shape for window in data.iter_batches(2, 3)] == [
        (2, 3)
    ]  # the rest fills no window
    assert list(data.iter_batches(2, 100)) == []


def test_both_directions_have_characters_of_the_same_words(vocab_file: Path, text: str) -> None:
    vocab = UnicodeCharsVocabulary(vocab_file, 5)
    window: dict[str, Any] = next(BidirectionalLMDataset(text, vocab, test=True).iter_batches(1, 4))
    assert window["token_ids"].tolist() == [[BEGIN, 0, 3, UNKNOWN]]
    assert window["next_token_id_reverse"].tolist() == [[UNKNOWN, 3, 0, BEGIN]]
    known = vocab.encode_chars("a bb x")
    assert np.array_equal(window["tokens_characters"][0], known[:-1])
    assert np.array_equal(window["tokens_characters_reverse"][0], known[:0:-1])


# --- The model ------------------------------------------------------------------------------------


@pytest.fixture
def model(old_model: Path) -> BidirectionalLanguageModel:
    return BidirectionalLanguageModel(
        old_model / "options.json", old_model / "model.hdf5", max_batch_size=4
    )


def test_bidirectional_language_model_carries_state_until_reset(
    model: BidirectionalLanguageModel,
) -> None:
    ids = torch.from_numpy(Batcher(None, 50).batch_sentences(SENTENCES))
    first = model(ids)["lm_embeddings"]
    second = model(ids)["lm_embeddings"]
    assert not torch.allclose(first[:, 1:], second[:, 1:])
    model.states.reset_states()
    assert torch.equal(first, model(ids)["lm_embeddings"])
    for wrong in (ids.repeat(3, 1, 1), Batcher(None, 60).batch_sentences(SENTENCES)):
        with pytest.raises(ValueError, match=r"raise it|50 characters"):
            model(wrong)


def test_weight_layers_shares_trainable_mixes_by_name(model: BidirectionalLanguageModel) -> None:
    ops = model(Batcher(None, 50).batch_sentences(SENTENCES))
    top = weight_layers("input", ops, use_top_only=True)["weighted_op"]
    assert torch.equal(top, ops["lm_embeddings"][:, -1])
    assert [tuple(parameter.shape) for parameter in model.mixes.parameters()] == [(1,)]
    result = weight_layers("input", ops, l2_coef=0.5)
    assert result["regularization_op"].item() == 0
    loss = result["weighted_op"].square().mean() + result["regularization_op"]
    optimizer = torch.optim.SGD(model.mixes.parameters(), lr=1.0)
    loss.backward()
    optimizer.step()
    assert weight_layers("input.0/x", ops)["weighted_op"].shape == result["weighted_op"].shape
    again = weight_layers("input", ops, l2_coef=0.5)
    other = weight_layers("output", ops)
    assert not torch.equal(again["weighted_op"], other["weighted_op"])
    weights = model.mixes["input_ELMo_W"]
    assert again["regularization_op"].item() == pytest.approx(0.5 * weights.square().sum().item())


# --- Dumps ----------------------------------------------------------------------------------------


def test_dump_token_embeddings_equals_the_character_encoder(
    old_model: Path, tmp_path: Path, bilm: BiLM
) -> None:
    files = (old_model / "options.json", old_model / "model.hdf5")
    words = tmp_path / "words.txt"
    words.write_text("<S>\nthe\ncat\n</S>\n")
    dump_token_embeddings(words, *files, tmp_path / "tokens.hdf5")
    with torch.no_grad():
        expected = bilm(
            torch.from_numpy(Batcher(None, 50).batch_sentences([["the", "cat"]]))
        ).layers
    with h5py.File(tmp_path / "tokens.hdf5") as file:
        np.testing.assert_allclose(file["embedding"], expected[0, 0, :, :16], atol=1e-6)
    by_words = BidirectionalLanguageModel(*files, False, tmp_path / "tokens.hdf5")
    found = by_words(TokenBatcher(words).batch_sentences([["the", "cat"]]))["lm_embeddings"]
    torch.testing.assert_close(found[0], expected[:, 0, 1:-1], rtol=1e-5, atol=1e-5)
    with pytest.raises(IndexError):
        by_words(np.array([[1, 5, 4]]))
    with pytest.raises(ValueError, match="is the input"):
        dump_token_embeddings(words, *files, words)


def test_dump_bilm_embeddings_of_a_model_of_word_ids(tmp_path: Path) -> None:
    model = Pretrained(
        BiLM(BiLMConfig(LSTMConfig(1, 6, 4), None, num_words=4, boundary_words=(3, 2)))
    )
    save_hdf5(replace(model, vocab=Vocab(["<UNK>", "cat", "</S>", "<S>"])), tmp_path / "model")
    (tmp_path / "text.txt").write_text("the cat\ncat\n")
    files = (tmp_path / "model" / name for name in ("options.json", "weights.hdf5"))
    dump_bilm_embeddings(
        tmp_path / "model" / "vocab.txt", tmp_path / "text.txt", *files, tmp_path / "out.hdf5"
    )
    sentences = [["the", "cat"], ["cat"]]
    expected = Embedder(tmp_path / "model").embed(sentences, "all", "carry")
    with h5py.File(tmp_path / "out.hdf5") as file:
        for line, vectors in enumerate(expected):
            np.testing.assert_allclose(file[str(line)], vectors, atol=1e-6)


def test_dump_bilm_embeddings_carries_state_from_line_to_line_and_writes_blank_ones(
    old_model: Path, tmp_path: Path
) -> None:
    (tmp_path / "text.txt").write_text("the cat\n\ndogs\n")
    files = old_model / "options.json", old_model / "model.hdf5"
    dump_bilm_embeddings(
        old_model / "vocab.txt", tmp_path / "text.txt", *files, tmp_path / "out.hdf5"
    )
    model = BidirectionalLanguageModel(*files)
    with h5py.File(tmp_path / "out.hdf5") as file:
        for line, sentence in enumerate([["the", "cat"], [], ["dogs"]]):
            expected = model(Batcher(None, 50).batch_sentences([sentence]))["lm_embeddings"][0]
            np.testing.assert_allclose(file[str(line)], expected, atol=1e-5)
