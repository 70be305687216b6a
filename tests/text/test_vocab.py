"""The word vocabulary: order, ids, files, and files that are not vocabularies."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmokit.checkpoints.bilm_hdf5 import write_bilm_hdf5
from elmokit.checkpoints.loading import load
from elmokit.compat.bilm_tf.data import Vocabulary
from elmokit.config import BiLMConfig, LSTMConfig
from elmokit.nn.bilm import BiLM
from elmokit.text.vocab import Vocab


def test_from_counts_sorts_by_frequency_after_special_tokens() -> None:
    vocab = Vocab.from_counts({"b": 2, "a": 2, "rare": 1, "c": 9, "</S>": 50}, min_count=2)
    assert vocab.words == ("<S>", "</S>", "<UNK>", "c", "a", "b")
    assert (vocab.bos, vocab.eos, vocab.unk) == (0, 1, 2)
    assert Vocab.from_counts({"b": 2, "a": 3}, max_size=4).words == ("<S>", "</S>", "<UNK>", "a")


def test_ids_of_unknown_words_are_unk() -> None:
    vocab = Vocab(["a", "</S>", "<S>", "<UNK>", "b"])
    assert vocab.ids(["b", "never seen", "a", "<S>"]).tolist() == [4, 3, 0, 2]
    assert vocab.ids([]).shape == (0,)
    assert len(vocab) == 5
    assert "b" in vocab
    assert "c" not in vocab


@pytest.mark.filterwarnings("ignore:.* of the vocabulary are blank")
@given(
    st.lists(
        st.text(alphabet=st.characters(codec="utf-8"))
        | st.sampled_from(["!!!MAXTERMID", "\ufeff", "a\r", "\r", "", "a", "\u3000"])
    )
)
def test_vocab_is_read_back_or_names_the_word_that_would_not_be(
    tmp_path_factory: Any, words: list[str]
) -> None:
    try:
        vocab = Vocab([*words, "<S>", "</S>", "<UNK>"])
    except ValueError as error:
        assert any(f"{word!r} cannot be a word" in str(error) for word in words)
        return
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    vocab.write(path)
    assert Vocab.read(path) == vocab


def test_read_leaves_out_white_space_and_the_mark_of_the_first_vocabularies(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("!!!MAXTERMID\n<S> \n</S>\n<UNK>\t\n cat \n\u00a0\n")
    assert Vocab.read(tmp_path / "vocab.txt").words == ("<S>", "</S>", "<UNK>", "cat", "\u00a0")


def test_read_accepts_a_published_vocabulary(goldens: Callable[[str], Path]) -> None:
    path = goldens("bilm_tf_training/vocab.txt")
    vocab = Vocab.read(path)
    assert list(vocab.words) == path.read_text().split()


def test_blank_and_repeated_words_keep_their_rows_in_every_reader(tmp_path: Path) -> None:
    lines = ["<S>", "</S>", "<UNK>", "a", "", "\u3000", "b", "a", ""]
    (tmp_path / "vocab.txt").write_text("\n".join([*lines, ""]))
    bilm = BiLM(BiLMConfig(LSTMConfig(1, 6, 4), None, num_words=len(lines)))
    write_bilm_hdf5(bilm, tmp_path)
    with pytest.warns(UserWarning, match="3 words of the vocabulary are blank or repeated"):
        vocab = load(tmp_path).vocab
    assert list(vocab.words) == lines == Vocabulary(tmp_path / "vocab.txt").words
    known = ["a", "\u3000", "b", "unknown"]
    assert vocab.ids(known).tolist() == [7, 5, 6, 2]  # as in bilm-tf, the last of the rows of "a"
    assert list(map(Vocabulary(tmp_path / "vocab.txt").word_to_id, known)) == [7, 5, 6, 2]


def test_read_raises_for_files_that_are_not_vocabularies(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("<S>\na\n")
    with pytest.raises(ValueError, match=r"vocab\.txt: .*lacks </S> <UNK>"):
        Vocab.read(tmp_path / "vocab.txt")


def test_count_words_counts_those_of_all_files(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("the cat  saw the dog\n\n the end \n")
    (tmp_path / "b.txt").write_text("the end\n" * 25_000)
    counts = Vocab.count_words([tmp_path / "a.txt", tmp_path / "b.txt"])
    assert counts == Counter({"the": 25_003, "end": 25_001, "cat": 1, "saw": 1, "dog": 1})


# --- With a model ---------------------------------------------------------------------------------


def test_an_invalid_vocabulary_of_a_word_model_is_refused(tmp_path: Path) -> None:
    write_bilm_hdf5(BiLM(BiLMConfig(LSTMConfig(1, 6, 4), None, num_words=3)), tmp_path)
    (tmp_path / "vocab.txt").write_text("<S>\n</S>\nthe\n")
    with pytest.raises(ValueError, match="lacks <UNK>"):
        load(tmp_path)
