"""Write the first sentences of TEXT that have at least WORDS words together: first_words.py TEXT
WORDS OUTPUT.
"""

import sys
from pathlib import Path

from elmokit.fs.atomic import atomic_path
from elmokit.fs.reading import read_lines


def main(text: str, words: str, output: str) -> None:
    count, lines = 0, []
    for line in read_lines(text):
        lines.append(line)
        count += len(line.split())
        if count >= int(words):
            break
    with atomic_path(Path(output)) as partial:
        partial.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
