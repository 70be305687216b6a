"""The tokenizer characters-1, for Chinese and Japanese: every ideograph is a token.

What stands between ideographs, kana too, is split into runs of letters and single marks.
"""

import re

from elmokit.text.scripts import IDEOGRAPHS

IDEOGRAPH = f"[{IDEOGRAPHS}]"
CHARACTERS = re.compile(rf"{IDEOGRAPH}|(?:(?!{IDEOGRAPH})\w)+|\S")
CHINESE_SENTENCE = re.compile(r".+?(?:[\u3002\uff01\uff1f!?\u2026]+[\u201d\u2019\u300d\u300f\uff09)\"]*|$)", re.DOTALL)


def split_chinese_sentences(paragraph: str) -> list[str]:
    """The sentences of one paragraph, each with its closing mark and the quotes after it."""
    return [sentence for piece in CHINESE_SENTENCE.findall(paragraph) if (sentence := piece.strip())]
