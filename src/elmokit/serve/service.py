"""Everything that outlives a request: the model, the queues, the metrics, and whether the server is draining."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from fastapi import Request

import elmokit
from elmokit.analysis.uses import Use, uses_in_files, uses_of
from elmokit.checkpoints.loading import DEFAULT_MODEL, model_of
from elmokit.data.corpus import find_files
from elmokit.data.text_files import file_tokenizers
from elmokit.embed.embedder import Embedder
from elmokit.serve.config import ServeConfig
from elmokit.serve.engine import Engine, cost
from elmokit.serve.errors import RequestError
from elmokit.serve.exchange import answer
from elmokit.serve.jobs import Job, JobQueue
from elmokit.serve.metrics import Metrics
from elmokit.serve.schemas import Text
from elmokit.tasks.fitting.model import TaskModel, load_task_model
from elmokit.text.tokenizers import TOKENIZED, get_tokenizer

Result = TypeVar("Result")
Words = Sequence[str]
INLINE_CHARACTERS = 4_000  # tokenized on the event loop, in a millisecond or two; longer texts go to a thread


class Service:
    """A model with its queues and metrics. `close` ends its threads."""

    def __init__(
        self, embedder: Embedder, config: ServeConfig, name: str = DEFAULT_MODEL, task_model: TaskModel | None = None
    ) -> None:
        """Start the threads.

        Args:
            embedder: The model; with its softmax, if it is to predict words.
            config: The corpus, the key and the limits.
            name: The model's name, which requests may give.
            task_model: The model for /predict; None: /predict answers "not found".

        Raises:
            FileNotFoundError: The corpus does not exist.
            ValueError: The corpus is not text in UTF-8.

        Warns:
            UserWarning: The corpus does not look like what it is read as, such as raw text.
        """
        self.embedder, self.config, self.name, self.task_model = embedder, config, name, task_model
        self.corpus = find_files([config.corpus]) if config.corpus is not None else []
        tokenizer = embedder.model.tokenizer
        self._corpus_tokenizers = file_tokenizers(self.corpus, tokenizer, config.tokenize)
        self.fingerprint = embedder.fingerprint()
        self.metrics = Metrics()
        self.engine = Engine(embedder, config.queue_words, config.batch_words, self.metrics.of_batches)
        self.jobs = JobQueue(config.max_jobs)
        self.metrics.observe("elmokit_queue_words", "Words that wait to be embedded", lambda: self.engine.words_waiting)
        self.metrics.observe("elmokit_jobs", "Other requests that wait or run", lambda: self.jobs.waiting)
        self.metrics.observe("elmokit_requests_in_progress", "Requests without an answer", lambda: self.in_progress)
        self.metrics.describe_model({"name": name, "fingerprint": self.fingerprint, "version": elmokit.__version__})
        self.in_progress = 0  # requests without an answer
        self.is_draining = False
        self._tokenize = get_tokenizer(tokenizer or TOKENIZED).tokenize
        self._tokenizing = JobQueue(config.max_jobs, "elmokit-tokenizer")

    @classmethod
    def load(
        cls, model: str | Path | None, config: ServeConfig, device: str | None = None, dtype: str | None = None
    ) -> Service:
        """Load the models.

        Args:
            model: As in `elmokit.load`.
            config: The settings, including the task model.
            device: As in `Embedder`.
            dtype: As in `Embedder`.

        Raises:
            FileNotFoundError, ValueError: As `Embedder` and `load_task_model`, or the corpus does not exist or is not
                text.
        """
        embedder = Embedder(model, device, dtype, softmax=True)
        embedder.embed([["a"]])  # the first sentence takes longer: let it not be a client's
        name = DEFAULT_MODEL if model is None else model_of(Path(model).expanduser()).resolve().name
        task_model = load_task_model(config.task_model, device) if config.task_model is not None else None
        return cls(embedder, config, name, task_model)

    def close(self) -> bool:
        """Answer the requests that wait, and end the threads; False if one still runs an abandoned job."""
        self.engine.close()
        return all([self._tokenizing.close(), self.jobs.close()])  # a list, so that both are closed

    @property
    def predicts_words(self) -> bool:
        """Whether the model is a language model with its softmax and vocabulary."""
        model = self.embedder.model
        return model.softmax is not None and model.vocab is not None and model.config.sequence_encoder.predicts_words

    def describe(self) -> dict[str, Any]:
        """The model and the limits, as JSON values."""
        config, model = self.config, self.embedder.model
        return {
            "version": elmokit.__version__,
            "model": self.name,
            "fingerprint": self.fingerprint,
            "dim": self.embedder.dim,
            "layers": self.embedder.num_layers,
            "tokenizer": model.tokenizer,
            "vocabulary": None if model.vocab is None else len(model.vocab),
            "predicts_words": self.predicts_words,
            "task": None if self.task_model is None else self.task_model.task.name,
            "has_corpus": bool(self.corpus),
            "limits": {name: getattr(config, name) for name in ("max_words", "queue_words", "max_body", "timeout")},
        }

    # --- Text --------------------------------------------------------------------------------------------------------

    def split(self, text: Text) -> Words:
        """The words of a text; a string is split like the model's training text."""
        return self._tokenize(text) if isinstance(text, str) else text

    async def map_texts(
        self, request: Request, convert: Callable[..., Result], texts: Sequence[Any], *more: Sequence[Any]
    ) -> list[Result]:
        """`map(convert, texts, *more)` as a list; long texts are converted on a thread.

        Raises:
            RequestError: It takes too long, or too many requests wait for the thread.
            ClientGone: The client closed the connection meanwhile.
        """
        if sum(len(text) for text in texts if isinstance(text, str)) <= INLINE_CHARACTERS:
            return list(map(convert, texts, *more))

        def convert_all(job: Job) -> list[Result]:
            return list(map(convert, job.while_wanted(texts), *more))

        return await answer(request, self._tokenizing.submit(convert_all), self.config.timeout)

    async def words_of(self, request: Request, texts: Sequence[Text]) -> list[Words]:
        """The words of each text; those that are too long for the model are counted in the metrics.

        Raises:
            RequestError: There are too many words for a request; or as `map_texts`.
            ClientGone: As `map_texts`.
        """
        sentences = await self.map_texts(request, self.split, texts)
        self.check_words(sentences)
        self.metrics.truncated_words.inc(self.count_truncated(sentences))
        return sentences

    def count_truncated(self, sentences: Iterable[Words]) -> int:
        """The number of words that are longer than the model can read, so that it sees only their beginnings."""
        return sum(map(self.embedder.count_truncated, sentences))

    def check_words(self, sentences: Iterable[Words]) -> None:
        """RequestError if sentences have more words than a request may have."""
        if (words := cost(sentences)) > self.config.max_words:
            raise RequestError(
                "too_large",
                f"{words:,} words (counting one more for each text) are too many: send at most "
                f"{self.config.max_words:,} in a request",
            )

    def uses(self, word: str, sentences: Sequence[Words] | None, job: Job) -> Iterable[list[Use]]:
        """The uses of a word in each sentence that has any: in those of a request, or else in the server's corpus.

        Raises:
            RequestError: There is no corpus.
            Abandoned: During iteration, if nobody waits for the job any more.
            RuntimeError: During iteration, if the corpus cannot be read.
        """
        if sentences is not None:
            return (uses for uses in (uses_of(word, words) for words in sentences) if uses)
        if not self.corpus:
            raise RequestError(
                "invalid_request", "this server has no corpus: send `sentences`, or start it with --corpus"
            )
        return self._uses_in_corpus(word, job)

    def _uses_in_corpus(self, word: str, job: Job) -> Iterator[list[Use]]:
        options = {"tokenizers": self._corpus_tokenizers, "progress": False, "on_line": job.check}
        try:
            yield from uses_in_files(word, self.corpus, self.embedder, self.config.tokenize, **options)
        except ValueError as error:  # for which the client's request would be blamed
            raise RuntimeError(f"the server's corpus cannot be read: {error}") from error
