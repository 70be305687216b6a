"""Rows of a table, and the one gradient of several sets of them."""

import pytest
import torch
from processors import WIDE_AND_LOW

from elmokit.ops.gather import gather_rows

SETS = [torch.tensor([3, 1, 3, 3]), torch.tensor([], dtype=torch.int64), torch.tensor([0, 3])]


@pytest.mark.parametrize("dtype", WIDE_AND_LOW)
@pytest.mark.parametrize("shape", [(5, 7), (5, 1), (5,)])
def test_values_and_gradient(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    table = torch.randn(shape).to(dtype).requires_grad_()
    found, expected = gather_rows(table, SETS), [table[ids] for ids in SETS]
    for left, right in zip(found, expected, strict=True):
        assert torch.equal(left, right)
    upstream = [torch.randint(-8, 9, rows.shape).to(dtype) for rows in expected]  # whole numbers: no rounding
    left, right = (torch.autograd.grad(rows, table, upstream)[0] for rows in (found, expected))
    assert torch.equal(left, right)


def test_a_set_that_is_not_used_adds_nothing() -> None:
    table = torch.randn(5, 7, requires_grad=True)
    used, _, _ = gather_rows(table, SETS)
    (found,) = torch.autograd.grad(used.sum(), table)
    assert found[:, 0].tolist() == [0, 1, 0, 3, 0]


def test_there_are_no_other_rows() -> None:
    with pytest.raises(IndexError):
        gather_rows(torch.randn(5, 7), [torch.tensor([5])])
