"""`ElmoVectorizer`: texts to vectors as a transformer of scikit-learn (elmokit's extra sklearn)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, cast

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin

from elmokit.checkpoints import ModelSource
from elmokit.embed import Pooling
from elmokit.integrations.lazy_embedder import LazyEmbedder


class ElmoVectorizer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Texts -> the vectors of `Embedder.encode`: a stateless transformer of scikit-learn.

    All vectorizers of a process share one loaded model, and a pickle contains only its name; given
    a loaded model, each clone and each pickle contains a copy of it. A text that occurs repeatedly
    in a call is embedded once. If the same texts are transformed again and again, as in a grid
    search over the settings of a classifier, give the pipeline a `memory`.

    Args:
        model: Anything that `elmokit.load` takes, or a loaded model.
        pooling, layers: As for `Embedder.encode`.
        normalize: Scale every vector to length one.
        tokenize: Split texts like the model's training text; otherwise at white space.
        device: "cpu", "cuda" or "cuda:N"; None: a GPU if there is one, else the CPU.
        dtype: The number type to compute in, see `Embedder`.
    """

    def __init__(
        self,
        model: ModelSource = "en-small",
        *,
        pooling: Literal["text", "mean", "max"] | None = None,
        layers: str | int | None = None,
        normalize: bool = False,
        tokenize: bool = True,
        device: str | None = None,
        dtype: str | None = None,
    ) -> None:
        self.model = model
        self.pooling: Literal["text", "mean", "max"] | None = pooling
        self.layers = layers
        self.normalize = normalize
        self.tokenize = tokenize
        self.device = device
        self.dtype = dtype

    def fit(self, X: Any, y: Any = None) -> ElmoVectorizer:
        """Load the model and check the parameters; nothing is learned."""
        self._embedder.get().text_dim(Pooling(self.pooling), self.layers)
        return self

    def transform(self, X: Iterable[str]) -> np.ndarray:
        """Embed texts.

        Args:
            X: Strings: a list, an array, a column of a frame, or a frame with one column.

        Returns:
            (N, 2D) float32, zeros for a text without words; a data frame if `set_output` asks for
            one.

        Raises:
            ValueError: X is something else, or a parameter is not as described.
            FileNotFoundError, CheckpointError: As `elmokit.load`.
        """
        if isinstance(X, str):
            raise ValueError(
                "ElmoVectorizer takes a list of texts, not a single one: write transform([text])"
            )
        if (
            getattr(X, "ndim", 1) == 2
        ):  # a frame, of which `list` would give the names of the columns
            array = np.asarray(X)
            if array.shape[1] != 1:
                raise ValueError(
                    f"ElmoVectorizer takes one column of texts, not {array.shape[1]}: choose a "
                    f"column"
                )
            X = array[:, 0]
        texts = list(X)
        if not_texts := [text for text in texts if not isinstance(text, str)]:
            raise ValueError(
                f"{not_texts[0]!r:.60} is not a string: join lists of words by spaces, with "
                "tokenize=False, decode bytes, and replace missing values by ''"
            )
        distinct = list(dict.fromkeys(texts))
        row_of = {text: number for number, text in enumerate(distinct)}
        embedder = self._embedder.get()
        state = embedder.model.single_sentence_state  # no text may depend on those before it
        vectors = embedder.encode(
            distinct, self.pooling, self.normalize, self.layers, state, tokenize=self.tokenize
        )
        return cast(np.ndarray, vectors)[[row_of[text] for text in texts]]

    @property
    def _embedder(self) -> LazyEmbedder:
        """The embedder, kept until one of the parameters that it is loaded from changes."""
        lazy_embedder = LazyEmbedder(self.model, self.device, self.dtype)
        if (
            "_lazy_embedder" not in vars(self)
            or self._lazy_embedder.arguments != lazy_embedder.arguments
        ):
            self._lazy_embedder = lazy_embedder
        return self._lazy_embedder

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {
            "_lazy_embedder": self._embedder
        }  # by whose pickle caches know the model

    @property
    def _n_features_out(self) -> int:
        return self._embedder.get().text_dim(Pooling(self.pooling), self.layers)

    def __sklearn_clone__(self) -> ElmoVectorizer:
        copy = cast(ElmoVectorizer, super().__sklearn_clone__())
        copy._lazy_embedder = self._embedder
        return copy

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.two_d_array = True, False
        tags.requires_fit = False
        return tags
