"""What outlives a request: the model, the queues and the metrics; and a request with its steps,
each within limits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from threading import Lock
from typing import Any, TypeVar, get_type_hints

import numpy as np
from fastapi import Request, Response, Security
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from pydantic import BaseModel, ValidationError
from pydantic_core import to_json
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from elmokit.analysis.corpora import TextCorpus
from elmokit.analysis.uses import Use, sample_uses, uses_of, vectors_of_uses
from elmokit.analysis.word_map import SEED
from elmokit.checkpoints import DEFAULT_MODEL, Pretrained
from elmokit.embed import Embedder, Pooling
from elmokit.serve.config import ServeConfig
from elmokit.serve.engine import Engine, Job, JobQueue, cost
from elmokit.serve.schemas import CLOSE, RequestError, Text, invalid_body, invalid_request
from elmokit.tasks.fitting.model import TaskModel
from elmokit.text import TOKENIZED, get_tokenizer
from elmokit.threads import num_threads

KEY = Security(
    HTTPBearer(auto_error=False, description="The server's API key, if it has one")
)  # the gate checks it
Result = TypeVar("Result")
Words = Sequence[str]
SHORT_BODY = 2_000  # bytes, some hundred words, whose job takes a second at most
POOLED_FACTOR = 8  # times as many words where a text gets one vector
INLINE_CHARACTERS = (
    4_000  # tokenized on the event loop, in a millisecond or two; longer texts go to a thread,
)
LONG_CHARACTERS = 100_000  # and even longer ones to another
# Of a word's uses so many are embedded, in sentences of so many words in all, which takes a second
# or two; but some in any case. Those of the words that were asked for last are kept: 6 MB each for
# en-small.
SAMPLED_USES, SAMPLED_WORDS, FEW_USES = 1000, 12_000, 12
CORPUS_USES_BYTES = 256 << 20
BYTES_OF_WORD = (
    64  # of a string and its place in a sentence; an entry of the cache counts as 100 words
)
WORDS = (16, 64, 256, 1024, 4096, 16_384, 65_536)


class Metrics:
    """The server's metrics for Prometheus, in a registry of their own."""

    def __init__(self, service: Service) -> None:
        registry = self.registry = CollectorRegistry()
        labels = ["endpoint", "status"]
        self.requests = Histogram(
            "elmokit_request_seconds", "Time from request to answer", labels, registry=registry
        )
        self.batch_words = Histogram(
            "elmokit_batch_words", "Words of a batch", buckets=WORDS, registry=registry
        )
        self.truncated = Counter(
            "elmokit_truncated_words", "Words longer than the model reads", registry=registry
        )
        Gauge("elmokit_queue_words", "Words waiting", registry=registry).set_function(
            lambda: service.engine.words_waiting
        )
        Gauge("elmokit_jobs", "Jobs", registry=registry).set_function(
            lambda: len(service.jobs.unfinished)
        )
        Gauge("elmokit_requests_in_progress", "Requests", registry=registry).set_function(
            lambda: service.in_progress
        )
        ProcessCollector(registry=registry)


@dataclass(frozen=True, eq=False)
class WordUses:
    """Distinct uses of a word with their vectors (L+1, 2D), or a random sample of them.

    Attributes:
        uses: The vectors of each use.
        count: How often the word is used, of which `uses` may be a sample.
        size: Memory in bytes.
    """

    uses: dict[Use, np.ndarray]
    count: int
    size: int

    def vectors_of(self, uses: Iterable[Use]) -> np.ndarray:
        """Their vectors, (N, L+1, 2D)."""
        return np.stack([self.uses[use] for use in uses])


class Service:
    """A model with its queues and metrics. `close` ends its threads.

    Args:
        embedder: The model; with its softmax, if it is to predict words.
        config: The corpus, the key and the limits.
        name: The model's name, which requests may give.
        task_model: The model for /predict; None: /predict answers "not found".

    Raises:
        FileNotFoundError: The corpus does not exist.
        ValueError: The corpus is not text in UTF-8.
    """

    def __init__(
        self,
        embedder: Embedder,
        config: ServeConfig,
        name: str = DEFAULT_MODEL,
        task_model: TaskModel | None = None,
    ) -> None:
        self.embedder, self.config, self.name, self.task_model = embedder, config, name, task_model
        self._corpus = None
        if config.corpus is not None:
            self._corpus = TextCorpus(config.corpus, embedder, config.tokenize, progress=False)
        model = embedder.model
        self._tokenize = get_tokenizer(model.tokenizer or TOKENIZED).tokenize
        self.fingerprint = embedder.fingerprint()
        self.predicts_words = (
            None not in (model.softmax, model.vocab)
            and model.config.sequence_encoder.predicts_words
        )
        self.corpus_uses: dict[
            str, WordUses
        ] = {}  # of words in the corpus, those that were asked for last at the end
        self._lock = Lock()
        self.in_progress = 0  # requests without an answer
        self.is_draining = False
        self.metrics = Metrics(self)
        self.engine = Engine(
            embedder, config.queue_words, config.batch_words, self.metrics.batch_words.observe
        )
        self.jobs = JobQueue("jobs", config.max_jobs, num_threads())
        self.tokenizing = JobQueue("tokenizing", config.max_jobs, 1)

    def close(self) -> bool:
        """Answer the requests for vectors that wait; returns whether no thread still runs an
        abandoned job.
        """
        self.engine.close()
        return not (self.tokenizing.unfinished or self.jobs.unfinished)

    def check_name(self, name: str | None) -> None:
        """RequestError if a request names another model."""
        if name not in (None, self.name):
            raise RequestError(
                404, "not_found", f"there is no model {name!r}: this server has {self.name!r}"
            )

    @property
    def language_model(self) -> Pretrained:
        """The model, if it predicts words; else RequestError."""
        if not self.predicts_words:
            raise RequestError(
                404, "not_found", "this server's model only gives vectors: serve one with a softmax"
            )
        return self.embedder.model

    def split(self, text: Text) -> Words:
        """The words of a text; a string is split like the model's training text."""
        return self._tokenize(text) if isinstance(text, str) else text

    def check_words(self, sentences: Iterable[Words], factor: int = 1) -> None:
        """RequestError if one sentence has more words than a request may have, or all have so many
        times as many.
        """
        costs, limit = [cost([words]) for words in sentences], self.config.max_words
        if max(costs, default=0) > limit or sum(costs) > limit * factor:
            most = f"{limit:,} in a text, {limit * factor:,} in all"
            raise RequestError(
                413,
                "too_large",
                f"{sum(costs):,} words and texts are too many: send at most {most}",
            )

    def uses(self, word: str, sentences: Sequence[Words] | None, job: Job) -> WordUses:
        """The uses of a word, a random sample if there are many: in sentences of a request, or else
        in the corpus.

        Raises:
            RequestError: There is no corpus.
            CancelledError: Nobody waits for the job any more.
        """
        if sentences is not None:
            return self._embedded(
                (uses_of(word, words) for words in job.while_wanted(sentences)), job
            )
        if self._corpus is None:
            raise invalid_request(
                "this server has no corpus: send `sentences`, or start it with --corpus"
            )
        with self._lock:
            found = self.corpus_uses.pop(word, None)
        if found is None:
            found = self._embedded(self._corpus.uses(word, job.check), job)
        with self._lock:
            self.corpus_uses[word] = found  # the last, as it was used last
            size = sum(each.size for each in self.corpus_uses.values())
            while size > CORPUS_USES_BYTES and len(self.corpus_uses) > 1:
                size -= self.corpus_uses.pop(next(iter(self.corpus_uses))).size
        return found

    def _embedded(self, uses: Iterable[Iterable[Use]], job: Job) -> WordUses:
        # With the seed of a map, so that a sample for a map is one of all uses.
        sample, count = sample_uses(chain.from_iterable(uses), SAMPLED_USES, SEED)
        while len(sample) > FEW_USES and cost({use.sentence for use in sample}) > SAMPLED_WORDS:
            sample, _ = sample_uses(sample, len(sample) * 3 // 4, SEED)
        vectors = (
            vectors_of_uses(sample, self.embedder, "all", job.check) if sample else np.empty((0, 0))
        )
        size = vectors.nbytes + BYTES_OF_WORD * (100 + cost({use.sentence for use in sample}))
        return WordUses(dict(zip(sample, vectors, strict=True)), count, size)

    def corpus_sentences(self) -> Iterator[tuple[str, ...]]:
        """Stream the sentences of the server's corpus; none without one."""
        return iter(()) if self._corpus is None else self._corpus.sentences()


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """TimeoutError if the block takes longer. anyio's, of which a request needs three, take a tenth
    of its time.
    """
    is_over, task = False, asyncio.current_task()

    def end() -> None:
        nonlocal is_over
        is_over = task is not None and task.cancel()

    timer = asyncio.get_running_loop().call_later(seconds, end)
    try:
        yield
    except asyncio.CancelledError as error:
        if not is_over:
            raise
        raise TimeoutError from error
    finally:
        timer.cancel()


class ServiceRequest(Request):
    """A request, with the service that answers it; every step ends if the client disconnects or its
    time is up.

    Its methods raise RequestError for what the client is told, and ClientDisconnect if the client
    has gone.
    """

    size = 0  # bytes of the body, once it was read
    truncated = (
        0  # words of the request that are longer than the model reads, once it was split into words
    )

    @property
    def service(self) -> Service:
        """The service, which the application holds."""
        return self.app.state.service

    async def read_body(self) -> bytes:
        """The body, if it is neither too large nor too slow."""
        config, body = self.service.config, bytearray()
        announced = int(self.headers.get("content-length", 0))
        try:
            with time_limit(config.timeout):
                async for chunk in self.stream():
                    body += chunk
                    if max(announced, len(body)) > config.max_body:
                        raise RequestError(
                            413,
                            "too_large",
                            f"the body has more than {config.max_body:,} bytes",
                            CLOSE,
                        )
        except TimeoutError as error:
            raise RequestError(
                408, "body_timeout", f"no body within {config.timeout:g} seconds", CLOSE
            ) from error
        self.size = len(body)
        return bytes(body)

    async def wait_for(self, result: asyncio.Future[Result], times: float = 1) -> Result:
        """The result of work, within some times the time limit; it is cancelled if nobody waits for
        it any more.
        """
        gone, timeout = (
            asyncio.ensure_future(self._disconnected()),
            self.service.config.timeout * times,
        )
        try:
            await asyncio.wait({result, gone}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                raise ClientDisconnect
            if result.done():
                return result.result()
            raise RequestError(
                503, "timeout", f"no answer within {timeout:g} seconds", {"retry-after": "5"}
            )
        finally:
            result.cancel()
            gone.cancel()

    async def _disconnected(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass

    async def map_texts(
        self, convert: Callable[..., Result], texts: Sequence[Any], *more: Any
    ) -> list[Result]:
        """`map(convert, texts, *more)` as a list; long texts are converted on a thread."""
        characters = sum(len(text) for text in texts if isinstance(text, str))
        if characters <= INLINE_CHARACTERS:
            return list(map(convert, texts, *more))
        is_long = characters > LONG_CHARACTERS
        work = self.service.tokenizing.submit(
            lambda job: list(map(convert, job.while_wanted(texts), *more)), is_long
        )
        return await self.wait_for(work)

    async def words_of(self, texts: Sequence[Text], factor: int = 1) -> list[Words]:
        """The words of each text, as `check_words` allows; those that are too long for the model
        are counted.
        """
        service = self.service
        sentences = await self.map_texts(service.split, texts)
        service.check_words(sentences, factor)
        self.truncated = sum(map(service.embedder.count_truncated, sentences))
        service.metrics.truncated.inc(self.truncated)
        return sentences

    async def embed(
        self,
        texts: Sequence[Text],
        layers: str | int,
        pooling: Pooling | None = None,
        dimensions: int | None = None,
    ) -> tuple[list[Words], list[Any]]:
        """The words of texts, and their vectors as `Engine.submit` gives them."""
        embedder = self.service.embedder
        if dimensions not in (None, embedder.dim):
            raise invalid_request(
                f"dimensions: vectors have {embedder.dim}, and cannot be shortened"
            )
        if isinstance(layers, int) and not -embedder.num_layers <= layers < embedder.num_layers:
            raise invalid_request(
                f"layers: this model has the layers 0 to {embedder.num_layers - 1}"
            )
        sentences = await self.words_of(texts, 1 if pooling is None else POOLED_FACTOR)
        vectors = self.service.engine.submit(sentences, (layers, pooling))
        return sentences, await self.wait_for(
            vectors, max(1, cost(sentences) / self.service.config.max_words)
        )

    async def run(self, function: Callable[[Job], Result], is_long: bool = False) -> Result:
        """Run a job, which is long also if its body is, and return its result; ValueError is an
        error of the client.
        """
        try:
            return await self.wait_for(
                self.service.jobs.submit(function, is_long or self.size > SHORT_BODY)
            )
        except ValueError as error:
            raise invalid_request(str(error)) from error


class JsonRoute(APIRoute):
    """A route whose endpoint takes a `ServiceRequest` and its body, and returns a JSON value or a
    response.

    The body is read as JSON, whatever its content type says, and pydantic parses its bytes, so that
    all errors in it are of one kind. Numbers that are not finite, which JSON lacks, become null in
    the answer.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._schema: type[BaseModel] = get_type_hints(self.endpoint)["body"]

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """In place of FastAPI's, which prepares for dependencies, and takes a sixth of the time of
        a request.
        """
        if scope["method"] != "POST":
            return await super().handle(scope, receive, send)  # refuses it
        exchange = ServiceRequest(scope, receive)
        try:
            body = self._schema.model_validate_json(await exchange.read_body())
        except ValidationError as error:
            raise invalid_body(error) from error
        value = await self.endpoint(exchange, body)
        if not isinstance(value, Response):
            value = Response(to_json(value, inf_nan_mode="null"), media_type="application/json")
        await value(scope, receive, send)
