"""Metrics in Prometheus's format."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from elmokit.serve.engine import BatchMeter

CONTENT_TYPE: str = CONTENT_TYPE_LATEST
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
WORDS = (16, 64, 256, 1024, 4096, 16_384, 65_536)


class Metrics:
    """The server's counters and measurements, in a registry of their own."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        self.requests = Counter(
            "elmokit_requests", "Requests, by endpoint and status", ["endpoint", "status"], registry=registry
        )
        self.seconds = Histogram(
            "elmokit_request_seconds", "Time from request to answer", ["endpoint"], buckets=SECONDS, registry=registry
        )
        self.queue_seconds = Histogram("elmokit_queue_seconds", "Time in the queue", buckets=SECONDS, registry=registry)
        self.batch_words = Histogram("elmokit_batch_words", "Words of a batch", buckets=WORDS, registry=registry)
        self.truncated_words = Counter(
            "elmokit_truncated_words", "Words that were longer than the model reads", registry=registry
        )
        ProcessCollector(registry=registry)

    @property
    def of_batches(self) -> BatchMeter:
        """The callbacks for the engine."""
        return BatchMeter(self.queue_seconds.observe, self.batch_words.observe)

    def observe(self, name: str, meaning: str, value: Callable[[], float]) -> None:
        """Add a gauge whose value is computed whenever the metrics are read."""
        Gauge(name, meaning, registry=self._registry).set_function(value)

    def describe_model(self, labels: Mapping[str, str]) -> None:
        """Add a constant gauge whose labels identify the model."""
        Gauge("elmokit_model_info", "The model", list(labels), registry=self._registry).labels(**labels).set(1)

    def text(self) -> bytes:
        """All metrics, as a text of `CONTENT_TYPE`."""
        return generate_latest(self._registry)
