"""Take the screenshots of the page of `elmokit serve` in docs/images, and check the page with
axe-core meanwhile.

    python tools/make_screenshots.py

Needs the extra `serve`, Chromium, and from PyPI axe-playwright-python, playwright and pillow.
"""

from __future__ import annotations

import io
import shutil
import sys
from itertools import product
from pathlib import Path
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests" / "support"))
from running_server import RunningServer  # noqa: E402

COLORS = 128
IS_READY = "() => running === null && showAgain !== null && corpus !== null"
# By model: the pictures, and the views that are checked.
PICTURES = {
    "en-small": {
        "page": ("#map?word=bank&second_word=shore", "light"),
        "page-dark": ("#sentence", "dark"),
    },
    "zh-small": {"page-zh": ("#map?word=苹果&sentence=我喜欢吃苹果。", "light")},
}
VIEWS = {
    "en-small": ("#map?word=letter", "#map?sentence=I+ate+an+apple.", "#compare", "#sentence"),
    "zh-small": ("", "#compare", "#sentence"),
}
LOCALES = {"en-small": "en", "zh-small": "zh-CN"}
SCHEMES = [(colors, forced) for forced in ("none", "active") for colors in ("light", "dark")]


def open_view(browser: Browser, url: str, width: int, height: int, **settings: Any) -> Page:
    page = browser.new_page(
        viewport={"width": width, "height": height}, reduced_motion="reduce", **settings
    )
    page.goto(url)
    page.wait_for_function(IS_READY)
    page.wait_for_timeout(1500)  # for what the view asks in addition
    return page


def visit(browser: Browser, url: str, model: str) -> None:
    for name, (view, colors) in PICTURES[model].items():
        settings = {"color_scheme": colors, "locale": LOCALES[model]}
        page = open_view(browser, f"{url}/{view}", 1280, 800, **settings)
        picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
        picture.quantize(COLORS).save(ROOT / "docs" / "images" / f"{name}.png", optimize=True)
    for view, (colors, forced) in product(VIEWS[model], SCHEMES):
        settings = {"color_scheme": colors, "forced_colors": forced, "locale": LOCALES[model]}
        page = open_view(browser, f"{url}/{view}", 390, 844, **settings)
        found = [each["id"] for each in Axe().run(page).response["violations"]]
        print(model, view, colors, forced, found, flush=True)


def main() -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for model in PICTURES:
            with RunningServer("--model", model) as server:
                visit(browser, server.url, model)
        browser.close()


if __name__ == "__main__":
    main()
