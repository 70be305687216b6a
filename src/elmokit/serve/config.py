"""Settings of the server."""

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
    words are searched (default: none; requests bring their own sentences)."""
    tokenize: bool = True
    """Raw text in the corpus: split it with the model's tokenizer. With --no-tokenize, it is tokenized: words are
    separated by spaces, as in what `elmokit prepare` writes, which is recognized."""
    task_model: Path | None = None
    """Directory that `elmokit fit` wrote, for /predict (default: none)."""
    api_key: str | None = None
    """Key that requests must bring as a bearer token (default: that of the environment variable ELMOKIT_API_KEY, or
    none). The page, /health and /ready need no key."""
    max_words: int = 16_384
    """Words in one request; more are refused with status 413."""
    queue_words: int = 65_536
    """Words that wait to be embedded; requests beyond are refused with status 429."""
    batch_words: int = 4_096
    """Words that are embedded together."""
    max_jobs: int = 32
    """Requests other than for vectors that may wait; those beyond are refused with status 429."""
    max_body: int = 2 << 20
    """Bytes in the body of a request; more are refused with status 413."""
    timeout: float = 60.0
    """Seconds that a request's body may take to arrive (else status 408), its text to be split into words and its
    result to be computed (else 503 each), and each chunk of its answer to be read by the client (else the connection is
    closed). It is not a limit on the whole answer: a client that reads chunk after chunk may take longer."""

    def __post_init__(self) -> None:
        for name in ("max_words", "queue_words", "batch_words", "max_jobs", "max_body"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.queue_words < self.max_words:
            raise ValueError(
                f"queue_words ({self.queue_words}) must be at least max_words ({self.max_words}), or the largest "
                "request would never be accepted"
            )
        if not self.timeout > 0:
            raise ValueError(f"timeout must be above 0 seconds, not {self.timeout}")
        if not 0 <= self.port <= 65_535:
            raise ValueError(f"port must be from 0 to 65535, not {self.port}")
        if self.api_key is not None and not (self.api_key and self.api_key.isascii() and self.api_key.isprintable()):
            raise ValueError("the API key must consist of printable ASCII characters")
