"""Reading the XML of Raganato et al. (2017), in which the all-words test sets and SemCor are distributed.

NAME.data.xml holds <sentence> elements of <wf> and <instance> elements, one a token; an instance has an id, a lemma and
a part of speech. NAME.gold.key.txt, beside it, has a line for each instance: its id and the sense keys that are right.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import cast
from xml.etree.ElementTree import Element, ParseError, XMLPullParser

from elmokit.data.sense_tagged import SenseInstance, SenseSentence, split_token
from elmokit.fs.reading import read_blocks, read_lines

PARTS_OF_SPEECH = {"NOUN": "n", "VERB": "v", "ADJ": "a", "ADV": "r"}
DATA_SUFFIX, KEY_SUFFIX = ".data.xml", ".gold.key.txt"


def key_file_of(path: str | Path) -> Path:
    """The file of keys that belongs to a file of data: NAME.data.xml -> NAME.gold.key.txt."""
    path = Path(path)
    if not path.name.endswith(DATA_SUFFIX):
        raise ValueError(f"{path} should be named NAME{DATA_SUFFIX}, with its keys in NAME{KEY_SUFFIX} beside it")
    return path.with_name(path.name.removesuffix(DATA_SUFFIX) + KEY_SUFFIX)


def read_gold_keys(path: str | Path) -> dict[str, tuple[str, ...]]:
    """The right senses of every instance by its id. ValueError for a line without a key."""
    found = {}
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        name, *keys = line.split()
        if not keys:
            raise ValueError(f"{path}, line {number}: {name} has no sense key")
        found[name] = tuple(keys)
    return found


def _events(path: Path) -> Iterator[tuple[str, Element]]:
    """Every "start" and "end" of an element, as the file is read."""
    parser = XMLPullParser(("start", "end"))
    for block in read_blocks(path):
        parser.feed(block)
        yield from cast(Iterator[tuple[str, Element]], parser.read_events())
    parser.close()
    yield from cast(Iterator[tuple[str, Element]], parser.read_events())


def _sentence_elements(path: Path) -> Iterator[Element]:
    """The <sentence> elements, each of which is freed when the next one is asked for."""
    parents: list[Element] = []
    for event, element in _events(path):
        if event == "start":
            parents.append(element)
            continue
        parents.pop()
        if element.tag == "sentence":
            yield element
        if parents and element.tag in ("sentence", "text"):
            parents[-1].remove(element)


def _sentence(element: Element, keys: dict[str, tuple[str, ...]], path: Path) -> SenseSentence:
    words: list[str] = []
    instances = []
    for token in element:
        start = len(words)
        words += split_token(token.text) if token.text else []
        if token.tag != "instance":
            continue
        name, lemma, pos = (token.get(attribute, "") for attribute in ("id", "lemma", "pos"))
        if pos not in PARTS_OF_SPEECH or not lemma or len(words) == start:
            expected = f"a word, a lemma and one of {', '.join(PARTS_OF_SPEECH)}"
            raise ValueError(f"{path}: the instance {name!r} needs {expected}")
        if name not in keys:
            raise ValueError(f"{path}: the instance {name!r} has no line in {key_file_of(path).name}")
        lemma_pos = f"{lemma.lower()}%{PARTS_OF_SPEECH[pos]}"
        instances.append(SenseInstance(name, lemma_pos, start, len(words), keys[name]))
    return SenseSentence(tuple(words), tuple(instances))


def read_raganato(path: str | Path) -> Iterator[SenseSentence]:
    """The sentences of NAME.data.xml with the senses of NAME.gold.key.txt beside it, streamed.

    ValueError for what is no such XML, holds no sentence, or does not fit its keys; FileNotFoundError where one of the
    two files is missing.
    """
    path = Path(path)
    keys = read_gold_keys(key_file_of(path))
    sentences, instances = 0, 0
    try:
        for element in _sentence_elements(path):
            sentence = _sentence(element, keys, path)
            sentences, instances = sentences + 1, instances + len(sentence.instances)
            yield sentence
    except ParseError as error:
        raise ValueError(f"{path} is no well-formed XML ({error}): is it damaged or cut off?") from error
    if not sentences:
        raise ValueError(f"{path} holds no <sentence>: give a file in the layout of Raganato et al. (2017)")
    if instances != len(keys):
        raise ValueError(
            f"{path} has {instances} instances, {key_file_of(path).name} keys for {len(keys)}: they differ"
        )
