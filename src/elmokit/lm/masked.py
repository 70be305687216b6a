"""Words predicted from all others of their sentence, by models that merge the two directions; pseudo-perplexity.

A hidden word is replaced by the encoder's learned vector `mask`, and predicted from the sum of the two halves of the
top layer. The pseudo-perplexity of a text is exp of the mean of -log p over its words, each hidden in turn while all
others of its sentence are visible (Salazar et al. 2020, "Masked Language Model Scoring", section 2); in a sentence of
more than 1,024 words, all others of its window. It is not a perplexity: each word is predicted with the words after it
in view, and no boundary is predicted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, pairwise

import numpy as np
import torch
from torch import Tensor

from elmokit.data.streams import assign_rows, number_words, sentence_batches
from elmokit.lm.language_model import BATCH_WORDS, MAX_ROWS
from elmokit.lm.measures import PseudoPerplexity
from elmokit.nn.bilm import BiLM
from elmokit.nn.inference import prepack
from elmokit.nn.softmax import FullSoftmax
from elmokit.ops.packing import Packing, pack_sentences
from elmokit.text.characters import BOS, EOS
from elmokit.text.vocab import Vocab

# The time for a sentence grows with the square of its length.
WINDOW_WORDS = 1024


def masked_outputs(
    bilm: BiLM, vectors: Tensor, tokens: Tensor, packing: Packing, hidden: Tensor, dropout: float = 0.0
) -> Tensor:
    """Run a biLM on sentences some words of which are hidden from it.

    Args:
        bilm: A model that merges the two directions and has a vector for hidden words.
        vectors: Vectors of the distinct words, (U, D).
        tokens: Index of the word at each slot of each direction, (2, N).
        packing: The shape of the streams.
        hidden: The slot of each hidden word in each direction, (2, M).
        dropout: As in `BiLM.run`.

    Returns:
        The input of the softmax for the hidden words (M, D).
    """
    mask = bilm.sequence_encoder.mask
    tokens = tokens.scatter(1, hidden, len(vectors))
    layers, _ = bilm.run(torch.cat([vectors, mask[None].to(vectors.dtype)]), tokens, packing, dropout=dropout)
    top = layers[-1]
    return top[0, hidden[0]] + top[1, hidden[1]]


def _chunks(lengths: np.ndarray) -> Iterator[np.ndarray]:
    """Split copies of sentences, by their lengths, into runs of indices with about `BATCH_WORDS` positions each."""
    if len(lengths):
        batch = (np.cumsum(lengths) - lengths) // BATCH_WORDS
        yield from np.split(np.arange(len(lengths)), np.flatnonzero(np.diff(batch)) + 1)


def outputs_of_hidden(
    bilm: BiLM,
    vocab: Vocab,
    sentences: Sequence[Sequence[str]],
    positions: Sequence[Sequence[int]],
    check: Callable[[], None] | None = None,
) -> Tensor:
    """Hide words of sentences one at a time, each in its own copy of the sentence.

    Args:
        bilm: As in `masked_outputs`.
        vocab: Its vocabulary.
        sentences: Lists of words.
        positions: Positions of the words to hide in each sentence, from 0.
        check: Called before each chunk of copies; an exception that it raises ends the computation.

    Returns:
        The input of the softmax for each hidden word, (M, D), sentence after sentence.
    """
    words, numbers = number_words(chain.from_iterable((BOS, *sentence, EOS) for sentence in sentences))
    vectors = bilm.word_vectors(words, vocab)
    lengths = np.array([len(sentence) + 2 for sentence in sentences], dtype=np.int64)
    begins = np.cumsum(lengths) - lengths
    sentence_of = np.repeat(np.arange(len(sentences)), list(map(len, positions)))
    place = np.fromiter(chain.from_iterable(positions), dtype=np.int64) + 1  # after <S>
    outputs = [vectors.new_zeros(0, bilm.config.sequence_encoder.projection_dim)]
    for copies in _chunks(lengths[sentence_of]):
        if check is not None:
            check()
        of, length = sentence_of[copies], lengths[sentence_of[copies]]
        begin = np.cumsum(length) - length
        text = numbers[np.arange(length.sum()) + np.repeat(begins[of] - begin, length)]
        rows = min(MAX_ROWS, len(of))
        packed = pack_sentences(length, assign_rows(length, rows), rows, reset=True)
        tokens = packed.to_streams(torch.from_numpy(np.stack([text, text])))
        hidden = packed.slots[:, torch.from_numpy(begin + place[copies])]
        outputs.append(
            masked_outputs(bilm, vectors, tokens.to(vectors.device), packed.packing, hidden.to(vectors.device))
        )
    return torch.cat(outputs)


def _windows(sentence: Sequence[str]) -> list[Sequence[str]]:
    """Split a sentence into windows of about equal length, at most `WINDOW_WORDS`, so that none lacks context."""
    count = -(-len(sentence) // WINDOW_WORDS)
    bounds = [number * len(sentence) // max(count, 1) for number in range(count + 1)]
    return [sentence[begin:end] for begin, end in pairwise(bounds)]


@torch.no_grad()
def masked_log_losses(
    bilm: BiLM,
    softmax: FullSoftmax,
    vocab: Vocab,
    sentences: Iterable[Sequence[str]],
    check: Callable[[], None] | None = None,
    batch_words: int | None = None,
) -> Iterator[tuple[list[Sequence[str]], Tensor, Tensor]]:
    """Compute the loss of every word given all others of its sentence, batch by batch.

    A sentence of more than 1,024 words is read in windows of at most that length, each with boundaries of its own.

    Args:
        bilm: As in `masked_outputs`.
        softmax: Its softmax.
        vocab: Its vocabulary.
        sentences: Tokenized sentences.
        check: As in `outputs_of_hidden`.
        batch_words: Size of a batch in words and boundaries; None: `BATCH_WORDS`. Losses do not depend on it.

    Yields:
        Batches of sentences, with their targets (N,) and losses -log p in nats (N,), in the order of the text.
    """
    prepacked = prepack(bilm, None)
    for batch in sentence_batches(sentences, batch_words or BATCH_WORDS):
        targets = torch.from_numpy(vocab.ids(chain.from_iterable(batch)))
        windows = [window for sentence in batch for window in _windows(sentence)]
        outputs = outputs_of_hidden(prepacked, vocab, windows, [range(len(window)) for window in windows], check)
        yield batch, targets, softmax.log_losses(outputs.to(softmax.weight.dtype), targets.to(outputs.device))


def pseudo_perplexity(
    bilm: BiLM,
    softmax: FullSoftmax,
    vocab: Vocab,
    sentences: Iterable[Sequence[str]],
    check: Callable[[], None] | None = None,
) -> PseudoPerplexity:
    """Pseudo-perplexity of tokenized sentences; arguments as in `masked_log_losses`; ValueError without words."""
    loss, count, predictions, unknown, truncated = 0.0, 0, 0, 0, 0
    for batch, targets, losses in masked_log_losses(bilm, softmax, vocab, sentences, check):
        loss += float(losses.double().sum())
        count, predictions = count + len(batch), predictions + len(targets)
        unknown += int((targets == vocab.unk).sum())
        truncated += sum(map(bilm.token_encoder.count_truncated, batch))
    if not predictions:
        raise ValueError("there is no word to evaluate: the text is empty")
    return PseudoPerplexity.of(loss, count, predictions, unknown, truncated)
