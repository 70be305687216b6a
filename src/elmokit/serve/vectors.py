"""Endpoints of vectors: those of OpenAI's API and of text-embeddings-inference."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse
from pydantic_core import to_json
from safetensors.numpy import save as to_safetensors

from elmokit.embed.outputs import Pooling
from elmokit.serve.engine import Output
from elmokit.serve.errors import RequestError
from elmokit.serve.exchange import JsonRoute, answer
from elmokit.serve.schemas import (
    EmbedAllRequest,
    EmbeddingsRequest,
    EmbedRequest,
    SimilarityRequest,
    Text,
    TokenizeRequest,
)
from elmokit.serve.service import Service, Words
from elmokit.text.tokenizer import token_offsets

router = APIRouter(route_class=JsonRoute, tags=["vectors"])
Offsets = list[tuple[int, int] | None]  # start and stop of words in their text, in characters
OF_UNIT_LENGTH = Pooling("mean", normalize=True)
NUMBERS_AT_ONCE = 1 << 16  # converted to JSON before other requests get their turn: some milliseconds


def _as_list(texts: str | Sequence[Text]) -> Sequence[Text]:
    return [texts] if isinstance(texts, str) else texts


def _check_dim(service: Service, dimensions: int | None) -> None:
    if dimensions not in (None, service.embedder.dim):
        raise RequestError(
            "invalid_request", f"dimensions: vectors have {service.embedder.dim}, and cannot be shortened"
        )


def _check_layers(service: Service, layers: str | int) -> None:
    last = service.embedder.num_layers - 1
    if isinstance(layers, int) and not -last - 1 <= layers <= last:
        raise RequestError("invalid_request", f"layers: this model has the layers 0 to {last}")


class Embedded(NamedTuple):
    """The vectors of sentences, and the headers of the answer, which say how many words were truncated, if any."""

    vectors: list[np.ndarray]
    headers: dict[str, str]


async def _embed(request: Request, sentences: list[Words], output: Output) -> Embedded:
    service: Service = request.app.state.service
    _check_layers(service, output.layers)
    vectors = await answer(request, service.engine.submit(sentences, output), service.config.timeout)
    truncated = service.count_truncated(sentences)
    return Embedded(vectors, {"x-truncated-words": str(truncated)} if truncated else {})


def _response(chunks: Iterator[bytes], embedded: Embedded) -> Response:
    """Vectors as JSON; if they are many, other requests get their turn between the chunks."""
    if sum(vector.size for vector in embedded.vectors) <= NUMBERS_AT_ONCE:
        return Response(b"".join(chunks), headers=embedded.headers, media_type="application/json")
    return StreamingResponse(_in_turns(chunks), headers=embedded.headers, media_type="application/json")


async def _in_turns(chunks: Iterator[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk
        await asyncio.sleep(0)


# --- OpenAI ----------------------------------------------------------------------------------------------------------


@router.post("/v1/embeddings")
async def embeddings(request: Request, body: EmbeddingsRequest) -> Any:
    """A vector of length one for each input, in the form of OpenAI's API."""
    service: Service = request.app.state.service
    if body.model not in (None, service.name):
        raise RequestError("not_found", f"there is no model {body.model!r}: this server has {service.name!r}")
    _check_dim(service, body.dimensions)
    sentences = await service.words_of(request, _as_list(body.input))
    embedded = await _embed(request, sentences, Output(pooling=OF_UNIT_LENGTH))
    encode = _base64 if body.encoding_format == "base64" else np.ndarray.tolist
    words = sum(map(len, sentences))
    usage = {"prompt_tokens": words, "total_tokens": words}
    head = to_json({"object": "list", "model": service.name, "usage": usage})[:-1] + b',"data":['
    return _response(_embedding_objects(embedded.vectors, encode, head), embedded)


def _embedding_objects(vectors: list[np.ndarray], encode: Callable[[np.ndarray], Any], head: bytes) -> Iterator[bytes]:
    """Yield an object of OpenAI's API in chunks, beginning with `head`, its fields before "data"."""
    yield head
    step = max(1, NUMBERS_AT_ONCE // vectors[0].size)
    for begin in range(0, len(vectors), step):
        data = [
            {"object": "embedding", "index": index, "embedding": encode(vector)}
            for index, vector in enumerate(vectors[begin : begin + step], start=begin)
        ]
        yield b"," * bool(begin) + to_json(data)[1:-1]
    yield b"]}"


def _base64(vector: np.ndarray) -> str:
    """The bytes of little-endian float32 numbers in base64, as OpenAI's client expects them."""
    return base64.b64encode(vector.astype("<f4", copy=False).tobytes()).decode()


@router.get("/v1/models")
async def models(request: Request) -> Any:
    """The one model of this server."""
    model = {"id": request.app.state.service.name, "object": "model", "created": 0, "owned_by": "elmokit"}
    return {"object": "list", "data": [model]}


# --- text-embeddings-inference ---------------------------------------------------------------------------------------


@router.post("/", include_in_schema=False)  # where that server's clients send texts if they are given only its address
@router.post("/embed")
async def embed(request: Request, body: EmbedRequest) -> Any:
    """A vector for each text: a list of lists of numbers."""
    service: Service = request.app.state.service
    _check_dim(service, body.dimensions)
    sentences = await service.words_of(request, _as_list(body.inputs))
    embedded = await _embed(request, sentences, Output(body.layers, Pooling(body.pooling, body.normalize is not False)))
    return _response(_arrays(embedded.vectors), embedded)


@router.post("/embed_all")
async def embed_all(request: Request, body: EmbedAllRequest) -> Any:
    """A vector for each word of each text; in safetensors for clients that accept application/octet-stream."""
    service: Service = request.app.state.service
    sentences = await service.words_of(request, _as_list(body.inputs))
    embedded = await _embed(request, sentences, Output(body.layers))
    if "application/octet-stream" not in request.headers.get("accept", ""):
        return _response(_arrays(embedded.vectors), embedded)
    arrays = {str(number): np.ascontiguousarray(array) for number, array in enumerate(embedded.vectors)}
    content = to_safetensors(arrays, {"tokens": json.dumps(sentences)})
    return Response(content, headers=embedded.headers, media_type="application/octet-stream")


def _arrays(arrays: list[np.ndarray]) -> Iterator[bytes]:
    """Yield a JSON list of arrays, in chunks."""
    for number, array in enumerate(arrays):
        yield b",[" if number else b"[["
        step = max(1, NUMBERS_AT_ONCE // max(1, array[:1].size))
        for begin in range(0, len(array), step):
            yield b"," * bool(begin) + to_json(array[begin : begin + step].tolist())[1:-1]
        yield b"]"
    yield b"]"


@router.post("/similarity")
async def similarity(request: Request, body: SimilarityRequest) -> Any:
    """The cosine similarity of one sentence's vector and that of each other sentence: a list of numbers."""
    service: Service = request.app.state.service
    sentences = await service.words_of(request, [body.inputs.source_sentence, *body.inputs.sentences])
    source, *others = (await _embed(request, sentences, Output(pooling=OF_UNIT_LENGTH))).vectors
    return [float(np.clip(vector @ source, -1, 1)) for vector in others]  # rounding may exceed 1


@router.post("/tokenize")
async def tokenize(request: Request, body: TokenizeRequest) -> Any:
    """The words of each text, where they are in it, and whether the language model knows them."""
    service: Service = request.app.state.service
    texts = _as_list(body.inputs)
    sentences = await service.words_of(request, texts)
    offsets = await service.map_texts(request, _offsets, texts, sentences)
    return [_tokens(*each, service) for each in zip(sentences, offsets, strict=True)]


def _offsets(text: Text, words: Words) -> Offsets:
    return token_offsets(text, words) if isinstance(text, str) else [None] * len(words)


def _tokens(words: Words, offsets: Offsets, service: Service) -> list[dict[str, Any]]:
    """`id` is a word's id in the vocabulary (that of <UNK> for unknown words), or null without a vocabulary.

    `start` and `stop` count characters; they are null for a word that does not occur unchanged in the text.
    """
    vocab = service.embedder.model.vocab
    ids = [None] * len(words) if vocab is None else vocab.ids(words).tolist()
    return [
        {"id": number, "text": word, "special": False, "start": start, "stop": stop}
        for word, number, (start, stop) in zip(words, ids, (place or (None, None) for place in offsets), strict=True)
    ]
