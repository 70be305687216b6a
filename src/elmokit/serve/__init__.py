"""`elmokit serve`: a model behind HTTP, and a page to look at it (extra `serve`).

Here are its settings alone, which need no library of the extra.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from elmokit.settings import Between, Count, Positive, check


@dataclass(frozen=True)
class ServeConfig:
    """Where the server listens, and its limits."""

    host: str = "127.0.0.1"
    """Address to listen on: 0.0.0.0 for every network of the machine, which needs a key."""
    port: Annotated[int, Between(0, 65_535)] = 8000
    """Port to listen on; 0: any free one."""
    name: str | None = None
    """Name of the model in requests and answers (default: that of its directory)."""
    corpus: Path | None = None
    """Text (plain, .gz or .zst), one sentence per line, or a directory written by `elmokit
    prepare`, in which uses of words are searched (default: for an English model a small corpus that
    comes with elmokit; for others none, so that requests must contain the sentences).
    """
    tokenize: bool = True
    """The corpus is raw text: split it with the model's tokenizer. With --no-tokenize it is
    tokenized already, with spaces between words; the output of `elmokit prepare` is recognized as
    such.
    """
    task_model: Path | None = None
    """Directory written by `elmokit fit`, for /predict (default: none)."""
    api_key: str | None = None
    """Key that requests must send as a bearer token (default: the value of the environment variable
    ELMOKIT_API_KEY, or none). The page, /health and /ready need no key.
    """
    cors: tuple[str, ...] = ()
    """Origins of web pages on other sites that may use the server, such as https://example.org, or
    * for all (default: none).
    """
    max_words: Count = 16_384
    """Maximum number of words in a request, counting one more for each text, or 8 times as many
    where a text gets one vector, but no more in a single text; larger requests are refused with
    status 413.
    """
    queue_words: Count = 65_536
    """Number of words, counted likewise, that wait to be embedded, from which on requests are
    refused with status 429; of a request that is larger than a batch, the words of its next batch
    count.
    """
    batch_words: Count = 4_096
    """Words, counted likewise, that are embedded together; larger requests are embedded in turn
    with others.
    """
    max_jobs: Count = 32
    """Maximum number of jobs that wait or run: requests for other results than vectors, and the
    splitting of long texts into words. Further ones are refused with status 429.
    """
    max_body: Count = 2 << 20
    """Maximum size of a request's body in bytes; larger ones are refused with status 413."""
    timeout: Positive = 60.0
    """Time limit in seconds for a result (else status 503), longer for more than `max_words`
    words; and for the requests in progress when the server is stopped.
    """

    def __post_init__(self) -> None:
        check(self)
        if self.api_key is not None and not (
            self.api_key and self.api_key.isascii() and self.api_key.isprintable()
        ):
            raise ValueError("the API key must consist of printable ASCII characters")
        for origin in self.cors:
            if origin != "*" and not re.fullmatch(r"https?://[^/]+", origin):
                raise ValueError(f"cors: {origin!r} is no origin, such as https://example.org")
