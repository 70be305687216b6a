"""Reading CoarseWSD-20 (Loureiro et al., 2021): a folder for each ambiguous word, few and clearly distinct senses.

A folder holds classes_map.txt, a JSON object from class numbers to names of senses, and for each of train and test two
files that correspond line by line: SPLIT.data.txt, the position of the word (from 0), a tab, and the sentence with
spaces between its tokens; SPLIT.gold.txt, the class number.
"""

import json
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

from elmokit.data.sense_tagged import SenseInstance, SenseSentence
from elmokit.fs.reading import read_lines

CLASSES, TRAIN_DATA = "classes_map.txt", "train.data.txt"


def coarse_wsd_folders(directory: str | Path) -> list[Path]:
    """The folders of the words, in alphabetical order: `directory` itself where it is one, else those inside it."""
    directory = Path(directory)
    candidates = [directory, *sorted(directory.iterdir())] if directory.is_dir() else []
    return [folder for folder in candidates if (folder / TRAIN_DATA).is_file()]


def _read_classes(path: Path) -> dict[str, str]:
    text = "\n".join(read_lines(path))
    try:
        classes = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is no JSON ({error}): it should be an object from class numbers to senses") from error
    if not isinstance(classes, dict) or not all(isinstance(name, str) for name in classes.values()):
        raise ValueError(f"{path} should be a JSON object from class numbers to names of senses")
    return classes


def _instance(line: str, label: str, classes: dict[str, str], name: str, word: str) -> SenseSentence:
    position, _, text = line.partition("\t")
    words = tuple(text.split())
    if not position.strip().isdecimal() or int(position) >= len(words):
        raise ValueError(f"{name}: expected the position of a word, a tab and a sentence, not {line[:60]!r}")
    if label.strip() not in classes:
        raise ValueError(f"{name}: class {label.strip()!r} is not in {CLASSES}, which has {', '.join(classes)}")
    start = int(position)
    return SenseSentence(words, (SenseInstance(name, word, start, start + 1, (classes[label.strip()],)),))


def read_coarse_wsd(folder: str | Path, split: str) -> Iterator[SenseSentence]:
    """The sentences of one word, streamed; `split` is "train" or "test". Each has one instance.

    ValueError, naming file and line, for what is not in the layout; FileNotFoundError where a file is missing.
    """
    folder = Path(folder)
    classes, word = _read_classes(folder / CLASSES), folder.resolve().name
    data, gold = folder / f"{split}.data.txt", folder / f"{split}.gold.txt"
    number = 0
    for number, (line, label) in enumerate(zip_longest(read_lines(data), read_lines(gold)), start=1):
        if line is None or label is None:
            raise ValueError(f"{data} and {gold} have unequal numbers of lines: one of them is cut off")
        yield _instance(line, label, classes, f"{data}, line {number}", word)
    if not number:
        raise ValueError(f"{data} is empty: it should have a line for each sentence")
