"""The tokenizer words-1, for languages that are written with spaces between words.

It follows the conventions common to most Universal Dependencies treebanks: punctuation marks are
tokens, hyphenated compounds and numbers are not split, abbreviations keep their period, elided
words are tokens (French l' homme, Italian dell' arte). English has its own tokenizer, which splits
contractions and hyphenated compounds. A change of the rules that changes the tokens of any text
requires a new name.
"""

from elmokit.text.english import DOMAIN, EMAIL, FACE, LETTER, URL
from elmokit.text.sentences import INTRODUCING
from elmokit.text.tokenizer import ChunkRules

# Abbreviations within a sentence; at its end, some of them are ordinary words.
ABBREVIATIONS = (
    f"{INTRODUCING}|Abs|Abt|Chr|Fa|geb|Hbf|Jh|Jhd|lat|Mio|Mrd|nördl|röm|Std|Str|südl|usw|verh|zit|"
    "Cie|env|hab|apr|av|chap|éd|janv|févr|juill|sept|oct|nov|déc|ecc|Ud|Vd|etc|Ltda|Lda|"
    "enz|jl|kr|osv|mfl|kl|pga|milj|mrd|yms|itd|itp|godz|wyd|apod|atd|mj|stb|vb|vs|"
    "гг|вв|др|млн|млрд|тыс|руб|коп|см|ср|тт|обл|тис|грн|κλπ|κτλ|Jr|al|ed|eds|max|min|op"
)
# Abbreviations that keep their period at the end of a sentence, too.
ALWAYS_ABBREVIATIONS = (
    "Dr|Prof|bzw|usw|vgl|etc|ecc|enz|osv|itd|itp|atd|apod|yms|млн|млрд|тыс|κλπ|κτλ"
)

# Characters of words that \w does not match: accents, points and vowel signs, joiners.
SIGNS = (
    r"\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06dc"
    r"\u06df-\u06e4\u06e7\u06e8\u06ea-\u06ed\u0711\u0730-\u074a\u07a6-\u07b0\u07eb-\u07f3\u07fd\u0816-\u082d\u0859-\u085b"
    r"\u0898-\u08ff\u0900-\u0963\u0966-\u096f\u0971-\u0df3\u0e31-\u0e3a\u0e47-\u0e4e\u0eb1-\u0ebc\u0ec8-\u0ece\u0f18\u0f19"
    r"\u0f35\u0f37\u0f39\u0f71-\u0f84\u0f86-\u0fbc\u102b-\u103e\u1056-\u1059\u135d-\u135f\u1712-\u1715\u17b4-\u17d3"
    r"\u180b-\u180d\u1ab0-\u1aff\u1b00-\u1b04\u1b34-\u1b44\u1b80-\u1bad\u1c24-\u1c37\u1dc0-\u1dff\u200c\u200d\u20d0-\u20f0"
    r"\ufe20-\ufe2f"
)
WORD_CHARACTER = rf"[\w{SIGNS}]"
APOSTROPHE = r"['\u2019\u02bc]"
HYPHEN = r"[-\u2010\u2011]"

# Elided words before a vowel or h in French, Italian and Catalan; aujourd'hui and Breton c'hoar are
# not split.
ELIDED = (
    r"(?i:[djlmnst]|c(?!.h)|qu|jusqu|lorsqu|puisqu|quoiqu|presqu|quelqu|(?:ne|da|de|a|su|co)ll|un|quest|quell|bell|sant|"
    r"grand|tutt|gl|dov|com|cos|anch|senz)"
)
ELISION = rf"(?<!{WORD_CHARACTER}){ELIDED}{APOSTROPHE}(?=(?i:[aeiouhyàâäæéèêëìíîïòóôöœùúûü])|\Z)"

INITIAL = rf"(?<![\w'\u2019.]){LETTER}\.(?!\w)"
# z.B., т.е., U.S.A, EE.UU.
DOTTED = rf"(?<!\w)(?:(?:{LETTER}\.){{2,}}(?:{LETTER}(?!\w))?|(?:[A-Z]{{2}}\.){{2,}})"
# Within a sentence, a short number with a period is an ordinal or a date: am 3. Oktober, am 3.10.
# in Berlin.
ORDINAL = r"(?<![\w.,])(?:(?:\d{1,2}\.){1,2}|[IVX]{2,5}\.)(?!\S)"

NUMBER = r"\d+(?:[.,:/'\u2019-]\d+)+\w*"  # 1.000,50, 12:30, 1'000, 3.10.1990, 2023/24, 1990-1995
INSIDE = rf"{APOSTROPHE}|{HYPHEN}|\u00b7|:(?=[a-zäåö])"
WORD = rf"{WORD_CHARACTER}+(?:(?:{INSIDE})(?={WORD_CHARACTER}){WORD_CHARACTER}+)*"
MARKS = r"\.{2,}|[!?\u061f]{2,}|''|``|<<|>>|->|([-=*_~#+])\1+|\S"


def _rules(abbreviations: str, *others: str) -> list[str]:
    """The rules in order of precedence."""
    abbreviated = [DOTTED, *others, rf"(?<!\w)(?:{abbreviations})\.(?!\w)"]
    return [URL, EMAIL, DOMAIN, FACE, *abbreviated, NUMBER, ELISION, WORD, MARKS]


tokenize_words = ChunkRules(_rules(ABBREVIATIONS, INITIAL, ORDINAL), _rules(ALWAYS_ABBREVIATIONS))
