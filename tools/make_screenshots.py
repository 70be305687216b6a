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
PICTURES = {
    "page": ("#map?word=bank&second_word=shore", "light"),
    "page-dark": ("#sentence", "dark"),
}
VIEWS = ("#map?word=letter", "#map?sentence=I+ate+an+apple.", "#compare", "#sentence")
SCHEMES = [(colors, forced) for forced in ("none", "active") for colors in ("light", "dark")]


def open_view(browser: Browser, url: str, width: int, height: int, **settings: Any) -> Page:
    page = browser.new_page(
        viewport={"width": width, "height": height}, reduced_motion="reduce", **settings
    )
    page.goto(url)
    page.wait_for_function(IS_READY)
    page.wait_for_timeout(1500)  # for what the view asks in addition
    return page


def main() -> None:
    with RunningServer() as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for name, (view, colors) in PICTURES.items():
            page = open_view(browser, f"{server.url}/{view}", 1280, 800, color_scheme=colors)
            picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
            picture.quantize(COLORS).save(ROOT / "docs" / "images" / f"{name}.png", optimize=True)
        for view, (colors, forced) in product(VIEWS, SCHEMES):
            page = open_view(
                browser, f"{server.url}/{view}", 390, 844, color_scheme=colors, forced_colors=forced
            )
            print(
                view,
                colors,
                forced,
                [each["id"] for each in Axe().run(page).response["violations"]],
            )
        browser.close()


if __name__ == "__main__":
    main()
