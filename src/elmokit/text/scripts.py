"""Letters of scripts without spaces between words, and of those without rules; the tokenizer characters-1.

characters-1, for Chinese and Japanese, makes every ideograph a token. Text between ideographs, including kana, is split
into runs of letters and single punctuation marks.
"""

import re

IDEOGRAPHS = r"\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"
KANA = r"\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f"
# Thai, Lao, Tibetan, Burmese, Khmer.
SOUTH_EAST_ASIAN = r"\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u19e0-\u19ff\uaa60-\uaa7f"

UNSPACED_LETTER = re.compile(rf"[{IDEOGRAPHS}{KANA}{SOUTH_EAST_ASIAN}]")
SOUTH_EAST_ASIAN_LETTER = re.compile(rf"[{SOUTH_EAST_ASIAN}]")
# Without emoji, punctuation and digits.
NOT_LATIN_LETTER = re.compile(
    r"[\u0370-\u1cff\u1f00-\u1fff\u2c00-\u2c5f\u2c80-\u2dff\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3040-\u318f"
    r"\u31a0-\u31ff\u3400-\ua71f\ua800-\uab2f\uab70-\ud7ff\uf900-\ufaff\ufb13-\ufdff\ufe70-\ufefc\uff66-\uffdc"
    r"\U00010000-\U0001cfff\U0001e000-\U0001efff\U00020000-\U000323af]"
)

IDEOGRAPH = f"[{IDEOGRAPHS}]"
CHARACTERS = re.compile(rf"{IDEOGRAPH}|(?:(?!{IDEOGRAPH})\w)+|\S")
CHINESE_SENTENCE = re.compile(r".+?(?:[\u3002\uff01\uff1f!?\u2026]+[\u201d\u2019\u300d\u300f\uff09)\"]*|$)", re.DOTALL)


def split_chinese_sentences(paragraph: str) -> list[str]:
    """Split a paragraph into sentences, each with its final punctuation and closing quotes."""
    return [stripped for sentence in CHINESE_SENTENCE.findall(paragraph) if (stripped := sentence.strip())]
