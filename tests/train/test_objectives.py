"""The objectives of training, for each sequence encoder: losses, masked words, gradients, parts,
resumption.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from toy_encoders import CONFIGS, ENCODERS

from elmokit.ops.packing import Packing
from elmokit.runtime import pytorch_threads
from elmokit.text.vocab import Vocab
from elmokit.train.config import PretrainConfig
from elmokit.train.objectives import MASKED_SHARE, draw_masked
from elmokit.train.trainer import Trainer

EXACT = {"num_samples": 0, "dropout": 0.0, "fresh_starts": 0.0}


def trainer(settings: PretrainConfig, encoder: str, **changes: Any) -> Trainer:
    settings = replace(settings, **changes)
    vocab = Vocab.from_counts(Vocab.count_words(settings.corpus))
    return Trainer(settings, CONFIGS[encoder], vocab, list(settings.corpus), total_steps=100)


def outputs_of(run: Trainer, words: Sequence[str], hidden: Sequence[int] = ()) -> torch.Tensor:
    """The top layer (2, T, D) of one row with these words, from its front; some are replaced by the
    mask.
    """
    vectors = run.bilm.word_vectors(words, run.vocab)[: len(words)]
    tokens = torch.arange(len(words))
    if hidden:
        vectors = torch.cat([vectors, run.bilm.sequence_encoder.mask[None]])
        tokens[list(hidden)] = len(words)
    layers, _ = run.bilm.run(
        vectors, torch.stack([tokens, tokens.flip(0)]), Packing.rectangle(len(tokens), 1)
    )
    return torch.stack([layers[-1, 0], layers[-1, 1].flip(0)])


def cross_entropy(run: Trainer, outputs: torch.Tensor, targets: Sequence[str]) -> torch.Tensor:
    logits = outputs @ run.softmax.weight.T + run.softmax.bias
    return F.cross_entropy(logits, torch.from_numpy(run.vocab.ids(targets)), reduction="none")


# --- The loss -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("encoder", "recipe"), [*((encoder, "muon") for encoder in ENCODERS), ("lstm", "modern")]
)
def test_training_lowers_the_loss(settings: PretrainConfig, encoder: str, recipe: str) -> None:
    run = trainer(
        settings,
        encoder,
        recipe=recipe,
        dropout=0.0,
        learning_rate=0.01,
        num_samples=0,
        batch_size=8,
    )
    losses = torch.stack([run.train_step().mean() for _ in range(40)])
    assert losses[-5:].mean() < 0.85 * losses[:5].mean()


def test_likelihood_of_sentences_equals_that_of_each_by_itself(settings: PretrainConfig) -> None:
    twin, run = (
        trainer(settings, "transformer", batch_size=3, unroll_steps=11, **EXACT) for _ in range(2)
    )
    losses: list[list[torch.Tensor]] = [[], []]
    for sentence in next(twin.objective.stream):
        forward = outputs_of(twin, ["<S>", *sentence])[0]
        backward = outputs_of(twin, [*sentence, "</S>"])[1]
        losses[0].append(cross_entropy(twin, forward, [*sentence, "</S>"]))
        losses[1].append(cross_entropy(twin, backward, ["<S>", *sentence]))
    expected = torch.stack([torch.cat(direction).mean() for direction in losses])
    torch.testing.assert_close(run.train_step(), expected.detach(), atol=2e-6, rtol=0)


def test_loss_of_masked_words_equals_that_of_each_sentence_by_itself(
    settings: PretrainConfig,
) -> None:
    twin, run = (
        trainer(settings, "interleaved", batch_size=3, unroll_steps=11, **EXACT) for _ in range(2)
    )
    sentences = next(twin.objective.stream)
    losses = []
    for sentence, hidden in zip(
        sentences, draw_masked(list(map(len, sentences)), MASKED_SHARE, twin.generator), strict=True
    ):
        places = [1 + int(position) for position in hidden]
        outputs = outputs_of(twin, ["<S>", *sentence, "</S>"], places).sum(dim=0)
        losses.append(
            cross_entropy(twin, outputs[places], [sentence[place - 1] for place in places])
        )
    torch.testing.assert_close(
        run.train_step(), torch.cat(losses).mean()[None].detach(), atol=2e-6, rtol=0
    )


@pytest.mark.parametrize("encoder", ENCODERS)
def test_train_step_applies_the_dropout_of_the_settings(
    settings: PretrainConfig, encoder: str
) -> None:
    losses = [
        trainer(settings, encoder, **EXACT | {"dropout": share}).train_step()
        for share in (0.0, 0.0, 0.5)
    ]
    assert torch.equal(losses[0], losses[1])
    assert (losses[2] - losses[0]).abs().min() > 1e-5


# --- Hidden words ---------------------------------------------------------------------------------


def test_masked_words_do_not_leak_into_the_outputs(settings: PretrainConfig) -> None:
    """Another word in the place of a hidden one changes nothing; another visible word does."""
    run = trainer(settings, "interleaved", dropout=0.0)
    batch = run.objective.next_batch(run.generator)
    vectors = run.bilm.word_vectors(batch.words, run.vocab)

    def outputs(tokens: torch.Tensor) -> torch.Tensor:
        return run.objective.outputs(vectors, replace(batch, tokens=tokens))

    expected = outputs(batch.tokens)
    changed = batch.tokens.scatter(1, batch.slots, 0)
    assert not torch.equal(changed, batch.tokens)
    assert torch.equal(outputs(changed), expected)
    visible = torch.ones(batch.tokens.shape[1], dtype=torch.bool)
    visible[batch.slots[0]] = False
    changed = batch.tokens.clone()
    changed[:, visible] = 0
    assert not torch.allclose(outputs(changed), expected)


def test_gradients_of_the_masked_loss_equal_finite_differences(settings: PretrainConfig) -> None:
    run = trainer(settings, "interleaved", batch_size=2, unroll_steps=8, **EXACT)
    bilm = run.bilm.double()
    softmax = run.softmax.double()
    torch.manual_seed(0)
    with torch.no_grad():
        bilm.sequence_encoder.mask.normal_()
    batch = run.objective.next_batch(run.generator)

    def loss() -> torch.Tensor:
        outputs = run.objective.outputs(bilm.word_vectors(batch.words, run.vocab), batch)
        return softmax.log_losses(outputs[0], batch.targets[0]).mean()

    named = {**dict(bilm.named_parameters()), **dict(softmax.named_parameters())}
    loss().backward()
    draw = np.random.default_rng(0)
    step = 1e-5
    for name, parameter in named.items():
        assert parameter.grad is not None, name
        flat = parameter.data.view(-1)
        gradient = parameter.grad.view(-1)
        strongest = int(gradient.abs().argmax())
        for place in {strongest, *draw.integers(len(flat), size=1).tolist()}:
            before = float(flat[place])
            values = []
            for sign in (1, -1):
                flat[place] = before + sign * step
                values.append(float(loss().detach()))
            flat[place] = before
            difference = (values[0] - values[1]) / (2 * step)
            assert float(gradient[place]) == pytest.approx(difference, abs=1e-8, rel=1e-4), name


# --- Resumed, on any number of threads ------------------------------------------------------------


def weights(run: Trainer) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in run.parameters]


@pytest.mark.parametrize(
    "encoder, recipe", [("lstm", "original"), *((encoder, "muon") for encoder in ENCODERS)]
)
def test_a_restored_run_ends_with_the_same_bits(
    settings: PretrainConfig, encoder: str, recipe: str
) -> None:
    """With dropout, negative samples and all else that draws; the snapshot falls amidst the
    text.
    """
    whole = trainer(settings, encoder, recipe=recipe)
    for _ in range(4):
        whole.train_step()
    snapshot = whole.snapshot()
    assert snapshot.progress["position"]["taken"] > 0
    for _ in range(5):
        whole.train_step()
    resumed = trainer(settings, encoder, recipe=recipe)
    resumed.restore(snapshot)
    for _ in range(5):
        resumed.train_step()
    assert all(map(torch.equal, weights(whole), weights(resumed)))
    assert whole.snapshot().progress == resumed.snapshot().progress


@pytest.mark.native
@pytest.mark.parametrize("encoder", ENCODERS)
def test_training_does_not_depend_on_the_number_of_threads(
    settings: PretrainConfig, encoder: str
) -> None:
    ends = []
    for threads in (1, 3):
        with pytorch_threads(threads):
            run = trainer(settings, encoder, batch_size=16, unroll_steps=20)
            ends.append([torch.stack([run.train_step() for _ in range(2)]), *weights(run)])
    assert all(map(torch.equal, *ends))
