"""WikiText-2 as elmokit reads text: an article a line, every end of line the word <eos>.

    python articles.py wiki.train.tokens articles.txt

So a model predicts every token of the published measure (Merity et al. 2017), <eos> of blank lines too, and one </S>
more an article; its state runs on through an article, as it does there.
"""

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from elmokit.fs.atomic import atomic_path

TITLE = re.compile(r" = [^=].* = \n?")  # not " = = Section = = "


def articles(lines: Iterable[str]) -> Iterator[list[str]]:
    """The tokens of each article; an article begins at the blank line above its title."""
    article: list[str] = []
    previous: list[str] | None = None  # tokens of the line before, which may belong to the next article
    for line in lines:
        if previous is not None:
            if TITLE.fullmatch(line) and previous == ["<eos>"]:
                if article:
                    yield article
                article = []
            article += previous
        previous = [*line.split(), "<eos>"]
    if previous is not None:
        yield [*article, *previous]


def main(source: str, output: str) -> None:
    with open(source, encoding="utf-8") as lines, atomic_path(Path(output)) as partial:
        partial.write_text("".join(" ".join(article) + "\n" for article in articles(lines)), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
