"""`ElmoVectorizer`: texts to vectors as a transformer of scikit-learn (elmokit's extra sklearn)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import count
from typing import Any, Literal, cast

import numpy as np

from elmokit.checkpoints.loading import ModelSource
from elmokit.integrations.lazy_embedder import LazyEmbedder

try:
    from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
except ImportError as error:
    raise ImportError(
        "elmokit.integrations.sklearn needs scikit-learn: pip install scikit-learn (elmokit's extra sklearn)"
    ) from error


def _column_of(X: Any) -> Iterable[Any]:
    """X itself, or the only column of a frame; ValueError for a single text, a mapping or several columns."""
    if isinstance(X, str | bytes):
        raise ValueError("ElmoVectorizer takes a list of texts, not a single one: write transform([text])")
    if isinstance(X, Mapping):
        name = type(X).__name__
        raise ValueError(f"ElmoVectorizer takes a list of texts, not a {name}: name a key, as in transform(X['text'])")
    shape = getattr(X, "shape", None)
    if shape is None or len(shape) == 1:
        return X
    if len(shape) != 2 or shape[1] != 1:
        raise ValueError(
            f"ElmoVectorizer takes one column of texts, not values of shape {tuple(shape)}: choose a column, as "
            'ColumnTransformer([("elmo", ElmoVectorizer(), "column")]) does'
        )
    return np.asarray(X)[:, 0]


def _check_text(number: int, text: Any) -> str:
    if not isinstance(text, str):
        raise ValueError(f"text {number} is {text!r:.60}, not a string: replace missing values, for example by ''")
    return text


class ElmoVectorizer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Texts -> one ELMo vector each, as `Embedder.encode` computes it: a stateless transformer of scikit-learn.

    The model is loaded when it is first used. Given a name or a path, clones share one loaded model, and a pickle
    contains only the name; given a loaded model, each clone and each pickle contains a copy of it. A text that occurs
    repeatedly in a call is embedded once. If the same texts are transformed again and again, as in a grid search over
    the settings of a classifier, give the pipeline a `memory`.

    Args:
        model: Anything that `elmokit.load` takes, or a loaded model.
        pooling: "mean" or "max" over the words of a text.
        layers: "mix", "average", "sum", "top", or the index of a layer, from 0 for the tokens.
        normalize: Scale every vector to length one.
        tokenize: Split texts like the model's training text; otherwise at white space.
        device: "cpu", "cuda" or "cuda:N"; None: a GPU if there is one, else the CPU.
        dtype: The number type to compute in, see `Embedder`.
    """

    def __init__(
        self,
        model: ModelSource = "en-small",
        *,
        pooling: Literal["mean", "max"] = "mean",
        layers: str | int = "mix",
        normalize: bool = False,
        tokenize: bool = True,
        device: str | None = None,
        dtype: str | None = None,
    ) -> None:
        self.model = model
        self.pooling: Literal["mean", "max"] = pooling
        self.layers = layers
        self.normalize = normalize
        self.tokenize = tokenize
        self.device = device
        self.dtype = dtype

    def fit(self, X: Any, y: Any = None) -> ElmoVectorizer:
        """Learn nothing, and return the vectorizer; ValueError if X is one text, a mapping, or has several columns."""
        _column_of(X)
        return self

    def transform(self, X: Iterable[str]) -> np.ndarray:
        """Embed texts.

        Args:
            X: Strings: a list, an array, a column of a frame, or a frame with one column.

        Returns:
            (N, 2D) float32, zeros for a text without words; a data frame if `set_output` asks for one.

        Raises:
            ValueError: X is something else, or a parameter is not as described.
            FileNotFoundError, CheckpointError: As `elmokit.load`.
        """
        number_of: dict[str, int] = {}
        texts = map(_check_text, count(), _column_of(X))
        numbers = [number_of.setdefault(text, len(number_of)) for text in texts]
        embedder = self._embedder.get()
        state = embedder.model.single_sentence_state  # no text may depend on those before it
        vectors = embedder.encode(
            list(number_of), self.pooling, self.normalize, self.layers, state, tokenize=self.tokenize
        )
        return cast(np.ndarray, vectors)[numbers]

    @property
    def _embedder(self) -> LazyEmbedder:
        """The embedder, kept until one of the parameters that it is loaded from changes."""
        arguments = (self.model, self.device, self.dtype)
        if "_lazy_embedder" not in vars(self) or self._lazy_embedder.arguments != arguments:
            self._lazy_embedder = LazyEmbedder(*arguments)
        return self._lazy_embedder

    @property
    def _n_features_out(self) -> int:
        return self._embedder.get().dim

    def __sklearn_clone__(self) -> ElmoVectorizer:
        copy = cast(ElmoVectorizer, super().__sklearn_clone__())
        copy._lazy_embedder = self._embedder
        return copy

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.two_d_array = True, False
        tags.requires_fit = False
        return tags
