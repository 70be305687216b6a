"""ELMo in spaCy's own pipelines and training, against `Embedder` and PyTorch."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("spacy", reason="spaCy is not installed: make test-integrations")
import spacy
from bundled_model import WIDTH
from efml_files import changed, write_efml
from spacy.tokens import Doc, DocBin
from spacy.training import Example

from elmokit.checkpoints.loading import load, save
from elmokit.checkpoints.pretrained import MixWeights, Pretrained
from elmokit.embed.embedder import Embedder
from elmokit.integrations.spacy import elmo_tok2vec, embed_docs, make_elmo
from elmokit.nn.elmo import ScalarMix

ROOT = Path(__file__).resolve().parents[2]
TEXTS = [
    "The children  play in the garden.\n And \n",
    "Shakespeare wrote the play.",
    "",
    " \n",
    "Hä? 中文 🙂",
]


@pytest.fixture(scope="module")
def nlp() -> Any:
    nlp = spacy.blank("en")
    nlp.add_pipe("elmo")
    return nlp


def words_of(doc: Doc) -> list[str]:
    return [token.text for token in doc if not token.is_space]


# --- Vectors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("layers", ["mix", "average", "sum", "top", 0, -1], ids=str)
def test_tensor_is_what_the_embedder_computes_and_zero_for_white_space(
    embedder: Embedder, layers: str | int
) -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("elmo", config={"model": {"layers": layers}})
    for doc in nlp.pipe(TEXTS, batch_size=2):
        (expected,) = embedder.embed([words_of(doc)], layers)
        spaces = [token.is_space for token in doc]
        assert doc.tensor.shape == (len(doc), WIDTH)
        assert doc.tensor.dtype == np.float32
        np.testing.assert_allclose(doc.tensor[np.logical_not(spaces)], expected, atol=1e-5)
        assert not doc.tensor[spaces].any()


def test_sentences_are_embedded_by_themselves_where_they_are_known(embedder: Embedder) -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("sentencizer")
    nlp.add_pipe("elmo")
    doc = nlp("They play. We watch the play.")
    expected = embedder.embed([["They", "play", "."], ["We", "watch", "the", "play", "."]])
    np.testing.assert_allclose(doc.tensor, np.concatenate(expected), atol=1e-5)


def of_one_layer(path: Path) -> Pretrained:
    return load(write_efml(path / "efml", changed(encoder={"name": "lstm"})))


def weighted(path: Path) -> Pretrained:
    return replace(load(softmax=False), mix=MixWeights((0.5, -1.0, 2.0), 1.5))


@pytest.mark.parametrize("make", [of_one_layer, weighted])
def test_the_mix_of_a_model_is_its_own(make: Any, tmp_path: Path) -> None:
    model = make(tmp_path)
    save(model, tmp_path / "model")
    nlp = spacy.blank("en")
    nlp.add_pipe("elmo", config={"model": {"model": str(tmp_path / "model")}})
    for doc in nlp.pipe(["the cat  sat", "", " \n", "cat http://" + "x" * 80]):
        ((expected,),) = Embedder(model).embed_stream([words_of(doc)])  # without a warning
        np.testing.assert_allclose(
            doc.tensor[[not token.is_space for token in doc]], expected, atol=1e-5
        )


# --- vector and similarity ------------------------------------------------------------------------


def cosine(first: np.ndarray, second: np.ndarray) -> float:
    return float(first @ second / np.linalg.norm(first) / np.linalg.norm(second))


def test_similarity_of_one_word_depends_on_its_context(nlp: Any, embedder: Embedder) -> None:
    game = nlp("They play  chess.")
    theatre = nlp("He wrote the play.")
    first, second = embedder.embed([words_of(game), words_of(theatre)])
    assert game[1].similarity(theatre[3]) == pytest.approx(cosine(first[1], second[3]), abs=1e-5)
    assert game[1].similarity(theatre[3]) < 0.99
    assert game[1:4].similarity(theatre[3]) == pytest.approx(
        cosine(first[1:3].mean(0), second[3]), abs=1e-5
    )
    assert game.similarity(theatre) == pytest.approx(
        cosine(first.mean(0), second.mean(0)), abs=1e-5
    )
    assert nlp("").similarity(game) == 0


@pytest.mark.parametrize("hooks", [True, False])
def test_hooks_put_elmo_before_static_vectors(hooks: bool) -> None:
    nlp = spacy.blank("en")
    nlp.vocab.set_vector("play", np.ones(4, np.float32))
    nlp.add_pipe("elmo", config={"hooks": hooks})
    doc = nlp("They play")
    assert doc.tensor.shape == (2, WIDTH)
    assert doc[1].has_vector
    assert doc.has_vector
    assert (
        doc[1].vector.shape == doc.vector.shape == doc[:1].vector.shape == (WIDTH if hooks else 4,)
    )


# --- Files, copies and processes ------------------------------------------------------------------


def test_a_saved_pipeline_is_small_and_computes_the_same(nlp: Any, tmp_path: Path) -> None:
    nlp.to_disk(tmp_path / "saved")
    assert sum(file.stat().st_size for file in (tmp_path / "saved" / "elmo").rglob("*")) < 5000
    expected = nlp(TEXTS[0]).tensor
    for again in (spacy.load(tmp_path / "saved"), pickle.loads(pickle.dumps(nlp))):
        np.testing.assert_array_equal(again(TEXTS[0]).tensor, expected)
    with pytest.warns(UserWarning, match="W109"):  # of the hooks
        stored = nlp(TEXTS[0]).to_bytes()
    np.testing.assert_array_equal(Doc(nlp.vocab).from_bytes(stored).tensor, expected)


def test_a_pipeline_refuses_another_model_than_it_was_saved_with(nlp: Any, tmp_path: Path) -> None:
    other = load(softmax=False)
    with torch.no_grad():
        next(other.bilm.parameters()).add_(0.1)
    save(other, tmp_path / "model")
    nlp.to_disk(tmp_path / "saved")
    with pytest.raises(ValueError, match="saved with"):
        spacy.load(
            tmp_path / "saved", config={"components.elmo.model.model": str(tmp_path / "model")}
        )


def test_spacy_finds_the_architecture_and_the_component_by_entry_points() -> None:
    architectures = entry_points(group="spacy_architectures", name="elmokit.Elmo.v1")
    if not architectures:
        pytest.skip(
            "elmokit was installed before it had these entry points: make test-integrations"
        )
    (factory,) = entry_points(group="spacy_factories", name="elmo")
    assert [point.load() for point in architectures] == [elmo_tok2vec]
    assert factory.load() is make_elmo
    program = (
        "import spacy; print(spacy.blank('en').add_pipe('elmo').name, "
        "spacy.blank('en')('a').tensor.shape)"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert run.stdout.split() == ["elmo", "(0,)"]


# --- Training -------------------------------------------------------------------------------------


def test_the_gradient_of_the_mix_is_that_of_pytorch(nlp: Any, embedder: Embedder) -> None:
    (layer, _) = elmo_tok2vec().layers
    mix = ScalarMix(3)
    start = {
        "weights": np.array([0.3, -0.2, 0.1], np.float32),
        "gamma": np.array([1.3], np.float32),
    }
    with torch.no_grad():
        for name, parameter in mix.named_parameters():
            parameter.copy_(torch.from_numpy(start[name]).reshape(parameter.shape))
            layer.set_param(name, start[name])
    docs = [nlp.make_doc(text) for text in TEXTS]
    vectors, backprop = layer.begin_update(docs)
    draw = np.random.default_rng(0)
    gradients = [draw.normal(size=of_doc.shape).astype(np.float32) for of_doc in vectors]
    backprop(gradients)
    loss = torch.zeros(())
    for doc, of_doc, gradient in zip(docs, vectors, gradients, strict=True):
        expected = mix(torch.from_numpy(embed_docs(embedder, [doc], "all")[0]))
        np.testing.assert_allclose(of_doc, expected.detach().numpy(), atol=1e-5)
        loss = loss + (expected * torch.from_numpy(gradient)).sum()
    loss.backward()
    for name, parameter in mix.named_parameters():
        np.testing.assert_allclose(
            layer.get_grad(name).reshape(parameter.shape), parameter.grad, rtol=1e-3, atol=1e-3
        )


SENTENCES = [
    ("Anna lives in Berlin", {"entities": [(0, 4, "PERSON"), (14, 20, "PLACE")]}),
    ("Paris is where Otto works", {"entities": [(0, 5, "PLACE"), (15, 19, "PERSON")]}),
    ("They eat in the garden", {"entities": []}),
    ("Maria left Madrid", {"entities": [(0, 5, "PERSON"), (11, 17, "PLACE")]}),
]


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning"
)
def test_spacy_train_learns_with_the_configuration_of_the_examples(tmp_path: Path) -> None:
    from spacy.cli.train import train

    blank = spacy.blank("en")
    docs = DocBin()
    for text, entities in SENTENCES:
        docs.add(Example.from_dict(blank.make_doc(text), entities).reference)
    docs.to_disk(tmp_path / "train.spacy")
    overrides = {"training.max_steps": 20, "training.eval_frequency": 10, "training.dropout": 0.0}
    corpus = str(tmp_path / "train.spacy")
    paths = {"paths.train": corpus, "paths.dev": corpus}
    train(
        ROOT / "examples" / "spacy" / "ner_elmo.cfg",
        tmp_path / "run",
        overrides={**overrides, **paths},
    )
    nlp = spacy.load(tmp_path / "run" / "model-best")
    examples = [Example.from_dict(nlp.make_doc(text), entities) for text, entities in SENTENCES]
    assert nlp.evaluate(examples)["ents_f"] > 0.9
