"""Convert WikiText-2 to the form that elmokit reads: one article per line, with the word <eos> for
each line end.

    python articles.py wiki.train.tokens articles.txt

A model then predicts every token of the published measure (Merity et al. 2017), including the <eos>
of blank lines, and one additional </S> per article. Its state is carried through an article, as it
is there.
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
    previous: list[str] | None = (
        None  # tokens of the previous line, which may belong to the next article
    )
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
        partial.write_text(
            "".join(" ".join(article) + "\n" for article in articles(lines)), encoding="utf-8"
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
