"""Shows how a file is read, in place of guessing whether that is what its owner meant."""

import sys
import unicodedata
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

SHOWN_WORDS, SHOWN_CHARACTERS = 12, 40  # of a text, and of a word


@lru_cache(maxsize=1024)  # a line that was printed before is not repeated
def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def show_reading(
    path: str | Path, words: Sequence[str], parts: Mapping[str, object] = MappingProxyType({})
) -> None:
    """Print on stderr how the beginning of a file is understood.

    Such as `reading notes.txt: The | dog | sleeps | .`, or with a part, here the column of a
    table, `reading notes.csv: The | dog | sleeps | . (column: text)`.

    Args:
        path: The file.
        words: The words of its first text.
        parts: What else is read, by name; None is left out.
    """
    if not words:
        return
    shown = [word[:SHOWN_CHARACTERS] for word in words[:SHOWN_WORDS]]
    if len(words) > len(shown):
        shown.append(f"... ({len(words):,} words)")
    about = ", ".join(
        f"{name}: {str(value)[:SHOWN_CHARACTERS]}"
        for name, value in parts.items()
        if value is not None
    )
    line = f"reading {Path(path).name}: {' | '.join(shown)}{about and f' ({about})'}"
    # Shown as escapes: control characters, of which terminals take commands, and accents apart
    # from their letters (NFD).
    is_apart = not unicodedata.is_normalized("NFC", line)
    _print(
        "".join(
            char
            if char.isprintable() and not (is_apart and unicodedata.combining(char))
            else ascii(char)[1:-1]
            for char in line
        )
    )
