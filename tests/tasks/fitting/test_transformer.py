"""Hidden states of a tiny random BERT as word vectors: which subwords, which windows, saved and
loaded.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from toy_tasks import toy_tasks

from elmokit.tasks.config import WordsConfig
from elmokit.tasks.fitting.fit import fit
from elmokit.tasks.fitting.frozen import TransformerEncoder
from elmokit.tasks.fitting.model import load_task_model

transformers: Any = None


@pytest.fixture(autouse=True, scope="module")
def _transformers() -> None:
    """Imported where these tests run, not by every process that collects them: it takes seconds."""
    global transformers
    transformers = pytest.importorskip("transformers")


VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "red", "dog", "##s", "Ann", "see", "like"]
SENTENCES = [["Ann", "sees", "dogs"], [], ["red", "dogs"], ["red"] * 20]


def bert_tokenizer(vocab: Path, lower: bool = False) -> Any:
    return transformers.BertTokenizerFast(
        vocab=str(vocab), vocab_file=str(vocab), do_lower_case=lower
    )


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A BERT of two layers with random weights that reads 10 subwords at once."""
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(VOCAB),
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=10,
    )
    transformers.BertModel(config).save_pretrained(tmp_path / "bert")
    (tmp_path / "vocab.txt").write_text("\n".join(VOCAB))
    tokenizer = bert_tokenizer(tmp_path / "vocab.txt")
    tokenizer.save_pretrained(tmp_path / "bert")
    return tmp_path / "bert"


def states_of(directory: Path, ids: list[int]) -> torch.Tensor:
    """Hidden states (3, subwords, 8) of a sequence of subwords between [CLS] and [SEP], without the
    two.
    """
    model = transformers.AutoModel.from_pretrained(directory).eval()
    with torch.no_grad():
        states = model(torch.tensor([[2, *ids, 3]]), output_hidden_states=True).hidden_states
    return torch.cat(states)[:, 1:-1]


@pytest.mark.parametrize("batch_windows", [1, 32])
@pytest.mark.parametrize("pooling", ["first", "mean"])
def test_vectors_are_the_pooled_hidden_states_of_each_word(
    pooling: str, batch_windows: int, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elmokit.tasks.fitting.frozen.BATCH_WINDOWS", batch_windows)
    encoder = TransformerEncoder.load(directory, pooling)  # type: ignore[arg-type]
    assert encoder.shape == (3, 8) and encoder.max_subwords == 10
    found = encoder.vectors(SENTENCES[:3], "float32")
    ann, red = states_of(directory, [8, 9, 7, 6, 7]), states_of(directory, [5, 6, 7])
    pooled = [
        ann[:, :1], ann[:, 1:3], ann[:, 3:5], red[:, :1], red[:, 1:3]
    ]  # fmt: skip
    expected = [states[:, 0] if pooling == "first" else states.mean(1) for states in pooled]
    np.testing.assert_allclose(found, torch.stack(expected), atol=1e-5)
    # The tokenizer drops a zero-width space, which neither moves nor changes its neighbours.
    gap = encoder.vectors([["red", "\u200b", "dog"], ["\u200b"]], "float32")
    np.testing.assert_allclose(
        gap[[0, 2]], states_of(directory, [5, 6]).permute(1, 0, 2), atol=1e-5
    )
    assert not gap[[1, 3]].any()
    windows = (
        states_of(directory, [5] * 8),
        states_of(directory, [5] * 8),
        states_of(directory, [5] * 4),
    )
    long = encoder.vectors(SENTENCES, "float32")[5:]  # of which the encoder reads windows
    np.testing.assert_allclose(long, torch.cat(windows, dim=1).permute(1, 0, 2), atol=1e-5)


@pytest.mark.parametrize(
    "kind, padding, positions", [("Bert", 0, 10), ("Roberta", 1, 12)]
)  # which begin after the padding
def test_max_subwords_is_the_most_that_a_model_reads(
    kind: str, padding: int, positions: int, directory: Path
) -> None:
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=len(VOCAB),
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        pad_token_id=padding,
        max_position_embeddings=positions,
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    encoder = TransformerEncoder(getattr(transformers, f"{kind}Model")(config), tokenizer)
    vectors = encoder.vectors([["red"] * 20], "float32")
    assert encoder.max_subwords == 10 and vectors.shape == (20, 2, 8) and np.isfinite(vectors).all()


def test_a_model_with_an_encoder_is_saved_whole_and_is_not_that_of_another_encoder(
    directory: Path, tmp_path: Path
) -> None:
    toy = toy_tasks()["tagging"]
    options: dict[str, Any] = {
        "words": WordsConfig(elmo="none", word_dim=0, encoder=str(directory)),
        "output": tmp_path / "model",
        "config": replace(toy.config, max_epochs=3),
        "cache": tmp_path / "cache",
    }
    fitted, report = fit(toy.task, toy.examples, toy.examples, **options)
    assert report.encoder_mix is not None and len(report.encoder_mix.weights) == 3
    assert fit(toy.task, toy.examples, toy.examples, **options)[1] == report
    (directory / "model.safetensors").unlink()  # a loaded model may map it
    transformers.BertModel(transformers.AutoConfig.from_pretrained(directory)).save_pretrained(
        directory
    )
    with pytest.raises(FileExistsError, match="encoder"):
        fit(toy.task, toy.examples, toy.examples, **options)
    for file in directory.iterdir():
        file.unlink()
    loaded = load_task_model(tmp_path / "model", device="cpu")
    assert loaded.predict([toy.text]) == fitted.predict([toy.text])


def test_caches_are_not_shared_by_other_tokenizers_or_configurations(
    directory: Path, tmp_path: Path
) -> None:
    model = transformers.AutoModel.from_pretrained(directory)
    cased, uncased = (bert_tokenizer(tmp_path / "vocab.txt", lower) for lower in (False, True))
    first = TransformerEncoder(model, cased)
    first.vectors(SENTENCES, "float32")  # which leaves its truncation with the tokenizer
    assert (
        TransformerEncoder(model, cased).name
        == first.name
        != TransformerEncoder(model, uncased).name
    )
    model.config.hidden_act = "relu"
    assert TransformerEncoder(model, cased).name != first.name
