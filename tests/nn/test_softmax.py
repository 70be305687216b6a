"""The language model's softmax: exact against plain torch, sampled against TensorFlow."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from elmokit.nn.softmax import FullSoftmax, Samples, draw_log_uniform, log_expected_count
from elmokit.ops import portable


@pytest.fixture
def golden(goldens: Callable[[str], Path]) -> dict[str, Tensor]:
    with np.load(goldens("bilm_tf_training/sampled_softmax.npz")) as file:
        return {name: torch.from_numpy(np.asarray(file[name])) for name in file.files}


@pytest.mark.parametrize("logits_at_once", [1, 100, 1 << 20])
def test_exact_losses_equal_log_softmax(
    monkeypatch: pytest.MonkeyPatch, logits_at_once: int, without_native: None
) -> None:
    monkeypatch.setattr(portable, "LOGITS_AT_ONCE", logits_at_once)
    softmax = FullSoftmax(11, 4)
    hidden = torch.randn(23, 4)
    targets = torch.randint(0, 11, (23,))
    expected = F.cross_entropy(hidden @ softmax.weight.T + softmax.bias, targets, reduction="none")
    torch.testing.assert_close(softmax.log_losses(hidden, targets), expected)
    assert softmax.log_losses(hidden[:0], targets[:0]).shape == (0,)


def test_exact_losses_under_autocast_are_float32_and_close() -> None:
    torch.manual_seed(0)
    softmax = FullSoftmax(50, 16)
    hidden = torch.randn(20, 16)
    targets = torch.randint(0, 50, (20,))
    with torch.autocast("cpu", torch.bfloat16):
        close = softmax.log_losses(hidden, targets)
    assert close.dtype == torch.float32
    torch.testing.assert_close(close, softmax.log_losses(hidden, targets), atol=0.02, rtol=0)
    close.sum().backward()
    assert softmax.weight.grad.dtype == torch.float32


def test_sampled_losses_equal_those_of_tensorflow(golden: dict[str, Tensor]) -> None:
    softmax = FullSoftmax(*golden["W"].shape)
    softmax.load_state_dict({"weight": golden["W"], "bias": golden["b"]})
    samples = (golden["sampled_ids"], 137)
    hits = (golden["labels"][:, None] == golden["sampled_ids"]).sum()
    assert hits > 0, "the golden file holds accidental hits"
    both = (torch.stack([golden[name]] * 2) for name in ("h", "labels"))
    for found in softmax.sampled_losses(*both, [samples, samples]):
        torch.testing.assert_close(found, golden["losses"], atol=5e-6, rtol=0)


@pytest.mark.parametrize(
    ("ids", "counts", "num_tries"),
    [
        ("sampled_ids", "sampled_expected_count", 137),
        ("labels", "true_expected_count", 137),
        ("tf_sampler_ids", "tf_sampler_sampled_expected", 51),
        ("labels", "tf_sampler_true_expected", 51),
    ],
)
def test_expected_counts_equal_those_of_tensorflow(
    golden: dict[str, Tensor], ids: str, counts: str, num_tries: int
) -> None:
    found = log_expected_count(golden[ids], num_tries, int(golden["range_max"])).exp()
    torch.testing.assert_close(found.float(), golden[counts].flatten(), rtol=1e-6, atol=0)


def one_by_one(
    uniforms: Iterator[float], num_classes: int, num_samples: int
) -> tuple[list[int], int]:
    """The sampler as it is defined: draw a class at a time until enough distinct ones have come."""
    found: list[int] = []
    for tries, uniform in enumerate(uniforms, start=1):
        drawn = min(int(math.exp(uniform * math.log(num_classes + 1))) - 1, num_classes - 1)
        if drawn not in found:
            found.append(drawn)
        if len(found) == num_samples:
            return found, tries
    raise AssertionError("not reached")


def uniforms_of(seed: int, at_once: int) -> Iterator[float]:
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield from torch.rand(at_once, dtype=torch.float64, generator=generator).tolist()


@pytest.mark.parametrize(("num_classes", "num_samples"), [(1000, 30), (40, 30), (12, 12), (3, 1)])
@pytest.mark.parametrize("seed", range(5))
def test_samples_are_the_first_distinct_draws(
    num_classes: int, num_samples: int, seed: int
) -> None:
    samples = draw_log_uniform(num_classes, num_samples, torch.Generator().manual_seed(seed))
    ids, num_tries = one_by_one(uniforms_of(seed, 4 * num_samples), num_classes, num_samples)
    assert samples[0].tolist() == ids
    assert samples[1] == num_tries
    assert len(set(ids)) == num_samples
    assert min(ids) >= 0
    assert max(ids) < num_classes


def test_expected_counts_of_rare_words_keep_their_digits() -> None:
    """1 - (1 - p)^n loses everything in float32 where p is small."""
    found = log_expected_count(torch.tensor([799_999]), 40_000, 800_000)
    p = math.log1p(1 / 800_000) / math.log(800_001)
    assert found.item() == pytest.approx(math.log(-math.expm1(40_000 * math.log1p(-p))), rel=1e-12)


def gradients(softmax: FullSoftmax, losses: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """Of `hidden` (2, 6, 4), of both directions, and of the parameters."""
    hidden = torch.linspace(-1, 1, 48).view(2, 6, 4).requires_grad_()
    return list(torch.autograd.grad(losses(hidden).sum(), [hidden, *softmax.parameters()]))


def test_gradients_of_sampled_losses_equal_plain_torch() -> None:
    torch.manual_seed(1)
    softmax = FullSoftmax(20, 4)
    samples = [softmax.sample(8, torch.Generator().manual_seed(seed)) for seed in range(2)]
    targets = torch.tensor([[0, 1, 2, 13, 19, 0], [5, 0, 19, 19, 1, 3]])
    assert all(
        torch.isin(one, drawn).any() for one, (drawn, _) in zip(targets, samples, strict=True)
    )

    def by_definition(hidden: Tensor, targets: Tensor, samples: Samples) -> Tensor:
        drawn, num_tries = samples

        def logits(ids: Tensor) -> Tensor:
            offset = softmax.bias[ids] - log_expected_count(ids, num_tries, 20).float()
            return hidden @ softmax.weight[ids].T + offset

        true = logits(targets).diagonal()
        negatives = logits(drawn).masked_fill(targets[:, None] == drawn, -torch.inf)
        return -F.log_softmax(torch.cat([true[:, None], negatives], dim=1), dim=1)[:, 0]

    found = gradients(softmax, lambda hidden: softmax.sampled_losses(hidden, targets, samples))
    expected = gradients(
        softmax, lambda hidden: torch.stack(list(map(by_definition, hidden, targets, samples)))
    )
    for left, right in zip(found, expected, strict=True):
        torch.testing.assert_close(left, right, atol=1e-5, rtol=0)


def test_a_lone_sample_that_is_the_target_costs_nothing() -> None:
    softmax = FullSoftmax(5, 4)
    targets = torch.full((2, 6), 2)
    samples = (torch.tensor([2]), 1)
    found = gradients(
        softmax, lambda hidden: softmax.sampled_losses(hidden, targets, [samples] * 2)
    )
    assert all(not gradient.any() for gradient in found)
