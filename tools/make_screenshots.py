"""Take the screenshots of the page of `elmokit serve` in docs/images, and check the page with axe-core meanwhile.

    python tools/make_screenshots.py

Needs the extra `serve`, Chromium, and from PyPI axe-playwright-python, playwright and pillow.
"""

from __future__ import annotations

import io
import shutil
import sys
from pathlib import Path

from axe_playwright_python.sync_playwright import Axe
from PIL import Image
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests" / "support"))
from running_server import RunningServer  # noqa: E402

COLORS = 128
KEPT = ("page", "page-dark")  # the others are only checked
IS_READY = "() => running === null && showAgain !== null && corpus !== null"
# By picture: its link, its size, and its settings.
PICTURES = {
    "page": ("#map?word=bank&second_word=shore", (1280, 800), {"color_scheme": "light"}),
    "page-dark": ("#sentence", (1280, 800), {"color_scheme": "dark"}),
    "page-phone": ("#map?word=letter", (390, 844), {"color_scheme": "light"}),
    "page-forced": ("#compare", (1024, 768), {"forced_colors": "active"}),
}


def main() -> None:
    with RunningServer() as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, (link, (width, height), settings) in PICTURES.items():
            page = browser.new_page(viewport={"width": width, "height": height}, reduced_motion="reduce", **settings)
            page.goto(f"{server.url}/{link}")
            page.wait_for_function(IS_READY)
            page.wait_for_timeout(1500)  # for what the view asks in addition
            print(name, [each["id"] for each in Axe().run(page).response["violations"]])
            if name in KEPT:
                picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
                picture.quantize(COLORS).save(ROOT / "docs" / "images" / f"{name}.png", optimize=True)
            page.close()
        browser.close()


if __name__ == "__main__":
    main()
