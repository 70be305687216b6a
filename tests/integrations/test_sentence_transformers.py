"""`ElmoModule` in a SentenceTransformer, against `Embedder`."""

from __future__ import annotations

import copy
import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed: make test-integrations")
from bundled_model import WIDTH
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling

from elmokit.checkpoints.loading import load as load_model
from elmokit.checkpoints.pretrained import MixWeights, Pretrained, fingerprint
from elmokit.config import BiLMConfig, LSTMConfig
from elmokit.embed.embedder import Embedder
from elmokit.integrations.sentence_transformers import ElmoModule, load
from elmokit.nn.bilm import BiLM
from elmokit.text.characters import TruncationWarning
from elmokit.text.vocab import Vocab

TEXTS = ["The children play in the garden.", "Shakespeare wrote the play.", "", "  ", "Hä? 中文 🙂", "The play."]


@pytest.fixture(scope="module")
def embedder() -> Embedder:
    return Embedder()


def sentence_transformer(*args: Any, pooling: str = "mean", **settings: Any) -> SentenceTransformer:
    elmo = ElmoModule(*args, **settings)
    return SentenceTransformer(modules=[elmo, Pooling(elmo.get_embedding_dimension(), pooling)], device="cpu")


@pytest.fixture(scope="module")
def model() -> SentenceTransformer:
    return sentence_transformer()


# --- Vectors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layers", ["mix", "average", "sum", "top", 0, -1], ids=str)
@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_vectors_are_those_of_the_embedder(embedder: Embedder, layers: str | int, pooling: str) -> None:
    vectors = sentence_transformer(layers=layers, pooling=pooling).encode(TEXTS, batch_size=4)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, embedder.encode(TEXTS, pooling, layers=layers), atol=1e-5)


def test_the_weights_that_a_model_has_for_its_layers_are_used(embedder: Embedder) -> None:
    weighted = replace(load_model(softmax=False), mix=MixWeights((0.5, -1.0, 2.0), 1.5))
    vectors = sentence_transformer(weighted).encode(TEXTS)
    np.testing.assert_allclose(vectors, Embedder(weighted).encode(TEXTS), atol=1e-5)
    assert np.abs(vectors - embedder.encode(TEXTS)).max() > 0.01


def test_a_warm_state_starts_every_text() -> None:
    model = load_model(softmax=False)
    state = Embedder(model).embed(["Some text."], state="carry").state
    warm = replace(model, warm_state=state, state_policy="warm")
    vectors = sentence_transformer(warm).encode(TEXTS)
    np.testing.assert_allclose(vectors, Embedder(warm).encode(TEXTS), atol=1e-5)


def test_a_text_does_not_depend_on_those_before_it_where_the_model_carries_its_state(embedder: Embedder) -> None:
    carrying = replace(load_model(softmax=False), state_policy="carry")
    np.testing.assert_allclose(
        sentence_transformer(carrying).encode(TEXTS), embedder.encode(TEXTS, state="zeros"), atol=1e-5
    )


def test_a_model_of_words_is_read_with_its_vocabulary() -> None:
    torch.manual_seed(0)
    vocab = Vocab(["<S>", "</S>", "<UNK>", "the", "play", "."])
    config = BiLMConfig(LSTMConfig(num_layers=1, cell_dim=8, projection_dim=4), char_cnn=None, num_words=len(vocab))
    of_words = Pretrained(BiLM(config), vocab=vocab, tokenizer="english-1")
    vectors = sentence_transformer(of_words).encode(["The play .", "the play", ""])
    np.testing.assert_allclose(vectors, Embedder(of_words).encode(["The play .", "the play", ""]), atol=1e-5)


def test_vectors_of_words_are_those_of_the_embedder(model: SentenceTransformer, embedder: Embedder) -> None:
    vectors = model.encode(TEXTS, output_value="token_embeddings")
    for of_text, expected in zip(vectors, embedder.embed(TEXTS), strict=True):
        without_words = np.zeros((1, WIDTH), np.float32)
        np.testing.assert_allclose(of_text.numpy(), expected if len(expected) else without_words, atol=1e-5)


def test_max_seq_length_cuts_words(model: SentenceTransformer, embedder: Embedder) -> None:
    short = sentence_transformer(max_seq_length=2)
    expected = embedder.encode([embedder.tokenize(text)[:2] for text in TEXTS])
    np.testing.assert_allclose(short.encode(TEXTS), expected, atol=1e-5)
    for refused in (0, -1):
        with pytest.raises(ValueError, match="max_seq_length must be at least 1"):
            short.max_seq_length = refused
    assert short.max_seq_length == 2
    short.max_seq_length = None
    np.testing.assert_allclose(short.encode(TEXTS), model.encode(TEXTS), atol=1e-5)


def test_a_prompt_is_read_and_left_out_of_the_mean_if_asked(embedder: Embedder) -> None:
    elmo = ElmoModule()
    model = SentenceTransformer(modules=[elmo, Pooling(WIDTH, include_prompt=False)], device="cpu")
    (expected,) = embedder.embed(["Title of a text: The play."])
    np.testing.assert_allclose(model.encode("The play.", prompt="Title of a text: "), expected[5:].mean(0), atol=1e-5)
    (expected,) = embedder.embed(["Option A. The play."])  # at the end of a sentence, "A." would be two words
    np.testing.assert_allclose(model.encode("The play.", prompt="Option A. "), expected[2:].mean(0), atol=1e-5)


def test_a_word_that_is_too_long_is_reported(model: SentenceTransformer) -> None:
    with pytest.warns(TruncationWarning, match="48 bytes"):
        model.encode(["x" * 60])


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"layers": "all"}, "one vector is needed"),
        ({"layers": 7}, "layers must be"),
        ({"max_seq_length": -1}, "max_seq_length must be at least 1"),
        ({"max_seq_length": 0}, "max_seq_length must be at least 1"),
    ],
    ids=str,
)
def test_settings_that_have_no_meaning_are_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        ElmoModule(**settings)


def test_inputs_that_are_no_strings_are_refused(model: SentenceTransformer) -> None:
    with pytest.raises(ValueError, match=r"(?i)text"):
        model.encode([{"image": "a.png"}])
    with pytest.raises(ValueError, match="takes texts as strings"):
        model[0].preprocess([("a", "b")])


# --- Files, copies and processes -------------------------------------------------------------------------------------


def test_a_saved_model_is_loaded_and_its_directory_is_one_of_elmokit(
    model: SentenceTransformer, embedder: Embedder, tmp_path: Path
) -> None:
    model.save_pretrained(tmp_path / "saved", create_model_card=False)
    native = load_model(tmp_path / "saved" / "0_ElmoModule")
    assert fingerprint(native) == embedder.fingerprint()
    assert native.card == load_model(softmax=False).card
    np.testing.assert_array_equal(load(tmp_path / "saved", device="cpu").encode(TEXTS), model.encode(TEXTS))
    trusted = SentenceTransformer(str(tmp_path / "saved"), trust_remote_code=True, device="cpu")
    np.testing.assert_array_equal(trusted.encode(TEXTS), model.encode(TEXTS))
    with pytest.raises(ValueError, match="trust_remote_code"):
        SentenceTransformer(str(tmp_path / "saved"))


def test_settings_survive_saving_also_into_the_same_directory(tmp_path: Path) -> None:
    elmo = ElmoModule(layers=np.int64(1), max_seq_length=7, freeze=False)
    modules = [elmo, Pooling(WIDTH), Dense(WIDTH, 8), Normalize()]
    model = SentenceTransformer(
        modules=modules, prompts={"query": "Q: "}, similarity_fn_name="dot", truncate_dim=4, device="cpu"
    )
    for _ in range(2):
        model.save_pretrained(tmp_path, create_model_card=False)
        again = load(tmp_path, device="cpu")
    assert [type(module) for module in again] == [type(module) for module in model]
    assert again[0].get_config_dict() == {"layers": 1, "max_seq_length": 7, "freeze": False}
    for name, value in (("layers", "top"), ("freeze", True)):  # which would be saved, but change nothing
        with pytest.raises(AttributeError, match="has no setter"):
            setattr(elmo, name, value)
    assert (again.prompts["query"], again.similarity_fn_name, again.truncate_dim) == ("Q: ", "dot", 4)
    np.testing.assert_array_equal(again.encode(TEXTS), model.encode(TEXTS))
    assert load(tmp_path, truncate_dim=2, device="cpu").encode(TEXTS).shape == (6, 2)


def test_loading_runs_no_class_of_a_stranger(model: SentenceTransformer, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path, create_model_card=False)
    modules = json.loads((tmp_path / "modules.json").read_text())
    modules[1]["type"] = "somewhere.Module"
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ValueError, match="third-party code"):
        load(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"modules\.json"):
        load(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("modules.json", '[{"idx": 0}]', "missing or unknown settings"),
        ("config_sentence_transformers.json", None, "copy the whole directory"),
        ("config_sentence_transformers.json", "[]", "sentence_transformers.json must be an object"),
        ("config_sentence_transformers.json", '{"prompts": 3}', "prompts must be"),
        ("elmo_module.json", None, "missing or unknown settings freeze, layers, max_seq_length"),
        ("elmo_module.json", "[]", "must be an object"),
        ("elmo_module.json", '{"layers": "mix", "zzz": 1}', "missing or unknown settings freeze, max_seq_length, zzz"),
        (
            "elmo_module.json",
            '{"layers": "mix", "max_seq_length": "7", "freeze": true}',
            "must be an integer",
        ),
        (
            "elmo_module.json",
            '{"layers": "mix", "max_seq_length": 2.5, "freeze": true}',
            "must be an integer",
        ),
        (
            "elmo_module.json",
            '{"layers": "mix", "max_seq_length": null, "freeze": "no"}',
            "must be true or false",
        ),
    ],
)
def test_a_damaged_directory_is_a_value_error(
    name: str, content: str | None, reason: str, model: SentenceTransformer, tmp_path: Path
) -> None:
    model.save_pretrained(str(tmp_path))
    (file,) = tmp_path.rglob(name)
    if content is None:
        file.unlink()
    else:
        file.write_text(content)
    with pytest.raises(ValueError, match=reason):
        load(tmp_path, device="cpu")


def test_copies_and_pickles_compute_the_same(model: SentenceTransformer) -> None:
    vectors = model.encode(TEXTS)
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(again.encode(TEXTS), vectors)


@pytest.mark.slow
def test_a_process_of_a_pool_computes_the_same(model: SentenceTransformer) -> None:
    shared = copy.deepcopy(model)
    pool = shared.start_multi_process_pool(["cpu"])
    try:
        vectors = shared.encode(TEXTS, pool=pool, chunk_size=3)
    finally:
        shared.stop_multi_process_pool(pool)
    np.testing.assert_allclose(vectors, model.encode(TEXTS), atol=1e-5)


# --- Training and evaluation -----------------------------------------------------------------------------------------

PAIRS = {
    "sentence1": ["A man eats.", "A dog runs.", "It rains.", "She sings."],
    "sentence2": ["A man is eating.", "The stock fell.", "It is raining.", "They sold it."],
    "score": [1.0, 0.0, 1.0, 0.0],
}


def train(model: SentenceTransformer, output: Path, steps: int, learning_rate: float = 0.01) -> list[float]:
    """Losses of a few steps of sentence-transformers' own trainer."""
    datasets = pytest.importorskip("datasets", reason="datasets is not installed: make test-integrations")
    pytest.importorskip("accelerate", reason="accelerate is not installed: make test-integrations")
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
    from sentence_transformers.sentence_transformer.losses import CosineSimilarityLoss

    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(output), max_steps=steps, per_device_train_batch_size=4, learning_rate=learning_rate,
        logging_steps=1, report_to="none", use_cpu=True, save_strategy="no", disable_tqdm=True,
        dataloader_pin_memory=False,
    )  # fmt: skip
    trainer = SentenceTransformerTrainer(
        model, args=arguments, train_dataset=datasets.Dataset.from_dict(PAIRS), loss=CosineSimilarityLoss(model)
    )
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_the_trainer_learns_the_mix_and_saves_it(tmp_path: Path) -> None:
    model = sentence_transformer()
    elmo = model[0]
    weights = {name: weight.clone() for name, weight in elmo.elmo.bilm.named_parameters()}
    losses = train(model, tmp_path / "run", steps=5)
    assert losses[-1] < losses[0]
    assert all(torch.equal(weights[name], weight) for name, weight in elmo.elmo.bilm.named_parameters())
    model.save_pretrained(tmp_path / "saved", create_model_card=False)
    learned = load_model(tmp_path / "saved" / "0_ElmoModule")
    assert learned.mix is not None and len(set(learned.mix.weights)) > 1
    vectors = load(tmp_path / "saved", device="cpu").encode(TEXTS)
    np.testing.assert_array_equal(vectors, model.encode(TEXTS))
    np.testing.assert_allclose(vectors, Embedder(learned).encode(TEXTS), atol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_the_trainer_learns_the_bilm_where_it_is_not_frozen(tmp_path: Path) -> None:
    model = sentence_transformer(load_model(softmax=False), freeze=False)
    before = model.encode(TEXTS)
    train(model, tmp_path / "run", steps=1, learning_rate=1e-3)  # a larger one would amplify rounding
    assert np.abs(model.encode(TEXTS) - before).max() > 1e-4
    model.save_pretrained(tmp_path / "saved", create_model_card=False)
    native = Embedder(tmp_path / "saved" / "0_ElmoModule")
    np.testing.assert_allclose(native.encode(TEXTS), model.encode(TEXTS), atol=1e-5)


def test_an_evaluator_gives_the_correlation_of_cosines(model: SentenceTransformer, embedder: Embedder) -> None:
    scores = [1.0, 0.2, 0.8, 0.1]
    evaluator = EmbeddingSimilarityEvaluator(PAIRS["sentence1"], PAIRS["sentence2"], scores)
    first, second = (embedder.encode(PAIRS[name], normalize_embeddings=True) for name in ("sentence1", "sentence2"))
    ranks = [np.argsort(np.argsort(values)) for values in ((first * second).sum(1), scores)]
    assert evaluator(model)["spearman_cosine"] == pytest.approx(np.corrcoef(ranks)[0, 1])
