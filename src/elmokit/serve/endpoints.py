"""The endpoints that take texts: vectors, words in context, the language model, and a task
model.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from itertools import chain, groupby
from operator import attrgetter
from typing import Any

import numpy as np
from fastapi import APIRouter, Response
from fastapi.responses import StreamingResponse
from pydantic_core import to_json
from safetensors.numpy import save as to_safetensors

from elmokit.analysis.report import as_json
from elmokit.analysis.similarity import compare as compare_uses
from elmokit.analysis.similarity import nearest_uses
from elmokit.analysis.uses import Use, sample_uses, unit_vectors, uses_in_each, vectors_of_uses
from elmokit.analysis.word_map import LEAST_USES, SEED, check_enough, map_uses
from elmokit.embed import Pooling, layer_weights
from elmokit.lm import next_words as next_words_of
from elmokit.lm import score as score_of
from elmokit.lm import substitutes as substitutes_of
from elmokit.serve import schemas
from elmokit.serve.engine import Job
from elmokit.serve.schemas import MAX_COUNT, RequestError, Text, invalid_request
from elmokit.serve.service import KEY, JsonRoute, ServiceRequest, Words
from elmokit.text import token_offsets

router = APIRouter(route_class=JsonRoute, dependencies=[KEY])
OF_UNIT_LENGTH = Pooling("mean", normalize=True)
NUMBERS_INLINE = (
    1 << 16
)  # converted to JSON before other requests get their turn: some milliseconds
CHUNK_BYTES = 1 << 19


def _headers(request: ServiceRequest) -> dict[str, str]:
    return {"x-truncated-words": str(request.truncated)} if request.truncated else {}


def _json_list(items: Iterable[Iterable[bytes]]) -> Iterator[bytes]:
    """A JSON list in parts, of items in parts."""
    yield b"["
    for number, item in enumerate(items):
        if number:
            yield b","
        yield from item
    yield b"]"


def _response(
    parts: Iterable[bytes], vectors: list[np.ndarray], request: ServiceRequest
) -> Response:
    """Vectors as JSON; if they are many, other requests get their turn between chunks."""
    if sum(vector.size for vector in vectors) <= NUMBERS_INLINE:
        return Response(b"".join(parts), headers=_headers(request), media_type="application/json")

    async def chunks() -> AsyncIterator[bytes]:
        chunk = bytearray()
        for part in parts:
            chunk += part
            if len(chunk) > CHUNK_BYTES:
                yield bytes(chunk)
                chunk.clear()
                await asyncio.sleep(0)
        yield bytes(chunk)

    return StreamingResponse(chunks(), headers=_headers(request), media_type="application/json")


# --- OpenAI ---------------------------------------------------------------------------------------


@router.post("/v1/embeddings", response_model=schemas.EmbeddingsAnswer)
async def embeddings(request: ServiceRequest, body: schemas.EmbeddingsRequest) -> Any:
    """A vector of length one for each input, in the form of OpenAI's API."""
    service = request.service
    service.check_name(body.model)
    sentences, vectors = await request.embed(body.input, "mix", OF_UNIT_LENGTH, body.dimensions)
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
    return _response(chain([to_json(head)[:-1], b',"data":'], data, [b"}"]), vectors, request)


def _base64(vector: np.ndarray) -> str:
    """The bytes of little-endian float32 numbers in base64, as OpenAI's client expects them."""
    return base64.b64encode(vector.astype("<f4", copy=False).tobytes()).decode()


# --- text-embeddings-inference --------------------------------------------------------------------


@router.post(
    "/", include_in_schema=False
)  # where that server's clients send texts if they are given only its address
@router.post("/embed", response_model=list[schemas.Vector])
async def embed(request: ServiceRequest, body: schemas.EmbedRequest) -> Any:
    """A vector for each text: a list of lists of numbers."""
    pooling = Pooling(body.pooling, body.normalize is not False)
    _, vectors = await request.embed(body.inputs, body.layers, pooling, body.dimensions)
    return _response(_json_list([to_json(vector.tolist())] for vector in vectors), vectors, request)


@router.post(
    "/embed_all",
    response_model=list[list[schemas.Vector]] | list[list[list[schemas.Vector]]],
    responses={
        200: {
            "content": {
                "application/octet-stream": {"schema": {"type": "string", "format": "binary"}}
            }
        }
    },
)
async def embed_all(request: ServiceRequest, body: schemas.EmbedAllRequest) -> Any:
    """A vector for each word of each text; in safetensors for clients that accept
    application/octet-stream.
    """
    sentences, vectors = await request.embed(body.inputs, body.layers)
    if body.layers == "all":
        vectors = [np.moveaxis(of_text, 0, 1) for of_text in vectors]
    if "application/octet-stream" not in request.headers.get("accept", ""):
        texts = (
            _json_list([to_json(of_word.tolist())] for of_word in of_text) for of_text in vectors
        )
        return _response(_json_list(texts), vectors, request)
    arrays = {str(number): np.ascontiguousarray(array) for number, array in enumerate(vectors)}
    content = to_safetensors(arrays, {"tokens": to_json(sentences).decode()})
    return Response(content, headers=_headers(request), media_type="application/octet-stream")


@router.post("/similarity", response_model=list[float])
async def similarity(request: ServiceRequest, body: schemas.SimilarityRequest) -> Any:
    """The cosine similarity of one sentence's vector and that of each other sentence: a list of
    numbers.
    """
    texts = [body.inputs.source_sentence, *body.inputs.sentences]
    _, (source, *others) = await request.embed(texts, "mix", OF_UNIT_LENGTH)
    return [float(np.clip(vector @ source, -1, 1)) for vector in others]  # rounding may exceed 1


@router.post("/tokenize", response_model=list[list[schemas.Token]])
async def tokenize(request: ServiceRequest, body: schemas.TokenizeRequest) -> Any:
    """The words of each text, where they are in it, and whether the language model knows them.

    `id` is a word's id in the vocabulary (that of <UNK> for unknown words), or null without a
    vocabulary. `start` and `stop` count characters; they are null for a word that does not occur
    unchanged in the text.
    """
    vocab = request.service.embedder.model.vocab

    def tokens(text: Text, words: Words) -> list[dict[str, Any]]:
        places = token_offsets(text, words) if isinstance(text, str) else [None] * len(words)
        ids = [None] * len(words) if vocab is None else vocab.ids(words).tolist()
        return [
            {"id": number, "text": word, "special": False, "start": start, "stop": stop}
            for word, number, (start, stop) in zip(
                words, ids, (place or (None, None) for place in places), strict=True
            )
        ]

    return await request.map_texts(tokens, body.inputs, await request.words_of(body.inputs))


# --- Words in context -----------------------------------------------------------------------------


@router.post("/compare", response_model=schemas.CompareAnswer)
async def compare(request: ServiceRequest, body: schemas.CompareRequest) -> Any:
    """The cosine similarities of all uses of a word, for each layer and for their mix."""
    sentences = await request.words_of(body.sentences)

    def compare_all(job: Job) -> Any:
        if (
            len(uses_in_each(body.word, sentences)) > MAX_COUNT
        ):  # the number of similarities grows quadratically
            raise ValueError(
                f"there are more than {MAX_COUNT} uses of {body.word!r} to compare: send fewer "
                f"sentences"
            )
        return compare_uses(body.word, sentences, request.service.embedder, "all")

    comparison = await request.run(compare_all)
    layers = [
        {"name": name, "similarities": matrix.tolist()}
        for name, matrix in comparison.similarities.items()
    ]
    return {"word": body.word, "uses": as_json(comparison.uses), "layers": layers}


@router.post("/neighbors", response_model=schemas.NeighborsAnswer)
async def neighbors(request: ServiceRequest, body: schemas.NeighborsRequest) -> Any:
    """The uses of a word, in given sentences or the server's corpus, nearest to its first use in a
    sentence.
    """
    (sentence,) = await request.words_of([body.sentence])
    sentences, embedder = (
        body.sentences and await request.words_of(body.sentences),
        request.service.embedder,
    )

    def search(job: Job) -> Any:
        query = uses_in_each(body.word, [sentence])[0]
        found = request.service.uses(body.word, sentences, job)
        by_sentence = [list(uses) for _, uses in groupby(found.uses, key=attrgetter("sentence"))]
        weights = layer_weights(embedder.model, body.layers).numpy()

        def vectors_of(uses: Sequence[Use]) -> np.ndarray:
            return np.einsum("nld,l->nd", found.vectors_of(uses), weights)

        (vector,) = unit_vectors(vectors_of_uses([query], embedder, body.layers))
        return nearest_uses(query, vector, by_sentence, vectors_of, body.count)

    result = await request.run(
        search, is_long=sentences is None and body.word not in request.service.corpus_uses
    )
    nearest = [{"similarity": similarity, **use.to_json()} for similarity, use in result.nearest]
    return {
        "query": result.query.to_json(),
        "neighbors": nearest,
        "sentences_searched": result.sentences_searched,
    }


@router.post("/senses", response_model=schemas.SensesAnswer)
async def senses(request: ServiceRequest, body: schemas.SensesRequest) -> Any:
    """A map of the uses of a word, or of two, in given sentences or the corpus, for each layer; and
    their clusters.
    """
    service = request.service
    sentences = body.sentences and await request.words_of(body.sentences)
    words = list(dict.fromkeys(filter(None, [body.word, body.second_word])))

    def draw(job: Job) -> Any:
        max_uses = max(LEAST_USES, body.max_uses // len(words))
        found = [service.uses(word, sentences, job) for word in words]
        samples = [sample_uses(of_word.uses, max_uses, SEED)[0] for of_word in found]
        for word, sample in zip(words, samples, strict=True):
            check_enough(word, sample)
        vectors = np.concatenate(
            [of_word.vectors_of(sample) for of_word, sample in zip(found, samples, strict=True)]
        )
        count = sum(of_word.count for of_word in found)
        options: Any = {"clusters": body.clusters, "uses_in_corpus": count, "check": job.check}
        uses, name = list(chain.from_iterable(samples)), " + ".join(words)
        return map_uses(name, uses, vectors, service.embedder, body.layers, **options).to_json()

    return await request.run(
        draw, is_long=sentences is None and not set(words) <= service.corpus_uses.keys()
    )


# --- The language model ---------------------------------------------------------------------------


@router.post("/score", response_model=list[schemas.ScoreAnswer])
async def score(request: ServiceRequest, body: schemas.ScoreRequest) -> Any:
    """The log-probability of every word, from the words before it and from those after it, or from
    all others.
    """
    model = request.service.language_model
    sentences = await request.words_of(body.inputs)
    state = model.single_sentence_state
    results = await request.run(
        lambda job: score_of(sentences, model, state=state, check=job.check)
    )
    return [result.to_json() for result in results]


@router.post("/substitutes", response_model=list[schemas.SubstitutesAnswer])
async def substitutes(request: ServiceRequest, body: schemas.SubstitutesRequest) -> Any:
    """For each position, the words that the language model finds most likely there."""
    model = request.service.language_model
    (words,) = await request.words_of([body.sentence])
    positions = list(range(len(words))) if body.positions is None else body.positions
    if len(positions) > MAX_COUNT:
        raise invalid_request(f"positions: name at most {MAX_COUNT} words of a long sentence")
    options = {"top": body.top, "direction": body.direction, "state": model.single_sentence_state}
    options |= {"positions": positions}
    results = await request.run(
        lambda job: substitutes_of(words, model, check=job.check, **options)
    )
    return [
        {"word": words[position], "position": position, "candidates": of_word.candidates}
        for position, of_word in zip(positions, results, strict=True)
    ]


@router.post("/next_words", response_model=schemas.NextWordsAnswer)
async def next_words(request: ServiceRequest, body: schemas.NextWordsRequest) -> Any:
    """The words that the language model finds most likely after the given ones, or before them."""
    model = request.service.language_model
    (words,) = await request.words_of([body.sentence])
    options = {"top": body.top, "direction": body.direction, "state": model.single_sentence_state}
    results = await request.run(lambda job: next_words_of(words, model, check=job.check, **options))
    return {"words": list(words), "candidates": results.candidates}


# --- A task ---------------------------------------------------------------------------------------


@router.post("/predict", response_model=list[dict[str, Any]])
async def predict(request: ServiceRequest, body: schemas.PredictRequest) -> Any:
    """The task model's answer to each input; for one string the labels or spans in it, as Hugging
    Face has them.
    """
    if (model := request.service.task_model) is None:
        raise RequestError(
            404, "not_found", "this server has no task model: start it with --task-model"
        )
    inputs = [body.inputs] if isinstance(body.inputs, str) else body.inputs

    def predict_all(job: Job) -> list[Any]:
        examples = [model.example(text) for text in job.while_wanted(inputs)]
        request.service.check_words(
            words for example in examples for words in model.task.sentences(example)
        )
        return list(map(model.task.to_json, model.predict_examples(job.while_wanted(examples))))

    answers = await request.run(predict_all)
    return labels_of(body.inputs, *answers) if isinstance(body.inputs, str) else answers


def labels_of(text: str, answer: dict[str, Any]) -> list[dict[str, Any]]:
    """An answer in the form of Hugging Face's text classification, with all labels, or of its token
    classification.
    """
    if isinstance(scores := answer.get("scores"), dict):
        ranked = sorted(scores.items(), key=lambda item: -item[1])
        return [{"label": label, "score": score} for label, score in ranked]
    if "tags" not in answer:
        return [answer]
    words = zip(
        answer["tags"], answer["scores"], strict=True
    )  # each is a span where tags mark none
    tagged = [
        {"start": n, "end": n + 1, "type": tag, "score": score}
        for n, (tag, score) in enumerate(words)
    ]
    places = [place or (None, None) for place in token_offsets(text, answer["words"])]
    return [
        {
            "entity_group": span["type"],
            "score": span["score"],
            "word": " ".join(answer["words"][span["start"] : span["end"]]),
            "start": places[span["start"]][0],
            "end": places[span["end"] - 1][1],
        }
        for span in answer.get("spans", tagged)
    ]
