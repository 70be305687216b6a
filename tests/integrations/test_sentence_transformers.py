"""`ElmoModule` in a SentenceTransformer, against `Embedder`."""

from __future__ import annotations

import json
import pickle
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip(
    "sentence_transformers", reason="sentence-transformers is not installed: make test-integrations"
)
from bundled_model import WIDTH
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling

import elmokit.integrations.sentence_transformers
from elmokit.checkpoints.loading import load as load_model
from elmokit.checkpoints.pretrained import MixWeights, Pretrained
from elmokit.config import BiLMConfig, LSTMConfig
from elmokit.embed.embedder import Embedder
from elmokit.integrations.sentence_transformers import ElmoModule, load
from elmokit.nn.bilm import BiLM
from elmokit.text.vocab import Vocab

TEXTS = [
    "The children play in the garden.",
    "Shakespeare wrote the play.",
    "",
    "  ",
    "Hä? 中文 🙂",
    "The play.",
]


def sentence_transformer(*args: Any, pooling: str = "mean", **settings: Any) -> SentenceTransformer:
    elmo = ElmoModule(*args, **settings)
    return SentenceTransformer(
        modules=[elmo, Pooling(elmo.get_embedding_dimension(), pooling)], device="cpu"
    )


@pytest.fixture(scope="module")
def model() -> SentenceTransformer:
    return sentence_transformer()


# --- Vectors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("layers", ["mix", "average", "sum", "top", 0, -1], ids=str)
@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_vectors_are_those_of_the_embedder(
    embedder: Embedder, layers: str | int, pooling: str
) -> None:
    vectors = sentence_transformer(layers=layers, pooling=pooling).encode(TEXTS, batch_size=4)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, embedder.encode(TEXTS, pooling, layers=layers), atol=1e-5)


def weighted() -> Pretrained:
    return replace(load_model(softmax=False), mix=MixWeights((0.5, -1.0, 2.0), 1.5))


def warm() -> Pretrained:
    model = load_model(softmax=False)
    state = Embedder(model).embed(["Some text."], state="carry").state
    return replace(model, warm_state=state, state_policy="warm")


def carrying() -> Pretrained:
    return replace(load_model(softmax=False), state_policy="carry")


def of_words() -> Pretrained:
    torch.manual_seed(0)
    vocab = Vocab(["<S>", "</S>", "<UNK>", "the", "play", "."])
    config = BiLMConfig(
        LSTMConfig(num_layers=1, cell_dim=8, projection_dim=4), char_cnn=None, num_words=len(vocab)
    )
    return Pretrained(BiLM(config), vocab=vocab, tokenizer="english-1")


@pytest.mark.parametrize("make", [weighted, warm, carrying, of_words])
def test_models_of_every_kind_give_the_vectors_of_the_embedder(make: Any) -> None:
    loaded = make()
    expected = Embedder(loaded).encode(TEXTS, state=loaded.single_sentence_state)
    np.testing.assert_allclose(sentence_transformer(loaded).encode(TEXTS), expected, atol=1e-5)


def test_vectors_of_words_are_those_of_the_embedder(
    model: SentenceTransformer, embedder: Embedder
) -> None:
    vectors = model.encode(TEXTS, output_value="token_embeddings")
    for of_text, expected in zip(vectors, embedder.embed(TEXTS), strict=True):
        without_words = np.zeros((1, WIDTH), np.float32)
        np.testing.assert_allclose(
            of_text.numpy(), expected if len(expected) else without_words, atol=1e-5
        )


def test_max_seq_length_cuts_words(model: SentenceTransformer, embedder: Embedder) -> None:
    short = sentence_transformer(max_seq_length=2)
    expected = embedder.encode([embedder.tokenize(text)[:2] for text in TEXTS])
    np.testing.assert_allclose(short.encode(TEXTS), expected, atol=1e-5)
    short.max_seq_length = None
    np.testing.assert_allclose(short.encode(TEXTS), model.encode(TEXTS), atol=1e-5)


@pytest.mark.parametrize(("prompt", "words"), [("Title of a text: ", 5), ("Option A. ", 2)])
def test_a_prompt_is_read_and_left_out_of_the_mean_if_asked(
    embedder: Embedder, prompt: str, words: int
) -> None:
    # At the end of a sentence, "A." would be two words.
    model = SentenceTransformer(
        modules=[ElmoModule(), Pooling(WIDTH, include_prompt=False)], device="cpu"
    )
    (expected,) = embedder.embed([f"{prompt}The play."])
    np.testing.assert_allclose(
        model.encode("The play.", prompt=prompt), expected[words:].mean(0), atol=1e-5
    )


# --- Files, copies and processes ------------------------------------------------------------------


def test_a_saved_model_is_loaded_and_its_directory_is_one_of_elmokit(
    model: SentenceTransformer, embedder: Embedder, tmp_path: Path
) -> None:
    model.save_pretrained(tmp_path / "saved", create_model_card=False)
    native = load_model(tmp_path / "saved" / "0_ElmoModule")
    assert native.fingerprint() == embedder.fingerprint()
    assert native.card == load_model(softmax=False).card
    trusted = SentenceTransformer(str(tmp_path / "saved"), trust_remote_code=True, device="cpu")
    for again in (load(tmp_path / "saved", device="cpu"), trusted):
        np.testing.assert_array_equal(again.encode(TEXTS), model.encode(TEXTS))


def test_settings_survive_saving_also_into_the_same_directory(tmp_path: Path) -> None:
    elmo = ElmoModule(layers=np.int64(1), max_seq_length=7, freeze=False)
    modules = [elmo, Pooling(WIDTH), Dense(WIDTH, 8), Normalize()]
    model = SentenceTransformer(
        modules=modules,
        prompts={"query": "Q: "},
        similarity_fn_name="dot",
        truncate_dim=4,
        device="cpu",
    )
    for _ in range(2):
        model.save_pretrained(tmp_path, create_model_card=False)
        again = load(tmp_path, device="cpu")
    assert [type(module) for module in again] == [type(module) for module in model]
    assert again[0].get_config_dict() == {"layers": 1, "max_seq_length": 7, "freeze": False}
    assert (again.prompts["query"], again.similarity_fn_name, again.truncate_dim) == (
        "Q: ",
        "dot",
        4,
    )
    np.testing.assert_array_equal(again.encode(TEXTS), model.encode(TEXTS))
    assert load(tmp_path, truncate_dim=2, device="cpu").encode(TEXTS).shape == (6, 2)


def test_loading_runs_no_class_of_a_stranger(model: SentenceTransformer, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path, create_model_card=False)
    modules = json.loads((tmp_path / "modules.json").read_text())
    modules[1]["type"] = "somewhere.Module"
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ValueError, match="third-party code"):
        load(tmp_path)


def test_a_pushed_model_says_what_it_needs_and_is_loaded_by_its_name(
    embedder: Embedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Hub is a directory."""
    import huggingface_hub
    from huggingface_hub.utils import filter_repo_objects

    elmo = ElmoModule()
    model = SentenceTransformer(modules=[elmo, Pooling(WIDTH), Dense(WIDTH, 8)], device="cpu")
    model.model_card_data.set_model_id("owner/name")
    model.save_pretrained(tmp_path / "hub")

    def snapshot_download(name: str, **options: Any) -> str:
        assert name == "owner/name"
        weights = ["0_ElmoModule/model.safetensors"]
        assert [*filter_repo_objects(weights, allow_patterns=options.get("allow_patterns"))]
        return str(tmp_path / "hub")

    for module in (huggingface_hub, elmokit.integrations.sentence_transformers):
        monkeypatch.setattr(module, "snapshot_download", snapshot_download)
    card = (tmp_path / "hub" / "README.md").read_text()
    assert "- elmokit\n" in card.partition("\n---\n")[0]
    (snippet,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)[:1]
    exec(snippet, variables := {})
    np.testing.assert_array_equal(variables["embeddings"], model.encode(variables["sentences"]))
    for name in ("owner/name", tmp_path / "hub"):
        assert load_model(name).fingerprint() == embedder.fingerprint()
    again = pickle.loads(pickle.dumps(model))  # as other processes get it
    np.testing.assert_array_equal(again.encode(TEXTS), model.encode(TEXTS))


# --- Training and evaluation ----------------------------------------------------------------------

PAIRS = {
    "sentence1": ["A man eats.", "A dog runs.", "It rains.", "She sings."],
    "sentence2": ["A man is eating.", "The stock fell.", "It is raining.", "They sold it."],
    "score": [1.0, 0.0, 1.0, 0.0],
}


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)
@pytest.mark.parametrize(
    ("freeze", "steps", "learning_rate"),
    [(True, 5, 0.01), (False, 1, 1e-3)],  # a larger rate would amplify rounding
)
def test_the_trainer_learns_the_mix_or_the_bilm_and_saves_it(
    freeze: bool, steps: int, learning_rate: float, tmp_path: Path
) -> None:
    datasets = pytest.importorskip(
        "datasets", reason="datasets is not installed: make test-integrations"
    )
    pytest.importorskip("accelerate", reason="accelerate is not installed: make test-integrations")
    from sentence_transformers import (
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import CosineSimilarityLoss

    model = sentence_transformer(load_model(softmax=False), freeze=freeze)
    before = model.encode(TEXTS)
    weights = [weight.clone() for weight in model[0].elmo.bilm.parameters()]
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(tmp_path / "run"),
        max_steps=steps,
        per_device_train_batch_size=4,
        learning_rate=learning_rate,
        logging_steps=1,
        report_to="none",
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    trainer = SentenceTransformerTrainer(
        model,
        args=arguments,
        train_dataset=datasets.Dataset.from_dict(PAIRS),
        loss=CosineSimilarityLoss(model),
    )
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert steps == 1 or losses[-1] < losses[0]
    vectors = model.encode(TEXTS)
    assert np.abs(vectors - before).max() > 1e-4
    assert all(map(torch.equal, weights, model[0].elmo.bilm.parameters())) == freeze
    model.save_pretrained(tmp_path / "saved", create_model_card=False)
    learned = load_model(tmp_path / "saved" / "0_ElmoModule")
    assert len(set(learned.mix.weights)) > 1
    np.testing.assert_array_equal(load(tmp_path / "saved", device="cpu").encode(TEXTS), vectors)
    np.testing.assert_allclose(Embedder(learned).encode(TEXTS), vectors, atol=1e-5)
