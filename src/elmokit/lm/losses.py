"""The language model in a pretrained model: -log p of the words of a text.

Each direction predicts a word from those on one side of it. A model that merges the directions
predicts it from all others of its sentence: a masked word is replaced by the encoder's learned
vector `mask`, and predicted from the sum of the two halves of the top layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from elmokit.checkpoints import ModelSource, Pretrained, load
from elmokit.data import PackedBatch, chunks
from elmokit.nn import BiLM, BiLMState, FullSoftmax, prepack
from elmokit.runtime import check_length, pick_device
from elmokit.text import Vocab

Check: TypeAlias = Callable[[], None]  # raises an exception to end a computation

BATCH_WORDS = 16_384  # words per batch
CHECKED_WORDS = 1024  # words per batch with a check, which is called every few seconds
MAX_ROWS = 64  # rows per batch, unless state is carried
# words of a sentence that are masked in turn: the time grows with the square of its length
WINDOW_WORDS = 1024


def resolve_language_model(model: ModelSource, device: str | None) -> Pretrained:
    """Load a model with its softmax; a loaded one stays on its device unless `device` is given.

    Raises:
        ValueError: The softmax or the vocabulary is missing, or the model cannot predict words.
    """
    pretrained = load(model)
    stays = device is None and pretrained is model
    pretrained = pretrained.to(pretrained.bilm.device if stays else pick_device(device))
    predictor(pretrained)
    return pretrained


def predictor(model: Pretrained) -> tuple[BiLM, FullSoftmax, Vocab]:
    """The biLM, softmax and vocabulary.

    Raises:
        ValueError: One is missing, or the encoder is not a language model.
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
    model.config.check_predicts_words()
    return model.bilm, model.softmax, model.vocab


def final_outputs(
    bilm: BiLM,
    vocab: Vocab,
    batch: PackedBatch,
    state: BiLMState | None = None,
    start: BiLMState | None = None,
) -> tuple[Tensor, BiLMState]:
    """Predict words from the words on one side.

    Args:
        bilm: A biLM whose directions are independent.
        vocab: Its vocabulary.
        batch: A batch of `PackedBatch.to_score`.
        state: As in `BiLM.run`.
        start: As in `BiLM.run`.

    Returns:
        The input of the softmax of each direction, (2, N, D), in the order of the text; and the
        state of the rows after the batch.
    """
    words = bilm.word_vectors(batch.words, vocab)
    layers, after = bilm.run(words, batch.tokens.to(bilm.device), batch.text.packing, state, start)
    return torch.stack(batch.text.unpack(layers[-1]).chunk(2, dim=1)), after


def masked_outputs(
    bilm: BiLM,
    vocab: Vocab,
    sentences: Sequence[Sequence[str]],
    positions: Sequence[Sequence[int]],
    check: Check | None = None,
) -> Tensor:
    """Predict words from all others of their sentence; each is masked in a separate copy.

    Args:
        bilm: A biLM that merges the directions.
        vocab: Its vocabulary.
        sentences: Lists of words.
        positions: Positions of the words to mask in each sentence, from 0.
        check: Called before each chunk of copies; an exception that it raises ends the computation.

    Returns:
        The input of the softmax for each masked word, (M, D), sentence after sentence.
    """
    # sentences    a b    c
    # copies       <S> _ b </S>  <S> a _ </S>  <S> _ </S>       `begins` 0 4 8, masked at 1 6 9
    masked = [
        (words, position)
        for words, chosen in zip(sentences, positions, strict=True)
        for position in chosen
    ]
    outputs = []
    for copies in chunks(masked, BATCH_WORDS, lambda copy: len(copy[0]) + 2):
        if check is not None:
            check()
        batch = PackedBatch.to_embed([words for words, _ in copies], MAX_ROWS)
        begins = np.cumsum(batch.lengths) - batch.lengths
        places = np.array([position for _, position in copies]) + begins + 1
        slots = batch.text.slots[:, torch.from_numpy(places)]
        vectors = bilm.word_vectors(batch.words, vocab)
        tokens, slots = batch.tokens.to(vectors.device), slots.to(vectors.device)
        outputs.append(bilm.masked_outputs(vectors, tokens, batch.text.packing, slots))
    dim = bilm.config.sequence_encoder.projection_dim
    return torch.cat(outputs) if outputs else torch.zeros(0, dim, device=bilm.device)


def _windows(sentence: Sequence[str]) -> list[Sequence[str]]:
    """Windows of about equal length, at most `WINDOW_WORDS`, so that none lacks context."""
    # 2,050 words: windows of 683, 683 and 684, not of 1024, 1024 and 2.
    count = -(-len(sentence) // WINDOW_WORDS)
    bounds = [number * len(sentence) // max(count, 1) for number in range(count + 1)]
    return [sentence[begin:end] for begin, end in pairwise(bounds)]


@torch.no_grad()
def log_losses(
    model: Pretrained,
    sentences: Iterable[Sequence[str]],
    state: str | None = None,
    batch_size: int = 1,
    check: Check | None = None,
) -> Iterator[tuple[list[Sequence[str]], dict[str, Tensor]]]:
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

    Yields:
        Batches of sentences, with their losses -log p in nats, (N,), in the order of the text: of
        the words and then </S> of each sentence ("forward"), of <S> and then the words
        ("backward"); or of its words given all others ("masked").

    Raises:
        ValueError: An argument is invalid, the model cannot predict words, or a sentence is too
            long.
    """
    bilm, softmax, vocab = predictor(model)
    encoder = model.config.sequence_encoder
    state = ("carry" if encoder.carries_state else "zeros") if state is None else state
    start, prepacked = model.start(state), prepack(bilm, None)
    carried = bilm.initial_state(batch_size) if state == "carry" else None
    count = 0  # sentences so far
    for batch in chunks(sentences, CHECKED_WORDS if check else BATCH_WORDS):
        if encoder.merges_directions:
            windows = [window for sentence in batch for window in _windows(sentence)]
            everywhere = [range(len(window)) for window in windows]
            outputs = {"masked": masked_outputs(prepacked, vocab, windows, everywhere, check)}
            targets = {"masked": vocab.ids(chain.from_iterable(batch))}
        else:
            check_length(max(map(len, batch)), "a sentence")
            if check is not None:
                check()
            if carried is None:
                packed = PackedBatch.to_score(batch, MAX_ROWS)
            else:
                packed = PackedBatch.to_score(batch, batch_size, first=count)
            (forward, backward), after = final_outputs(prepacked, vocab, packed, carried, start)
            carried = None if carried is None else after
            outputs = {"forward": forward, "backward": backward}
            targets = dict(zip(outputs, vocab.targets(batch), strict=True))
        count += len(batch)
        yield (
            batch,
            {
                direction: softmax.log_losses(
                    hidden.to(softmax.weight.dtype),
                    torch.from_numpy(targets[direction]).to(hidden.device),
                )
                for direction, hidden in outputs.items()
            },
        )
