"""Positions of tokens in the text that they were split from."""

import re
from array import array
from collections.abc import Sequence

from elmokit.text.chunks import INVISIBLE

NOT_SPACE = re.compile(r"\S")
VISIBLE = re.compile(rf"(?!{INVISIBLE.pattern})\S")
LOOK_AHEAD = 100  # characters in which to look for the next token if the tokenizer has changed the text


def token_offsets(text: str, tokens: Sequence[str]) -> list[tuple[int, int] | None]:
    """Find tokens in their text, in time linear in its length.

    Args:
        text: The text.
        tokens: Its tokens, in order. They lack its white space and may lack its invisible characters.

    Returns:
        The start and stop of each token in characters; None for a token that does not occur unchanged in the text.
    """
    kept = NOT_SPACE if INVISIBLE.search("".join(tokens)) else VISIBLE
    places = array("L", (match.start() for match in kept.finditer(text)))
    visible = "".join(kept.findall(text))
    offsets: list[tuple[int, int] | None] = []
    position = 0
    for token in tokens:
        start = visible.find(token, position, position + len(token) + LOOK_AHEAD)
        if start < 0 or not token:
            offsets.append(None)
            continue
        position = start + len(token)
        offsets.append((places[start], places[position - 1] + 1))
    return offsets
