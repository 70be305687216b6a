"""Reader of CoarseWSD-20 (Loureiro et al., 2021): one folder for each of twenty ambiguous nouns, with coarse senses.

A folder contains classes_map.txt, a JSON object from class numbers to names of senses, and for each split (train, test)
two files with corresponding lines: SPLIT.data.txt (the position of the word from 0, a tab, and the sentence with tokens
separated by spaces) and SPLIT.gold.txt (the class number).
"""

import json
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

from elmokit.data.sense_tagged import SenseInstance, SenseSentence
from elmokit.fs.reading import read_lines

CLASSES, TRAIN_DATA = "classes_map.txt", "train.data.txt"


def coarse_wsd_folders(directory: str | Path) -> list[Path]:
    """The word folders in a directory, in alphabetical order; `directory` itself may be one."""
    directory = Path(directory)
    candidates = [directory, *sorted(directory.iterdir())] if directory.is_dir() else []
    return [folder for folder in candidates if (folder / TRAIN_DATA).is_file()]


def _read_classes(path: Path) -> dict[str, str]:
    text = "\n".join(read_lines(path))
    try:
        classes = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON ({error}): it should map class numbers to names of senses") from error
    if not isinstance(classes, dict) or not all(isinstance(name, str) for name in classes.values()):
        raise ValueError(f"{path} should be a JSON object that maps class numbers to names of senses")
    return classes


def _instance(line: str, label: str, classes: dict[str, str], name: str, word: str) -> SenseSentence:
    position, _, text = line.partition("\t")
    # Split at spaces alone, as positions count: tokens such as "4\u00a01/2" contain other white space.
    words = tuple(word for word in text.split(" ") if word)
    if not position.strip().isdecimal() or int(position) >= len(words):
        raise ValueError(f"{name}: expected the position of a word, a tab and a sentence, not {line[:60]!r}")
    if label.strip() not in classes:
        raise ValueError(f"{name}: class {label.strip()!r} is not in {CLASSES}, which has {', '.join(classes)}")
    start = int(position)
    return SenseSentence(words, (SenseInstance(name, word, start, start + 1, (classes[label.strip()],)),))


def read_coarse_wsd(folder: str | Path, split: str) -> Iterator[SenseSentence]:
    """Stream the sentences of one word.

    Args:
        folder: The folder of the word.
        split: "train" or "test".

    Yields:
        Sentences with one instance each.

    Raises:
        ValueError: A line is malformed, or the files do not correspond; the message names file and line.
        FileNotFoundError: A file is missing.
    """
    folder = Path(folder)
    classes, word = _read_classes(folder / CLASSES), folder.resolve().name
    data, gold = folder / f"{split}.data.txt", folder / f"{split}.gold.txt"
    number = 0
    for number, (line, label) in enumerate(zip_longest(read_lines(data), read_lines(gold)), start=1):
        if line is None or label is None:
            raise ValueError(f"{data} and {gold} have different numbers of lines: one of them is truncated")
        yield _instance(line, label, classes, f"{data}, line {number}", word)
    if not number:
        raise ValueError(f"{data} is empty: it should have one line per sentence")
