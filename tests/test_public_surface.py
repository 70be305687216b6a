"""The public names of elmokit, their signatures, and the arguments that mean the same everywhere.

A change of a name or a signature is deliberate: it is made here too.
"""

import inspect
from collections.abc import Callable
from dataclasses import astuple, is_dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import elmokit
from elmokit.nn.softmax import FullSoftmax

WITHOUT_SIGNATURE = ["CheckpointError", "Embeddings", "TruncationWarning"]
PRETRAINING = (
    "epochs=1.0, max_words=None, max_hours=None, patience=None, cool_down=None, cool_down_from=None, batch_size=128, "
    "accumulation=1, unroll_steps=20, num_samples=8192, learning_rate=None, fresh_starts=None, dropout=0.1, "
    "dtype='auto', device=None, threads=None, seed=0, log_every=20, evaluate_every=500, evaluate_words=20000, "
    "checkpoint_every=200, keep_checkpoints=2, tokenize=True, tokenizer=None, language=None, tensorboard=False"
)
FINETUNING = (
    "tokenize=True, language=None, new_vocab=False, epochs=2.0, softmax_epochs=1.0, max_words=None, vocab_size=50000, "
    "min_count=2, batch_size=32, unroll_steps=20, num_samples=8192, learning_rate=0.0005, fresh_starts=0.1, "
    "dropout=0.1, dtype='auto', device=None, threads=None, seed=0, log_every=20, evaluate_every=500, "
    "evaluate_words=20000, checkpoint_every=200, keep_checkpoints=2"
)
SIGNATURES = {
    "BiLM": "(config)",
    "BiLMConfig": "(lstm=<factory>, char_cnn=<factory>, num_words=None, boundary_words=(0, 1), efml=None, "
    "interleaved=None, transformer=None, gated_cnn=None)",
    "Elmo": "(bilm, num_mixes=1, dropout=0.5, freeze=True, *, fixed_weights=None)",
    "Embedder": "(model=None, device=None, dtype=None, *, softmax=False, sizes=None)",
    "EmbeddingStore": "(directory)",
    "FinetuneConfig": f"(corpus, output, model=None, heldout=(), others=(), {FINETUNING})",
    "FitConfig": "(seed=1, max_epochs=30, max_minutes=None, patience=4, batch_size=32, learning_rate=0.002, "
    "halve_after=1, finetune_learning_rate=0.0001, finetune_after=1, max_grad_norm=5.0, device=None)",
    "PretrainConfig": "(corpus, output, heldout=(), preset='small', config=None, initial_model=None, vocab=None, "
    f"vocab_size=50000, min_count=2, recipe='modern', schedule=None, {PRETRAINING})",
    "Pretrained": "(bilm, *, softmax=None, vocab=None, card='', tokenizer=None, state_policy='zeros', mix=None, "
    "warm_state=None)",
    "ScalarMix": "(num_layers, *, layer_norm=False, fixed_weights=None)",
    "TaskModel": "(task, network, table, model, tokenizer='whitespace-1', encoder=None)",
    "Vocab": "(words)",
    "WordsConfig": "(elmo='input', mix='learned', mix_l2=0.0, elmo_dropout=0.5, finetune=False, word_dim=100, "
    "vectors=None, vectors_kept=50000, encoder=None, encoder_pooling='first', "
    "character_dim=0, word_dropout=0.5, storage_dtype='float16', rare_word_dropout=0.5)",
    "batch_to_ids": "(sentences, max_characters=50)",
    "collate": "(sentences)",
    "embed_fasta": "(file, output, model=None, *, protein=False, layers='sum', id_field=1, split_char='|', state=None, "
    "device=None, dtype=None, storage_dtype='float32', sentences_per_part=1000, overwrite=False)",
    "embed_file": "(file, output, model=None, *, layers='mix', state=None, tokenize=True, device=None, dtype=None, "
    "storage_dtype='float32', sentences_per_part=1000, overwrite=False)",
    "encode_file": "(file, output, model=None, *, pooling='mean', normalize_embeddings=False, layers='mix', "
    "state=None, tokenize=True, device=None, dtype=None, sentences_per_part=1000, overwrite=False)",
    "evaluate": "(files, model=None, *, state=None, batch_size=1, device=None, tokenize=True, language=None)",
    "finetune": "(settings)",
    "fit": "(task, train_examples, dev_examples, test_examples=None, *, model=None, words=None, config=None, "
    "output=None, overwrite=False, cache=None)",
    "list_models": "()",
    "load": "(model=None, *, softmax=True, revision=None, local_files_only=False, token=None, cache_dir=None, "
    "force_download=False, allow_non_finite=False)",
    "load_task_model": "(directory, device=None, task=None)",
    "next_words": "(sentence, model=None, *, top=10, direction='forward', state='zeros', device=None, tokenize=True, "
    "check=None)",
    "prepack": "(bilm, dtype)",
    "prepare": "(inputs, output, tokenizer=None, num_shards=None, processes=None, seed=0, compression='zst', *, "
    "language=None, text_field='text', drop_duplicates='near', similarity=0.8, drop_paragraphs=True, exclude=(), "
    "overwrite=False)",
    "pretrain": "(settings)",
    "push_to_hub": "(model, repo_id, *, private=None, revision=None, token=None, "
    "commit_message='Upload a model of elmokit', create_pr=False, license=None, language=None, "
    "storage_dtype='float32')",
    "save": "(model, directory, *, overwrite=False, storage_dtype='float32')",
    "score": "(sentences, model=None, *, state='zeros', batch_size=1, device=None, tokenize=True)",
    "set_backend": "(name)",
    "substitutes": "(sentence, model=None, *, positions=None, top=10, direction='both', state='zeros', device=None, "
    "tokenize=True, check=None)",
}
METHODS = {
    "Embedder.load": "(model=None, device=None, dtype=None, *, softmax=False, revision=None, local_files_only=False, "
    "token=None, cache_dir=None, force_download=False)",
    "Pretrained.save_pretrained": "(self, save_directory, *, storage_dtype='float32', push_to_hub=False, "
    "repo_id=None, **options)",
    "Embedder.embed": "(self, sentences, layers='mix', state=None, batch_size=None, tokenize=True)",
    "Embedder.embed_stream": "(self, sentences, layers='mix', state=None, tokenize=True)",
    "Embedder.encode": "(self, texts, pooling='mean', normalize_embeddings=False, layers='mix', state=None, "
    "tokenize=True, *, batch_size=None, show_progress_bar=False, convert_to_tensor=False)",
    "Embedder.fingerprint": "(self)",
    "Embedder.tokenize": "(self, text)",
    "Elmo.forward": "(self, ids, state=None)",
    "BiLM.forward": "(self, ids, mask=None, state=None)",
    "EmbeddingStore.vectors": "(self, number)",
}


def signature_of(value: Callable[..., Any]) -> str:
    """Names, kinds and defaults of the parameters; pyright looks after the types."""
    parameters = inspect.signature(value).parameters.values()
    return str(inspect.Signature([each.replace(annotation=inspect.Parameter.empty) for each in parameters]))


def test_all_lists_the_recorded_names_in_order() -> None:
    assert elmokit.__all__ == sorted([*WITHOUT_SIGNATURE, *SIGNATURES])


@pytest.mark.parametrize("name", elmokit.__all__)
def test_public_name_is_importable_listed_and_documented(name: str) -> None:
    value = getattr(elmokit, name)
    assert name in dir(elmokit)
    assert len(value.__doc__) > 20


@pytest.mark.parametrize("name", [*SIGNATURES, *METHODS])
def test_signature_is_the_recorded_one(name: str) -> None:
    assert signature_of(attrgetter(name)(elmokit)) == (SIGNATURES | METHODS)[name]


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Elmoo"):
        elmokit.Elmoo  # noqa: B018


def test_state_policy_is_one_that_a_model_may_have(model: elmokit.Pretrained) -> None:
    with pytest.raises(ValueError, match="zeros, warm, carry, not 'cold'"):
        elmokit.Pretrained(model.bilm, state_policy="cold")  # type: ignore[arg-type]


# --- A model, by whatever it is called ---------------------------------------------------------------------------

SENTENCES = [["a", "b", "b"], ["b", "a"]]
LINES = "".join(" ".join(sentence) + "\n" for sentence in SENTENCES)


@pytest.fixture(scope="module")
def model() -> elmokit.Pretrained:
    """A tiny language model."""
    torch.manual_seed(1)
    vocab = elmokit.Vocab(["<S>", "</S>", "<UNK>", "a", "b"])
    bilm = elmokit.BiLM(elmokit.BiLMConfig.preset("tiny"))
    return elmokit.Pretrained(bilm, softmax=FullSoftmax(len(vocab), 16), vocab=vocab)


def embed_lines(directory: Path, model: Any) -> np.ndarray:
    elmokit.embed_file(directory / "text.txt", directory / "vectors", model, device="cpu")
    return np.concatenate([vectors for _, vectors in elmokit.EmbeddingStore(directory / "vectors")])


def encode_lines(directory: Path, model: Any) -> np.ndarray:
    elmokit.encode_file(directory / "text.txt", directory / "lines.npy", model, device="cpu")
    return np.load(directory / "lines.npy")


USES: dict[str, Callable[[Path, Any], Any]] = {
    "evaluate": lambda directory, model: elmokit.evaluate([directory / "text.txt"], model, device="cpu").total,
    "score": lambda _, model: [each.forward.tolist() for each in elmokit.score(SENTENCES, model, device="cpu")],
    "substitutes": lambda _, model: elmokit.substitutes(SENTENCES[0], model, device="cpu"),
    "next_words": lambda _, model: elmokit.next_words(SENTENCES[0], model, device="cpu"),
    "embed_file": embed_lines,
    "encode_file": encode_lines,
}


def as_lists(result: Any) -> Any:
    """Dataclasses, tuples and arrays as nested lists."""
    if isinstance(result, np.ndarray):
        return result.tolist()
    if is_dataclass(result):
        result = astuple(result)  # type: ignore[arg-type]
    return list(map(as_lists, result)) if isinstance(result, list | tuple) else result


def assert_close(result: Any, expected: Any) -> None:
    """Words are equal, numbers to the last digits of float32."""
    if isinstance(expected, list):
        for one, other in zip(result, expected, strict=True):
            assert_close(one, other)
    else:
        assert result == (pytest.approx(expected, rel=1e-5, abs=1e-6) if isinstance(expected, float) else expected)


@pytest.mark.parametrize("name", USES)
def test_model_may_be_loaded_or_named_by_path(name: str, model: elmokit.Pretrained, tmp_path: Path) -> None:
    elmokit.save(model, tmp_path / "model")
    found = []
    for number, each in enumerate((model, tmp_path / "model", str(tmp_path / "model"))):
        directory = tmp_path / str(number)
        directory.mkdir()
        (directory / "text.txt").write_text(LINES)
        found.append(USES[name](directory, each))
    for other in found[1:]:
        assert_close(as_lists(other), as_lists(found[0]))


def test_list_models_names_what_load_finds() -> None:
    assert "en-small" in elmokit.list_models()
    assert elmokit.load("en-small", softmax=False).config == elmokit.load(softmax=False).config
