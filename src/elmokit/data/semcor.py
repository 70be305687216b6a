"""Reader of SemCor as JSON lines, one tokenized sentence per line, annotated with senses of WordNet 3.0.

    {"tokens": ["The", "Fulton_County_Grand_Jury", "said", ...],
     "instances": [{"tok": [2], "lemma": "say", "pos": "VB", "lexkeys": ["2:32:00::"]}, ...]}

`tok` are the indices of the tokens of an instance, from 0. A lexkey is the part of a sense key after the lemma and "%";
several senses are separated by semicolons. Underscores within a token join words.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from elmokit.data.sense_tagged import SenseInstance, SenseSentence, split_token
from elmokit.data.wordnet import lemma_of_key
from elmokit.fs.reading import read_lines

# Names are tagged with their type (person, group or location), but are not uses of that word.
NAME_TAG = "NNP"


def _split_tokens(tokens: Sequence[str]) -> tuple[tuple[str, ...], list[int]]:
    """The words of all tokens; and the index of each token's first word, followed by the number of words."""
    words: list[str] = []
    starts = [0]
    for token in tokens:
        words += split_token(token)
        starts.append(len(words))
    return tuple(words), starts


def _list(record: dict[str, Any], key: str) -> list[Any]:
    """A value that must be a list; TypeError for others, as a string would be read letter by letter."""
    if not isinstance(value := record[key], list):
        raise TypeError(f"{key} is {type(value).__name__}, not a list")
    return value


def _instance(record: dict[str, Any], starts: list[int], name: str) -> SenseInstance:
    tokens = _list(record, "tok")
    first, last = tokens[0], tokens[-1]
    if tokens != list(range(first, last + 1)) or first < 0 or last + 1 >= len(starts):
        raise ValueError(f"{name}: the tokens {tokens} of an instance are not consecutive tokens of the sentence")
    lexkeys = [lexkey for several in _list(record, "lexkeys") for lexkey in several.split(";")]
    senses = tuple(f"{record['lemma'].lower()}%{lexkey}" for lexkey in lexkeys)
    try:
        lemma = lemma_of_key(senses[0])
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    return SenseInstance(name, lemma, starts[first], starts[last + 1], senses)


def read_semcor(path: str | Path) -> Iterator[SenseSentence]:
    """Stream the sentences of SemCor, with all instances except names.

    Args:
        path: JSON lines (plain, .gz or .zst).

    Yields:
        The sentences.

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
            words, starts = _split_tokens(_list(record, "tokens"))
            instances = tuple(
                _instance(instance, starts, f"{name}, instance {index}")
                for index, instance in enumerate(_list(record, "instances"), start=1)
                if instance["pos"] != NAME_TAG
            )
        except (json.JSONDecodeError, RecursionError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise ValueError(
                f"{name}: expected a JSON object with tokens and instances (tok, lemma, pos, lexkeys); "
                f"{type(error).__name__}: {error}"
            ) from error
        yield SenseSentence(words, instances)
