"""The page: its policy, and every view of it in a real Chromium."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import httpx
import pytest
from bundled_model import WIDTH
from running_server import RunningServer

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Locator, Page

VIEWS = ("compare", "senses", "neighbors", "substitutes", "next", "task")
HOSTILE = "<img/src=x/onerror=alert(1)>"


# --- Without a browser -----------------------------------------------------------------------------------------------


def test_policy_allows_the_pages_own_script_and_style_and_nothing_else(server: RunningServer) -> None:
    answer = httpx.get(server.url)
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    for element, directive in (("script", "script-src"), ("style", "style-src")):
        (content,) = re.findall(rf"<{element}>(.*?)</{element}>", answer.text, flags=re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert policy.pop(directive) == f"'sha256-{digest}'"
    assert policy.pop("connect-src") == "'self'" and policy.pop("img-src") == "data:"
    assert set(policy) == {"default-src", "base-uri", "form-action", "frame-ancestors"}
    assert set(policy.values()) == {"'none'"}
    assert set(re.findall(r"https?://[^\s\"']+", answer.text)) == {"http://www.w3.org/2000/svg"}  # an XML namespace
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|@import|url\(", answer.text)
    assert not re.search(r"<[^>]* (style|on\w+)=", answer.text)  # which the policy would block


# --- In a browser ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    api = pytest.importorskip("playwright.sync_api", reason="no Playwright: pip install playwright")
    if (chromium := shutil.which("chromium") or shutil.which("google-chrome")) is None:
        pytest.skip("no Chromium to open the page with: apt-get install chromium")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Browser, server: RunningServer) -> Iterator[Callable[..., Page]]:
    """Called, opens the page; in the end there was no error in it, and it asked no other host.

    With `refusals`, requests may be refused, which the browser logs as errors, although the page shows them.
    """
    opened: list[Page] = []
    complaints: list[str] = []

    def open_one(url: str = server.url, refusals: bool = False, **options: object) -> Page:
        def hear(message: ConsoleMessage) -> None:
            if message.type in ("error", "warning") and not (refusals and "Failed to load resource" in message.text):
                complaints.append(message.text)

        page = browser.new_page(**options)
        page.set_default_timeout(60_000)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", hear)
        page.on("request", lambda request: None if request.url.startswith(url) else complaints.append(request.url))
        page.goto(url + "/")
        opened.append(page)
        return page

    yield open_one
    for page in opened:
        page.close()
    assert [each for each in complaints if each != "data:,"] == []  # the empty icon


def result_of(page: Page, view: str) -> Locator:
    """The result of a view, once its example or its form was answered."""
    page.locator(f"#{view}").scroll_into_view_if_needed()
    result = page.locator(f"#{view} .result")
    result.locator("> *").first.wait_for()
    page.locator(f"#{view} form:not([aria-busy])").wait_for()
    return result


def submit(page: Page, view: str, **fields: str) -> Locator:
    """The result of a view for values of its form, submitted with the Enter key."""
    result_of(page, view)
    for name, value in fields.items():
        page.locator(f"#{view} [name={name}]").fill(value)
    page.locator(f"#{view} form input").last.press("Enter")
    return result_of(page, view)


def test_every_view_shows_its_example(open_page: Callable[..., Page]) -> None:
    page = open_page()
    rows = result_of(page, "compare").locator("tbody tr").all_inner_texts()
    assert [row.split("\t")[0] for row in rows] == [
        "Layer 0 (context-independent)", "Layer 1 (contextual)", "Layer 2 (contextual)", "Mix of all layers"
    ]  # fmt: skip
    assert rows[0].endswith("1.00") and float(rows[2].split()[-1]) < 0.9
    senses = result_of(page, "senses")
    assert senses.locator("figure path").count() == 16 and senses.locator(".cluster").count() == 2
    assert result_of(page, "neighbors").locator("tbody tr").count() == 8
    assert result_of(page, "substitutes").locator("tbody tr").count() == 8
    assert result_of(page, "next").locator("tbody tr").count() == 8
    assert result_of(page, "task").locator("li span").count() == 8
    assert f"{WIDTH} numbers in a vector" in page.locator("#model").inner_text()


def test_map_falls_into_one_point_at_layer_0_by_the_keyboard(open_page: Callable[..., Page]) -> None:
    page = open_page(reduced_motion="reduce")
    result = result_of(page, "senses")

    def places() -> set[str]:
        script = "shapes => shapes.map(shape => getComputedStyle(shape).transform)"
        return set(result.locator("figure path").evaluate_all(script))

    slider = page.get_by_label("Layer", exact=True)
    assert len(places()) > 10 and slider.get_attribute("aria-valuetext") == "2 of 2: top layer"
    slider.press("Home")
    assert len(places()) == 1 and slider.get_attribute("aria-valuetext") == "0 of 2: token layer"
    assert "layer 0 of 2" in (result.locator("figure svg").get_attribute("aria-label") or "")
    cluster = result.get_by_role("button").first
    cluster.press("Enter")
    assert cluster.get_attribute("aria-pressed") == "true" and result.locator("figure path.dim").count() == 8


def test_forms_answer_for_words_of_the_reader(open_page: Callable[..., Page]) -> None:
    page = open_page()
    compared = submit(
        page, "compare", word="bank", first="The bank lent him money.", second="We sat on the river bank."
    )
    assert "“bank”" in compared.inner_text()
    nearest = submit(page, "neighbors", word="play", sentence="They play in the park.")
    assert "play" in nearest.locator("mark").all_inner_texts()
    page.locator("#neighbors select").select_option("corpus")
    assert "bank" in submit(page, "neighbors", word="bank", sentence="The bank gave him a loan.").inner_text()
    replaced = submit(page, "substitutes", sentence="She plays well.")
    replaced.get_by_role("button", name="She").press("Enter")
    assert "In place of “She”" in replaced.inner_text()
    following = submit(page, "next", sentence="the United")
    following.get_by_role("button", name="States").click()
    page.wait_for_timeout(200)
    assert result_of(page, "next") and page.locator("#next form input").input_value() == "the United States"
    tagged = submit(page, "task", text="Ann sees red dogs")
    assert tagged.locator("li span").all_inner_texts() == ["B-PER", "O", "B-THING", "I-THING"]


def test_errors_are_shown_in_words_and_text_is_never_markup(open_page: Callable[..., Page]) -> None:
    page = open_page(refusals=True)
    assert "Sentence 1 has no word 'zebra'" in submit(page, "compare", word="zebra").locator(".error").inner_text()
    status = page.locator("#announcement")
    assert "has no word" in status.inner_text()
    page.locator("#senses textarea").fill("\n".join(f"a {HOSTILE} {number} b" for number in range(5)))
    assert "a map needs 3" in submit(page, "senses", word="absent").locator(".error").inner_text()
    submit(page, "compare", word=HOSTILE, first=f"a {HOSTILE}", second=f"b {HOSTILE}")
    submit(page, "senses", word="b")
    submit(page, "next", sentence=HOSTILE)
    submit(page, "substitutes", sentence=f"{HOSTILE} is here")
    assert page.locator("img").count() == 0 and page.locator("script").count() == 1


def test_server_that_is_gone_or_answers_no_json_is_an_error_of_its_view(open_page: Callable[..., Page]) -> None:
    page = open_page(refusals=True)
    result_of(page, "compare")
    page.route("**/compare", lambda route: route.abort())
    assert "The server does not answer" in submit(page, "compare", word="play").inner_text()
    page.unroute("**/compare")
    page.route("**/compare", lambda route: route.fulfill(status=200, body="<html>a proxy</html>"))
    page.reload()
    assert "not JSON" in result_of(page, "compare").inner_text()
    for view in VIEWS[1:]:
        assert result_of(page, view).locator(".error").count() == 0


def test_page_asks_for_the_key_of_a_server_that_needs_one(open_page: Callable[..., Page]) -> None:
    with RunningServer("--device", "cpu", "--api-key", "secret") as locked:
        page = open_page(locked.url, refusals=True)
        key = page.get_by_label("This server needs its API key")
        for wrong, message in (("wrong", "#key .error"), ("schl\u00fcssel\u2713", "text=ASCII characters only")):
            key.fill(wrong)
            key.press("Enter")
            page.locator(message).first.wait_for()
        key.fill("secret")
        key.press("Enter")
        assert "1.00" in result_of(page, "compare").inner_text() and not key.is_visible()
        assert "no task model" in page.locator("#task").inner_text()  # nor a corpus to choose
        assert not page.locator("#senses select").is_visible()


def test_views_that_a_model_cannot_answer_say_so(
    open_page: Callable[..., Page], server_without_words: RunningServer
) -> None:
    page = open_page(server_without_words.url)
    assert "1.00" in result_of(page, "compare").inner_text()
    assert page.locator("#model").inner_text().startswith("Model wordless: 3 layers")
    for view in ("substitutes", "next"):
        assert page.locator(f"#{view} .error").inner_text() == "This model cannot predict words."
    assert "no task model" in page.locator("#task .note").inner_text()
    assert result_of(page, "senses").locator("figure path").count() == 16


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast_labels_and_structure_pass_axe(scheme: str, open_page: Callable[..., Page]) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="no axe-core: axe-playwright-python")
    page = open_page(refusals=True, color_scheme=scheme, reduced_motion="reduce")
    for view in VIEWS:
        result_of(page, view)
    submit(page, "compare", word="zebra")  # an error
    results = axe.Axe().run(page, options={"runOnly": ["wcag2a", "wcag2aa", "wcag21aa", "best-practice"]})
    violations = [(each["id"], [node["html"] for node in each["nodes"]]) for each in results.response["violations"]]
    assert violations == [] and len(results.response["passes"]) > 20
