"""Correlations against SciPy."""

import numpy as np
import pytest

from elmokit.tasks.pairs import pearson, ranks, spearman


def test_correlations_equal_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    random = np.random.default_rng(0)
    left = random.integers(0, 9, 50).astype(float)
    right = random.normal(size=50)
    np.testing.assert_allclose(ranks(left), stats.rankdata(left))
    assert pearson(left, right) == pytest.approx(stats.pearsonr(left, right).statistic)
    assert spearman(left, right) == pytest.approx(stats.spearmanr(left, right).statistic)
    assert pearson(left, np.ones(50)) == 0.0


@pytest.mark.parametrize("length", [0, 1, 3, 7])
def test_constant_samples_do_not_correlate_though_their_mean_is_rounded(length: int) -> None:
    constant = np.full(length, 0.1)
    other = np.arange(float(length))
    assert (
        pearson(constant, constant) == pearson(constant, other) == spearman(constant, constant) == 0
    )
