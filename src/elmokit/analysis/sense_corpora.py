"""Readers of sense-annotated text: CoarseWSD-20, the XML of Raganato et al. (2017), SemCor as JSON
lines; and WordNet.

CoarseWSD-20 (Loureiro et al., 2021) has one folder for each of twenty ambiguous nouns, with coarse
senses: classes_map.txt, a JSON object from class numbers to names of senses, and for each split
(train, test) two files with corresponding lines: SPLIT.data.txt (the position of the word from 0, a
tab, and the sentence with tokens separated by spaces) and SPLIT.gold.txt (the class number).

In Raganato's format are the all-words test sets and SemCor. NAME.data.xml contains <sentence>
elements with one <wf> or <instance> element per token; an instance has an id, a lemma and a part of
speech. NAME.gold.key.txt has one line per instance: its id and its correct sense keys.

SemCor as JSON lines has one tokenized sentence per line, annotated with senses of WordNet 3.0:

    {"tokens": ["The", "Fulton_County_Grand_Jury", "said", ...],
     "instances": [{"tok": [2], "lemma": "say", "pos": "VB", "lexkeys": ["2:32:00::"]}, ...]}

`tok` are the indices of the tokens of an instance, consecutive ones, from 0. A lexkey is the part
of a sense key after the lemma and "%"; several senses are separated by semicolons.

A sense key of WordNet is LEMMA%TYPE:FILE:ID:HEAD:HEAD_ID, where TYPE is 1 for a noun, 2 for a verb,
3 for an adjective, 4 for an adverb and 5 for a satellite adjective (manual page senseidx).
"""

import json
import re
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple
from xml.etree.ElementTree import Element, iterparse

from elmokit.fs import read_lines

CLASSES, TRAIN_DATA = "classes_map.txt", "train.data.txt"
DATA_SUFFIX, KEY_SUFFIX = ".data.xml", ".gold.key.txt"
# names have the sense of their type in SemCor (person, ...), but are not uses of that word
NAME_TAG = "NNP"
PARTS_OF_SPEECH = {
    "1": "n",
    "2": "v",
    "3": "a",
    "4": "r",
    "5": "a",
    "NOUN": "n",
    "VERB": "v",
    "ADJ": "a",
    "ADV": "r",
}
SEPARATOR = re.compile(r"[_\s]+")


class SenseInstance(NamedTuple):
    """A word, or several consecutive words, with a sense.

    Attributes:
        name: Unique name, such as "senseval2.d000.s000.t000"; in other formats file, line and
            number in the line.
        lemma: The entry that the senses belong to: lemma and part of speech, "play%n", or in
            CoarseWSD the word.
        start: Index of the first word in the sentence.
        end: Index after the last word.
        senses: The correct senses; any of them counts as a correct answer.
    """

    name: str
    lemma: str
    start: int
    end: int
    senses: tuple[str, ...]


class SenseSentence(NamedTuple):
    """A tokenized sentence and its sense-annotated instances."""

    words: tuple[str, ...]
    instances: tuple[SenseInstance, ...]


def split_token(token: str) -> list[str]:
    """The words of a token that joins several with underscores or spaces, such as
    "primary_election".
    """
    return [word for word in SEPARATOR.split(token) if word] or [token]


# --- WordNet --------------------------------------------------------------------------------------


def lemma_of_key(key: str) -> str:
    """The lemma and part of speech of a sense key: "play%1:10:01::" -> "play%n". ValueError for
    other strings.
    """
    lemma, _, rest = key.rpartition("%")
    if not lemma or rest[:1] not in PARTS_OF_SPEECH or rest.count(":") != 4:
        raise ValueError(f"{key!r} is not a WordNet sense key such as play%1:10:01::")
    return f"{lemma}%{PARTS_OF_SPEECH[rest[0]]}"


def read_first_senses(path: str | Path) -> dict[str, str]:
    """Read the first sense of every lemma ("play%n") from WordNet's index.sense, or from the
    directory with it.

    Its lines have a sense key, the offset of a synset, the number of the sense and a frequency.
    """
    path = Path(path)
    first_senses = {}
    for line in read_lines(path / "index.sense" if path.is_dir() else path):
        key, _, number, _ = line.split()
        if number == "1":
            first_senses[lemma_of_key(key)] = key
    return first_senses


# --- CoarseWSD-20 ---------------------------------------------------------------------------------


def coarse_wsd_folders(directory: str | Path) -> list[Path]:
    """The word folders in a directory, in alphabetical order; `directory` itself may be one."""
    directory = Path(directory)
    candidates = [directory, *sorted(directory.iterdir())] if directory.is_dir() else []
    return [folder for folder in candidates if (folder / TRAIN_DATA).is_file()]


def read_coarse_wsd(folder: str | Path, split: str) -> Iterator[SenseSentence]:
    """Stream the sentences of one word, with one instance each.

    Args:
        folder: The folder of the word.
        split: "train" or "test".

    Raises:
        ValueError: A line is malformed, or the files do not correspond; the message names file and
            line.
        FileNotFoundError: A file is missing.
    """
    folder = Path(folder)
    word = folder.resolve().name
    classes = json.loads("\n".join(read_lines(folder / CLASSES)))
    data, gold = folder / f"{split}.data.txt", folder / f"{split}.gold.txt"
    for number, (line, label) in enumerate(
        zip_longest(read_lines(data), read_lines(gold)), start=1
    ):
        name = f"{data}, line {number}"
        try:
            position, text = line.split("\t")
            # Split at spaces alone, as positions count: tokens such as "4\u00a01/2" contain other
            # white space.
            words, start = tuple(filter(None, text.split(" "))), int(position)
            instance = SenseInstance(name, word, start, start + 1, (classes[label.strip()],))
            words[start]
        except (AttributeError, ValueError, LookupError) as error:
            raise ValueError(
                f"{name}: expected the position of a word, a tab and a sentence, with a class in "
                f"{gold.name} that {CLASSES} has; {type(error).__name__}: {error}"
            ) from error
        yield SenseSentence(words, (instance,))


# --- Raganato's XML -------------------------------------------------------------------------------


def key_file_of(path: str | Path) -> Path:
    """The key file of a data file: NAME.data.xml -> NAME.gold.key.txt."""
    path = Path(path)
    return path.with_name(path.name.removesuffix(DATA_SUFFIX) + KEY_SUFFIX)


def _sentence(element: Element, keys: dict[str, tuple[str, ...]], path: Path) -> SenseSentence:
    words: list[str] = []
    instances = []
    for token in element:
        start = len(words)
        words += split_token(token.text) if token.text else []
        if token.tag == "instance":
            name = token.get("id", "")
            try:
                lemma = f"{token.attrib['lemma'].lower()}%{PARTS_OF_SPEECH[token.attrib['pos']]}"
                instances.append(SenseInstance(name, lemma, start, len(words), keys[name]))
            except KeyError as error:
                raise ValueError(
                    f"{path}: the instance {name!r} needs a lemma, a pos (NOUN, VERB, ADJ or ADV) "
                    f"and a line in {key_file_of(path).name}, but has not {error}"
                ) from error
    return SenseSentence(tuple(words), tuple(instances))


def read_raganato(path: str | Path) -> Iterator[SenseSentence]:
    """Stream the sentences of NAME.data.xml with the senses of NAME.gold.key.txt, from the same
    directory.

    Raises:
        ParseError: The XML is damaged or truncated.
        ValueError: An instance has no lemma, no part of speech or no key.
        FileNotFoundError: One of the two files is missing.
    """
    path = Path(path)
    key_lines = (line.split() for line in read_lines(key_file_of(path)) if line.strip())
    keys = {name: tuple(senses) for name, *senses in key_lines}
    for _, element in iterparse(path):
        if element.tag == "sentence":
            yield _sentence(element, keys, path)
            element.clear()  # which frees its memory


# --- SemCor ---------------------------------------------------------------------------------------


def read_semcor(path: str | Path) -> Iterator[SenseSentence]:
    """Stream the sentences of SemCor as JSON lines (plain, .gz or .zst), with all instances except
    names.

    Raises:
        ValueError: A line is malformed; the message names file and line.
        FileNotFoundError: The file does not exist.
    """
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        name = f"{path}, line {number}"
        try:
            record = json.loads(line)
            words: list[str] = []
            starts = [0]  # of each token's first word, and at last the number of words
            for token in record["tokens"]:
                words += split_token(token)
                starts.append(len(words))
            instances = []
            for index, instance in enumerate(record["instances"], start=1):
                if instance["pos"] != NAME_TAG:
                    first, last = instance["tok"][0], instance["tok"][-1]
                    lemma, lexkeys = (
                        instance["lemma"].lower(),
                        ";".join(instance["lexkeys"]).split(";"),
                    )
                    senses = tuple(f"{lemma}%{lexkey}" for lexkey in lexkeys)
                    place = lemma_of_key(senses[0]), starts[first], starts[last + 1]
                    instances.append(SenseInstance(f"{name}, instance {index}", *place, senses))
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(
                f"{name}: expected a JSON object with tokens and instances (tok, lemma, pos, "
                f"lexkeys); {type(error).__name__}: {error}"
            ) from error
        yield SenseSentence(tuple(words), tuple(instances))
