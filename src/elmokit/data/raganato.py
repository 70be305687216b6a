"""Reader of the XML format of Raganato et al. (2017), in which the all-words test sets and SemCor are distributed.

NAME.data.xml contains <sentence> elements with one <wf> or <instance> element per token; an instance has an id, a lemma
and a part of speech. NAME.gold.key.txt has one line per instance: its id and its correct sense keys.
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
    """The key file of a data file: NAME.data.xml -> NAME.gold.key.txt."""
    path = Path(path)
    if not path.name.endswith(DATA_SUFFIX):
        raise ValueError(f"{path} should be named NAME{DATA_SUFFIX}, with its keys in NAME{KEY_SUFFIX}")
    return path.with_name(path.name.removesuffix(DATA_SUFFIX) + KEY_SUFFIX)


def read_gold_keys(path: str | Path) -> dict[str, tuple[str, ...]]:
    """The correct senses of every instance, by its id. ValueError for a line without a key."""
    senses = {}
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        name, *keys = line.split()
        if not keys:
            raise ValueError(f"{path}, line {number}: {name} has no sense key")
        senses[name] = tuple(keys)
    return senses


def _events(path: Path) -> Iterator[tuple[str, Element]]:
    """Stream the "start" and "end" events of all elements."""
    parser = XMLPullParser(("start", "end"))
    for block in read_blocks(path):
        parser.feed(block)
        yield from cast(Iterator[tuple[str, Element]], parser.read_events())
    parser.close()
    yield from cast(Iterator[tuple[str, Element]], parser.read_events())


def _sentence_elements(path: Path) -> Iterator[Element]:
    """Stream the <sentence> elements; each is removed from the tree afterwards to free its memory."""
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
    """Stream the sentences of NAME.data.xml with the senses of NAME.gold.key.txt, from the same directory.

    Args:
        path: NAME.data.xml.

    Yields:
        The sentences.

    Raises:
        ValueError: A file is malformed, there is no sentence, or the instances do not match the keys.
        FileNotFoundError: One of the two files is missing.
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
        raise ValueError(f"{path} is not well-formed XML ({error}): it is damaged or truncated") from error
    if not sentences:
        raise ValueError(f"{path} has no <sentence>: give a file in the format of Raganato et al. (2017)")
    if instances != len(keys):
        raise ValueError(
            f"{path} has {instances} instances but {key_file_of(path).name} has keys for {len(keys)}: use files that "
            "belong together"
        )
