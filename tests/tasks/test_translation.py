"""A task of one's own: copied words, BLEU, the formulas, beam search by brute force."""

from itertools import product

import numpy as np
import pytest
import torch
from task_oracles import GivenWords, TranslatorOracle, random_network, random_words, sentences_of
from toy_tasks import translation

from elmokit.tasks import WordsConfig
from elmokit.tasks.fitting.words import Sentences, WordEncoder, WordTable

BEGIN, END, PADDING, SPECIALS, UNKNOWN = (
    getattr(translation, name) for name in ("BEGIN", "END", "PADDING", "SPECIALS", "UNKNOWN")
)
ParallelSentence, TranslationConfig, TranslationTask = (
    getattr(translation, name)
    for name in ("ParallelSentence", "TranslationConfig", "TranslationTask")
)


def test_loss_equals_the_formulas() -> None:
    network = random_network(
        translation.Translator,
        TranslationConfig(hidden_dim=4, target_dim=3),
        GivenWords(),
        SPECIALS + 3,
    )
    words = random_words([4, 1, 3])
    targets = [
        [BEGIN, SPECIALS, SPECIALS + 2, END],
        [BEGIN, END],
        [BEGIN, SPECIALS + 1, UNKNOWN, END],
    ]
    padded = torch.tensor([target + [PADDING] * (4 - len(target)) for target in targets])
    found = network.loss(translation.TranslationBatch(words, padded)).item()
    of_sentences = map(TranslatorOracle(network).log_probabilities, sentences_of(words), targets)
    assert found == pytest.approx(-np.mean([value for values in of_sentences for value in values]))


@pytest.mark.parametrize(("bias", "length"), [(0.0, 3), (0.5, 2), (1.5, 1), (4.0, 0)])
def test_decode_with_a_wide_beam_equals_exhaustive_search(bias: float, length: int) -> None:
    """`bias` is that of the end, so that translations of each length are the best ones."""
    torch.manual_seed(6)
    config = TranslationConfig(hidden_dim=8, target_dim=8, beam=200, length_penalty=1.0)
    words_config = WordsConfig(elmo="none", word_dim=8)
    table = WordTable.from_sentences([["a", "b"]])
    words = WordEncoder(words_config, table)
    network = translation.Translator(config, words, SPECIALS + 2).eval()
    for parameter in network.parameters():
        parameter.data *= 3  # or all translations are about as likely
    network.output.bias.data[END] += bias
    batch = Sentences([["a", "b"]], table).batch([["a", "b"]])
    with torch.no_grad():
        ((path, score),) = network.decode(type("Batch", (), {"words": batch})())

        def log_probability(numbers: tuple[int, ...]) -> float:
            source, state = network.encode(batch)
            total = torch.zeros(1)
            for before, number in zip((BEGIN, *numbers), (*numbers, END), strict=True):
                state, _ = network.step(network.targets(torch.tensor([before])), state, source)
                total += network.output(state.fed).log_softmax(1)[:, number]
            return float(total) / (len(numbers) + 1)

        choices = (UNKNOWN, SPECIALS, SPECIALS + 1)
        best = max(
            (numbers for words in range(5) for numbers in product(choices, repeat=words)),
            key=log_probability,
        )
        assert tuple(number for number, _ in path) == best
        assert len(best) == length
        assert score == pytest.approx(log_probability(best), abs=1e-5)


def test_unknown_words_are_copied_from_the_source() -> None:
    task = TranslationTask(labels={"targets": ["the", "cat", "sat", "on", "a"]})
    copied = [(UNKNOWN if n == 5 else SPECIALS + n, 0) for n in range(6)]
    found = task.predictions([ParallelSentence(("mat",))], [(copied, 0.0)])
    assert found[0].words == ("the", "cat", "sat", "on", "a", "mat")
    scores = task.score([ParallelSentence(("mat",), found[0].words)], found)
    assert scores.values["bleu"] == pytest.approx(1)
