"""The language model in a pretrained model: -log p of the words of a text.

Each direction predicts a word from those on one side of it. A model that merges the directions
predicts it from all others of its sentence: a hidden word is replaced by the encoder's learned
vector `mask`, and predicted from the sum of the two halves of the top layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, pairwise

import numpy as np
import torch
from torch import Tensor

from elmokit.checkpoints import ModelSource, Pretrained, on_device, resolve_model
from elmokit.config import BiLMConfig
from elmokit.data import PackedBatch, assign_rows, number_words, scoring_batch, sentence_batches
from elmokit.nn import BiLM, BiLMState, FullSoftmax, prepack
from elmokit.ops import Packing, pack_sentences
from elmokit.runtime import check_length, pick_device
from elmokit.text import BOS, EOS, Vocab

BATCH_WORDS = 16_384  # of a batch that is evaluated
MAX_ROWS = 64  # of a batch, where no state is carried
# of a sentence whose words are hidden in turn: the time grows with the square of its length
WINDOW_WORDS = 1024


def resolve_language_model(model: ModelSource, device: str | None) -> Pretrained:
    """Load a model with its softmax; one that is loaded stays on its device unless `device` is
    given.
    """
    pretrained = resolve_model(model, softmax=True)
    own = device is None and pretrained is model
    return on_device(pretrained, pretrained.bilm.device if own else pick_device(device))


def check_predicts(config: BiLMConfig) -> None:
    """ValueError if a model cannot predict words, as those of ELMoForManyLangs with the encoder
    `lstm`.
    """
    if not config.sequence_encoder.predicts_words:
        raise ValueError(
            "this model's directions are interleaved, and it has no vector for a hidden word: it "
            "cannot predict words, only embed them"
        )


def parts_of(model: Pretrained) -> tuple[BiLM, FullSoftmax, Vocab]:
    """The biLM, softmax and vocabulary. ValueError if one is missing, or they cannot predict
    words.
    """
    if model.softmax is not None and model.vocab is None:
        raise ValueError(
            f"the vocabulary is missing: put the file of the {len(model.softmax.weight):,} words "
            "of the softmax, one a line, next to the model, and name it vocab.txt"
        )
    if model.softmax is None or model.vocab is None:
        raise ValueError(
            "this needs a model with a softmax and a vocabulary, and this one lacks them: load it "
            "with softmax=True; if its files have no softmax, `elmokit finetune` trains one"
        )
    check_predicts(model.config)
    return model.bilm, model.softmax, model.vocab


# --- Words from those on one side -----------------------------------------------------------------


def target_ids(sentences: Sequence[Sequence[str]], vocab: Vocab) -> Tensor:
    """Vocabulary ids that the positions of a `scoring_batch` predict forward and backward,
    unpacked, (2, N).
    """
    forward = chain.from_iterable((*sentence, EOS) for sentence in sentences)
    backward = chain.from_iterable((BOS, *sentence) for sentence in sentences)
    return torch.from_numpy(vocab.ids(chain(forward, backward)).reshape(2, -1))


def final_outputs(
    bilm: BiLM,
    vocab: Vocab,
    batch: PackedBatch,
    state: BiLMState | None = None,
    start: BiLMState | None = None,
) -> tuple[Tensor, BiLMState]:
    """Run a biLM on a batch from `scoring_batch`, to predict words from the output of its last
    layer.

    Returns:
        The input of the softmax of each direction, (2, N, D), unpacked; and the state of the rows
        after the batch.
    """
    words = bilm.word_vectors(batch.words, vocab)
    layers, after = bilm.run(words, batch.tokens.to(bilm.device), batch.text.packing, state, start)
    return torch.stack(batch.text.unpack(layers[-1]).chunk(2, dim=1)), after


# --- Words from all others ------------------------------------------------------------------------


def masked_outputs(
    bilm: BiLM,
    vectors: Tensor,
    tokens: Tensor,
    packing: Packing,
    hidden: Tensor,
    dropout: float = 0.0,
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
    layers, _ = bilm.run(
        torch.cat([vectors, mask[None].to(vectors.dtype)]), tokens, packing, dropout=dropout
    )
    top = layers[-1]
    return top[0, hidden[0]] + top[1, hidden[1]]


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
    words, numbers = number_words(
        chain.from_iterable((BOS, *sentence, EOS) for sentence in sentences)
    )
    vectors = bilm.word_vectors(words, vocab)
    lengths = np.array([len(sentence) + 2 for sentence in sentences], dtype=np.int64)
    begins = np.cumsum(lengths) - lengths
    sentence_of = np.repeat(np.arange(len(sentences)), list(map(len, positions)))
    place = np.fromiter(chain.from_iterable(positions), dtype=np.int64) + 1  # after <S>
    sizes = lengths[sentence_of]
    chunk_of = (np.cumsum(sizes) - sizes) // BATCH_WORDS  # each of about so many positions
    outputs = [vectors.new_zeros(0, bilm.config.sequence_encoder.projection_dim)]
    for chunk in np.unique(chunk_of):
        if check is not None:
            check()
        copies = np.flatnonzero(chunk_of == chunk)
        of, length = sentence_of[copies], sizes[copies]
        begin = np.cumsum(length) - length
        text = numbers[np.arange(length.sum()) + np.repeat(begins[of] - begin, length)]
        rows = min(MAX_ROWS, len(of))
        packed = pack_sentences(length, assign_rows(length, rows), rows, reset=True)
        tokens = packed.to_streams(torch.from_numpy(np.stack([text, text]))).to(vectors.device)
        hidden = packed.slots[:, torch.from_numpy(begin + place[copies])].to(vectors.device)
        outputs.append(masked_outputs(bilm, vectors, tokens, packed.packing, hidden))
    return torch.cat(outputs)


def _windows(sentence: Sequence[str]) -> list[Sequence[str]]:
    """Split a sentence into windows of about equal length, at most `WINDOW_WORDS`, so that none
    lacks context.
    """
    count = -(-len(sentence) // WINDOW_WORDS)
    bounds = [number * len(sentence) // max(count, 1) for number in range(count + 1)]
    return [sentence[begin:end] for begin, end in pairwise(bounds)]


# --- All words ------------------------------------------------------------------------------------


@torch.no_grad()
def log_losses(
    model: Pretrained,
    sentences: Iterable[Sequence[str]],
    state: str | None = None,
    batch_size: int = 1,
    check: Callable[[], None] | None = None,
    batch_words: int | None = None,
) -> Iterator[tuple[list[Sequence[str]], Tensor, Tensor]]:
    """Compute the loss of every word, batch by batch.

    With a model that merges the directions, a sentence of more than 1,024 words is read in windows
    of at most that length, each with boundaries of its own.

    Args:
        model: A loaded model with its softmax.
        sentences: Tokenized sentences.
        state: Initial state of a sentence: "zeros", "warm", or "carry", where sentence i starts
            from the final state of sentence i - `batch_size`. None: "carry" if the model carries
            state, else "zeros".
        batch_size: Number of rows with carried state; otherwise it has no effect.
        check: Called before each batch, and before each part of one that takes long; an exception
            that it raises ends the computation.
        batch_words: Size of a batch in words and boundaries; None: `BATCH_WORDS`. Losses do not
            depend on it.

    Yields:
        Batches of sentences, with their targets and losses -log p in nats, in the order of the
        text: (2, N), of each direction and with a boundary for each sentence, or (1, N), of words
        given all others.

    Raises:
        ValueError: An argument is invalid, the model cannot predict words, or a sentence is too
            long.
    """
    bilm, softmax, vocab = parts_of(model)
    encoder = model.config.sequence_encoder
    state = ("carry" if encoder.carries_state else "zeros") if state is None else state
    start, prepacked, count = model.start(state), prepack(bilm, None), 0
    carried = bilm.initial_state(batch_size) if state == "carry" else None
    for batch in sentence_batches(sentences, batch_words or BATCH_WORDS):
        if encoder.merges_directions:
            targets = torch.from_numpy(vocab.ids(chain.from_iterable(batch)))[None]
            windows = [window for sentence in batch for window in _windows(sentence)]
            outputs = outputs_of_hidden(
                prepacked, vocab, windows, [range(len(window)) for window in windows], check
            )
            outputs = outputs[None]
        else:
            check_length(max(map(len, batch)), "a sentence")
            if check is not None:
                check()
            targets = target_ids(batch, vocab)
            rows = batch_size if carried is not None else min(MAX_ROWS, len(batch))
            if carried is not None:
                row_of = np.arange(count, count + len(batch)) % rows
            else:
                row_of = assign_rows([len(sentence) + 1 for sentence in batch], rows)
            packed = scoring_batch(batch, row_of, rows, reset=carried is None)
            outputs, after = final_outputs(prepacked, vocab, packed, carried, start)
            carried = None if carried is None else after
        pairs = zip(
            outputs.to(softmax.weight.dtype), targets.to(outputs.device), strict=True
        )  # of each direction
        count += len(batch)
        yield batch, targets, torch.stack([softmax.log_losses(*pair) for pair in pairs])
