"""Endpoints of vectors over a socket, against the `Embedder` of the same model; OpenAI's client among the callers."""

from __future__ import annotations

import base64
import json
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="no FastAPI: pip install fastapi (elmokit's extra serve)")
pytest.importorskip("httpx", reason="no httpx to ask the server with")

import httpx
from bundled_model import WIDTH
from running_server import RunningServer
from safetensors.numpy import load as from_safetensors

from elmokit.embed.embedder import Embedder

TEXTS = ["The old man sat near the fire.", "", "He said: \u201cI don't know, 小王!\u201d \x00\u0301", "play"]
NEAR = {"rtol": 0, "atol": 1e-5}


def lines_of(number: int) -> list[str]:
    """Texts that differ from those of other numbers."""
    return [f"Text {number} of many, {word} and {number * 7}." for word in ("apples", "the sea", "nothing")]


# --- OpenAI ----------------------------------------------------------------------------------------------------------


def test_openai_client_gets_the_vectors_of_the_embedder(server: RunningServer, embedder: Embedder) -> None:
    openai = pytest.importorskip("openai", reason="no OpenAI client: pip install openai")
    expected = embedder.encode(TEXTS, normalize_embeddings=True)
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        assert [model.id for model in client.models.list()] == ["en-small"]
        for encoding in ({}, {"encoding_format": "float"}, {"encoding_format": "base64"}):
            answer = client.embeddings.create(model="en-small", input=TEXTS, **encoding)
            got = [each.embedding for each in answer.data]
            if encoding.get("encoding_format") == "base64":  # which the client decodes only where it chose it
                got = [np.frombuffer(base64.b64decode(each), "<f4") for each in got]
            np.testing.assert_allclose(got, expected, **NEAR)
            assert [each.index for each in answer.data] == [0, 1, 2, 3] and answer.model == "en-small"
            assert answer.usage.prompt_tokens == sum(len(embedder.tokenize(text)) for text in TEXTS)
        with pytest.raises(openai.NotFoundError, match="there is no model 'gpt'"):
            client.embeddings.create(model="gpt", input="a")
        with pytest.raises(openai.UnprocessableEntityError, match=f"vectors have {WIDTH}"):
            client.embeddings.create(model="en-small", input="a", dimensions=100)


def test_large_answer_in_chunks_is_that_of_small_ones(server: RunningServer) -> None:
    texts = [f"text {number}" for number in range(600)]  # more numbers than go into one chunk
    answer = server.post("/v1/embeddings", {"input": texts})
    assert answer.headers.get("transfer-encoding") == "chunked"
    data = answer.json()["data"]
    assert [each["index"] for each in data] == list(range(600)) and answer.json()["usage"]["total_tokens"] == 1200
    for first in (0, 255, 256, 590):
        small = server.post("/v1/embeddings", {"input": texts[first : first + 10]})
        assert "transfer-encoding" not in small.headers
        vectors = [each["embedding"] for each in data[first : first + 10]]
        np.testing.assert_allclose(vectors, [each["embedding"] for each in small.json()["data"]], **NEAR)


def test_vectors_are_those_of_a_lone_request_when_many_come_at_once(server: RunningServer, embedder: Embedder) -> None:
    requests = 60

    def ask(number: int) -> list[list[float]]:
        return server.post("/embed", {"inputs": lines_of(number)}).json()

    batches = server.metric("elmokit_batch_words_count")
    with ThreadPoolExecutor(30) as pool:
        answers = list(pool.map(ask, range(requests)))
    for number, vectors in enumerate(answers):
        np.testing.assert_allclose(vectors, embedder.encode(lines_of(number), normalize_embeddings=True), **NEAR)
    assert server.metric("elmokit_batch_words_count") - batches < requests  # some were embedded together


# --- text-embeddings-inference ---------------------------------------------------------------------------------------


def test_embed_takes_a_string_strings_and_words(server: RunningServer, embedder: Embedder) -> None:
    words = [embedder.tokenize(text) for text in TEXTS]
    expected = embedder.encode(TEXTS, normalize_embeddings=True)
    np.testing.assert_allclose(server.post("/embed", {"inputs": TEXTS[0]}).json(), expected[:1], **NEAR)
    for inputs in (TEXTS, words):
        answer = server.post("/embed", {"inputs": inputs, "truncate": True, "unknown": 1})
        np.testing.assert_allclose(answer.json(), expected, **NEAR)
    plain = server.post("/embed", {"inputs": TEXTS, "normalize": False, "pooling": "max", "layers": 0}).json()
    np.testing.assert_allclose(plain, embedder.encode(TEXTS, "max", layers=0), **NEAR)


def test_embed_all_gives_every_word_and_every_layer(server: RunningServer, embedder: Embedder) -> None:
    for layers in ("mix", "top", "all"):
        answer = server.post("/embed_all", {"inputs": TEXTS, "layers": layers}).json()
        for vectors, expected in zip(answer, embedder.embed(TEXTS, layers), strict=True):
            expected = np.moveaxis(expected, 0, 1) if layers == "all" else expected
            assert len(vectors) == len(expected)
            if len(vectors):
                np.testing.assert_allclose(vectors, expected, **NEAR)


def test_embed_all_is_the_same_in_chunks_and_as_safetensors(server: RunningServer, embedder: Embedder) -> None:
    texts = ["one two three " * 200, "", "a b"]  # more numbers than go into one chunk
    expected = embedder.embed(texts)
    answer = server.post("/embed_all", {"inputs": texts})
    assert answer.headers.get("transfer-encoding") == "chunked"
    binary = server.post("/embed_all", {"inputs": texts}, headers={"accept": "application/octet-stream"}).content
    arrays = from_safetensors(binary)
    header = json.loads(binary[8 : 8 + int.from_bytes(binary[:8], "little")])
    assert json.loads(header["__metadata__"]["tokens"]) == expected.tokens
    for number, vectors in enumerate(expected):
        np.testing.assert_allclose(arrays[str(number)], vectors, **NEAR)
        np.testing.assert_allclose(np.array(answer.json()[number]).reshape(vectors.shape), vectors, **NEAR)


def test_similarity_is_the_cosine_of_the_texts(server: RunningServer, embedder: Embedder) -> None:
    vectors = embedder.encode(TEXTS, normalize_embeddings=True)
    answer = server.post("/similarity", {"inputs": {"source_sentence": TEXTS[0], "sentences": TEXTS}}).json()
    np.testing.assert_allclose(answer, vectors @ vectors[0], **NEAR)


def test_no_similarity_is_above_one(server: RunningServer) -> None:
    for number in range(20):
        text = f"The play {number} was long."
        (same,) = server.post("/similarity", {"inputs": {"source_sentence": text, "sentences": [text]}}).json()
        assert 1 - 1e-6 < same <= 1


def test_tokenize_says_where_words_are_and_which_are_known(server: RunningServer, embedder: Embedder) -> None:
    texts, vocab = ["I don't  like xqzt.", ["a", "b"]], embedder.model.vocab
    assert vocab is not None
    first, second = server.post("/tokenize", {"inputs": texts}).json()
    assert [token["text"] for token in first] == ["I", "do", "n't", "like", "xqzt", "."]
    assert [texts[0][token["start"] : token["stop"]] for token in first] == [token["text"] for token in first]
    assert [vocab.words[token["id"]] for token in first] == ["I", "do", "n't", "like", "<UNK>", "."]
    assert [token["start"] for token in second] == [None, None]


def test_tokenize_finds_words_with_invisible_characters_in_them(server: RunningServer) -> None:
    text = "An ex\u00adample of it. Another example of it."
    (tokens,) = server.post("/tokenize", {"inputs": text}).json()
    places = [text[token["start"] : token["stop"]] for token in tokens]
    assert places == ["An", "ex\u00adample", "of", "it", ".", "Another", "example", "of", "it", "."]


def test_long_text_is_tokenized_while_others_are_answered(server: RunningServer) -> None:
    text = "q\u00adz " * 4_000 + "q" * 1_900_000
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(server.post, "/tokenize", {"inputs": text})
        slowest = 0.0
        while not late.done():
            began = time.monotonic()
            assert httpx.get(f"{server.url}/health").status_code == 200
            slowest = max(slowest, time.monotonic() - began)
        (tokens,) = late.result().json()
    assert slowest < 5  # searching the whole text for every word took half a minute
    assert [tokens[0][end] for end in ("start", "stop")] == [0, 3] and tokens[-1]["stop"] == len(text)


def test_clients_of_text_embeddings_inference_may_post_to_the_address_itself(
    server: RunningServer, embedder: Embedder
) -> None:
    hub = pytest.importorskip("huggingface_hub", reason="no huggingface_hub: pip install huggingface_hub")
    (vector,) = hub.InferenceClient(server.url).feature_extraction(TEXTS[0])
    np.testing.assert_allclose(vector, embedder.encode(TEXTS[0], normalize_embeddings=True), **NEAR)
    answer = server.post("/", {"inputs": TEXTS, "normalize": None, "truncate": None})
    assert answer.json() == server.post("/embed", {"inputs": TEXTS}).json()


# --- Limits ----------------------------------------------------------------------------------------------------------


def test_words_that_are_cut_are_counted(server: RunningServer) -> None:
    before = server.metric("elmokit_truncated_words_total")
    answer = server.post("/embed", {"inputs": ["short " + "long" * 30, "x" * 49]})
    assert answer.headers["x-truncated-words"] == "2"
    assert server.metric("elmokit_truncated_words_total") == before + 2


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/embed", {"inputs": "word " * 16_400}, 413, "are too many: send at most 16,384 in a request"),
        ("/embed", {"inputs": []}, 422, "inputs"),
        ("/embed", {"inputs": ["a"] * 2049}, 422, "at most 2048"),
        ("/embed", {"inputs": "a", "layers": 3}, 422, "this model has the layers 0 to 2"),
        ("/embed", {"inputs": "a", "layers": "all"}, 422, "layers"),
        ("/embed", {"inputs": "a", "layers": True}, 422, "layers"),
        ("/embed", {"inputs": "a", "pooling": "median"}, 422, "'mean' or 'max'"),
        ("/v1/embeddings", {"input": [1, 2, 3]}, 422, "input: token ids mean nothing to this model: send strings"),
        ("/v1/embeddings", {"input": [[1, 2], [3]]}, 422, "input: token ids mean nothing"),
        ("/v1/embeddings", {"input": "a", "encoding_format": "hex"}, 422, "encoding_format"),
        ("/similarity", {"inputs": {"sentences": ["a"]}}, 422, "inputs.source_sentence: Field required"),
        ("/tokenise", {"inputs": "a"}, 404, "POST /tokenise"),
    ],
)
def test_bad_request_says_what_is_wrong(
    path: str, body: dict[str, object], status: int, message: str, server: RunningServer
) -> None:
    answer = server.post(path, body)
    assert answer.status_code == status and message in answer.json()["error"]["message"]
    assert "\n" not in answer.json()["error"]["message"]
