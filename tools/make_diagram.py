"""Draw the model: docs/images/model.svg, the figure of docs/how-elmo-works.md.

    python tools/make_diagram.py           # writes it
    python tools/make_diagram.py --check   # status 1 if the file is out of date

Needs only the standard library.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

OUTPUT = Path(__file__).parents[1] / "docs" / "images" / "model.svg"
WORDS = ("They", "play", "chess")
CHOSEN = 1  # the word whose vectors are coloured
# The word that each position predicts, by direction.
PREDICTED = {"forward": ("play", "chess", "&lt;/S&gt;"), "backward": ("&lt;S&gt;", "They", "play")}
ROWS = {"LSTM layer 2": 130, "LSTM layer 1": 220, "layer 0": 310}  # y of the boxes, from the top
LEFT = {"forward": 130, "backward": 450}  # x of the first box of a direction
STEP, WIDTH, HEIGHT = 92, 70, 36  # distance from a box to the next; size of a box
INK, GREY, PLAIN, COLOURED = "#333", "#777", "#f1ece8", "#e2a173"
SIZE = (760, 470)


def text(x: float, y: float, content: str, size: int = 14, colour: str = INK, style: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{colour}" text-anchor="middle"{style}>{content}</text>'


def arrow(x1: float, y1: float, x2: float, y2: float, dashed: bool = False) -> str:
    dashes = ' stroke-dasharray="4 3"' if dashed else ""
    ends = f'x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}"'
    return f'<line {ends} stroke="{GREY}" stroke-width="1.4" marker-end="url(#head)"{dashes}/>'


def box(x: float, y: float, label: str, is_chosen: bool) -> Iterator[str]:
    fill = COLOURED if is_chosen else PLAIN
    yield f'<rect x="{x:g}" y="{y:g}" width="{WIDTH}" height="{HEIGHT}" rx="5" fill="{fill}" stroke="{GREY}"/>'
    yield text(x + WIDTH / 2, y + HEIGHT / 2 + 5, label)


def direction(name: str) -> Iterator[str]:
    """The boxes of one language model, from the words at the bottom to those that it predicts at the top."""
    lefts = [LEFT[name] + number * STEP for number in range(len(WORDS))]
    yield text(lefts[1] + WIDTH / 2, 40, f"{name} language model", 16)
    for number, (word, predicted, left) in enumerate(zip(WORDS, PREDICTED[name], lefts, strict=True)):
        middle, is_chosen = left + WIDTH / 2, number == CHOSEN
        yield text(middle, 80, predicted, 14, GREY, ' font-style="italic"')
        yield arrow(middle, 126, middle, 90, dashed=True)
        for row, (layer, y) in enumerate(ROWS.items()):
            symbol = "x" if layer == "layer 0" else "h"
            yield from box(left, y, symbol, is_chosen)
            if row:
                yield arrow(middle, y - 2, middle, y - 90 + HEIGHT + 6)
        yield arrow(middle, 388, middle, 350)
        yield text(middle, 408, word, 15)
    for y in list(ROWS.values())[:2]:  # arrows for the state, from word to word
        for left in lefts[:-1]:
            begin, end, middle = left + WIDTH + 1, left + STEP - 3, y + HEIGHT / 2
            yield arrow(begin, middle, end, middle) if name == "forward" else arrow(end + 2, middle, begin + 2, middle)


def diagram() -> str:
    """The figure as SVG."""
    labels = [text(60, y + HEIGHT / 2 + 5, layer, 14, GREY) for layer, y in ROWS.items()]
    labels += [text(60, 80, "predicted", 14, GREY), text(60, 360, "character CNN", 12, GREY)]
    chosen = f'<tspan font-style="italic">{WORDS[CHOSEN]}</tspan>'
    caption = f"the coloured boxes of a row, side by side, are the vector of {chosen} at that layer"
    labels.append(text(SIZE[0] / 2, 450, caption))
    head = '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {SIZE[0]} {SIZE[1]}" font-family="sans-serif">',
        f'<defs>{head}<path d="M0 0L8 4L0 8z" fill="{GREY}"/></marker></defs>',
        f'<rect width="{SIZE[0]}" height="{SIZE[1]}" fill="#fff"/>',
        *labels, *direction("forward"), *direction("backward"), "</svg>",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; status 1 if the file is out of date")
    if not parser.parse_args(argv).check:
        OUTPUT.write_text(diagram(), encoding="utf-8")
    elif not OUTPUT.is_file() or OUTPUT.read_text(encoding="utf-8") != diagram():
        print(f"{OUTPUT.name} is not what this script draws: run tools/make_diagram.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
