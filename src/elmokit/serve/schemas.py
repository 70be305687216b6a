"""Bodies of requests, as pydantic models. Answers are plain JSON values, which docs/tutorials/serve.md shows.

Requests of other servers' clients (OpenAI, text-embeddings-inference) may have fields that mean nothing here; they are
ignored, as by those servers. In elmokit's own requests an unknown field is an error.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictInt
from pydantic_core import PydanticCustomError

MAX_TEXTS = 2048  # as in OpenAI's API
MAX_COUNT = 100  # candidates, neighbors, sentences to compare, positions
MAX_USES = 1000


def _no_token_ids(texts: Any) -> Any:
    """An error of its own for token ids, which some clients of OpenAI's API send by default in place of text."""
    first = texts
    while isinstance(first, list) and first:
        first = first[0]
    if isinstance(first, int):
        raise PydanticCustomError(
            "token_ids",
            "token ids mean nothing to this model: send strings, or lists of words (with LangChain, set "
            "check_embedding_ctx_length=False)",
        )
    return texts


Text = str | list[str]  # a string, which is split like the model's training text; or a list of words
Texts = Annotated[
    str | Annotated[list[Text], Field(min_length=1, max_length=MAX_TEXTS)], BeforeValidator(_no_token_ids)
]
Sentences = Annotated[list[Text], Field(min_length=1, max_length=MAX_TEXTS)]
Word = Annotated[str, Field(min_length=1, max_length=1000)]
Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
Layers = Literal["mix", "average", "sum", "top", "all"] | StrictInt  # strict: JSON's true does not mean layer 1
OneLayer = Literal["mix", "average", "sum", "top"] | StrictInt


class Compatible(BaseModel):
    """A request in the format of another server."""

    model_config = ConfigDict(extra="ignore")


class Own(BaseModel):
    """A request of elmokit's own."""

    model_config = ConfigDict(extra="forbid")


class ErrorDetails(BaseModel):
    """Why a request was not answered; `code` is a key of `elmokit.serve.errors.STATUSES`."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorAnswer(BaseModel):
    """The body of every error answer, in the format of OpenAI's API."""

    error: ErrorDetails


# --- OpenAI ----------------------------------------------------------------------------------------------------------


class EmbeddingsRequest(Compatible):
    """POST /v1/embeddings."""

    input: Texts
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    user: str | None = None


# --- text-embeddings-inference ---------------------------------------------------------------------------------------


class EmbedRequest(Compatible):
    """POST /embed: a vector for each text. `truncate` changes nothing, since texts of any length are read."""

    inputs: Texts
    normalize: bool | None = None  # null means True, like a missing value
    truncate: bool | None = None
    dimensions: int | None = None
    pooling: Literal["mean", "max"] = "mean"
    layers: OneLayer = "mix"


class EmbedAllRequest(Compatible):
    """POST /embed_all: a vector for each word; with layers "all", L+1 vectors."""

    inputs: Texts
    truncate: bool | None = None
    layers: Layers = "mix"


class SimilarityInputs(Compatible):
    """A sentence, and those to compare it with."""

    source_sentence: Text
    sentences: Sentences


class SimilarityRequest(Compatible):
    """POST /similarity: the cosine similarity of a sentence's vector and that of each other sentence."""

    inputs: SimilarityInputs


class TokenizeRequest(Compatible):
    """POST /tokenize: the words of texts."""

    inputs: Texts


# --- elmokit ---------------------------------------------------------------------------------------------------------


class CompareRequest(Own):
    """POST /compare: how similar a word's vectors are in several sentences, layer by layer."""

    word: Word
    sentences: Annotated[list[Text], Field(min_length=1, max_length=MAX_COUNT)]


class NeighborsRequest(Own):
    """POST /neighbors: the uses of a word that are nearest to its use in a sentence."""

    word: Word
    sentence: Text
    sentences: Sentences | None = None
    count: Count = 10
    layers: OneLayer = "top"


class SensesRequest(Own):
    """POST /senses: a map of a word's uses, and their clusters."""

    word: Word
    sentences: Sentences | None = None
    clusters: Annotated[int, Field(ge=1, le=8)] | None = None
    max_uses: Annotated[int, Field(ge=3, le=MAX_USES)] = 300
    layers: OneLayer = "top"


class ScoreRequest(Own):
    """POST /score: log-probabilities of words."""

    inputs: Texts


class SubstitutesRequest(Own):
    """POST /substitutes: words that could take the place of others."""

    sentence: Text
    positions: Annotated[list[StrictInt], Field(min_length=1, max_length=MAX_COUNT)] | None = None
    top: Count = 10
    direction: Literal["both", "forward", "backward"] = "both"


class NextWordsRequest(Own):
    """POST /next_words: words that could follow, or precede, the given ones."""

    sentence: Text
    top: Count = 10
    direction: Literal["forward", "backward"] = "forward"


class PredictRequest(Own):
    """POST /predict: answers of the task model. The inputs are those of its task, for most tasks texts."""

    inputs: Annotated[list[str | list[str | StrictInt | list[str]]], Field(min_length=1, max_length=MAX_TEXTS)]
