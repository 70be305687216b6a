"""The application: what is refused before a body is read, the page and what it shows of the corpus,
errors, and the endpoints of the server itself.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import random
import re
import socket
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import cache, lru_cache
from importlib import resources
from ipaddress import ip_address
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.middleware.body_limit import RequestBodyLimitMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import elmokit
from elmokit.analysis.uses import Use, UseVectors, unit_vectors
from elmokit.analysis.word_map import page_part
from elmokit.data import chunks
from elmokit.serve import endpoints
from elmokit.serve.endpoints import KEY
from elmokit.serve.schemas import ErrorAnswer, RequestError, error_response
from elmokit.serve.service import Service

# May be read without the key, and by links on other sites.
OPEN = {"/", "/openapi.json", "/health", "/ready"}

# corpus.md beside it says where it comes from.
BUNDLED_CORPORA = {
    "en": Path(__file__).with_name("corpus.txt.zst"),
    "zh": Path(__file__).with_name("corpus-zh.txt.zst"),
}
EXAMPLES = ("bank", "letter", "apple", "lead", "play", "spring")
EXAMPLES += ("苹果", "意思", "包袱", "打", "花", "算账")
WORDS_READ = 1_000_000  # words read of a large corpus: lines may be whole documents
LEAST_USES = 8  # minimum number of uses of an offered word
GRAMMAR_WORDS = 250  # the most frequent words, which say little about their neighbors
WORDS_OFFERED = 2000  # the most frequent words after them
PAIRS = 200  # pairs of uses whose similarities are the yardstick


# --- The gate -------------------------------------------------------------------------------------


def allowed_hosts(host: str) -> list[str]:
    """Names in the header Host that a server listening on an address accepts; "*" is every name.

    A web page can let its own name point to 127.0.0.1 (DNS rebinding): a browser then takes a
    server on its user's machine for the page's own, and lets the page read its answers. The header
    still has the page's name.
    """
    address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][4][0]
    if not ip_address(str(address).partition("%")[0]).is_loopback:
        return ["*"]
    return ["localhost", "127.0.0.1", "[::1]", f"[{host}]" if ":" in host else host]


class Gate:
    """ASGI middleware: refuses requests by their headers, and records metrics."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._config, self._metrics = app, service.config, service.metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began, status = time.perf_counter(), 500

        async def send_and_note(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        with self._metrics.in_progress.track_inprogress():
            try:
                refusal = self._refusal(scope)
                answer = self._app if refusal is None else error_response(refusal)
                await answer(scope, receive, send_and_note)
            finally:
                endpoint = getattr(scope.get("route"), "path", "other")
                seconds = time.perf_counter() - began
                self._metrics.requests.labels(endpoint, status).observe(seconds)

    def _refusal(self, scope: Scope) -> RequestError | None:
        """The reason to refuse a request; None if there is none."""
        if scope["method"] in ("GET", "HEAD") and scope["path"] in OPEN:
            return None
        headers = dict(scope["headers"])
        if self._is_foreign(headers):
            message = (
                "a page of another site asks: the server must be started with --cors and that "
                "page's origin"
            )
            return RequestError(403, "origin_not_allowed", message)
        if (key := self._config.api_key) is None:
            return None
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() == b"bearer" and hmac.compare_digest(given, key.encode()):
            return None
        if scheme:
            code, message = "wrong_key", "this is not the API key of this server"
        else:
            code, message = "missing_key", "this server needs its API key"
        bearer = {"www-authenticate": "Bearer"}
        return RequestError(401, code, f"{message}: Authorization: Bearer KEY", bearer)

    def _is_foreign(self, headers: dict[bytes, bytes]) -> bool:
        """Whether a browser sends the request for another site's page."""
        origin, site = headers.get(b"origin"), headers.get(b"sec-fetch-site")
        if {"*", (origin or b"").decode("latin-1")} & set(self._config.cors):
            return False
        if site is not None:
            return site not in (b"same-origin", b"none")
        return origin is not None and origin.partition(b"://")[2] != headers.get(b"host")


# --- The page -------------------------------------------------------------------------------------


@cache
def page() -> Response:
    """The page, with a CSP restricted to its hashed style and script.

    It shares the map of a word with the pages of `elmokit senses`.
    """
    frame, style, script = (
        resources.files("elmokit.serve").joinpath(f"page.{kind}").read_text("utf-8")
        for kind in ("html", "css", "js")
    )
    parts = {
        "style": page_part("word_map.css") + style,
        "script": page_part("word_map.js") + "\n" + script,
    }
    sources = {}
    for name, text in parts.items():
        # without comments and indentation
        text = re.sub(r"^ *(//.*)?\n|^ +|  //.*$", "", f"\n{text}", flags=re.MULTILINE)
        frame = frame.replace(f"{{{name}}}", text)
        digest = hashlib.sha256(f"\n{text}\n".encode()).digest()
        sources[name] = f"'sha256-{base64.b64encode(digest).decode()}'"
    policy = (
        f"default-src 'none'; script-src {sources['script']}; style-src {sources['style']}; "
        "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    headers = {
        "content-security-policy": policy,
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
        "cache-control": "no-cache",
    }
    return Response(frame, headers=headers, media_type="text/html")


@lru_cache(maxsize=1)
def read_corpus(service: Service) -> tuple[dict[str, Any], list[Use]]:
    """Payload of /explore/corpus, and sample use pairs."""
    sentences = next(chunks(service.corpus_sentences(), WORDS_READ), [])
    counts = Counter(chain.from_iterable(sentences))
    words = [word for word, _ in counts.most_common() if word.isalpha() and word == word.lower()]
    grammar = words[:GRAMMAR_WORDS]
    frequent = words[GRAMMAR_WORDS : GRAMMAR_WORDS + WORDS_OFFERED]
    offered = [word for word in frequent if counts[word] >= LEAST_USES]
    examples = [word for word in EXAMPLES if counts[word] >= LEAST_USES]
    drawn = random.Random(0)
    measured = set(drawn.sample(offered, min(PAIRS, len(offered))))
    uses: defaultdict[str, list[Use]] = defaultdict(list)
    for sentence in sentences:
        for position, word in enumerate(sentence):
            if word in measured:
                uses[word].append(Use(tuple(sentence), position).window(50))
    corpus = service.config.corpus
    answer = {
        "name": None if corpus in (None, *BUNDLED_CORPORA.values()) else corpus.name,
        "sentences": len(sentences),
        "words": counts.total(),
        "examples": examples if len(examples) > 3 else offered[:6],
        "frequent": offered,
        "grammar": grammar,
    }
    return answer, [use for word in sorted(uses) for use in drawn.sample(uses[word], 2)]


@lru_cache(maxsize=1)
def measure_pairs(service: Service) -> list[dict[str, Any]]:
    """For each layer, 21 quantiles of the cosines of two random uses.

    `same_word` are pairs of uses of one word, `other_word` pairs of uses of two words.
    """
    _, uses = read_corpus(service)
    if not uses:
        return []
    vectors = UseVectors.of(uses, service.embedder).words
    steps = np.linspace(0, 1, 21)
    quantiles = []
    for layer in range(vectors.shape[1]):
        units = unit_vectors(vectors[:, layer])
        first, second = units[::2], units[1::2]
        same = (first * second).sum(axis=1)
        other = (first @ second.T)[~np.eye(len(first), dtype=bool)]
        quantiles.append(
            {
                "same_word": np.quantile(same, steps).tolist(),
                "other_word": np.quantile(other, steps).tolist(),
            }
        )
    return quantiles


# --- Endpoints of the server itself, and of its page ----------------------------------------------

router = APIRouter(tags=["server"])


@router.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
async def get_page() -> Response:
    """The page."""
    return page()


@router.head("/ready", include_in_schema=False)
@router.head("/health", include_in_schema=False)
@router.get("/ready")
@router.get("/health")
async def health() -> dict[str, str]:
    """The server accepts requests."""
    return {"status": "ok"}


@router.get("/info", dependencies=[KEY])
async def info(request: Request) -> dict[str, Any]:
    """The model, what it can do, and the limits of requests."""
    service: Service = request.app.state.service
    embedder, limits = service.embedder, ("max_words", "queue_words", "max_body", "timeout")
    return {
        "version": elmokit.__version__,
        "model": service.name,
        "dim": embedder.dim,
        "layers": embedder.num_layers,
        "language": embedder.model.language,
        "tokenizer": embedder.model.tokenizer,
        "vocabulary": None if embedder.model.vocab is None else len(embedder.model.vocab),
        "predicts_words": service.predicts_words,
        "task": None if service.task_model is None else service.task_model.task.name,
        "has_corpus": service.config.corpus is not None,
        "limits": {name: getattr(service.config, name) for name in limits},
    }


@router.get("/metrics", dependencies=[KEY], response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """Metrics for Prometheus."""
    registry = request.app.state.service.metrics.registry
    return Response(generate_latest(registry), headers={"content-type": CONTENT_TYPE_LATEST})


@router.get("/v1/models", dependencies=[KEY])
async def models(request: Request) -> dict[str, Any]:
    """The one model of this server, in the form of OpenAI's API."""
    return {"object": "list", "data": [await model(request, request.app.state.service.name)]}


@router.get("/v1/models/{name:path}", dependencies=[KEY])
async def model(request: Request, name: str) -> dict[str, Any]:
    """The model of this name, in the form of OpenAI's API."""
    request.app.state.service.check_name(name)
    return {"id": name, "object": "model", "created": 0, "owned_by": "elmokit"}


async def _computed(request: Request, compute: Callable[[Service], Any]) -> Any:
    service = request.app.state.service
    return await service.run(request, lambda check: compute(service))


@router.get("/explore/corpus", include_in_schema=False)
async def corpus(request: Request) -> Any:
    """The corpus's name (null: the bundled one), its size, words to look at, its frequent and its
    grammar words.
    """
    answer, _ = await _computed(request, read_corpus)
    return answer


@router.get("/explore/yardstick", include_in_schema=False)
async def yardstick(request: Request) -> Any:
    """For each layer, quantiles (steps of 5 %) of the similarities of random pairs of uses."""
    return await _computed(request, measure_pairs)


# --- The application ------------------------------------------------------------------------------


async def _refused(request: Request, error: Any) -> Response:
    return error_response(error)


async def _failed(request: Request, error: Exception) -> Response:
    return error_response(
        RequestError(500, "internal_error", "the request failed; the server's log says why")
    )


def create_app(service: Service) -> FastAPI:
    """The application of a service."""
    app = FastAPI(
        title="elmokit",
        version=elmokit.__version__,
        docs_url=None,  # a page that loads its scripts from another host
        redoc_url=None,
        redirect_slashes=False,
        responses={"default": {"model": ErrorAnswer}},
        exception_handlers={HTTPException: _refused, Exception: _failed},
    )
    app.state.service = service
    app.include_router(endpoints.router)
    app.include_router(router)
    # From the innermost to the outermost.
    app.add_middleware(RequestBodyLimitMiddleware, max_body_size=service.config.max_body)
    app.add_middleware(Gate, service=service)
    if origins := service.config.cors:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["retry-after", "x-truncated-words"],
        )
    hosts = allowed_hosts(service.config.host)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False)
    return app
