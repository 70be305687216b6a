"""State that outlives a request: the model, the queues, the metrics, and the uses of words."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

import numpy as np
from fastapi import Request
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from elmokit.analysis.corpora import TextCorpus
from elmokit.analysis.uses import Use, UseVectors, sample_uses, uses_of
from elmokit.analysis.word_map import SEED
from elmokit.checkpoints import Pretrained
from elmokit.embed import Embedder, Pooling
from elmokit.serve import ServeConfig
from elmokit.serve.engine import Engine, cost
from elmokit.serve.schemas import RequestError, Text, client_gone, invalid_request, overloaded
from elmokit.tasks.fitting.model import TaskModel
from elmokit.text import TOKENIZED, get_tokenizer
from elmokit.threads import limited_threads, num_threads, thread_pool

Result = TypeVar("Result")
Words = Sequence[str]
Check = Callable[[], None]  # raises CancelledError when nobody waits for the result any more

# Jobs that run at a time. The system divides the cores among them, so that a short one need not
# wait for long ones.
JOB_THREADS = 8
POOLED_FACTOR = 8  # times as many words where a text gets one vector
INLINE_CHARACTERS = 4_000  # are split on the event loop, in a millisecond or two
# Of a word's uses so many are embedded, in sentences of so many words in all, which takes a second
# or two; but some in any case. Those of some words are cached: 6 MB each for en-small.
SAMPLED_USES, SAMPLED_WORDS, FEW_USES = 1000, 12_000, 12
WORDS_CACHED = 20
BATCH_BUCKETS = (16, 64, 256, 1024, 4096, 16_384, 65_536)


class Metrics:
    """The server's metrics for Prometheus, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.requests = Histogram(
            "elmokit_request_seconds", "Time to answer", ["endpoint", "status"], registry=registry
        )
        self.batch_words = Histogram(
            "elmokit_batch_words", "Words of a batch", buckets=BATCH_BUCKETS, registry=registry
        )
        self.truncated = Counter(
            "elmokit_truncated_words", "Words longer than the model reads", registry=registry
        )
        self.in_progress = Gauge("elmokit_requests_in_progress", "Requests", registry=registry)
        self.queue_words = Gauge("elmokit_queue_words", "Words waiting", registry=registry)
        self.jobs = Gauge("elmokit_jobs", "Jobs that wait or run", registry=registry)


@dataclass(frozen=True, eq=False)
class WordUses:
    """Distinct uses of a word, by their rows in `vectors`; `count` is how often it is used.

    If it is used often, the uses are a random sample.
    """

    uses: dict[Use, int]
    vectors: UseVectors
    count: int

    def vectors_of(self, uses: Iterable[Use]) -> UseVectors:
        """The vectors of some of the uses."""
        rows = [self.uses[use] for use in uses]
        return UseVectors(self.vectors.words[rows], self.vectors.texts[rows])


class Service:
    """A model with its queues and metrics.

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
        name: str = "en-small",
        task_model: TaskModel | None = None,
    ) -> None:
        self.embedder, self.config, self.name, self.task_model = embedder, config, name, task_model
        model = embedder.model
        self._corpus = None
        if config.corpus is not None:
            self._corpus = TextCorpus(config.corpus, embedder, config.tokenize, progress=False)
        self._tokenize = get_tokenizer(model.tokenizer or TOKENIZED).tokenize
        self.predicts_words = (
            None not in (model.softmax, model.vocab)
            and model.config.sequence_encoder.predicts_words
        )
        self.metrics = Metrics()
        self.engine = Engine(
            embedder, config.queue_words, config.batch_words, self.metrics.batch_words.observe
        )
        self.metrics.queue_words.set_function(lambda: self.engine.words_waiting)
        self._jobs: set[threading.Event] = set()  # those that wait or run
        self.metrics.jobs.set_function(lambda: len(self._jobs))
        # Of words that were asked for, at most `WORDS_CACHED`.
        self._uses_in_corpus: dict[str, WordUses] = {}
        self._searching = threading.Lock()

    # --- Checks of requests ---

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

    def check_words(self, sentences: Iterable[Words], factor: int = 1) -> None:
        """RequestError if one sentence has more words than the limit, or all `factor` times it."""
        costs, limit = [cost([words]) for words in sentences], self.config.max_words
        if max(costs, default=0) > limit or sum(costs) > limit * factor:
            most = f"{limit:,} in a text, {limit * factor:,} in all"
            message = f"{sum(costs):,} words and texts are too many: send at most {most}"
            raise RequestError(413, "too_large", message)

    def words_of(self, texts: Sequence[Text], factor: int = 1) -> list[Words]:
        """The words of each text, as `check_words` allows; a string is split."""
        sentences: list[Words] = [
            self._tokenize(text) if isinstance(text, str) else text for text in texts
        ]
        self.check_words(sentences, factor)
        return sentences

    # --- Work for a request ---

    async def embed(
        self,
        request: Request,
        texts: Sequence[Text],
        layers: str | int | None,
        pooling: Pooling | None = None,
    ) -> tuple[list[Words], list[np.ndarray]]:
        """The words of texts, and their vectors as `Engine.submit` gives them."""
        if isinstance(layers, int) and not 0 <= layers < self.embedder.num_layers:
            most = self.embedder.num_layers - 1
            raise invalid_request(f"layers: this model has the layers 0 to {most}")
        self.engine.check_room()
        factor = 1 if pooling is None else POOLED_FACTOR
        if sum(len(text) for text in texts if isinstance(text, str)) <= INLINE_CHARACTERS:
            sentences = self.words_of(texts, factor)
        else:
            sentences = await self.run(request, lambda check: self.words_of(texts, factor))
        if pooling is not None and not all(sentences):
            number = next(number for number, words in enumerate(sentences, 1) if not words)
            raise invalid_request(f"text {number} has no words, and thus no vector")
        vectors = self.engine.submit(sentences, (layers, pooling))
        timeout_factor = max(1, cost(sentences) / self.config.max_words)
        return sentences, await self._wait_for(request, vectors, timeout_factor)

    async def run(self, request: Request, job: Callable[[Check], Result]) -> Result:
        """Run a job, which may take seconds, on a thread; ValueError becomes a 422.

        A job that begins while there is no other may use all cores; others compute on one.
        """
        if len(self._jobs) >= self.config.max_jobs:
            raise overloaded()
        is_over = threading.Event()

        def check() -> None:
            if is_over.is_set():
                raise CancelledError

        def run() -> Result:
            with limited_threads(num_threads() if len(self._jobs) == 1 else 1, "jobs"):
                return job(check)

        self._jobs.add(is_over)
        submitted = thread_pool("jobs", JOB_THREADS).submit(run)
        submitted.add_done_callback(lambda _: self._jobs.discard(is_over))
        try:
            return await self._wait_for(request, asyncio.wrap_future(submitted))
        except ValueError as error:
            raise invalid_request(str(error)) from error
        finally:
            is_over.set()

    async def _wait_for(
        self, request: Request, result: asyncio.Future[Result], timeout_factor: float = 1
    ) -> Result:
        """Wait for a result; cancel the work after the timeout or when the client has gone."""
        gone = asyncio.ensure_future(_is_gone(request))
        timeout = self.config.timeout * timeout_factor
        try:
            await asyncio.wait({result, gone}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if result.done():
                return result.result()
            if gone.done():
                raise client_gone()
            message = f"no answer within {timeout:g} seconds"
            raise RequestError(503, "timeout", message, {"retry-after": "5"})
        finally:
            result.cancel()
            gone.cancel()

    # --- Uses of words ---

    def uses(self, word: str, sentences: Sequence[Words] | None, check: Check) -> WordUses:
        """The uses of a word in sentences of a request, or else in the corpus.

        Raises:
            RequestError: There is no corpus.
            CancelledError: Nobody waits for the job any more.
        """
        if sentences is not None:
            return self._embed_uses(uses_of(word, words) for words in sentences)
        if self._corpus is None:
            raise invalid_request(
                "this server has no corpus: send `sentences`, or start it with --corpus"
            )
        cache = self._uses_in_corpus
        with self._searching:  # simultaneous requests of a word are one search
            if (word_uses := cache.get(word)) is None:
                word_uses = cache[word] = self._embed_uses(self._corpus.uses(word, check))
                if len(cache) > WORDS_CACHED:
                    del cache[next(iter(cache))]
        return word_uses

    def _embed_uses(self, uses: Iterable[Iterable[Use]]) -> WordUses:
        # With the seed of a map, so that a sample for a map is one of all uses.
        sample, count = sample_uses(chain.from_iterable(uses), SAMPLED_USES, SEED)
        while len(sample) > FEW_USES and cost({use.sentence for use in sample}) > SAMPLED_WORDS:
            sample, _ = sample_uses(sample, len(sample) * 3 // 4, SEED)
        vectors = UseVectors.of(sample, self.embedder)
        return WordUses({use: row for row, use in enumerate(sample)}, vectors, count)

    def corpus_sentences(self) -> Iterator[tuple[str, ...]]:
        """Stream the sentences of the server's corpus, if it has one."""
        if self._corpus is not None:
            for _, sentence in self._corpus.sentences():
                yield sentence


async def _is_gone(request: Request) -> None:
    """Wait until the client disconnects; call only once the body is read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
