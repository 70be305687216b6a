"""Choose the sentences of the corpus that `elmokit serve --model zh-small` searches by default,
src/elmokit/serve/corpus-zh.txt.zst.

    python recipes/page_corpus/build_zh.py SHARD... --output src/elmokit/serve/corpus-zh.txt.zst

A shard is a .zst file of raw text in simplified characters, one paragraph per line, in the public
domain or under CC0. First come sentences with the ambiguous words of words_zh.txt, then those with
common words of which there are still few, so that most common words have a map.
"""

import argparse
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import rjieba
import zstandard
from build_en import write_corpus

# Words of several senses, as they are cut by rjieba.
WORDS = Path(__file__).with_name("words_zh.txt").read_text(encoding="utf-8").split()
USES_PER_WORD_OF_LIST, USES_PER_WORD, COMMON_WORDS = 60, 10, 8000
CHARACTERS = 640_000
SHORTEST, LONGEST = 8, 45  # characters of a sentence

SENTENCE = re.compile(r"[^。！？]+[。！？][”』」]?")
FIT = re.compile(r"[“「]?[\u4e00-\u9fff，、；：“”‘’《》0-9]+[。！？][”」]?")
OFFENSIVE = re.compile("婊|妓|嫖|窑子|奸|强暴|洋鬼|鬼子|蛮子|杂种|畜生|妈的|他妈|狗日|王八|阴茎|乳")


def sentences(files: Iterable[Path]) -> Iterator[tuple[str, list[str]]]:
    """Sentences that can be read alone, and their words."""
    for file in files:
        with zstandard.open(file, "rt", encoding="utf-8") as stream:
            for line in stream:
                for sentence in map(str.strip, SENTENCE.findall(line)):
                    balanced = sentence.count("“") == sentence.count("”")
                    if (
                        SHORTEST <= len(sentence) <= LONGEST
                        and balanced
                        and FIT.fullmatch(sentence)
                        and not OFFENSIVE.search(sentence)
                    ):
                        yield sentence, rjieba.cut(sentence)


def choose(pool: list[tuple[str, list[str]]]) -> list[str]:
    """Sentences of the pool, first for the words of the list, then for common words."""
    uses, chosen = Counter[str](), dict[str, None]()
    total = 0

    def add(sentence: str, words: list[str]) -> None:
        nonlocal total
        chosen[sentence] = None
        uses.update(set(words))
        total += len(sentence)

    listed = set(WORDS)
    for sentence, words in pool:
        wanted = listed.intersection(words)
        if wanted and min(uses[word] for word in wanted) < USES_PER_WORD_OF_LIST // 2:
            add(sentence, words)
    for word in WORDS[:5]:  # the rarest, all of them
        for sentence, words in pool:
            if word in words and uses[word] < USES_PER_WORD_OF_LIST and sentence not in chosen:
                add(sentence, words)
    counts = Counter(word for _, words in pool for word in words)
    common = {word for word, _ in counts.most_common(COMMON_WORDS) if len(word) > 1}
    for needed in (3, 2, 1):
        for sentence, words in pool:
            few = sum(uses[word] < USES_PER_WORD for word in common.intersection(words))
            if sentence not in chosen and few >= needed:
                add(sentence, words)
                if total > CHARACTERS:
                    return list(chosen)
    return list(chosen)


def main() -> None:
    """Read the command line, and write the file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shards", nargs="+", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    pool = list(dict(sentences(sorted(arguments.shards))).items())
    random.Random(0).shuffle(pool)
    chosen = choose(pool)
    kept = set(chosen)
    uses = Counter(word for sentence, words in pool if sentence in kept for word in set(words))
    print(", ".join(f"{word} {uses[word]}" for word in WORDS[:12]))
    write_corpus(chosen, arguments.output)


if __name__ == "__main__":
    main()
