"""The vocabulary that a run predicts: built from the corpus, read from a file, or that of a model; and its checks."""

from __future__ import annotations

from collections import Counter
from itertools import chain, islice
from pathlib import Path

from elmokit.fs.reading import read_lines
from elmokit.lm.measures import warn_of_unknown
from elmokit.text.vocab import SPECIALS, Vocab, count_words
from elmokit.train.config import PretrainConfig
from elmokit.train.loop import CHECKPOINTS
from elmokit.train.snapshots import latest_snapshot

SAMPLE_LINES = 100_000
FULL_SOFTMAX = "give --num-samples 0 for the full softmax"


class WordSample:
    """The words of the first lines of a corpus, on which a vocabulary is checked before hours are spent on training."""

    def __init__(self, files: list[Path]) -> None:
        self._counts: Counter[str] = Counter()
        for line in islice(chain.from_iterable(map(read_lines, files)), SAMPLE_LINES):
            self._counts.update(line.split())

    def known(self, words: tuple[str, ...]) -> int:
        """How many words of the sample are among `words`."""
        return sum(map(self._counts.__getitem__, words))

    def warn_of_unknown(self, vocab: Vocab, advice: str) -> None:
        """Warn if the vocabulary lacks many of the words; `advice` says what to do."""
        warn_of_unknown(1 - self.known(vocab.words) / self._counts.total(), "the corpus", advice)

    def check_ranks(self, vocab: Vocab, name: object, num_samples: int, advice: str) -> None:
        """Check a vocabulary for a sampled softmax, which draws words as often as their ranks suggest.

        Args:
            vocab: The vocabulary.
            name: Where it is from, for the message.
            num_samples: Negative samples; 0, or as many as words, is the full softmax, which has no such condition.
            advice: What to do, for the message.

        Raises:
            ValueError: The special words are not the first, or the second half of the words is more frequent than the
                first.
        """
        if not 0 < num_samples < len(vocab):
            return
        if vocab.words[: len(SPECIALS)] != SPECIALS:
            raise ValueError(f"{name} must begin with {' '.join(SPECIALS)}: {advice}")
        words = vocab.words[len(SPECIALS) :]
        first, second = (self.known(half) for half in (words[: len(words) // 2], words[len(words) // 2 :]))
        if second > first:
            raise ValueError(
                f"{name} is not sorted by descending frequency: its second half covers {second:,} words of a sample of "
                f"the corpus, its first half {first:,}: {advice}"
            )


def vocabulary(settings: PretrainConfig, files: list[Path]) -> Vocab:
    """The vocabulary of `settings.vocab`, or the one that the run built from the corpus before its first step."""
    built = settings.output / "vocab.txt"
    if settings.vocab is not None:
        return _read(settings.vocab, files, settings.num_samples)
    if latest_snapshot(settings.output / CHECKPOINTS) is None:
        _check_replaceable(built)
        vocab = Vocab.from_counts(count_words(files), settings.min_count, settings.vocab_size)
        if len(vocab) == len(SPECIALS):
            raise ValueError(
                f"no word of the corpus occurs {settings.min_count} times: give more text, or a lower min_count"
            )
        vocab.write(built)
    if not built.is_file():
        raise ValueError(
            f"{built} is missing: restore it, or give --vocab or --initial-model if the run was started with one"
        )
    return Vocab.read(built)


def _read(path: Path, files: list[Path], num_samples: int) -> Vocab:
    """Read the file of a vocabulary, and check it on a sample of the corpus."""
    vocab, sample = Vocab.read(path), WordSample(files)
    if not sample.known(vocab.words):
        raise ValueError(
            f"{path} has no word of the first {SAMPLE_LINES:,} lines of the corpus: it must have one word in each line "
            "and nothing else"
        )
    sample.warn_of_unknown(vocab, "omit --vocab to build one from the corpus")
    advice = f"sort it, one word per line, omit --vocab to build one from the corpus, or {FULL_SOFTMAX}"
    sample.check_ranks(vocab, path, num_samples, advice)
    return vocab


def _check_replaceable(path: Path) -> None:
    """FileExistsError if another file than a vocabulary is where the run writes its own."""
    first_lines = "".join(f"{word}\n" for word in SPECIALS).encode()
    if path.exists() and not path.read_bytes().startswith(first_lines):
        raise FileExistsError(f"{path} is not a vocabulary of elmokit: move it, or choose another output directory")
