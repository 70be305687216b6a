"""The tokenizer characters-1, for Chinese and Japanese: every ideograph is a token.

Text between ideographs, including kana, is split into runs of letters and single punctuation marks.
"""

import re

from elmokit.text.scripts import IDEOGRAPHS

IDEOGRAPH = f"[{IDEOGRAPHS}]"
CHARACTERS = re.compile(rf"{IDEOGRAPH}|(?:(?!{IDEOGRAPH})\w)+|\S")
CHINESE_SENTENCE = re.compile(r".+?(?:[\u3002\uff01\uff1f!?\u2026]+[\u201d\u2019\u300d\u300f\uff09)\"]*|$)", re.DOTALL)


def split_chinese_sentences(paragraph: str) -> list[str]:
    """Split a paragraph into sentences, each with its final punctuation and closing quotes."""
    return [stripped for sentence in CHINESE_SENTENCE.findall(paragraph) if (stripped := sentence.strip())]
