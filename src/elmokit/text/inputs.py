"""The sentences that callers pass."""

from collections.abc import Mapping, Sequence

Sentence = str | Sequence[str]  # which a tokenizer splits, or its words


def refuse_table(inputs: object) -> None:
    """ValueError for a dictionary or a data frame, whose iteration would give its keys or the names of its columns."""
    if isinstance(inputs, Mapping) or hasattr(inputs, "columns"):
        name = type(inputs).__name__
        raise ValueError(f"give a list of texts, not a {name}: name its column or key, as in table['text']")
