"""Endpoints over a socket, against the functions of the package; OpenAI's client is among the
callers.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from bundled_model import WIDTH
from running_server import CORPUS, RunningServer
from safetensors.numpy import load as from_safetensors
from tiny_model import tiny_model
from toy_encoders import CONFIGS

from elmokit.analysis.similarity import compare, neighbors
from elmokit.analysis.word_map import senses
from elmokit.checkpoints.pretrained import Pretrained
from elmokit.embed.embedder import Embedder
from elmokit.lm.candidates import next_words, substitutes
from elmokit.lm.scoring import score
from elmokit.nn.bilm import BiLM
from elmokit.nn.softmax import FullSoftmax
from elmokit.serve import ServeConfig
from elmokit.serve.service import Service
from elmokit.tasks.fitting.model import TaskModel
from elmokit.text.vocab import Vocab

TEXTS = [
    "The old man sat near the fire.",
    "...",
    "He said: \u201cI don't know, 小王!\u201d \x00\u0301",
    "play",
]
NEAR = {"rtol": 0, "atol": 1e-5}
VERB = "They play in the garden."
NOUN = "The play was long."
VOCAB = Vocab(["<S>", "</S>", "<UNK>", "the", "play"])
Ask = Callable[..., list[httpx.Response]]

# --- Vectors --------------------------------------------------------------------------------------


def test_openai_client_gets_the_vectors_of_the_embedder(
    server: RunningServer, embedder: Embedder
) -> None:
    openai = pytest.importorskip("openai", reason="no OpenAI client: pip install openai")
    expected = embedder.encode(TEXTS, normalize_embeddings=True)
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        assert (
            [model.id for model in client.models.list()]
            == [client.models.retrieve("en-small").id]
            == ["en-small"]
        )
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve("gpt")
        for encoding in ({}, {"encoding_format": "float"}, {"encoding_format": "base64"}):
            answer = client.embeddings.create(model="en-small", input=TEXTS, **encoding)
            got = [each.embedding for each in answer.data]
            if (
                encoding.get("encoding_format") == "base64"
            ):  # which the client decodes only where it chose it
                got = [np.frombuffer(base64.b64decode(each), "<f4") for each in got]
            np.testing.assert_allclose(got, expected, **NEAR)
            assert [each.index for each in answer.data] == [
                0,
                1,
                2,
                3,
            ]
            assert answer.model == "en-small"
            assert answer.usage.prompt_tokens == sum(len(embedder.tokenize(text)) for text in TEXTS)
        with pytest.raises(openai.NotFoundError, match="there is no model 'gpt'"):
            client.embeddings.create(model="gpt", input="a")
        with pytest.raises(openai.UnprocessableEntityError, match=f"vectors have {WIDTH}"):
            client.embeddings.create(model="en-small", input="a", dimensions=100)


def test_embed_takes_a_string_strings_and_words(server: RunningServer, embedder: Embedder) -> None:
    expected = embedder.encode(TEXTS, normalize_embeddings=True)
    np.testing.assert_allclose(
        server.post("/embed", {"inputs": TEXTS[0]}).json(), expected[:1], **NEAR
    )
    for inputs in (TEXTS, [embedder.tokenize(text) for text in TEXTS]):
        answer = server.post("/embed", {"inputs": inputs, "truncate": True, "unknown": 1})
        np.testing.assert_allclose(answer.json(), expected, **NEAR)
    plain = server.post(
        "/embed", {"inputs": TEXTS, "normalize": False, "pooling": "max", "layers": 0}
    ).json()
    np.testing.assert_allclose(plain, embedder.encode(TEXTS, "max", layers=0), **NEAR)


def test_large_answers_in_chunks_are_those_of_small_ones(
    server: RunningServer, embedder: Embedder
) -> None:
    texts = [f"text {number}" for number in range(200)]  # more numbers than go into one chunk
    answer = server.post("/v1/embeddings", {"input": texts})
    assert answer.headers.get("transfer-encoding") == "chunked"
    data = answer.json()["data"]
    assert [each["index"] for each in data] == list(range(200))
    assert answer.json()["usage"]["total_tokens"] == 400
    expected = embedder.encode(texts, normalize_embeddings=True)
    np.testing.assert_allclose([each["embedding"] for each in data], expected, **NEAR)
    np.testing.assert_allclose(server.post("/embed", {"inputs": texts}).json(), expected, **NEAR)


def test_texts_of_more_words_than_other_requests_may_have_are_embedded_in_parts(
    embedder: Embedder, ask: Ask
) -> None:
    texts = [f"text {number} of many" for number in range(25)]
    service = {
        "embedder": embedder,
        "config": ServeConfig(max_words=20, batch_words=20, queue_words=20),
    }
    bodies = [
        ("/embed", texts),
        ("/embed_all", texts),
        ("/embed", texts * 2),
        ("/embed", ["a " * 20]),
    ]
    requests = [("POST", path, {"json": {"inputs": inputs}}) for path, inputs in bodies]
    whole, *refused = ask(service, *requests)
    np.testing.assert_allclose(
        whole.json(), embedder.encode(texts, normalize_embeddings=True), **NEAR
    )
    assert [answer.status_code for answer in refused] == [413] * 3
    assert "160 in all" in refused[1].text


def test_embed_all_gives_every_word_and_every_layer(
    server: RunningServer, embedder: Embedder
) -> None:
    long = ["one two three " * 50, "", "a b"]  # more numbers than go into one chunk
    for texts, layers in ((TEXTS, "mix"), (TEXTS, "all"), (long, "top"), (long, "all")):
        body = {"inputs": texts, "layers": layers}
        answer = server.post("/embed_all", body)
        assert (answer.headers.get("transfer-encoding") == "chunked") == (texts is long)
        accept = {"accept": "application/octet-stream"}
        content = server.post("/embed_all", body, headers=accept).content
        arrays = from_safetensors(content)
        expected = embedder.embed(texts, layers)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        assert json.loads(header["__metadata__"]["tokens"]) == expected.tokens
        for number, (vectors, of_embedder) in enumerate(zip(answer.json(), expected, strict=True)):
            of_words = np.moveaxis(of_embedder, 0, 1) if layers == "all" else of_embedder
            np.testing.assert_allclose(arrays[str(number)], of_words, **NEAR)
            np.testing.assert_allclose(np.reshape(vectors, of_words.shape), of_words, **NEAR)


def test_similarity_is_the_cosine_of_the_texts_and_never_above_one(
    server: RunningServer, embedder: Embedder
) -> None:
    vectors = embedder.encode(TEXTS, normalize_embeddings=True)
    answer = server.post(
        "/similarity", {"inputs": {"source_sentence": TEXTS[0], "sentences": TEXTS}}
    ).json()
    np.testing.assert_allclose(answer, vectors @ vectors[0], **NEAR)
    for number in range(6):
        text = f"The play {number} was long."
        (same,) = server.post(
            "/similarity", {"inputs": {"source_sentence": text, "sentences": [text]}}
        ).json()
        assert 1 - 1e-6 < same <= 1


def test_tokenize_says_where_words_are_and_which_are_known(
    server: RunningServer, embedder: Embedder
) -> None:
    texts = ["I don't  like xqzt.", ["a", "b"], "An ex\u00adample of it."]
    vocab = embedder.model.vocab
    first, second, third = server.post("/tokenize", {"inputs": texts}).json()
    assert [token["text"] for token in first] == ["I", "do", "n't", "like", "xqzt", "."]
    assert [texts[0][token["start"] : token["stop"]] for token in first] == [
        token["text"] for token in first
    ]
    assert [vocab.words[token["id"]] for token in first] == ["I", "do", "n't", "like", "<UNK>", "."]
    assert [token["start"] for token in second] == [None, None]
    assert [texts[2][token["start"] : token["stop"]] for token in third] == [
        "An",
        "ex\u00adample",
        "of",
        "it",
        ".",
    ]


def test_clients_of_text_embeddings_inference_may_post_to_the_address_itself(
    server: RunningServer, embedder: Embedder
) -> None:
    answer = server.post("/", {"inputs": TEXTS, "normalize": None, "truncate": None})
    assert answer.json() == server.post("/embed", {"inputs": TEXTS}).json()
    hub = pytest.importorskip(
        "huggingface_hub", reason="no huggingface_hub: pip install huggingface_hub"
    )
    (vector,) = hub.InferenceClient(server.url).feature_extraction(TEXTS[0])
    np.testing.assert_allclose(vector, embedder.encode(TEXTS[0], normalize_embeddings=True), **NEAR)


def test_words_that_are_cut_are_counted(server: RunningServer) -> None:
    before = server.metric("elmokit_truncated_words_total")
    answer = server.post("/embed", {"inputs": ["short " + "long" * 30, "x" * 49]})
    assert answer.headers["x-truncated-words"] == "2"
    assert server.metric("elmokit_truncated_words_total") == before + 2


# --- Words in context -----------------------------------------------------------------------------


def test_compare_gives_the_similarity_of_each_layer(
    server: RunningServer, embedder: Embedder
) -> None:
    answer = server.post("/compare", {"word": "play", "sentences": [VERB, NOUN]}).json()
    expected = compare("play", [VERB, NOUN], embedder, "all")
    assert [layer["name"] for layer in answer["layers"]] == list(expected.similarities)
    for layer in answer["layers"]:
        np.testing.assert_allclose(
            layer["similarities"], expected.similarities[layer["name"]], atol=1e-4
        )
    uses = [(tuple(use["words"]), use["position"]) for use in answer["uses"]]
    assert uses == [(use.sentence, use.position) for use in expected.uses]
    assert answer["layers"][0]["similarities"][0][1] == pytest.approx(1)  # layer 0 knows no context


def test_neighbors_are_those_of_the_corpus_or_of_given_sentences(
    server: RunningServer, embedder: Embedder
) -> None:
    expected = neighbors("play", NOUN, CORPUS, embedder)
    for sentences in ({}, {"sentences": CORPUS.read_text().splitlines()}):
        answer = server.post("/neighbors", {"word": "play", "sentence": NOUN, **sentences}).json()
        uses = [(tuple(use["words"]), use["position"]) for use in answer["neighbors"]]
        assert uses == [(use.sentence, use.position) for _, use in expected.nearest]
        similarities = [use["similarity"] for use in answer["neighbors"]]
        np.testing.assert_allclose(
            similarities, [similarity for similarity, _ in expected.nearest], atol=1e-4
        )
        assert answer["sentences_searched"] == expected.sentences_searched


def test_senses_are_the_map_of_the_word(server: RunningServer, embedder: Embedder) -> None:
    expected = senses("bank", CORPUS, embedder).to_json()
    for sentences in ({}, {"sentences": CORPUS.read_text().splitlines()}):
        answer = server.post("/senses", {"word": "bank", **sentences}).json()
        assert all(answer[name] == expected[name] for name in ("uses", "clusters"))
        np.testing.assert_allclose(answer["planes"], expected["planes"], rtol=0, atol=2e-3)
    assert np.ptp(answer["planes"][0], axis=0).max() < 1e-3  # layer 0: one point
    before = server.metric("process_cpu_seconds_total")
    answer = server.post(
        "/senses", {"word": "a", "sentences": ["a b c d " * 320], "clusters": 2}
    ).json()
    assert answer["uses_in_corpus"] == 320
    assert len(answer["uses"]) == 300
    assert (
        server.metric("process_cpu_seconds_total") - before < 15
    )  # each use by itself: half a million words


def test_uses_in_the_corpus_are_a_sample_and_are_kept_for_a_few_words(
    embedder: Embedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = tmp_path / "corpus.txt"
    lines = [f"The play number {number} was long .\n" for number in range(60)]
    corpus.write_text("".join(lines))
    monkeypatch.setattr("elmokit.serve.service.SAMPLED_USES", 20)
    service = Service(embedder, ServeConfig(corpus=corpus))
    found = service.uses("play", None, lambda: None)
    assert service.uses("play", None, lambda: None) is found
    assert (found.count, len(found.uses)) == (60, 20)
    uses = list(found.uses)[:3]
    expected = [embedder.embed([use.sentence], "all")[0][:, use.position] for use in uses]
    np.testing.assert_allclose(found.vectors_of(uses).words, expected, **NEAR)
    monkeypatch.setattr("elmokit.serve.service.SAMPLED_WORDS", 15 * 8)
    assert len(service.uses("number", None, lambda: None).uses) == 15
    for number in range(30):  # absent words are kept, too
        assert not service.uses(f"absent{number}", None, lambda: None).uses
    assert service.uses("play", None, lambda: None) is not found


# --- The language model ---------------------------------------------------------------------------


def test_score_gives_the_log_probabilities_of_both_directions(
    server: RunningServer, embedder: Embedder
) -> None:
    texts = [VERB, NOUN, "xqzt " + "long" * 30]
    answer = server.post("/score", {"inputs": texts}).json()
    for got, expected in zip(answer, score(texts, embedder.model), strict=True):
        assert got["words"] == list(expected.words)
        assert got["offsets"] == [list(place) for place in expected.offsets]  # in the text itself
        counts = expected.is_unknown.sum(), expected.truncated
        assert (got["unknown"], got["truncated"]) == counts
        for direction, losses in expected.losses.items():
            np.testing.assert_allclose(got[direction], -losses, atol=1e-4)
        assert got["perplexity"]["mean"] == pytest.approx(expected.perplexity.value, rel=1e-4)


def test_a_model_that_merges_directions_scores_masked_words_and_names_the_measure(ask: Ask) -> None:
    torch.manual_seed(4)
    model = Pretrained(
        BiLM(CONFIGS["interleaved"]), softmax=FullSoftmax(len(VOCAB), 16), vocab=VOCAB
    )
    words = ["the", "play", "ended"]
    bodies = {
        "/score": {"inputs": [words]},
        "/substitutes": {"sentence": words, "positions": [1], "top": 2},
        "/next_words": {"sentence": words},
    }
    requests = [("POST", path, {"json": body}) for path, body in bodies.items()]
    scored, replaced, refused = ask(
        {"embedder": Embedder(model, "cpu"), "config": ServeConfig()}, *requests
    )
    (got,), (expected,) = scored.json(), score([words], model)
    np.testing.assert_allclose(got["masked"], -expected.losses["masked"], atol=1e-4)
    assert got["pseudo_perplexity"] == pytest.approx(expected.perplexity.value, rel=1e-4)
    assert got["unknown"] == 1
    assert not got.keys() & {"perplexity", "forward", "backward"}
    assert {each["word"] for each in replaced.json()[0]["candidates"]} == {"the", "play"}
    assert refused.status_code == 422
    assert "use substitutes" in refused.text


def test_substitutes_and_next_words_are_those_of_the_language_model(
    server: RunningServer, embedder: Embedder
) -> None:
    answer = server.post("/substitutes", {"sentence": NOUN, "positions": [1, 3], "top": 5}).json()
    expected = substitutes(NOUN, embedder.model, positions=[1, 3], top=5)
    assert [(each["word"], each["position"]) for each in answer] == [("play", 1), ("long", 3)]
    for got, candidates in zip(answer, expected, strict=True):
        assert [each["word"] for each in got["candidates"]] == [
            candidate.word for candidate in candidates
        ]
    answer = server.post(
        "/next_words", {"sentence": "Once upon a", "top": 4, "direction": "backward"}
    ).json()
    expected = next_words("Once upon a", embedder.model, top=4, direction="backward")
    assert answer["words"] == ["Once", "upon", "a"]
    assert [each["word"] for each in answer["candidates"]] == [
        candidate.word for candidate in expected
    ]
    got = [each["log_probability"] for each in answer["candidates"]]
    np.testing.assert_allclose(
        got, [candidate.log_probability for candidate in expected], atol=1e-4
    )


# --- Tasks, and models without words --------------------------------------------------------------


def test_predict_is_the_answer_of_the_task_model(server: RunningServer, tagger: TaskModel) -> None:
    texts = ["Ann sees red dogs", ["Bob", "likes", "green", "owls"]]
    answer = server.post("/predict", {"inputs": texts}).json()
    expected = tagger.predict(texts)
    assert [each["words"] for each in answer] == [list(each.words) for each in expected]
    assert [each["tags"] for each in answer] == [list(each.tags) for each in expected]


def test_model_without_a_vocabulary_compares_words_and_says_that_it_predicts_none(ask: Ask) -> None:
    service = {"embedder": Embedder(tiny_model(), "cpu"), "config": ServeConfig()}
    sentences = ["a play", "they play", "we play", "you play"]
    bodies = {
        "/tokenize": {"inputs": VERB},
        "/senses": {"word": "play", "sentences": sentences},
        "/score": {"inputs": VERB},
        "/substitutes": {"sentence": VERB},
        "/predict": {"inputs": ["a"]},
    }
    requests = [("POST", path, {"json": body}) for path, body in bodies.items()]
    info, tokens, senses, *missing = (
        answer.json() for answer in ask(service, ("GET", "/info", {}), *requests)
    )
    assert (info["predicts_words"], info["vocabulary"]) == (False, None)
    # Its tokenizer is not known.
    assert (tokens[0][-1]["id"], tokens[0][-1]["text"]) == (None, "garden.")
    assert senses["clusters"]
    assert not any(each["substitutes"] for each in senses["clusters"])
    assert [answer["error"]["code"] for answer in missing] == ["not_found"] * 3
    (no_corpus,) = ask(service, ("POST", "/senses", {"json": {"word": "play"}}))
    assert no_corpus.status_code == 422


# --- What is wrong with a request -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/embed_all", {"inputs": "word " * 16_400}, 413, "too many: send at most 16,384"),
        ("/embed", {"inputs": ["a", ""]}, 422, "text 2 has no words"),
        ("/", {"inputs": "a", "parameters": {}}, 422, "parameters: Input should be"),
        (
            "/embed",
            {"inputs": [None, ["a", 1]]},
            422,
            "inputs.0.str: Input should be a valid string; in",
        ),
        ("/embed", {"inputs": ["a"] * 2049}, 422, "at most 2048"),
        ("/embed", {"inputs": "a", "layers": 3}, 422, "this model has the layers 0 to 2"),
        (
            "/v1/embeddings",
            {"input": [1, 2, 3]},
            422,
            "token ids mean nothing to this model: send strings",
        ),
        (
            "/compare",
            {"word": "zebra", "sentences": [VERB, NOUN]},
            422,
            "sentence 1 has no word 'zebra'",
        ),
        ("/compare", {"word": "a", "sentences": ["a " * 101]}, 422, "more than 100 uses of 'a'"),
        ("/substitutes", {"sentence": "a " * 101}, 422, "name at most 100 words"),
        ("/senses", {"word": "zebra"}, 422, "a map needs 3"),
        (
            "/substitutes",
            {"sentence": VERB, "positions": [9]},
            422,
            "there is no word 9 in a sentence of 6 words",
        ),
        ("/next_words", {"sentense": VERB}, 422, "sentense: Extra inputs are not permitted"),
        ("/predict", {"inputs": [[["a"], "b"]]}, 422, "is not an input of tagging"),
    ],
)
def test_bad_request_says_what_is_wrong(
    path: str, body: dict[str, object], status: int, message: str, server: RunningServer
) -> None:
    answer = server.post(path, body)
    assert answer.status_code == status
    assert message in answer.json()["error"]["message"]
    assert "\n" not in answer.json()["error"]["message"]
