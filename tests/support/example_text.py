"""The English sentences of examples/data, for tests of the bundled model on real text."""

from pathlib import Path

DATA = Path(__file__).resolve().parents[2] / "examples" / "data"


def example_sentences() -> list[list[str]]:
    """50 paragraphs and sentences, 1,585 words, split at white space."""
    lines = (
        line
        for name in ("heldout.txt", "sentences.txt")
        for line in (DATA / name).read_text().splitlines()
    )
    return [line.split() for line in lines if line.strip()]
