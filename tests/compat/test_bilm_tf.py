"""bilm-tf's batchers, state, mixes and dumps, and its silent errors."""

from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from elmokit.checkpoints.formats.bilm_hdf5 import write_bilm_hdf5
from elmokit.compat.bilm_tf import (
    Batcher,
    BidirectionalLanguageModel,
    TokenBatcher,
    dump_bilm_embeddings,
    dump_token_embeddings,
    weight_layers,
)
from elmokit.compat.bilm_tf.model import BATCH_WORDS
from elmokit.nn.bilm import BiLM

SENTENCES = [["the", "cat"], ["dogs"]]


def vocabulary(folder: Path, words: str) -> Path:
    (folder / "words.txt").write_text("\n".join(words.split()))
    return folder / "words.txt"


def test_batcher_warns_of_a_vocabulary_without_boundaries(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="lacks <S> or </S>"):
        batcher = Batcher(vocabulary(tmp_path, "the cat"), 50)
    ids = batcher.batch_sentences([["cat"]])  # in bilm-tf "cat" became </S>
    assert ids.shape == (1, 3, 50) and ids.dtype == np.int64
    assert ids[0, 1, :6].tolist() == [259, *(byte + 1 for byte in b"cat"), 260, 261]


def test_token_batcher_maps_unknown_words_to_unk_or_raises(tmp_path: Path) -> None:
    known = TokenBatcher(vocabulary(tmp_path, "<S> </S> <UNK> the cat"))
    assert known.batch_sentences([["the", "dog"], []]).tolist() == [[1, 4, 3, 2], [1, 2, 0, 0]]
    with pytest.raises(ValueError, match="neither 'dog' nor <UNK>"):
        TokenBatcher(vocabulary(tmp_path, "<S> </S> the cat")).batch_sentences([["dog"]])
    with pytest.raises(ValueError, match="lacks <S> or </S>"):
        TokenBatcher(vocabulary(tmp_path, "the cat"))


def test_the_mark_in_old_vocabularies_is_no_word(tmp_path: Path) -> None:
    marked = TokenBatcher(vocabulary(tmp_path, "!!!MAXTERMID <S> </S> <UNK> the cat"))
    assert marked.batch_sentences([["the", "dog"], []]).tolist() == [[1, 4, 3, 2], [1, 2, 0, 0]]


@pytest.fixture
def model(old_model: Path) -> BidirectionalLanguageModel:
    return BidirectionalLanguageModel(old_model / "options.json", old_model / "model.hdf5", max_batch_size=4)


def test_bidirectional_language_model_carries_state_until_reset(model: BidirectionalLanguageModel) -> None:
    ids = torch.from_numpy(Batcher(None, 50).batch_sentences(SENTENCES))
    first, second = model(ids)["lm_embeddings"], model(ids)["lm_embeddings"]
    assert not torch.allclose(first[:, 1:], second[:, 1:])
    model.states.reset_states()
    assert torch.equal(first, model(ids)["lm_embeddings"])
    with pytest.raises(ValueError, match="max_batch_size=4"):
        model(ids.repeat(3, 1, 1))


def test_a_placeholder_of_a_graph_is_an_error_that_says_what_to_pass(model: BidirectionalLanguageModel) -> None:
    with pytest.raises(ValueError, match="not SymbolicTensor: pass the result of batch_sentences"):
        model(type("SymbolicTensor", (), {"shape": (None, None, 50)})())


def test_ids_of_more_characters_than_the_model_reads_are_refused(model: BidirectionalLanguageModel) -> None:
    with pytest.raises(ValueError, match=r"reads 50 characters of a word, not 60: use Batcher\(vocab_file, 50\)"):
        model(Batcher(None, 60).batch_sentences(SENTENCES))


def test_weight_layers_shares_trainable_mixes_by_name(model: BidirectionalLanguageModel) -> None:
    ops = model(Batcher(None, 50).batch_sentences(SENTENCES))
    result = weight_layers("input", ops, l2_coef=0.5)
    assert result["regularization_op"].item() == 0
    loss = result["weighted_op"].square().mean() + result["regularization_op"]
    optimizer = torch.optim.SGD(model.mixes.parameters(), lr=1.0)
    loss.backward()
    optimizer.step()
    assert weight_layers("input.0/x", ops)["weighted_op"].shape == result["weighted_op"].shape
    again, other = weight_layers("input", ops, l2_coef=0.5), weight_layers("output", ops)
    assert not torch.equal(again["weighted_op"], other["weighted_op"])
    weights = model.mixes["input_ELMo"].weights
    assert again["regularization_op"].item() == pytest.approx(0.5 * weights.square().sum().item())


def test_dump_token_embeddings_equals_the_character_encoder(old_model: Path, tmp_path: Path, bilm: BiLM) -> None:
    files = old_model / "options.json", old_model / "model.hdf5"
    words = vocabulary(tmp_path, "<S> the cat </S>")
    dump_token_embeddings(words, *files, tmp_path / "tokens.hdf5")
    with torch.no_grad():
        expected = bilm(torch.from_numpy(Batcher(None, 50).batch_sentences([["the", "cat"]]))).layers[0, 0, :, :16]
    with h5py.File(tmp_path / "tokens.hdf5") as file:
        np.testing.assert_allclose(file["embedding"], expected, atol=1e-6)
    by_words = BidirectionalLanguageModel(*files, False, tmp_path / "tokens.hdf5")
    assert by_words(TokenBatcher(words).batch_sentences([["cat"]]))["lm_embeddings"].shape == (1, 3, 1, 32)
    with pytest.raises(ValueError, match="there are 4 token embeddings but an id is 5"):
        by_words(np.array([[1, 5, 4]]))
    with pytest.raises(ValueError, match="needs the embedding_weight_file"):
        BidirectionalLanguageModel(*files, use_character_inputs=False)
    with pytest.raises(ValueError, match="no dataset 'embedding'"):
        BidirectionalLanguageModel(*files, False, files[1])


@pytest.mark.parametrize("batch_words", [2, BATCH_WORDS])
def test_dump_bilm_embeddings_carries_state_from_line_to_line_and_writes_blank_ones(
    batch_words: int, old_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elmokit.compat.bilm_tf.model.BATCH_WORDS", batch_words)
    (tmp_path / "text.txt").write_text("the cat\n\ndogs\n")
    files = old_model / "options.json", old_model / "model.hdf5"
    dump_bilm_embeddings(old_model / "vocab.txt", tmp_path / "text.txt", *files, tmp_path / "out.hdf5")
    model = BidirectionalLanguageModel(*files)
    with h5py.File(tmp_path / "out.hdf5") as file:
        for line, sentence in enumerate([["the", "cat"], [], ["dogs"]]):
            expected = model(Batcher(None, 50).batch_sentences([sentence]))["lm_embeddings"][0]
            np.testing.assert_allclose(file[str(line)], expected, atol=1e-5)


def test_dumps_do_not_overwrite_their_vocabulary(old_model: Path, tmp_path: Path) -> None:
    files = old_model / "options.json", old_model / "model.hdf5"
    words = vocabulary(tmp_path, "<S> </S> the")
    (tmp_path / "text.txt").write_text("the\n")
    with pytest.raises(ValueError, match=r"is the input .*words\.txt"):
        dump_token_embeddings(words, *files, words)
    with pytest.raises(ValueError, match=r"is the input .*words\.txt"):
        dump_bilm_embeddings(words, tmp_path / "text.txt", *files, words)
    assert words.read_text().split() == ["<S>", "</S>", "the"]


def test_dump_token_embeddings_refuses_a_model_of_word_ids(bilm: BiLM, tmp_path: Path) -> None:
    words = vocabulary(tmp_path, "<S> </S> the")
    by_words = BiLM(replace(bilm.config, char_cnn=None, num_words=3))
    write_bilm_hdf5(by_words, tmp_path)
    with pytest.raises(ValueError, match="reads words, not characters"):
        dump_token_embeddings(words, tmp_path / "options.json", tmp_path / "weights.hdf5", tmp_path / "out.hdf5")
    assert not (tmp_path / "out.hdf5").exists()


def test_a_mix_of_the_top_layer_learns_gamma_only(model: BidirectionalLanguageModel) -> None:
    ops = model(Batcher(None, 50).batch_sentences(SENTENCES))
    top = weight_layers("input", ops, use_top_only=True)["weighted_op"]
    assert torch.equal(top, ops["lm_embeddings"][:, -1])
    assert [tuple(parameter.shape) for parameter in model.mixes.parameters()] == [(1,)]
    weight_layers("input", ops)
    assert sorted(tuple(parameter.shape) for parameter in model.mixes.parameters()) == [(1,), (3,)]
