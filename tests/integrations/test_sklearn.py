"""`ElmoVectorizer` in scikit-learn's own machinery, against `Embedder`."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed: make test-integrations")
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.utils.estimator_checks import check_estimator

from elmokit.checkpoints.loading import load
from elmokit.embed.embedder import Embedder
from elmokit.integrations.sklearn import ElmoVectorizer

TEXTS = [
    "The children play in the garden.",
    "Shakespeare wrote the play.",
    "",
    "  ",
    "Hä? 中文 🙂",
    "The play.",
]


@pytest.fixture(scope="module")
def vectorizer() -> ElmoVectorizer:
    return ElmoVectorizer()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"pooling": "max", "layers": 1},
        {"layers": "average", "tokenize": False},
        {"normalize": True},
    ],
    ids=str,
)
def test_vectors_are_those_of_the_embedder(embedder: Embedder, settings: dict[str, Any]) -> None:
    vectors = ElmoVectorizer(**settings).fit_transform(iter(TEXTS))
    names = {
        "normalize_embeddings" if name == "normalize" else name: value
        for name, value in settings.items()
    }
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, embedder.encode(TEXTS, **names), atol=1e-5)


def test_a_text_does_not_depend_on_those_before_it_where_the_model_carries_its_state(
    embedder: Embedder,
) -> None:
    carrying = replace(load(softmax=False), state_policy="carry")
    texts = ["The play.", "They play.", "The play."]
    np.testing.assert_allclose(
        ElmoVectorizer(carrying).transform(texts), embedder.encode(texts, state="zeros"), atol=1e-5
    )


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        ("a text", "list of texts"),
        (np.array([["a", "b"], ["c", "d"]]), "one column"),
        (["a", None], "missing values"),
        (["a", b"bytes"], "decode"),
        ([["a", "list"]], "join"),
    ],
    ids=str,
)
def test_other_input_is_refused(vectorizer: ElmoVectorizer, texts: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        vectorizer.fit_transform(texts)


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"pooling": "median"}, ValueError),
        ({"layers": 3}, ValueError),
        ({"model": "/no/such"}, FileNotFoundError),
    ],
    ids=str,
)
def test_fit_checks_the_settings(settings: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        ElmoVectorizer(**settings).fit(TEXTS)


def test_clones_and_pickles_are_small_and_compute_the_same(vectorizer: ElmoVectorizer) -> None:
    vectors = vectorizer.transform(TEXTS)
    pickled = pickle.dumps(vectorizer)
    assert len(pickled) < 1000
    for copy in (clone(vectorizer), pickle.loads(pickled)):
        assert copy.get_params() == vectorizer.get_params()
        np.testing.assert_array_equal(copy.transform(TEXTS), vectors)


def test_columns_of_a_frame_are_embedded_by_a_column_transformer(
    vectorizer: ElmoVectorizer,
) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed: make test-integrations")
    frame = pandas.DataFrame({"text": TEXTS, "stars": range(len(TEXTS))})
    by_name = ColumnTransformer([("elmo", vectorizer, "text"), ("rest", "passthrough", ["stars"])])
    as_frame = ColumnTransformer([("elmo", vectorizer, ["text"])])
    vectors = vectorizer.transform(TEXTS)
    np.testing.assert_allclose(
        by_name.fit_transform(frame), np.c_[vectors, range(len(TEXTS))], atol=1e-5
    )
    np.testing.assert_allclose(as_frame.fit_transform(frame), vectors, atol=1e-5)
    np.testing.assert_allclose(vectorizer.transform(frame[["text"]]), vectors, atol=1e-5)
    assert by_name.get_feature_names_out()[-2:].tolist() == [
        "elmo__elmovectorizer511",
        "rest__stars",
    ]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")  # of checks for numbers
def test_checks_of_scikit_learn_pass() -> None:
    check_estimator(ElmoVectorizer())
