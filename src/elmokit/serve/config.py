"""Settings of the server."""

import math
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ServeConfig:
    """Where the server listens, and its limits."""

    host: str = "127.0.0.1"
    """Address to listen on: 0.0.0.0 for every network of the machine."""
    port: int = 8000
    """Port to listen on; 0: any free one."""
    corpus: Path | None = None
    """Text (plain, .gz or .zst), one sentence per line, or a directory written by `elmokit prepare`, in which uses of
    words are searched (default: none; requests must then contain the sentences)."""
    tokenize: bool = True
    """The corpus is raw text: split it with the model's tokenizer. With --no-tokenize it is tokenized already, with
    spaces between words; the output of `elmokit prepare` is recognized as such."""
    task_model: Path | None = None
    """Directory written by `elmokit fit`, for /predict (default: none)."""
    api_key: str | None = None
    """Key that requests must send as a bearer token (default: the value of the environment variable ELMOKIT_API_KEY,
    or none). The page, /health and /ready need no key."""
    max_words: int = 16_384
    """Maximum number of words in a request, counting one more for each text; larger requests are refused with status
    413."""
    queue_words: int = 65_536
    """Maximum number of words, counted likewise, that wait to be embedded; further requests are refused with status
    429."""
    batch_words: int = 4_096
    """Words, counted likewise, that are embedded together."""
    max_jobs: int = 32
    """Maximum number of requests that wait or run, not counting requests for vectors. The same limit holds separately
    for requests whose long texts are being split into words. Further requests are refused with status 429."""
    max_body: int = 2 << 20
    """Maximum size of a request's body in bytes; larger ones are refused with status 413."""
    timeout: float = 60.0
    """Time limit in seconds for each of four steps: receiving the body (else status 408); splitting its text into words
    (else 503); computing the result (else 503); sending one chunk of the answer (else the connection is closed). The
    answer as a whole has no limit."""

    def __post_init__(self) -> None:
        for name in ("max_words", "queue_words", "batch_words", "max_jobs", "max_body"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.queue_words < self.max_words:
            raise ValueError(
                f"queue_words ({self.queue_words}) must be at least max_words ({self.max_words}), or the largest "
                "request would never be accepted"
            )
        if not 0 < self.timeout < math.inf:
            raise ValueError(f"timeout must be above 0 seconds and finite, not {self.timeout}")
        if not 0 <= self.port <= 65_535:
            raise ValueError(f"port must be from 0 to 65535, not {self.port}")
        if self.api_key is not None and not (self.api_key and self.api_key.isascii() and self.api_key.isprintable()):
            raise ValueError("the API key must consist of printable ASCII characters")
