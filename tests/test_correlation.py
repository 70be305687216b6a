"""Correlations against SciPy."""

import numpy as np
import pytest

from elmokit.correlation import pearson, ranks, spearman


def test_correlations_equal_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    random = np.random.default_rng(0)
    left, right = random.integers(0, 9, 50).astype(float), random.normal(size=50)
    np.testing.assert_allclose(ranks(left), stats.rankdata(left))
    assert pearson(left, right) == pytest.approx(stats.pearsonr(left, right).statistic)
    assert spearman(left, right) == pytest.approx(stats.spearmanr(left, right).statistic)
    assert pearson(left, np.ones(50)) == 0.0
