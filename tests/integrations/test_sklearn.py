"""`ElmoVectorizer` in scikit-learn's own machinery, against `Embedder`."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed: make test-integrations")
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator

from elmokit.checkpoints.loading import load
from elmokit.embed.embedder import Embedder
from elmokit.integrations import lazy_embedder
from elmokit.integrations.sklearn import ElmoVectorizer

TEXTS = ["The children play in the garden.", "Shakespeare wrote the play.", "", "  ", "Hä? 中文 🙂", "The play."]


@pytest.fixture(scope="module")
def embedder() -> Embedder:
    return Embedder()


@pytest.fixture(scope="module")
def vectorizer() -> ElmoVectorizer:
    return ElmoVectorizer()


@pytest.mark.parametrize(
    "settings",
    [{}, {"pooling": "max", "layers": 1}, {"layers": "average", "tokenize": False}, {"normalize": True}],
    ids=str,
)
def test_vectors_are_those_of_the_embedder(embedder: Embedder, settings: dict[str, Any]) -> None:
    vectors = ElmoVectorizer(**settings).fit_transform(iter(TEXTS))
    names = {"normalize_embeddings" if name == "normalize" else name: value for name, value in settings.items()}
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, embedder.encode(TEXTS, **names), atol=1e-5)


def test_a_text_does_not_depend_on_those_before_it_where_the_model_carries_its_state(embedder: Embedder) -> None:
    carrying = replace(load(softmax=False), state_policy="carry")
    texts = ["The play.", "They play.", "The play."]
    np.testing.assert_allclose(
        ElmoVectorizer(carrying).transform(texts), embedder.encode(texts, state="zeros"), atol=1e-5
    )


def test_repeated_texts_are_embedded_once_in_their_places(embedder: Embedder, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []
    encode = Embedder.encode

    def recorded(self: Embedder, texts: list[str], *args: Any, **kwargs: Any) -> Any:
        calls.append(texts)
        return encode(self, texts, *args, **kwargs)

    monkeypatch.setattr(Embedder, "encode", recorded)
    vectors = ElmoVectorizer().transform(["b", "a", "b", "b", "a"])
    monkeypatch.undo()
    assert calls == [["b", "a"]]
    np.testing.assert_allclose(vectors, embedder.encode(["b", "a", "b", "b", "a"]), atol=1e-5)


@pytest.mark.parametrize("texts", ["a text", np.array([["a", "b"], ["c", "d"]]), ["a", None], [["a", "list"]]], ids=str)
def test_other_input_is_refused(vectorizer: ElmoVectorizer, texts: Any) -> None:
    with pytest.raises(ValueError, match=r"text|string"):
        vectorizer.fit_transform(texts)


def test_a_changed_parameter_changes_the_vectors(embedder: Embedder) -> None:
    vectorizer = ElmoVectorizer(dtype="bfloat16")
    rounded = vectorizer.transform(TEXTS)
    exact = vectorizer.set_params(dtype="float32").transform(TEXTS)
    np.testing.assert_allclose(exact, embedder.encode(TEXTS), atol=1e-5)
    assert np.abs(rounded - exact).max() > 1e-5


def test_clones_and_pickles_are_small_and_compute_the_same(vectorizer: ElmoVectorizer) -> None:
    vectors = vectorizer.transform(TEXTS)
    pickled = pickle.dumps(vectorizer)
    assert len(pickled) < 1000
    for copy in (clone(vectorizer), pickle.loads(pickled)):
        assert copy.get_params() == vectorizer.get_params()
        np.testing.assert_array_equal(copy.transform(TEXTS), vectors)


def test_clones_share_a_model_that_one_of_them_has_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[Any] = []
    monkeypatch.setattr(lazy_embedder, "_LOADED", WeakValueDictionary())
    monkeypatch.setattr(lazy_embedder, "Embedder", lambda *arguments: loaded.append(arguments) or Embedder(*arguments))
    original = ElmoVectorizer()
    for settings in ({"layers": 0}, {"layers": 1}, {"dtype": "bfloat16"}):
        clone(original).set_params(**settings).transform(["a text"])
    assert loaded == [("en-small", None, None), ("en-small", None, "bfloat16")]


def test_a_loaded_model_is_part_of_the_pickle(embedder: Embedder) -> None:
    vectorizer = ElmoVectorizer(load())
    pickled = pickle.dumps(vectorizer)
    assert len(pickled) > 1e6
    np.testing.assert_allclose(pickle.loads(pickled).transform(TEXTS), embedder.encode(TEXTS), atol=1e-5)


def test_feature_names_and_pandas_output(vectorizer: ElmoVectorizer) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed: make test-integrations")
    column = pandas.Series(TEXTS, index=[f"row {number}" for number in range(len(TEXTS))])
    frame = clone(vectorizer).set_output(transform="pandas").fit_transform(column)
    assert list(frame.columns) == list(vectorizer.get_feature_names_out())
    assert frame.columns[0] == "elmovectorizer0" and frame.columns[-1] == "elmovectorizer511"
    assert list(frame.index) == list(column.index)
    np.testing.assert_allclose(frame.to_numpy(), vectorizer.transform(TEXTS), atol=1e-5)


def test_columns_of_a_frame_are_embedded_by_a_column_transformer(vectorizer: ElmoVectorizer) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed: make test-integrations")
    frame = pandas.DataFrame({"text": TEXTS, "stars": range(len(TEXTS))})
    by_name = ColumnTransformer([("elmo", vectorizer, "text"), ("rest", "passthrough", ["stars"])])
    as_frame = ColumnTransformer([("elmo", vectorizer, ["text"])])
    vectors = vectorizer.transform(TEXTS)
    np.testing.assert_allclose(by_name.fit_transform(frame), np.c_[vectors, range(len(TEXTS))], atol=1e-5)
    np.testing.assert_allclose(as_frame.fit_transform(frame), vectors, atol=1e-5)
    np.testing.assert_allclose(vectorizer.transform(frame[["text"]]), vectors, atol=1e-5)
    assert by_name.get_feature_names_out()[-2:].tolist() == ["elmo__elmovectorizer511", "rest__stars"]


@pytest.mark.slow
def test_a_grid_search_in_two_processes_finds_what_one_process_finds() -> None:
    texts = ["a good film", "a bad film", "good acting", "bad acting", "so good", "so bad", "good !", "bad !"]
    labels = [1, 0] * 4
    grid = {"elmovectorizer__layers": [0, "mix"], "logisticregression__C": [0.01, 1.0]}
    pipeline = make_pipeline(ElmoVectorizer(), LogisticRegression())
    one, two = (GridSearchCV(pipeline, grid, n_jobs=jobs, cv=2).fit(texts, labels) for jobs in (None, 2))
    assert one.best_params_ == two.best_params_
    np.testing.assert_allclose(one.cv_results_["mean_test_score"], two.cv_results_["mean_test_score"])
    assert two.predict(["a good play", "a bad play"]).tolist() == [1, 0]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")  # of checks for numbers
def test_checks_of_scikit_learn_pass() -> None:
    check_estimator(ElmoVectorizer())
