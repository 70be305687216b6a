"""Reading SemCor as JSON lines, one tokenized sentence each, tagged with the senses of WordNet 3.0.

    {"tokens": ["The", "Fulton_County_Grand_Jury", "said", ...],
     "instances": [{"tok": [2], "lemma": "say", "pos": "VB", "lexkeys": ["2:32:00::"]}, ...]}

`tok` are the tokens of an instance, from 0. A lexkey is what follows the lemma and "%" in a sense key; several senses
stand with semicolons between them. Underscores within a token join words.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from elmokit.data.sense_tagged import SenseInstance, SenseSentence, split_token
from elmokit.data.wordnet import lemma_of_key
from elmokit.fs.reading import read_lines

# A name that is tagged with its kind (person, group or location), which is no use of the word "person".
NAME_TAG = "NNP"


def _split_tokens(tokens: Sequence[str]) -> tuple[tuple[str, ...], list[int]]:
    """The words of all tokens, and where each token starts among them, with the end of the last one."""
    words: list[str] = []
    starts = [0]
    for token in tokens:
        words += split_token(token)
        starts.append(len(words))
    return tuple(words), starts


def _instance(given: dict[str, Any], starts: list[int], name: str) -> SenseInstance:
    tokens = given["tok"]
    first, last = tokens[0], tokens[-1]
    if tokens != list(range(first, last + 1)) or first < 0 or last + 1 >= len(starts):
        raise ValueError(f"{name}: the tokens {tokens} of an instance are not in a row within the sentence")
    lexkeys = [part for lexkey in given["lexkeys"] for part in lexkey.split(";")]
    senses = tuple(f"{given['lemma'].lower()}%{lexkey}" for lexkey in lexkeys)
    return SenseInstance(name, lemma_of_key(senses[0]), starts[first], starts[last + 1], senses)


def read_semcor(path: str | Path) -> Iterator[SenseSentence]:
    """The sentences of a JSONL file (plain, .gz or .zst), streamed, with every instance but names.

    ValueError, naming file and line, for what is not in the layout.
    """
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        name = f"{path}, line {number}"
        try:
            given = json.loads(line)
            words, starts = _split_tokens(given["tokens"])
            tagged = [instance for instance in given["instances"] if instance["pos"] != NAME_TAG]
            instances = tuple(_instance(instance, starts, name) for instance in tagged)
        except (json.JSONDecodeError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise ValueError(
                f"{name}: expected a JSON object with tokens and instances (tok, lemma, pos, lexkeys); "
                f"{type(error).__name__}: {error}"
            ) from error
        yield SenseSentence(words, instances)
