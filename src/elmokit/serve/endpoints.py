"""The endpoints that take texts: vectors, words in context, the language model, a task model."""

from __future__ import annotations

import base64
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import replace
from inspect import iscoroutinefunction
from itertools import chain, groupby, islice
from operator import attrgetter
from typing import Any, get_type_hints

import numpy as np
from fastapi import APIRouter, Request, Response, Security
from fastapi.responses import StreamingResponse
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from pydantic import BaseModel, ValidationError
from pydantic_core import to_json
from safetensors.numpy import save as to_safetensors
from starlette.requests import ClientDisconnect

from elmokit.analysis import as_json
from elmokit.analysis.similarity import compare as compare_uses
from elmokit.analysis.similarity import nearest_uses
from elmokit.analysis.uses import Use, UseVectors, sample_uses, unit_vectors, uses_in_each
from elmokit.analysis.word_map import LEAST_USES, SEED, check_enough, map_uses
from elmokit.embed import Pooling
from elmokit.lm import next_words as next_words_of
from elmokit.lm import score as score_of
from elmokit.lm import substitutes as substitutes_of
from elmokit.serve import schemas
from elmokit.serve.schemas import (
    MAX_COUNT,
    RequestError,
    Text,
    client_gone,
    invalid_body,
    invalid_request,
)
from elmokit.serve.service import Check, Service, Words
from elmokit.text import word_offsets


class JsonRoute(APIRoute):
    """Parses a body as JSON, whatever its content type says: curl calls it a form.

    A function that is not async is a job, which runs on a thread. Its result is the answer as JSON,
    in which numbers that are not finite are null; `request.state.check()` raises CancelledError
    when nobody waits for it any more. FastAPI's own way, which prepares for dependencies, takes an
    eighth of a millisecond longer.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        schema: type[BaseModel] = get_type_hints(self.endpoint)["body"]

        async def handle(request: Request) -> Response:
            try:
                body = schema.model_validate_json(await request.body())
            except ValidationError as error:
                raise invalid_body(error) from error
            except ClientDisconnect as error:
                raise client_gone() from error
            if iscoroutinefunction(self.endpoint):
                return await self.endpoint(request, body)

            def job(check: Check) -> bytes:
                request.state.check = check
                return to_json(self.endpoint(request, body), inf_nan_mode="null")

            service: Service = request.app.state.service
            return Response(await service.run(request, job), media_type="application/json")

        return handle


# For the description of the API: the gate checks the key.
KEY = Security(HTTPBearer(auto_error=False, description="The server's API key, if it has one"))
router = APIRouter(route_class=JsonRoute, dependencies=[KEY])
NEAREST = 5  # uses to a reader's own
OF_UNIT_LENGTH = Pooling(normalize=True)
# Converted to JSON before other requests get their turn: some milliseconds.
NUMBERS_INLINE = 1 << 16
VECTORS_OF_CHUNK = 64


# --- Vectors --------------------------------------------------------------------------------------


def _truncation(service: Service, sentences: Iterable[Words]) -> dict[str, str]:
    """Count the words that were cut, in the metrics and, if there are any, in a header."""
    count = sum(map(service.embedder.count_truncated, sentences))
    service.metrics.truncated.inc(count)
    return {"x-truncated-words": str(count)} if count else {}


def _json_list(items: Iterable[Iterable[bytes]]) -> Iterator[bytes]:
    """A JSON list in parts, of items in parts."""
    yield b"["
    for number, item in enumerate(items):
        if number:
            yield b","
        yield from item
    yield b"]"


def _of_vectors(
    parts: Iterator[bytes], vectors: list[np.ndarray], headers: dict[str, str]
) -> Response:
    """Vectors as JSON; many are converted on a thread, while other requests get their turn."""
    if sum(vector.size for vector in vectors) <= NUMBERS_INLINE:
        return Response(b"".join(parts), headers=headers, media_type="application/json")
    # A vector is two parts: its numbers, and a comma.
    chunks = iter(lambda: b"".join(islice(parts, 2 * VECTORS_OF_CHUNK)), b"")
    return StreamingResponse(chunks, headers=headers, media_type="application/json")


@router.post("/v1/embeddings")
async def embeddings(request: Request, body: schemas.EmbeddingsRequest) -> Response:
    """A vector of length one for each input, in the form of OpenAI's API."""
    service: Service = request.app.state.service
    service.check_name(body.model)
    dim = service.embedder.text_dim()
    if body.dimensions not in (None, dim):
        raise invalid_request(f"dimensions: vectors have {dim}, and cannot be shortened")
    sentences, vectors = await service.embed(request, body.input, None, OF_UNIT_LENGTH)
    encode = _base64 if body.encoding_format == "base64" else np.ndarray.tolist
    words = sum(map(len, sentences))
    head = {
        "object": "list",
        "model": service.name,
        "usage": {"prompt_tokens": words, "total_tokens": words},
    }
    data = _json_list(
        [to_json({"object": "embedding", "index": index, "embedding": encode(vector)})]
        for index, vector in enumerate(vectors)
    )
    parts = chain([to_json(head)[:-1], b',"data":'], data, [b"}"])
    return _of_vectors(parts, vectors, _truncation(service, sentences))


def _base64(vector: np.ndarray) -> str:
    """The bytes of little-endian float32 numbers in base64, as OpenAI's client expects them."""
    return base64.b64encode(vector.astype("<f4", copy=False).tobytes()).decode()


# Clients of text-embeddings-inference that are given only an address post to the root.
@router.post("/", include_in_schema=False)
@router.post("/embed")
async def embed(request: Request, body: schemas.EmbedRequest) -> Response:
    """A vector for each text: a list of lists of numbers."""
    service: Service = request.app.state.service
    pooling = Pooling(body.pooling, body.normalize is not False)
    sentences, vectors = await service.embed(request, body.inputs, body.layers, pooling)
    parts = _json_list([to_json(vector.tolist())] for vector in vectors)
    return _of_vectors(parts, vectors, _truncation(service, sentences))


@router.post("/embed_all")
async def embed_all(request: Request, body: schemas.EmbedAllRequest) -> Response:
    """A vector for each word of each text; in safetensors for clients that accept
    application/octet-stream.
    """
    service: Service = request.app.state.service
    sentences, vectors = await service.embed(request, body.inputs, body.layers)
    headers = _truncation(service, sentences)
    if body.layers == "all":
        vectors = [np.moveaxis(of_text, 0, 1) for of_text in vectors]
    if "application/octet-stream" in request.headers.get("accept", ""):
        arrays = {str(number): np.ascontiguousarray(array) for number, array in enumerate(vectors)}
        content = to_safetensors(arrays, {"tokens": to_json(sentences).decode()})
        return Response(content, headers=headers, media_type="application/octet-stream")
    texts = (_json_list([to_json(of_word.tolist())] for of_word in of_text) for of_text in vectors)
    return _of_vectors(_json_list(texts), vectors, headers)


@router.post("/similarity")
async def similarity(request: Request, body: schemas.SimilarityRequest) -> Response:
    """The cosine similarities of one sentence's vector and those of others: a list of numbers."""
    texts = [body.inputs.source_sentence, *body.inputs.sentences]
    _, vectors = await request.app.state.service.embed(request, texts, None, OF_UNIT_LENGTH)
    cosines = np.stack(vectors[1:]) @ vectors[0]
    answer = to_json(np.clip(cosines, -1, 1).tolist())  # rounding may exceed 1
    return Response(answer, media_type="application/json")


@router.post("/tokenize")
def tokenize(request: Request, body: schemas.TokenizeRequest) -> Any:
    """The words of each text, where they are in it, and whether the language model knows them.

    `id` is a word's id in the vocabulary (that of <UNK> for unknown words), or null without a
    vocabulary. `start` and `stop` count characters; they are equal for a word that does not occur
    unchanged in the text, and null where words were given.
    """
    service: Service = request.app.state.service
    sentences = service.words_of(body.inputs)
    vocab = service.embedder.model.vocab
    return [
        _tokens(text, words, None if vocab is None else vocab.ids(words).tolist())
        for text, words in zip(body.inputs, sentences, strict=True)
    ]


def _tokens(text: Text, words: Words, ids: list[int] | None) -> list[dict[str, Any]]:
    places = word_offsets(text, words) if isinstance(text, str) else [(None, None)] * len(words)
    tokens = []
    for number, (word, (start, stop)) in enumerate(zip(words, places, strict=True)):
        word_id = None if ids is None else ids[number]
        tokens.append({"id": word_id, "text": word, "special": False, "start": start, "stop": stop})
    return tokens


# --- Words in context -----------------------------------------------------------------------------


@router.post("/compare")
def compare(request: Request, body: schemas.CompareRequest) -> Any:
    """The cosine similarities of all uses of a word, for each layer and for their mix."""
    service: Service = request.app.state.service
    sentences = service.words_of(body.sentences)
    # The number of similarities grows quadratically.
    if len(uses_in_each(body.word, sentences)) > MAX_COUNT:
        uses = f"uses of {body.word!r} to compare"
        raise ValueError(f"there are more than {MAX_COUNT} {uses}: send fewer sentences")
    comparison = compare_uses(body.word, sentences, service.embedder, "all")
    layers = [
        {"name": name, "similarities": matrix.tolist()}
        for name, matrix in comparison.similarities.items()
    ]
    return {"word": body.word, "uses": as_json(comparison.uses), "layers": layers}


@router.post("/neighbors")
def neighbors(request: Request, body: schemas.NeighborsRequest) -> Any:
    """The uses of a word, in given sentences or the server's corpus, nearest to its first use in a
    sentence.
    """
    service: Service = request.app.state.service
    query = uses_in_each(body.word, service.words_of([body.sentence]))[0]
    sentences = body.sentences and service.words_of(body.sentences)
    word_uses = service.uses(body.word, sentences, request.state.check)

    def unit(vectors: UseVectors) -> np.ndarray:
        return unit_vectors(vectors.select(service.embedder.model, body.layers))

    by_sentence = [list(uses) for _, uses in groupby(word_uses.uses, key=attrgetter("sentence"))]
    (vector,) = unit(UseVectors.of([query], service.embedder))
    result = nearest_uses(
        query, vector, by_sentence, lambda uses: unit(word_uses.vectors_of(uses)), body.count
    )
    return {
        "query": result.query.to_json(),
        "neighbors": [
            {"similarity": similarity, **use.to_json()} for similarity, use in result.nearest
        ],
        "sentences_searched": result.sentences_searched,
    }


@router.post("/senses")
def senses(request: Request, body: schemas.SensesRequest) -> Any:
    """A map of the uses of a word, or of two, in given sentences or the corpus, for each layer; and
    their clusters.
    """
    service: Service = request.app.state.service
    words = list(dict.fromkeys(filter(None, [body.word, body.second_word])))
    sentences = body.sentences and service.words_of(body.sentences)
    max_uses = max(LEAST_USES, body.max_uses // len(words))
    uses: list[Use] = []
    found, count = [], 0
    for word in words:
        word_uses = service.uses(word, sentences, request.state.check)
        sample, _ = sample_uses(word_uses.uses, max_uses, SEED)
        check_enough(word, sample)
        uses += sample
        found.append(word_uses.vectors_of(sample))
        count += word_uses.count
    if body.sentence is not None:
        own = uses_in_each(body.word, service.words_of([body.sentence]))[0]
        uses.append(own)
        found.append(UseVectors.of([own], service.embedder))
    vectors = UseVectors(
        np.concatenate([each.words for each in found]),
        np.concatenate([each.texts for each in found]),
    )
    word_map = map_uses(
        " + ".join(words),
        uses,
        vectors,
        service.embedder,
        body.layers,
        clusters=body.clusters,
        uses_in_corpus=count,
    )
    answer = word_map.to_json()
    if body.sentence is not None:
        units = unit_vectors(vectors.select(service.embedder.model, body.layers))
        cosines = units[:-1] @ units[-1]
        nearest = np.argsort(-cosines, kind="stable")[:NEAREST].tolist()
        answer["nearest"] = [{"use": use, "similarity": float(cosines[use])} for use in nearest]
    return answer


# --- The language model ---------------------------------------------------------------------------


@router.post("/score")
def score(request: Request, body: schemas.ScoreRequest) -> Any:
    """The log-probability of every word, from the words before it and from those after it, or from
    all others.
    """
    service: Service = request.app.state.service
    model = service.language_model
    state = model.single_sentence_state
    sentences = service.words_of(body.inputs)
    results = score_of(sentences, model, state=state, check=request.state.check)
    return [
        (replace(result, text=given) if isinstance(given, str) else result).to_json()
        for given, result in zip(body.inputs, results, strict=True)
    ]


@router.post("/substitutes")
def substitutes(request: Request, body: schemas.SubstitutesRequest) -> Any:
    """For each position, the words that the language model finds most likely there."""
    service: Service = request.app.state.service
    model = service.language_model
    (words,) = service.words_of([body.sentence])
    positions = list(range(len(words))) if body.positions is None else body.positions
    if len(positions) > MAX_COUNT:
        raise ValueError(f"positions: name at most {MAX_COUNT} words of a long sentence")
    results = substitutes_of(
        words,
        model,
        top=body.top,
        direction=body.direction,
        state=model.single_sentence_state,
        positions=positions,
        check=request.state.check,
    )
    return [
        {"word": words[position], "position": position, "candidates": of_word.candidates}
        for position, of_word in zip(positions, results, strict=True)
    ]


@router.post("/next_words")
def next_words(request: Request, body: schemas.NextWordsRequest) -> Any:
    """The words that the language model finds most likely after the given ones, or before them."""
    service: Service = request.app.state.service
    model = service.language_model
    (words,) = service.words_of([body.sentence])
    state = model.single_sentence_state
    options = {"top": body.top, "direction": body.direction, "state": state}
    results = next_words_of(words, model, check=request.state.check, **options)
    return {"words": list(words), "candidates": results.candidates}


# --- A task ---------------------------------------------------------------------------------------


@router.post("/predict")
def predict(request: Request, body: schemas.PredictRequest) -> Any:
    """The task model's answer to each input."""
    service: Service = request.app.state.service
    if (model := service.task_model) is None:
        message = "this server has no task model: start it with --task-model"
        raise RequestError(404, "not_found", message)
    examples = [model.example(text) for text in body.inputs]
    service.check_words(words for example in examples for words in model.task.sentences(example))

    def wanted() -> Iterator[Any]:
        for example in examples:
            request.state.check()
            yield example

    return list(map(model.task.to_json, model.predict_examples(wanted())))
