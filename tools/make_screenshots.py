"""Take screenshots of the page of `elmokit serve` for the documents: docs/images/page.png, page-dark.png.

    python tools/make_screenshots.py

Needs the extra `serve`, Playwright, Chromium, and Pillow.
"""

from __future__ import annotations

import io
import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
sys.path.append(str(ROOT / "tests" / "support"))
from running_server import CORPUS, RunningServer  # noqa: E402

WIDTH, COLORS = 1150, 64
# By picture: its colour scheme and the views that it shows.
PICTURES = {"page": ("light", ("compare", "senses")), "page-dark": ("dark", ("neighbors", "substitutes"))}


def photograph(browser: Browser, url: str, scheme: str, views: tuple[str, ...]) -> Image.Image:
    """A picture of the views of the page, one below the other."""
    page = browser.new_page(viewport={"width": WIDTH, "height": 1000}, color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]
    page.goto(url)
    shots = []
    for view in views:
        section = page.locator(f"#{view}")
        section.scroll_into_view_if_needed()
        section.locator(".result > *").first.wait_for()
        section.locator("form:not([aria-busy])").wait_for()
        page.wait_for_timeout(500)  # time to draw the bars
        shots.append(Image.open(io.BytesIO(section.screenshot())))
    page.close()
    margin = (WIDTH - shots[0].width) // 2
    whole = Image.new("RGB", (WIDTH, sum(shot.height for shot in shots)), shots[0].convert("RGB").getpixel((2, 10)))
    for number, shot in enumerate(shots):
        whole.paste(shot, (margin, sum(each.height for each in shots[:number])))
    return whole


def main() -> None:
    with RunningServer("--corpus", CORPUS) as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, (scheme, views) in PICTURES.items():
            picture = photograph(browser, server.url, scheme, views)
            picture.quantize(COLORS).save(IMAGES / f"{name}.png", optimize=True)
            print(IMAGES / f"{name}.png")
        browser.close()


if __name__ == "__main__":
    main()
