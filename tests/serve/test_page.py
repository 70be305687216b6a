"""The page: its policy and its weight; the corpus that it shows, and what it asks of no other
client.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

import elmokit
from elmokit.embed.embedder import Embedder
from elmokit.text import get_tokenizer

Ask = Callable[..., Any]


@pytest.fixture
def page(ask: Ask, embedder: Embedder) -> Any:
    """The answer of the server."""
    from elmokit.serve import ServeConfig

    (answer,) = ask({"embedder": embedder, "config": ServeConfig()}, ("GET", "/", {}))
    return answer


def test_policy_allows_the_pages_own_script_and_style_and_nothing_else(page: Any) -> None:
    policy = dict(
        part.strip().split(" ", 1) for part in page.headers["content-security-policy"].split(";")
    )
    for element, directive in (("script", "script-src"), ("style", "style-src")):
        (content,) = re.findall(rf"<{element}>(.*?)</{element}>", page.text, flags=re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert policy.pop(directive) == f"'sha256-{digest}'"
    assert policy.pop("connect-src") == "'self'"
    assert policy.pop("img-src") == "data:"
    assert set(policy) == {"default-src", "base-uri", "form-action", "frame-ancestors"}
    assert set(policy.values()) == {"'none'"}
    assert set(re.findall(r"https?://[^\s\"']+", page.text)) == {
        "http://www.w3.org/2000/svg"
    }  # an XML namespace
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|@import|url\(", page.text
    )
    assert not re.search(r"<[^>]* (style|on\w+)=", page.text)  # which the policy would block


@pytest.mark.slow
def test_bundled_corpora_have_the_words_that_readers_try_first(
    ask: Ask, embedder: Embedder
) -> None:
    from elmokit.serve import ServeConfig
    from elmokit.serve.app import BUNDLED_CORPORA, EXAMPLES

    counts: Counter[str] = Counter()
    for language, tokenizer in {"en": "english-1", "zh": "rjieba-1"}.items():
        tokenize = get_tokenizer(tokenizer).tokenize
        with zstandard.open(BUNDLED_CORPORA[language], "rt", encoding="utf-8") as lines:
            counts.update(word.lower() for line in lines for word in tokenize(line))
    assert min(counts[word] for word in EXAMPLES) > 10
    service = {"embedder": embedder, "config": ServeConfig(corpus=BUNDLED_CORPORA["en"])}
    two_words = {"json": {"word": "bank", "second_word": "shore", "max_uses": 12}}
    (answer,) = ask(service, ("POST", "/senses", two_words))
    words = [use["words"][use["position"]].lower() for use in answer.json()["uses"]]
    assert words == ["bank"] * 6 + ["shore"] * 6


def test_forms_open_with_what_the_chinese_model_can_answer(ask: Ask, embedder: Embedder) -> None:
    from elmokit.serve import ServeConfig

    page = ask({"embedder": embedder, "config": ServeConfig()}, ("GET", "/", {}))[0]
    given = r'name="(\w+)" value="[^"]+"\s+data-zh-value="(.+?)"'
    fields = re.findall(given, page.text)
    assert [name for name, _ in fields] == ["word", "word", "first", "second", "sentence", "text"]
    _, word, first, second, sentence, _ = (value for _, value in fields)
    same, other = elmokit.compare(word, [first, second], "zh-small").similarities[
        "layer 2 (contextual)"
    ][0]
    assert other < 0.7 < same
    assert not elmokit.score([sentence], "zh-small")[0].is_unknown.any()


def test_yardstick_has_the_quantiles_of_random_pairs(
    ask: Ask, embedder: Embedder, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from elmokit.serve import ServeConfig, app

    monkeypatch.setattr(app, "GRAMMAR_WORDS", 0)
    monkeypatch.setattr(app, "LEAST_USES", 2)
    monkeypatch.setattr(app, "WORDS_READ", 20)  # all lines but the last
    corpus = tmp_path / "few.txt"
    corpus.write_text(
        "red houses stand\nred birds sing\nold birds sing\nold houses stand\nred red\n"
    )
    service = {"embedder": embedder, "config": ServeConfig(corpus=corpus)}
    overview, layers = (
        answer.json()
        for answer in ask(
            service, *(("GET", f"/explore/{path}", {}) for path in ("corpus", "yardstick"))
        )
    )
    assert overview["name"] == "few.txt"
    assert overview["sentences"] == 4
    assert overview["words"] == 12
    assert (
        sorted(overview["frequent"])
        == sorted(overview["examples"])
        == ["birds", "houses", "old", "red", "sing", "stand"]
    )
    assert len(layers) == embedder.num_layers
    np.testing.assert_allclose(layers[0]["same_word"], 1, atol=1e-5)  # which reads only letters
    for layer in layers:
        same = np.array(layer["same_word"])
        other = np.array(layer["other_word"])
        assert len(same) == len(other) == 21
        assert (np.diff(same) >= 0).all()
        assert (np.diff(other) >= 0).all()
        assert same.mean() > other.mean()


def test_server_without_a_corpus_has_nothing_to_explore(ask: Ask, embedder: Embedder) -> None:
    from elmokit.serve import ServeConfig

    corpus, yardstick = ask(
        {"embedder": embedder, "config": ServeConfig()},
        ("GET", "/explore/corpus", {}),
        ("GET", "/explore/yardstick", {}),
    )
    assert corpus.json()["sentences"] == 0
    assert yardstick.json() == []


def test_errors_that_the_page_translates_are_those_of_the_server(
    ask: Ask, embedder: Embedder
) -> None:
    from elmokit.serve import ServeConfig, app

    script = (Path(app.__file__).parent / "page.js").read_text(encoding="utf-8")
    patterns = re.findall(r'^  \[/(\^.+)/, "', script, re.MULTILINE)
    assert len(patterns) == 5
    few = {"word": "bank", "sentences": ["a bank", "the bank"]}
    other = {"word": "bank", "sentence": "a shore", "sentences": ["a bank"]}
    requests = [("POST", f"/{name}", {"json": body}) for name, body in
                {"senses": few, "neighbors": other}.items()]  # fmt: skip
    service = {"embedder": embedder, "config": ServeConfig()}
    answers = ask(service, *requests, ("POST", "/senses", {"json": {"word": "bank"}}))
    for pattern, answer in zip(patterns, answers, strict=False):
        assert re.match(pattern, answer.json()["error"]["message"])
