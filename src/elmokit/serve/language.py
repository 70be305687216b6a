"""Endpoints for words in context, the language model and a task model; each request is a job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from fastapi import APIRouter, Request

from elmokit.analysis.config import MapConfig, SearchConfig
from elmokit.analysis.report import as_json
from elmokit.analysis.similarity import Comparison, nearest_uses
from elmokit.analysis.similarity import compare as compare_uses
from elmokit.analysis.uses import sample_uses, uses_in_each
from elmokit.analysis.word_map import map_uses
from elmokit.checkpoints.pretrained import Pretrained
from elmokit.lm import candidates, scoring
from elmokit.lm.candidates import Candidate
from elmokit.lm.scoring import MaskedScore, Score
from elmokit.serve.errors import RequestError
from elmokit.serve.exchange import JsonRoute, answer
from elmokit.serve.jobs import Job
from elmokit.serve.schemas import (
    MAX_COUNT,
    CompareRequest,
    NeighborsRequest,
    NextWordsRequest,
    PredictRequest,
    ScoreRequest,
    SensesRequest,
    SubstitutesRequest,
    Text,
)
from elmokit.serve.service import Service, Words
from elmokit.tasks.fitting.model import TaskModel

router = APIRouter(route_class=JsonRoute, tags=["language"])
Result = TypeVar("Result")
WORDS_BETWEEN_CHECKS = 1_024  # scored, some seconds at most, before a job whose client has gone can end


async def _run(request: Request, function: Callable[[Job], Result]) -> Result:
    """Run a job, and return its result. A ValueError becomes an error for the client."""
    service: Service = request.app.state.service
    try:
        return await answer(request, service.jobs.submit(function), service.config.timeout)
    except ValueError as error:
        raise RequestError("invalid_request", str(error)) from error


def _language_model(service: Service) -> Pretrained:
    """The model, if it predicts words; else RequestError."""
    if not service.predicts_words:
        raise RequestError("not_found", "this server's model only gives vectors: serve one with a softmax")
    return service.embedder.model


async def _optional_words(request: Request, texts: Sequence[Text] | None) -> list[Words] | None:
    service: Service = request.app.state.service
    return None if texts is None else await service.words_of(request, texts)


# --- Words in context ------------------------------------------------------------------------------------------------


@router.post("/compare")
async def compare(request: Request, body: CompareRequest) -> Any:
    """The cosine similarities of all uses of a word, for each layer and for their mix."""
    service: Service = request.app.state.service
    sentences = await service.words_of(request, body.sentences)

    def compare_all(job: Job) -> Comparison:
        if len(uses_in_each(body.word, sentences)) > MAX_COUNT:  # the number of similarities grows quadratically
            raise ValueError(f"there are more than {MAX_COUNT} uses of {body.word!r} to compare: send fewer sentences")
        return compare_uses(body.word, sentences, service.embedder)

    comparison = await _run(request, compare_all)
    layers = [{"name": name, "similarities": matrix.tolist()} for name, matrix in comparison.similarities.items()]
    return {"word": body.word, "uses": as_json(comparison.uses), "layers": layers}


@router.post("/neighbors")
async def neighbors(request: Request, body: NeighborsRequest) -> Any:
    """The uses of a word, in given sentences or the server's corpus, nearest to its first use in a sentence."""
    service: Service = request.app.state.service
    (sentence,) = await service.words_of(request, [body.sentence])
    sentences = await _optional_words(request, body.sentences)

    def search(job: Job) -> Any:
        uses = service.uses(body.word, sentences, job)
        query = uses_in_each(body.word, [sentence])[0]
        config = SearchConfig(body.count)
        return nearest_uses(query, job.while_wanted(uses), service.embedder, body.layers, config)

    result = await _run(request, search)
    nearest = [{"similarity": similarity, **use.to_json()} for similarity, use in result.nearest]
    return {"query": result.query.to_json(), "neighbors": nearest, "sentences_searched": result.sentences_searched}


@router.post("/senses")
async def senses(request: Request, body: SensesRequest) -> Any:
    """A map of a word's uses, in given sentences or in the server's corpus, for each layer; and their clusters."""
    service: Service = request.app.state.service
    sentences = await _optional_words(request, body.sentences)

    def draw(job: Job) -> Any:
        uses = service.uses(body.word, sentences, job)
        config = MapConfig(body.max_uses, clusters=body.clusters)
        each = (use for of_sentence in job.while_wanted(uses) for use in of_sentence)
        sample, count = sample_uses(each, config.max_uses, config.seed)
        options = {"uses_in_corpus": count, "fingerprint": service.fingerprint, "check": job.check}
        return map_uses(body.word, sample, service.embedder, body.layers, config, **options).to_json()

    return await _run(request, draw)


# --- The language model ----------------------------------------------------------------------------------------------


@router.post("/score")
async def score(request: Request, body: ScoreRequest) -> Any:
    """The log-probability of every word, from the words before it and from those after it, or from all others."""
    service: Service = request.app.state.service
    sentences = await service.words_of(request, [body.inputs] if isinstance(body.inputs, str) else body.inputs)
    model, state = _language_model(service), service.embedder.model.single_sentence_state
    options = {"state": state, "batch_size": 1, "batch_words": WORDS_BETWEEN_CHECKS}
    results = await _run(request, lambda job: list(scoring.scores(model, sentences, check=job.check, **options)))
    return list(map(_score, results))


def _score(result: Score) -> dict[str, Any]:
    counts = {"unknown": result.unknown, "truncated": result.truncated}
    if isinstance(result, MaskedScore):
        masked, pseudo_perplexity = result.masked.tolist(), result.pseudo_perplexity.value
        return {"words": list(result.words), "masked": masked, "pseudo_perplexity": pseudo_perplexity, **counts}
    return {
        "words": list(result.words),
        "forward": result.forward.tolist(),
        "backward": result.backward.tolist(),
        "perplexity": {name: getattr(result.perplexity, name) for name in ("forward", "backward", "mean")},
        **counts,
    }


@router.post("/substitutes")
async def substitutes(request: Request, body: SubstitutesRequest) -> Any:
    """For each position, the words that the language model finds most likely there."""
    service: Service = request.app.state.service
    (words,) = await service.words_of(request, [body.sentence])
    model = _language_model(service)
    positions = list(range(len(words))) if body.positions is None else body.positions
    if len(positions) > MAX_COUNT:
        raise RequestError("invalid_request", f"positions: name at most {MAX_COUNT} words of a long sentence")
    options = {"top": body.top, "direction": body.direction, "state": service.embedder.model.single_sentence_state}
    options |= {"positions": positions}
    results = await _run(request, lambda job: candidates.substitutes(words, model, check=job.check, **options))
    return [
        {"word": words[position], "position": position, "candidates": list(map(_candidate, of_word))}
        for position, of_word in zip(positions, results, strict=True)
    ]


@router.post("/next_words")
async def next_words(request: Request, body: NextWordsRequest) -> Any:
    """The words that the language model finds most likely after the given ones, or before them."""
    service: Service = request.app.state.service
    (words,) = await service.words_of(request, [body.sentence])
    model = _language_model(service)
    options = {"top": body.top, "direction": body.direction, "state": service.embedder.model.single_sentence_state}
    results = await _run(request, lambda job: candidates.next_words(words, model, check=job.check, **options))
    return {"words": list(words), "candidates": list(map(_candidate, results))}


def _candidate(candidate: Candidate) -> dict[str, Any]:
    return {"word": candidate.word, "log_probability": candidate.log_probability}


# --- A task ----------------------------------------------------------------------------------------------------------


@router.post("/predict")
async def predict(request: Request, body: PredictRequest) -> Any:
    """The task model's answer to each input."""
    service: Service = request.app.state.service
    if (model := service.task_model) is None:
        raise RequestError("not_found", "this server has no task model: start it with --task-model")

    def predict_all(job: Job) -> list[Any]:
        examples = [_example(model, text) for text in job.while_wanted(body.inputs)]
        service.check_words(words for example in examples for words in model.task.sentences(example))
        return list(model.predict_examples(job.while_wanted(examples)))

    return list(map(model.task.to_json, await _run(request, predict_all)))


def _example(model: TaskModel, text: object) -> Any:
    """Convert an input to an example of the task; RequestError if it cannot be."""
    try:
        return model.example(text)
    except (ValueError, LookupError) as error:
        raise RequestError("invalid_request", f"an input of the task {model.task.name}: {error}") from error
