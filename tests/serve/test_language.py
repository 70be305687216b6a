"""Endpoints of words in context, of the language model and of a task model, against the functions of the package."""

from __future__ import annotations

import asyncio
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="no FastAPI: pip install fastapi (elmokit's extra serve)")
pytest.importorskip("httpx", reason="no httpx to ask the server with")

import httpx
import torch
from running_server import RunningServer
from toy_encoders import CONFIGS

from elmokit.analysis import word_map as module
from elmokit.analysis.similarity import compare, neighbors
from elmokit.analysis.word_map import word_map
from elmokit.checkpoints.loading import save
from elmokit.checkpoints.pretrained import Pretrained
from elmokit.embed.embedder import Embedder
from elmokit.lm.candidates import next_words, substitutes
from elmokit.lm.scoring import MaskedScore, score
from elmokit.nn.bilm import BiLM
from elmokit.nn.softmax import FullSoftmax
from elmokit.serve.app import create_app
from elmokit.serve.config import ServeConfig
from elmokit.serve.jobs import Job
from elmokit.serve.service import Service
from elmokit.tasks.fitting.model import TaskModel
from elmokit.text.vocab import Vocab

VERB, NOUN = "They play in the garden.", "The play was long."
NEAR = {"rtol": 0, "atol": 1e-4}


def ask_and_wait(service: Service, path: str, body: dict[str, Any]) -> httpx.Response:
    """The answer to a request, after all jobs of the service have ended; then the service is closed."""

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(create_app(service))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            answer = await client.post(path, json=body)
        while service.jobs.waiting:
            await asyncio.sleep(0.02)
        return answer

    answer = asyncio.run(asyncio.wait_for(ask(), 60))
    service.close()
    return answer


def test_compare_gives_the_similarity_of_each_layer(server: RunningServer, embedder: Embedder) -> None:
    answer = server.post("/compare", {"word": "play", "sentences": [VERB, NOUN]}).json()
    expected = compare("play", [VERB, NOUN], embedder)
    assert [layer["name"] for layer in answer["layers"]] == list(expected.similarities)
    for layer in answer["layers"]:
        np.testing.assert_allclose(layer["similarities"], expected.similarities[layer["name"]], **NEAR)
    assert [(tuple(use["words"]), use["position"]) for use in answer["uses"]] == expected.uses
    assert answer["layers"][0]["similarities"][0][1] == pytest.approx(1)  # layer 0 knows no context


def test_neighbors_are_those_of_the_corpus_or_of_given_sentences(
    server: RunningServer, embedder: Embedder, corpus: Path
) -> None:
    expected = neighbors("play", NOUN, corpus, embedder)
    given = corpus.read_text(encoding="utf-8").splitlines()
    for sentences in ({}, {"sentences": given}):
        answer = server.post("/neighbors", {"word": "play", "sentence": NOUN, **sentences}).json()
        assert [(tuple(use["words"]), use["position"]) for use in answer["neighbors"]] == [
            use for _, use in expected.nearest
        ]
        similarities = [use["similarity"] for use in answer["neighbors"]]
        np.testing.assert_allclose(similarities, [similarity for similarity, _ in expected.nearest], **NEAR)
        assert answer["sentences_searched"] == expected.sentences_searched


def test_senses_are_the_map_of_the_word(server: RunningServer, embedder: Embedder, corpus: Path) -> None:
    expected = word_map("bank", corpus, embedder).to_json()
    given = [embedder.tokenize(line) for line in corpus.read_text(encoding="utf-8").splitlines()]
    for sentences in ({}, {"sentences": given}):
        answer = server.post("/senses", {"word": "bank", **sentences}).json()
        assert answer["uses"] == expected["uses"] and answer["clusters"] == expected["clusters"]
        assert answer["fingerprint"] == expected["fingerprint"]
        np.testing.assert_allclose(answer["planes"], expected["planes"], rtol=0, atol=2e-3)
    assert np.ptp(answer["planes"][0], axis=0).max() < 1e-3  # layer 0: one point


def test_senses_of_a_word_that_one_long_sentence_repeats_take_the_time_of_one_sentence(server: RunningServer) -> None:
    before = server.metric("process_cpu_seconds_total")
    answer = server.post("/senses", {"word": "a", "sentences": ["a b c d " * 400], "clusters": 2})
    assert answer.json()["uses_in_corpus"] == 400 and len(answer.json()["uses"]) == 300
    assert server.metric("process_cpu_seconds_total") - before < 15  # each use by itself: half a million words


def test_senses_beyond_their_time_end_before_the_next_run_of_the_language_model(
    embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[int] = []

    def slow_substitutes(sentence: tuple[str, ...], *arguments: Any, **options: Any) -> Any:
        runs.append(len(sentence))
        time.sleep(0.5)
        return substitutes(sentence, *arguments, **options)

    monkeypatch.setattr(module, "substitutes", slow_substitutes)
    sentences = [[*["word"] * 200, f"left{number}", "play", f"right{number}", *["word"] * 200] for number in range(16)]
    service = Service(embedder, ServeConfig(timeout=3))

    answer = ask_and_wait(service, "/senses", {"word": "play", "sentences": sentences, "clusters": 1})
    assert answer.status_code == 503 and answer.json()["error"]["code"] == "timeout"
    assert len(runs) < 16  # as many as there are uses with contexts of their own
    assert set(runs) <= {101}  # words: 50 on each side


def test_corpus_that_is_said_to_be_tokenized_is_split_at_white_space(embedder: Embedder, tmp_path: Path) -> None:
    corpus = tmp_path / "tokenized.txt"
    corpus.write_text("They do n't play -well , he said .\nThey play , too .\n" * 20)
    found = {}
    for tokenize in (True, False):
        service = Service(embedder, ServeConfig(corpus=corpus, tokenize=tokenize))
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a client's search finds nothing new
            found[tokenize] = next(iter(service.uses("play", None, Job())))[0].sentence
        service.close()
    assert found[False] == ("They", "do", "n't", "play", "-well", ",", "he", "said", ".") != found[True]


def test_corpus_that_is_not_text_is_an_error_before_there_is_a_server(embedder: Embedder, tmp_path: Path) -> None:
    records, latin = tmp_path / "c.jsonl", tmp_path / "latin.txt"
    records.write_text('{"text": "They play."}\n')
    latin.write_bytes("Ein Stück.\n".encode("latin-1"))
    for corpus, message in ((records, "not lines of text"), (latin, "line 1")):
        with pytest.raises(ValueError, match=message):
            Service(embedder, ServeConfig(corpus=corpus))


def test_corpus_that_becomes_unreadable_is_not_the_fault_of_a_client(embedder: Embedder, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("They play.\n")
    service = Service(embedder, ServeConfig(corpus=corpus))
    corpus.write_bytes("Ein Stück.\n".encode("latin-1"))

    async def ask() -> list[httpx.Response]:
        transport = httpx.ASGITransport(create_app(service), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            neighbors = await client.post("/neighbors", json={"word": "play", "sentence": VERB})
            return [neighbors, await client.post("/senses", json={"word": "play"})]

    answers = asyncio.run(asyncio.wait_for(ask(), 60))
    service.close()
    for answer in answers:
        assert answer.status_code == 500 and answer.json()["error"]["code"] == "internal_error"


@pytest.mark.parametrize("given", ["wordless", "wordless/config.json"])
def test_model_is_served_by_the_name_of_its_directory(given: str, tmp_path: Path) -> None:
    save(Pretrained(BiLM(CONFIGS["lstm"])), tmp_path / "wordless")
    service = Service.load(tmp_path / given, ServeConfig(), "cpu")
    service.close()
    assert service.name == "wordless"


def test_score_gives_the_log_probabilities_of_both_directions(server: RunningServer, embedder: Embedder) -> None:
    texts = [VERB, NOUN, "xqzt " + "long" * 30]
    answer = server.post("/score", {"inputs": texts}).json()
    for got, expected in zip(answer, score(texts, embedder.model), strict=True):
        assert got["words"] == list(expected.words)
        assert (got["unknown"], got["truncated"]) == (expected.unknown, expected.truncated)
        np.testing.assert_allclose(got["forward"], expected.forward, **NEAR)
        np.testing.assert_allclose(got["backward"], expected.backward, **NEAR)
        assert got["perplexity"]["mean"] == pytest.approx(expected.perplexity.mean, rel=1e-4)


def test_a_model_that_merges_directions_scores_masked_words_and_names_the_measure(tmp_path: Path) -> None:
    torch.manual_seed(4)
    vocab = Vocab(["<S>", "</S>", "<UNK>", "the", "play"])
    model = Pretrained(BiLM(CONFIGS["interleaved"]), softmax=FullSoftmax(len(vocab), 16), vocab=vocab)
    save(model, tmp_path / "model")
    words = ["the", "play", "ended"]
    with RunningServer(tmp_path / "model", "--device", "cpu") as server:
        (got,) = server.post("/score", {"inputs": [words]}).json()
        (candidates,) = server.post("/substitutes", {"sentence": words, "positions": [1], "top": 2}).json()
        refused = server.post("/next_words", {"sentence": words})
    (expected,) = score([words], model)
    assert isinstance(expected, MaskedScore)
    np.testing.assert_allclose(got["masked"], expected.masked, **NEAR)
    assert got["pseudo_perplexity"] == pytest.approx(expected.pseudo_perplexity.value, rel=1e-4)
    assert got["unknown"] == 1 and not got.keys() & {"perplexity", "forward", "backward"}
    assert {each["word"] for each in candidates["candidates"]} == {"the", "play"}
    assert refused.status_code == 422 and "use substitutes" in refused.text


@pytest.mark.parametrize(
    ("encoder", "path", "body"),
    [
        ("interleaved", "/score", {"inputs": "the play ended " * 200}),
        ("interleaved", "/substitutes", {"sentence": "the play ended " * 200, "positions": list(range(100))}),
        ("lstm", "/score", {"inputs": ["the play ended " * 10] * 200}),
    ],
)
def test_language_model_ends_soon_after_the_time_of_its_request(
    encoder: str, path: str, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, runs = BiLM.run, []

    def slow_run(*arguments: Any, **options: Any) -> Any:
        runs.append(1)
        time.sleep(0.5)
        return run(*arguments, **options)

    vocab = Vocab(["<S>", "</S>", "<UNK>", "the", "play"])
    model = Pretrained(BiLM(CONFIGS[encoder]), softmax=FullSoftmax(len(vocab), 16), vocab=vocab)
    service = Service(Embedder(model, "cpu"), ServeConfig(timeout=1))
    monkeypatch.setattr(BiLM, "run", slow_run)

    answer = ask_and_wait(service, path, body)
    assert answer.status_code == 503 and answer.json()["error"]["code"] == "timeout"
    assert 1 <= len(runs) <= 3  # of four or more


def test_substitutes_and_next_words_are_those_of_the_language_model(server: RunningServer, embedder: Embedder) -> None:
    answer = server.post("/substitutes", {"sentence": NOUN, "positions": [1, 3], "top": 5}).json()
    expected = substitutes(NOUN, embedder.model, positions=[1, 3], top=5)
    assert [(each["word"], each["position"]) for each in answer] == [("play", 1), ("long", 3)]
    for got, candidates in zip(answer, expected, strict=True):
        assert [each["word"] for each in got["candidates"]] == [candidate.word for candidate in candidates]
    answer = server.post("/next_words", {"sentence": "Once upon a", "top": 4, "direction": "backward"}).json()
    expected = next_words("Once upon a", embedder.model, top=4, direction="backward")
    assert answer["words"] == ["Once", "upon", "a"]
    assert [each["word"] for each in answer["candidates"]] == [candidate.word for candidate in expected]
    np.testing.assert_allclose(
        [each["log_probability"] for each in answer["candidates"]],
        [candidate.log_probability for candidate in expected],
        **NEAR,
    )


def test_predict_is_the_answer_of_the_task_model(server: RunningServer, tagger: TaskModel) -> None:
    texts = ["Ann sees red dogs", ["Bob", "likes", "green", "owls"]]
    answer = server.post("/predict", {"inputs": texts}).json()
    expected = tagger.predict(texts)
    assert [each["words"] for each in answer] == [list(each.words) for each in expected]
    assert [each["tags"] for each in answer] == [list(each.tags) for each in expected]


def test_predict_tokenizes_the_texts_in_lists_outside_of_the_event_loop(
    embedder: Embedder, tagger: TaskModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inputs of some tasks are lists of raw texts, as long as a body may be."""
    example, threads = tagger.example, []

    def example_of(text: Any) -> Any:
        threads.append(threading.current_thread())
        return example(text)

    monkeypatch.setattr(tagger, "example", example_of)
    service = Service(embedder, ServeConfig(), task_model=tagger)

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(create_app(service))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.post("/predict", json={"inputs": ["Ann sees dogs", ["Bob", "likes", "owls"]]})

    answer = asyncio.run(asyncio.wait_for(ask(), 60))
    service.close()
    assert answer.status_code == 200 and [each["words"][0] for each in answer.json()] == ["Ann", "Bob"]
    assert len(threads) == 2 and threading.main_thread() not in threads


def test_model_without_a_vocabulary_compares_words_and_says_that_it_predicts_none(
    server_without_words: RunningServer,
) -> None:
    info = httpx.get(f"{server_without_words.url}/info").json()
    assert (info["model"], info["predicts_words"], info["vocabulary"]) == ("wordless", False, None)
    for path, body in (
        ("/score", {"inputs": VERB}),
        ("/substitutes", {"sentence": VERB}),
        ("/next_words", {"sentence": VERB}),
    ):
        answer = server_without_words.post(path, body)
        assert answer.status_code == 404 and "model only gives vectors: serve" in answer.json()["error"]["message"]
    tokens = server_without_words.post("/tokenize", {"inputs": VERB}).json()[0]
    assert [(token["id"], token["text"]) for token in tokens][-1] == (None, "garden.")  # its tokenizer is not known
    sentences = ["a play", "they play", "we play", "you play"]
    clusters = server_without_words.post("/senses", {"word": "play", "sentences": sentences}).json()["clusters"]
    assert clusters and not any(cluster["substitutes"] for cluster in clusters)
    missing = server_without_words.post("/senses", {"word": "play"})
    assert missing.status_code == 422 and "this server has no corpus" in missing.json()["error"]["message"]
    missing = server_without_words.post("/predict", {"inputs": [VERB]})
    assert missing.status_code == 404 and "start it with --task-model" in missing.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/compare", {"word": "zebra", "sentences": [VERB, NOUN]}, "sentence 1 has no word 'zebra'"),
        ("/compare", {"word": "play", "sentences": [VERB]}, "at least two uses of 'play'"),
        ("/compare", {"word": "a", "sentences": ["a " * 101]}, "more than 100 uses of 'a'"),
        ("/substitutes", {"sentence": "a " * 101}, "name at most 100 words"),
        ("/neighbors", {"word": "play", "sentence": "Nothing."}, "has no word 'play'"),
        ("/senses", {"word": "zebra"}, "a map needs 3"),
        ("/substitutes", {"sentence": VERB, "positions": [9]}, "there is no word 9 in a sentence of 6 words"),
        ("/substitutes", {"sentence": VERB, "top": 0}, "top: Input should be greater than or equal to 1"),
        ("/next_words", {"sentense": VERB}, "sentense: Extra inputs are not permitted"),
        ("/substitutes", {"sentence": VERB, "positions": [True]}, "positions.0: Input should be a valid integer"),
        ("/predict", {"inputs": [[["a"], "b"]]}, "an input of the task tagging"),
    ],
)
def test_bad_request_says_what_is_wrong(
    path: str, body: dict[str, object], message: str, server: RunningServer
) -> None:
    answer = server.post(path, body)
    assert answer.status_code == 422 and message in answer.json()["error"]["message"], answer.text
