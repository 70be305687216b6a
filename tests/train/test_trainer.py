"""Training steps against explicit formulas; schedules; saving and restoring optimizers."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from elmokit.config import BiLMConfig
from elmokit.ops.packing import Packing
from elmokit.text.characters import encode_words
from elmokit.text.vocab import Vocab
from elmokit.train.config import PretrainConfig
from elmokit.train.optim import MODERN, MUON, Optimizer, Schedule, make_optimizer
from elmokit.train.trainer import Trainer


def trainer(settings: PretrainConfig, total_steps: int = 100, **changes: Any) -> Trainer:
    settings = replace(
        settings, **{"num_samples": 0, "dropout": 0.0, "fresh_starts": 0.0} | changes
    )
    vocab = Vocab.from_counts(Vocab.count_words(settings.corpus))
    return Trainer(settings, BiLMConfig.preset("tiny"), vocab, list(settings.corpus), total_steps)


def plain_gradients(of: Trainer, factor: float) -> list[torch.Tensor]:
    """The gradient of factor * 1/2 (mean forward loss + mean backward loss) on the first window, by
    autograd.
    """
    twin = trainer(of.settings)
    window = next(twin.objective.stream)
    words = twin.bilm.token_encoder(torch.from_numpy(encode_words(window.words)))
    layers, _ = twin.bilm.run(
        words, window.tokens, Packing.rectangle(of.settings.unroll_steps, of.settings.batch_size)
    )
    logits = layers[-1] @ of.softmax.weight.T + of.softmax.bias
    loss = torch.stack(
        [F.cross_entropy(logits[d], window.targets[d].long()) for d in range(2)]
    ).mean()
    return list(
        torch.autograd.grad(factor * loss, [*twin.bilm.parameters(), *of.softmax.parameters()])
    )


def test_first_step_of_the_original_recipe_equals_bilm_tf_adagrad(settings: PretrainConfig) -> None:
    run = trainer(settings, recipe="original")
    gradients = plain_gradients(run, factor=settings.unroll_steps)
    before = [parameter.detach().clone() for parameter in run.parameters]
    run.train_step()
    for parameter, start, gradient in zip(run.parameters, before, gradients, strict=True):
        expected = start - 0.2 * gradient / torch.sqrt(
            1.0 + gradient**2
        )  # the accumulator starts at 1
        torch.testing.assert_close(parameter.detach(), expected, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("recipe", "maximum"), [("original", 10.0), ("modern", 1.0), ("muon", 1.0)]
)
@pytest.mark.parametrize(
    "scale", [1.0, 400.0]
)  # of the softmax weights: with 400, the gradient is clipped
def test_train_step_clips_the_gradient_to_the_norm_of_the_recipe(
    settings: PretrainConfig,
    monkeypatch: pytest.MonkeyPatch,
    recipe: str,
    maximum: float,
    scale: float,
) -> None:
    run = trainer(settings, recipe=recipe)
    with torch.no_grad():
        run.softmax.weight.mul_(scale)
    gradients = plain_gradients(run, factor=settings.unroll_steps if recipe == "original" else 1.0)
    norm = float(torch.stack([gradient.norm() for gradient in gradients]).norm())
    assert (norm > maximum) == (scale > 1)
    given: list[torch.Tensor] = []
    monkeypatch.setattr(
        run.optimizer,
        "step",
        lambda rate: given.extend(torch.clone(p.grad) for p in run.parameters),
    )
    run.train_step()
    for found, gradient in zip(given, gradients, strict=True):
        torch.testing.assert_close(found, gradient * min(1.0, maximum / norm), atol=1e-6, rtol=1e-4)


def test_modern_recipe_takes_the_steps_of_adamw() -> None:
    """Loshchilov and Hutter (2019), algorithm 2, with weight decay for matrices alone."""
    parameters = [torch.nn.Parameter(torch.ones(shape)) for shape in ((4, 3), (5,))]
    optimizer = make_optimizer(MODERN, parameters, [])
    values = [np.ones(parameter.shape) for parameter in parameters]
    first, second = ([np.zeros(parameter.shape) for parameter in parameters] for _ in range(2))
    for step in range(5):
        for number, parameter in enumerate(parameters):
            parameter.grad = gradient(parameter, step) * 10.0**-step
            exact = parameter.grad.double().numpy()
            first[number] = 0.9 * first[number] + 0.1 * exact
            second[number] = 0.98 * second[number] + 0.02 * exact**2
            mean = first[number] / (1 - 0.9 ** (step + 1))
            square = second[number] / (1 - 0.98 ** (step + 1))
            decay = 0.01 if parameter.dim() == 2 else 0.0
            values[number] = values[number] * (1 - 0.1 * decay) - 0.1 * mean / (
                np.sqrt(square) + 1e-8
            )
        optimizer.step(0.1)
    for parameter, expected in zip(parameters, values, strict=True):
        np.testing.assert_allclose(parameter.detach().numpy(), expected, rtol=0, atol=1e-6)


def losses_from_zero_states(run: Trainer) -> torch.Tensor:
    """Mean losses on the first window, (2,), running every sentence of every row by itself from a
    zero state.
    """
    window = next(run.objective.stream)
    rows = run.settings.batch_size
    words = run.bilm.token_encoder(torch.from_numpy(encode_words(window.words)))
    losses: list[list[torch.Tensor]] = [[], []]
    for row in range(rows):
        begins = [*window.begins[row::rows].nonzero().flatten().tolist(), run.settings.unroll_steps]
        for begin, end in pairwise(begins):
            sentence = slice(begin * rows + row, (end - 1) * rows + row + 1, rows)
            layers, _ = run.bilm.run(
                words, window.tokens[:, sentence], Packing.rectangle(end - begin, 1)
            )
            logits = layers[-1] @ run.softmax.weight.T + run.softmax.bias
            for d in range(2):
                losses[d].append(
                    F.cross_entropy(logits[d], window.targets[d, sentence].long(), reduction="none")
                )
    return torch.stack([torch.cat(direction).mean() for direction in losses])


def test_train_step_with_fresh_starts_equals_separate_sentences(settings: PretrainConfig) -> None:
    changes = {"recipe": "modern", "unroll_steps": 17, "fresh_starts": 1.0}
    expected = losses_from_zero_states(trainer(settings, **changes)).detach()
    losses = trainer(settings, **changes).train_step()
    torch.testing.assert_close(losses, expected, atol=2e-6, rtol=0)
    carried = trainer(settings, **changes | {"fresh_starts": 0.0}).train_step()
    assert (losses - carried).abs().min() > 1e-5


def test_trainer_resets_the_requested_fraction_of_sentences(settings: PretrainConfig) -> None:
    for recipe_of_run, fresh_starts, share in (
        ("modern", None, 0.1),
        ("original", None, 0.0),
        ("modern", 0.5, 0.5),
    ):
        run = trainer(settings, recipe=recipe_of_run, fresh_starts=fresh_starts)
        num_resets = total = 0
        twin = trainer(run.settings).objective.stream
        for _ in range(400):
            window = next(twin)
            resets = run.objective.next_batch(run.generator).packing.resets
            num_resets += 0 if resets is None else int(resets.sum())
            total += int(window.begins.sum())
            assert resets is None or not (resets & ~window.begins).any()
        assert abs(num_resets / total - share) < 5 * (share * (1 - share) / total) ** 0.5 + 1e-9


def test_cosine_schedule_warms_up_and_decays() -> None:
    factors = [Schedule("cosine", 1000).factor(step) for step in range(1000)]
    assert factors[0] == pytest.approx(1 / 50)
    assert factors[49] == pytest.approx(1) == max(factors)
    assert factors[:50] == sorted(factors[:50])
    assert factors[50:] == sorted(factors[50:], reverse=True)
    assert factors[-1] == pytest.approx(0.05, rel=0.01)
    assert Schedule("cosine", 100_000).factor(999) == pytest.approx(
        1
    )  # warm-up is never longer than 1000 steps


def test_constant_schedule_decays_only_in_the_cool_down() -> None:
    plain = Schedule("constant", None)
    ending = Schedule("constant", None, cool_down=(5000, 99))
    assert [plain.factor(step) for step in (0, 499, 999, 10**9)] == [0.001, 0.5, 1, 1]
    assert all(plain.factor(step) == ending.factor(step) for step in range(5000))
    falling = [ending.factor(5000 + step) for step in range(99)]
    assert falling == pytest.approx([(99 - step) / 100 for step in range(99)])
    assert [Schedule("constant", None, 80).factor(step) for step in (0, 39, 79)] == [1 / 80, 0.5, 1]
    assert {Schedule("none", 10).factor(step) for step in range(10)} == {1.0}


def gradient(parameter: torch.Tensor, step: int) -> torch.Tensor:
    return torch.randn(parameter.shape, generator=torch.Generator().manual_seed(step))


def steps(parameters: list[torch.nn.Parameter], optimizer: Optimizer, count: int) -> None:
    for number in range(count):
        for parameter in parameters:
            parameter.grad = gradient(parameter, number)
        optimizer.step(0.1)


@pytest.mark.parametrize("shape", [(12, 5), (5, 12), (32, 32)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 0), (torch.float32, 0.03)])
def test_muon_takes_the_steps_of_pytorchs(
    dtype: torch.dtype, tolerance: float, shape: tuple[int, int]
) -> None:
    """PyTorch's are rounded to bfloat16."""
    ours, theirs = (torch.nn.Parameter(torch.ones(shape)) for _ in range(2))
    optimizer = make_optimizer(MUON, [ours], [ours], dtype)
    muon = torch.optim.Muon([theirs], lr=0.1, weight_decay=0.01, adjust_lr_fn="match_rms_adamw")
    steps([ours], optimizer, 3), steps([theirs], Optimizer([muon]), 3)
    assert (ours.detach() - theirs.detach()).norm() <= tolerance * (theirs.detach() - 1).norm()


def test_train_step_minimizes_the_sampled_loss(settings: PretrainConfig) -> None:
    """The loss itself is compared with TensorFlow's in nn/test_softmax.py."""
    run, twin, exact = (trainer(settings, num_samples=count) for count in (6, 6, 0))
    samples = [twin.softmax.sample(6, twin.generator) for _ in range(2)]
    window = next(twin.objective.stream)
    words = twin.bilm.token_encoder(torch.from_numpy(encode_words(window.words)))
    layers, _ = twin.bilm.run(
        words, window.tokens, Packing.rectangle(settings.unroll_steps, settings.batch_size)
    )
    expected = twin.softmax.sampled_losses(layers[-1], window.targets, samples).mean(dim=1).detach()
    losses = run.train_step()
    torch.testing.assert_close(losses, expected, atol=2e-6, rtol=0)
    assert (losses - exact.train_step()).abs().min() > 0.01


def test_bfloat16_training_is_close_to_float32(
    settings: PretrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = []
    for dtype in ("float32", "bfloat16"):
        run = trainer(settings, dtype=dtype)
        losses.append(torch.stack([run.train_step() for _ in range(5)]))
        assert {parameter.dtype for parameter in run.parameters} == {torch.float32}
    torch.testing.assert_close(losses[0], losses[1], atol=0.02, rtol=0)
    assert not torch.equal(losses[0], losses[1])
