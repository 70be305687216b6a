"""The tokenizer english-1: the conventions of the Penn and Universal Dependencies (EWT) treebanks.

A change of the rules that changes the tokens of any text requires a new name.
"""

import re
from itertools import chain

from elmokit.text.sentences import segments
from elmokit.text.tokenizer import ChunkRules

APOSTROPHE = r"['\u2019]"
LETTER = r"[^\W\d_]"
# Letters, digits, _, and the accents and vowel signs that \w does not match.
WORD_CHARACTER = r"[\w\u0300-\u036f\u0590-\u05cf\u0610-\u065f\u0900-\u0e7f\u200c\u200d]"

# Repetitions that may backtrack are bounded, so that the time is linear in the length of a chunk.
URL_END = r".,;:!?'\"\u2019\u201d)>\]"  # marks that do not belong to a URL if they end it
URL = rf"(?i:(?:https?|ftp)://|www\.)(?:\S*[^\s{URL_END}]|\S)(?=[{URL_END}]*$)"
EMAIL = r"[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}"
DOMAIN = r"\w{1,63}(?:[.-]\w{1,63}){0,8}\.(?:com|org|net|edu|gov|info|co\.uk|doc|pdf|xls)(?!\w)"
FACE = r"[:;=]-?[()DP](?!\w)"

# Parts of a contraction are tokens: do n't, she 'll, can not, gon na.
CLITIC_LETTERS = r"(?i:s|m|d|ll|re|ve)"
CLITIC = rf"(?:(?i:n){APOSTROPHE}(?i:t)|{APOSTROPHE}{CLITIC_LETTERS})(?!{WORD_CHARACTER})"
NEGATED = r"(?:do|did|does|wo|could|would|should|ai)"  # before "nt" without an apostrophe
CONTRACTED = rf"(?i:can(?=not(?!\w))|(?:gon|wan)(?=na(?!\w))|got(?=ta(?!\w))|{NEGATED}(?=nt(?!\w)))"

# The period belongs to these everywhere, also at the end of a sentence.
ABBREVIATIONS = (
    "Mr|Mrs|Ms|Dr|Prof|Rev|Hon|Gen|Col|Lt|Sgt|Capt|Cmdr|Adm|Maj|Gov|Sen|Rep|Reps|Sens|Pres|Messrs|Mme|Jr|Sr|Bros|Inc|Corp|"
    "Ltd|Co|St|Ft|Mt|Ave|Blvd|Jan|Feb|Aug|Sept|Oct|Nov|Dec|Thur|Thurs|Attn|Ph|vs|viz|approx|dept|est|ed|eds|vol|vols|cf|"
    "ca|al|Univ|Assn|Dept|Fig|Figs"
)
# It belongs to these only within a sentence; at the end they may be ordinary words.
ABBREVIATIONS_INSIDE = "No|Nos|etc|Mar|Apr|Jun|Jul|Mon|Tue|Tues|Wed|Thu|Fri|Sat|Sun|Art|p|pp|fig|op"
DOTTED = rf"(?:{LETTER}\.){{2,}}(?:{LETTER}(?!\w))?"  # U.S., e.g., p.m., U.S.A
INITIAL = r"(?<![\w'\u2019.])[A-Z]\.(?!\w)"

UNIT = r"(?i:[ap]\.?m|[kmg]|[ckm]m|[kmc]?g|ft|lbs?|oz|hrs?|mins?|sec|mph|km/h|ghz|mhz|[kmg]b)(?!\w)"
NUMBERS = (
    r"(?:\d{3}-){1,2}\d{4}(?![\w-])",  # 713-853-3989
    r"\d{1,2}-\d{1,2}-\d{2,4}(?![\w-])",  # 11-20-2000
    rf"\d+{APOSTROPHE}?s(?!\w)",  # 1980s
    r"\d+(?:st|nd|rd|th)(?!\w)",  # 20th
    rf"\d+(?:[.,:]\d+)*(?={UNIT})",  # 5 pm, 3.5 kg
    r"\d{1,4}(?:/\d{1,4})+(?!\w)",  # 11/28/2000
    r"\d+(?:[.,:]\d+)+\w*",  # 1,000.50, 5:00
    r"(?<!\w)\.\d+",  # .5
)

# Prefixes that stay attached: "non-human" is one token, while "well-known" is three.
PREFIX = (
    r"(?i:e|anti|ante|arch|bi|bio|co|counter|cross|cyber|de|em|en|ex|extra|hyper|infra|inter|intra|macro|meta|micro|mid|mini|"
    r"multi|neo|non|pan|para|post|pre|pro|pseudo|quasi|re|semi|sub|super|trans|tri|ultra|un|uni)"
)
INNER_APOSTROPHE = rf"{APOSTROPHE}(?!(?:{CLITIC_LETTERS}|(?i:t))(?!\w))(?!\d)"  # O'Connell
WORD = (
    rf"(?:{PREFIX}-(?={LETTER}{{2}}))?"
    rf"(?:{WORD_CHARACTER}+?(?={CLITIC})"
    r"|[A-Z]{1,3}(?:&[A-Z]{1,2})+(?!\w)"  # AT&T
    rf"|{WORD_CHARACTER}+(?:{INNER_APOSTROPHE}\w{WORD_CHARACTER}*)*)"
)
# Repeated punctuation is one token.
MARKS = r"\.{2,}|[!?]{2,}|''|``|\u2018\u2019|\u2019\u2019|<<|>>|->|([-=*_~#+])\1+|\S"


def _rules(abbreviations: str, *initial: str) -> list[str]:
    """The rules in order of precedence."""
    abbreviated = [DOTTED, *initial, rf"(?<!\w)(?:{abbreviations})\.(?!\w)"]
    return [URL, EMAIL, DOMAIN, CLITIC, FACE, *abbreviated, *NUMBERS, CONTRACTED, WORD, MARKS]


tokenize_english = ChunkRules(
    _rules(f"{ABBREVIATIONS}|{ABBREVIATIONS_INSIDE}", INITIAL), _rules(ABBREVIATIONS)
)


# sentencex does not split quotations of several sentences, nor "me. I"; the treebanks do.
LOWER_ABBREVIATION = r"(?<!\b(?:vs|cf|ca|al|ed|pp|no)\.)(?<!\b(?:etc|viz|eds|vol|fig)\.)"
MISSED_END = re.compile(rf"(?<=[a-z]{{2}}[.!?]){LOWER_ABBREVIATION}\s+(?=[\"\u201c\u2018(]?[A-Z])")


def split_english_sentences(paragraph: str) -> list[str]:
    """Split a paragraph into sentences."""
    sentences = chain.from_iterable(map(MISSED_END.split, segments("en", paragraph)))
    return [stripped for sentence in sentences if (stripped := sentence.strip())]
