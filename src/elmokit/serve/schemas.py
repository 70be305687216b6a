"""Bodies of requests as pydantic models, and errors.

Requests of other servers' clients (OpenAI, text-embeddings-inference) may have fields that mean
nothing here; they are ignored, as by those servers. In elmokit's own requests an unknown field is
an error.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictInt, ValidationError
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.responses import Response

# --- Errors ---------------------------------------------------------------------------------------


class ErrorAnswer(BaseModel):
    """The body of every error answer, in the format of OpenAI's API: message, type, param and
    code.
    """

    error: dict[str, str | None]


class RequestError(HTTPException):
    """A request that is answered with an error: an HTTP status, a code for programs, a message, and
    headers.
    """

    def __init__(
        self, status: int, code: str, message: str, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(status, message, headers)
        self.code = code


def error_response(error: HTTPException) -> Response:
    """The answer to a refused request; FastAPI's own errors get a code such as not_found."""
    status = error.status_code
    code = getattr(error, "code", None) or HTTPStatus(status).name.lower()
    kind = "invalid_request_error" if status < 500 else "server_error"
    body = {"error": {"message": error.detail, "type": kind, "param": None, "code": code}}
    return Response(to_json(body), status, error.headers, "application/json")


def overloaded() -> RequestError:
    """The error for a request that finds a queue full."""
    # 2 seconds are about the time to answer half of a full queue
    message = "too many requests are waiting: try again later"
    return RequestError(429, "overloaded", message, {"retry-after": "2"})


def invalid_request(message: str) -> RequestError:
    """The error for a body with invalid values."""
    return RequestError(422, "invalid_request", message)


def client_gone() -> RequestError:
    """499 (client closed request), recorded in metrics only."""
    return RequestError(499, "client_closed_request", "the client has gone")


def invalid_body(error: ValidationError) -> RequestError:
    """The error for a body that is not valid: its first reasons in one line, without the body."""
    details = error.errors(include_url=False, include_context=False, include_input=False)[:3]
    reasons = (f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}" for detail in details)
    return invalid_request("; ".join(reasons))


# --- Texts and numbers ----------------------------------------------------------------------------

MAX_TEXTS = 2048  # as in OpenAI's API
MAX_COUNT = 100  # candidates, neighbors, sentences to compare, positions


def _as_list(texts: Any) -> Any:
    """Put a text in a list; refuse token ids, which some clients of OpenAI send by default."""
    first = texts
    while isinstance(first, list) and first:
        first = first[0]
    if isinstance(first, int):
        raise ValueError(
            "token ids mean nothing to this model: send strings, or lists of words (with "
            "LangChain, set check_embedding_ctx_length=False)"
        )
    return [texts] if isinstance(texts, str) else texts


Text = (
    str | list[str]
)  # a string, which is split like the model's training text; or a list of words
Sentences = Annotated[list[Text], Field(min_length=1, max_length=MAX_TEXTS)]
Texts = Annotated[Sentences, BeforeValidator(_as_list, json_schema_input_type=str | Sentences)]
Word = Annotated[str, Field(min_length=1, max_length=1000)]
Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
OneLayer = (
    Literal["mix", "average", "sum", "top"] | StrictInt
)  # strict: JSON's true does not mean layer 1

UseLayer = Literal["use"] | OneLayer

# --- OpenAI and text-embeddings-inference ---------------------------------------------------------


class EmbeddingsRequest(BaseModel):
    """POST /v1/embeddings."""

    input: Texts
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None


class EmbedRequest(BaseModel):
    """POST /embed: a vector for each text."""

    inputs: Texts
    normalize: bool | None = None  # null means True, like a missing value
    dimensions: int | None = None
    pooling: Literal["text", "mean", "max"] | None = None
    layers: OneLayer | None = None
    parameters: None = None  # set by a Hugging Face client that asks for another task


class EmbedAllRequest(BaseModel):
    """POST /embed_all: a vector for each word; with layers "all", L+1 vectors."""

    inputs: Texts
    layers: Literal["all"] | OneLayer = "mix"


class SimilarityInputs(BaseModel):
    """A sentence, and those to compare it with."""

    source_sentence: Text
    sentences: Sentences


class SimilarityRequest(BaseModel):
    """POST /similarity: cosine similarities of a sentence's vector and other sentences' vectors."""

    inputs: SimilarityInputs


class TokenizeRequest(BaseModel):
    """POST /tokenize: the words of texts."""

    inputs: Texts


# --- elmokit --------------------------------------------------------------------------------------


class ElmokitRequest(BaseModel):
    """Base of elmokit's own requests, which rejects unknown fields."""

    model_config = ConfigDict(extra="forbid")


class CompareRequest(ElmokitRequest):
    """POST /compare: how similar a word's vectors are in several sentences, layer by layer."""

    word: Word
    sentences: Annotated[list[Text], Field(min_length=1, max_length=MAX_COUNT)]


class NeighborsRequest(ElmokitRequest):
    """POST /neighbors: the uses of a word that are nearest to its use in a sentence."""

    word: Word
    sentence: Text
    sentences: Sentences | None = None
    count: Count = 10
    layers: UseLayer = "use"


class SensesRequest(ElmokitRequest):
    """POST /senses: a map of a word's uses, or of those of two words, and their clusters; with a
    sentence of one's own, also its first use of the word, and those nearest to it.
    """

    word: Word
    second_word: Word | None = None
    sentence: Text | None = None
    sentences: Sentences | None = None
    clusters: Annotated[int, Field(ge=1, le=8)] | None = None
    max_uses: Annotated[int, Field(ge=3, le=1000)] = 300
    layers: UseLayer = "use"


class ScoreRequest(ElmokitRequest):
    """POST /score: log-probabilities of words."""

    inputs: Texts


class SubstitutesRequest(ElmokitRequest):
    """POST /substitutes: words that could take the place of others."""

    sentence: Text
    positions: Annotated[list[StrictInt], Field(min_length=1, max_length=MAX_COUNT)] | None = None
    top: Count = 10
    direction: Literal["both", "forward", "backward"] = "both"


class NextWordsRequest(ElmokitRequest):
    """POST /next_words: words that could follow, or precede, the given ones."""

    sentence: Text
    top: Count = 10
    direction: Literal["forward", "backward"] = "forward"


class PredictRequest(ElmokitRequest):
    """POST /predict: answers of the task model. The inputs are those of its task, for most tasks
    texts.
    """

    inputs: Annotated[
        list[str | list[str | StrictInt | list[str]]], Field(min_length=1, max_length=MAX_TEXTS)
    ]
