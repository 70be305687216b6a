"""WordNet's sense keys, and the first sense of every lemma.

A sense key is LEMMA%TYPE:FILE:ID:HEAD:HEAD_ID, where TYPE is 1 for a noun, 2 for a verb, 3 for an adjective, 4 for an
adverb and 5 for a satellite adjective (WordNet's manual page senseidx).
"""

from pathlib import Path

from elmokit.fs.reading import read_lines

PARTS_OF_SPEECH = {"1": "n", "2": "v", "3": "a", "4": "r", "5": "a"}
INDEX = "index.sense"


def lemma_of_key(key: str) -> str:
    """The lemma and part of speech of a sense key: "play%1:10:01::" -> "play%n". ValueError for other strings."""
    lemma, _, rest = key.rpartition("%")
    if not lemma or rest[:1] not in PARTS_OF_SPEECH or rest.count(":") != 4:
        raise ValueError(f"{key!r} is not a WordNet sense key such as play%1:10:01::")
    return f"{lemma}%{PARTS_OF_SPEECH[rest[0]]}"


def read_first_senses(path: str | Path) -> dict[str, str]:
    """Read the first sense of every lemma from WordNet's index.sense.

    Its lines have a sense key, the offset of a synset, the number of the sense and a frequency.

    Args:
        path: The file, or the directory with it.

    Returns:
        Sense keys, by lemma and part of speech ("play%n").

    Raises:
        ValueError: The file has another format.
        FileNotFoundError: The file does not exist.
    """
    path = Path(path)
    path = path / INDEX if path.is_dir() else path
    first_senses = {}
    for number, line in enumerate(read_lines(path), start=1):
        columns = line.split()
        if len(columns) != 4 or not columns[2].isdecimal():
            raise ValueError(
                f"{path}, line {number}: expected the four columns of WordNet's {INDEX}, not {line[:60]!r}"
            )
        if columns[2] == "1":
            first_senses[lemma_of_key(columns[0])] = columns[0]
    return first_senses
