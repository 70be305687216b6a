"""Choose the sentences of the corpus that `elmokit serve` searches by default,
src/elmokit/serve/corpus.txt.zst.

    python recipes/page_corpus/build_en.py SHARD... --output src/elmokit/serve/corpus.txt.zst

A shard is a .zst file of raw text, one paragraph per line, whose name begins with that of its
source: gutenberg (books in the public domain), us_gov (works of the United States government),
un_general_debate and misc, of which only lines that are not tokenized are read: inaugural
addresses, in the public domain, and Common Voice sentences, CC0.

First come sentences for each sense in `SENSES`, then those that contain words of which there are
still few, so that most common words have a map.
"""

import argparse
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import zstandard
from sentencex import segment

# Ambiguous words, and for each sense words that are often near it.
SENSES = {
    "apple": [
        "trees?|pies?|eat|ate|fruit|orchard|ripe|red",
        "iphone|ios|google|microsoft|app|devices?|computer",
    ],
    "arm": [
        "his|her|my|shoulder|broken",
        "long arm|arm of the (law|sea|government)|executive|arms race",
    ],
    "bank": [
        "river|stream|water|boat|grassy|steep|canoe",
        "money|loans?|deposit|credit|account|bankers?|cheque",
    ],
    "bar": [
        "counter|drink|drank|bottles?|saloon",
        "iron|door|steel|gold",
        "court|lawyers?|law|prisoner|counsel",
    ],
    "bark": ["dogs?|loud|hound", "trees?|birch|oak|trunk|branches", "sail|sailed|waves|ship"],
    "bat": ["balls?|cricket|baseball|hit", "wings?|night|cave|fly|flew"],
    "bear": [
        "hunter|woods|paws?|cub|skin|grizzly|polar|den",
        "burden|pain|witness|mind|responsibility|cannot",
    ],
    "bill": [
        "congress|house|passed|vote|senate|veto",
        "pay|paid|dollars|hotel|tailor",
        "bird|beak|feathers|wings",
    ],
    "board": [
        "wooden|nailed|floor|chess",
        "members|directors|governors|committee",
        "ship|vessel|steamer|aboard",
    ],
    "bow": ["arrows?|string|bent", "ship|boat|stern|deck", "head|polite|low|graceful"],
    "box": ["wooden|opened|lid|key", "theatre|opera|stage", "fight|gloves|ears"],
    "capital": [
        "city|town|situated|paris|london",
        "money|invest\\w*|labor|banks?|interest",
        "punishment|letters?",
    ],
    "case": ["court|judge|trial|law", "glass|leather|silver|box", "patient|disease|fever|doctor"],
    "cell": ["prison|jail|monk|prisoner|locked", "blood|tissue|egg|nucleus|cells", "phone|mobile"],
    "chair": ["sat|sit|table|seat|leaned", "chairman|committee|meeting|motion|professor"],
    "change": [
        "climate|great|political",
        "coins?|pocket|dollar|pennies|silver",
        "clothes|dress|trains",
    ],
    "charge": [
        "cavalry|enemy|attack|guns",
        "murder|guilty|accused|court",
        "price|free|cost|fee|dollars",
        "electric",
    ],
    "club": ["members?|golf|dinner|london", "stick|blow|struck|weapon|heavy"],
    "court": [
        "king|queen|palace|royal|prince",
        "judge|law|justice|trial|supreme",
        "tennis|yard|house",
    ],
    "crane": ["birds?|heron|neck|feathers|wings", "lift|ship|steel|steam|hoist"],
    "current": [
        "river|stream|sea|boat|swift",
        "electric\\w*|wire|battery",
        "year|quarter|crisis|policy|rate",
    ],
    "deck": ["ship|sea|captain|sailors?|boat", "cards?|shuffle"],
    "degree": [
        "temperature|heat|thermometer|latitude|north",
        "university|college|doctor|master",
        "high|some|highest",
    ],
    "draft": [
        "resolution|text|document|letter|paper",
        "air|cold|window",
        "horses?",
        "army|military|men",
    ],
    "fair": [
        "hair|face|lady|maiden|beautiful",
        "price|trade|just|share|elections?",
        "market|world|booths?|county",
    ],
    "figure": [
        "tall|form|dressed|woman|man",
        "numbers?|cent|estimate|total|data",
        "political|public|historical",
    ],
    "fire": ["wood|hearth|warm|burn\\w*|smoke", "guns?|enemy|soldiers|shots?|cease"],
    "fly": ["wings?|insects?|spider|web|buzz\\w*", "birds?|kites?|air|sky|away"],
    "interest": [
        "rates?|loans?|cent|debt|bonds",
        "great|showed|subject|curiosity|lost",
        "national|public|common",
    ],
    "lead": [
        "metal|pipes?|copper|zinc|iron|bullets?|ore|tin",
        "follow|road|way|path|door",
        "takes? the|took the",
    ],
    "letter": [
        "wrote|write|received|post|sealed|envelope",
        "alphabet|capital|spell\\w*|vowel|words?|initial",
    ],
    "light": ["lamp|sun|candle|window|moon", "heavy|weight|feather|burden", "hearts?|steps?|laugh"],
    "match": [
        "game|won|football|chess|cricket|team|played",
        "lit|struck|strike|candle|cigar|pipe",
        "marriage|daughter|equal",
    ],
    "mine": [
        "coal|gold|silver|miners?|copper",
        "friend of|yours|thine|his and|hand in",
        "land|explo\\w+|ship",
    ],
    "mouse": ["cats?|cheese|hole|trap|tail", "computer|click|keyboard|screen|users?"],
    "nail": ["hammer|wood|wall|iron", "finger|fingers|toe|thumb"],
    "note": [
        "wrote|letter|paper|read|pocket",
        "music|song|bird|voice|sang",
        "banks?|interest|treasury|rate",
    ],
    "organ": [
        "church|music|played|pipes",
        "body|heart|liver|brain|eye",
        "government|principal|party",
    ],
    "party": [
        "political|elections?|republican|communist",
        "dinner|guests?|evening|birthday",
        "third|contract|states",
    ],
    "pitch": ["dark|black|tar|night", "voice|high|tone|note", "tent|ball|camp"],
    "plant": ["leaves|flowers?|garden|roots?|seeds?", "power|nuclear|factory|steel|manufactur\\w+"],
    "play": [
        "stage|theatre|actors?|drama|act",
        "children|games?|cards|ball",
        "piano|violin|music|tune",
        "role|part",
    ],
    "point": [
        "sharp|needle|sword|pencil",
        "view|argument|question",
        "boiling|freezing|percentage|percent",
    ],
    "post": [
        "letter|office|mail|stamp",
        "wooden|gate|fence|tied",
        "appointed|military|duty|frontier",
    ],
    "pound": ["weigh\\w*|flour|sugar|butter|ounces?", "sterling|shillings?|dollar|paid|euro"],
    "present": [
        "gift|christmas|birthday|gave",
        "time|past|future|moment",
        "were|persons|meeting|voting",
    ],
    "race": ["horses?|won|boat|run|running", "human|mankind|color|religion|creed", "arms|nuclear"],
    "rate": ["interest|exchange|growth|unemployment", "at any|miles|speed|hour"],
    "right": ["left|hand|side|turned", "human|law|self-determination|vote", "wrong|quite|all"],
    "ring": ["finger|gold|wedding|diamond", "bells?|telephone|door", "circus|crowd|around|fight"],
    "rock": ["sea|stone|cliff|mountain|shore", "music|roll|band|concert", "cradle|boat|gently"],
    "rose": [
        "petals?|garden|red|flower|thorns?|scent",
        "chair|stood|feet|sun",
        "prices?|percent|rates?",
    ],
    "scale": [
        "large|small|grand|economies",
        "fish|skin|reptile",
        "weigh|balance|weights?",
        "music|notes?",
    ],
    "seal": ["ice|hunt\\w*|skin|arctic|whales?|fur", "letter|wax|stamp|ring|signet|great"],
    "season": ["winter|rainy|summer|dry", "opera|theatre|london|social", "salt|pepper|fish"],
    "shore": ["sea|lake|river|boat|waves|sand"],
    "spring": [
        "summer|autumn|winter|season|flowers",
        "water|wells?|drink|hot|mineral",
        "steel|coil|watch|clock|trap",
    ],
    "square": ["town|market|street|city", "feet|miles|yards|inches", "round|shape|corner"],
    "state": [
        "united|governor|secretary|department",
        "mind|health|affairs|nature",
        "member|sovereign|territory",
    ],
    "table": ["chairs?|dinner|sat|supper|plates?", "data|columns?|figures|rows?|negotiating"],
    "tear": ["eyes?|cheek|wept|shed", "paper|pieces|cloth|apart|down"],
    "trunk": ["trees?|branches|oak|bark", "packed|clothes|luggage|key", "elephants?"],
    "watch": [
        "clock|gold|pocket|chain|time",
        "keep|night|sentinel|guard",
        "television|closely|children",
    ],
    "well": ["water|bucket|deep|dug", "very|enough|known", "oil|gas"],
    "wind": ["blew|sea|cold|storm", "clock|road|path|watch", "energy|solar|power"],
    "yard": ["feet|inch\\w*|cloth|ribbon", "gate|stable|house|fence|navy"],
}
USES_PER_SENSE, OTHER_USES = 40, 16
COMMON_WORDS, USES_PER_WORD = 8000, 10  # how many words are to have how many uses
WORDS = 420_000

SENTENCE = re.compile(r"[\"“‘]?[A-Z][A-Za-z0-9 ,;:'’\"“”‘()—-]*[a-z0-9][.?!][\"”’]?")
UNFIT = re.compile(
    r"(--|—|\.\.)|\d{5}|\b(slide|chapter|figure|page|footnote|vol)\s*\d", re.IGNORECASE
)
UNFIT_CAPITALS = re.compile(r"\b[A-Z]{4,}|_|\b[A-Z]\. ")
OFFENSIVE = re.compile(
    r"\b(nigg\w*|negro\w*|dark(y|ies)|coons?|squaws?|savages?|heathens?|half-breeds?|jew(s|ess|ish)?|chinam[ae]n|whores?|"
    r"bitch\w*|bastards?|rap(e|ed|ist|ing)|slaves?|mulatto\w*|inferior races?|white "
    r"m[ae]n|colou?red (wo)?m[ae]n)\b",
    re.IGNORECASE,
)
TOKENIZED = re.compile(r" ([,.;:?!)”’]|n?['’](s|t|re|ve|ll|d|m)\b)|[“‘(] ")


def paragraphs(file: Path) -> Iterator[str]:
    """The paragraphs of a shard, without those that were tokenized."""
    with zstandard.open(file, "rt", encoding="utf-8") as stream:
        for line in map(str.strip, stream):
            if line and not (file.name.startswith("misc") and TOKENIZED.search(line)):
                yield line


def sentences(files: Iterable[Path]) -> Iterator[str]:
    """Sentences of 6 to 28 words that can be read alone."""
    for file in files:
        for paragraph in paragraphs(file):
            for sentence in segment("en", paragraph):
                sentence = " ".join(sentence.split())
                if not 6 <= sentence.count(" ") + 1 <= 28 or not SENTENCE.fullmatch(sentence):
                    continue
                balanced = all(
                    sentence.count(left) == sentence.count(right) for left, right in ("()", "“”")
                )
                if balanced and sentence.count('"') % 2 == 0 and not any(
                    pattern.search(sentence) for pattern in (UNFIT, UNFIT_CAPITALS, OFFENSIVE)
                ):  # fmt: skip
                    yield sentence


def words_of(sentence: str) -> list[str]:
    """Its words in small letters."""
    return re.findall(r"[a-z]+(?:['’-][a-z]+)*", sentence.lower())


def choose(pool: list[str]) -> list[str]:
    """Sentences of the pool, first for the senses, then for common words."""
    cues = {
        word: [re.compile(rf"\b({cue})\b", re.IGNORECASE) for cue in of_word]
        for word, of_word in SENSES.items()
    }
    per_sense: Counter[tuple[str, int]] = Counter()
    chosen: dict[str, None] = {}
    for sentence in pool:
        for word in set(words_of(sentence)) & cues.keys():
            senses = [number for number, cue in enumerate(cues[word]) if cue.search(sentence)]
            sense = senses[0] if len(senses) == 1 else len(cues[word])  # none, or several
            if per_sense[word, sense] < (
                OTHER_USES if sense == len(cues[word]) else USES_PER_SENSE
            ):
                per_sense[word, sense] += 1
                chosen[sentence] = None
    for word, of_word in SENSES.items():
        print(
            f"{word}: {' '.join(str(per_sense[word, sense]) for sense in range(len(of_word) + 1))}"
        )
    counts = Counter(word for sentence in pool for word in words_of(sentence))
    common = {word for word, _ in counts.most_common(COMMON_WORDS) if len(word) > 2}
    uses = Counter(word for sentence in chosen for word in set(words_of(sentence)))
    total = sum(sentence.count(" ") + 1 for sentence in chosen)
    for needed in (3, 2, 1):
        for sentence in pool:
            words = common.intersection(words_of(sentence))
            if (
                sentence not in chosen
                and sum(uses[word] < USES_PER_WORD for word in words) >= needed
            ):
                chosen[sentence] = None
                uses.update(words)
                total += sentence.count(" ") + 1
                if total > WORDS:
                    return list(chosen)
    return list(chosen)


def write_corpus(chosen: list[str], file: Path) -> None:
    """Write sentences in random order, one per line, compressed."""
    random.Random(1).shuffle(chosen)
    text = "".join(f"{sentence}\n" for sentence in chosen).encode()
    file.write_bytes(zstandard.ZstdCompressor(level=22).compress(text))
    print(f"{len(chosen):,} sentences, {file.stat().st_size:,} bytes")


def main() -> None:
    """Read the command line, and write the file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shards", nargs="+", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    pool = list(dict.fromkeys(sentences(sorted(arguments.shards))))
    random.Random(0).shuffle(pool)
    chosen = choose(pool)
    write_corpus(chosen, arguments.output)


if __name__ == "__main__":
    main()
