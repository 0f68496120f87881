"""Pictures' data: bins and matrices by hand."""

import json
import math
from dataclasses import asdict

import pytest
import torch

from bench.core.view import Heatmap, Histogram, heatmap, histogram


def test_shares_in_equal_bins() -> None:
    """[0, 1), [1, 2), [2, 3), [3, 4]: a value on a border goes up, the last one down, what lies
    outside into the outermost bins."""
    groups = {
        "some": torch.tensor([0.0, 0.5, 1.0, 2.999, 3.0, 4.0, 7.0, -5.0]),
        "none": torch.tensor([]),
        "one": torch.tensor([2.0], requires_grad=True),
    }
    found = histogram("a title", "an axis", groups, 0.0, 4.0, 4)
    shares = {"some": [3 / 8, 1 / 8, 1 / 8, 3 / 8], "none": [0.0] * 4, "one": [0.0, 0.0, 1.0, 0.0]}
    assert found == Histogram(
        "a title", "an axis", 0.0, 4.0, shares, {"some": 8, "none": 0, "one": 1}
    )
    json.dumps(asdict(found))


def test_bins_of_another_range() -> None:
    values = torch.tensor([-2.0, -1.1, -0.9, 1.9], dtype=torch.float64)
    found = histogram("t", "l", {"v": values}, -2.0, 2.0, 2)
    assert (found.low, found.high) == (-2.0, 2.0)
    assert found.shares == {"v": [0.75, 0.25]}
    assert found.sizes == {"v": 4}


def test_bins_are_of_the_range_not_of_the_values() -> None:
    found = histogram("t", "l", {"v": torch.tensor([-1.1, -0.9, 0.9, 0.9])}, -2.0, 2.0, 4)
    assert found.shares == {"v": [0.25, 0.25, 0.5, 0.0]}


def test_forty_bins_unless_told_otherwise() -> None:
    found = histogram("t", "l", {"v": (torch.arange(40) + 0.5) / 40}, 0.0, 1.0)
    assert found.shares["v"] == pytest.approx([1 / 40] * 40)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.int64])
def test_values_of_any_type(dtype: torch.dtype) -> None:
    found = histogram("t", "l", {"v": torch.tensor([0, 1, 1, 1]).to(dtype)}, 0, 1, 2)
    assert found.shares == {"v": [0.25, 0.75]}


def test_a_matrix_with_places_that_have_no_value() -> None:
    matrix = torch.tensor([[0.25, math.nan, 1.0], [0.0, -1.0, math.nan]], dtype=torch.float32)
    found = heatmap("a title", "across", "down", matrix, -1.0, 2.0)
    rows = [[0.25, None, 1.0], [0.0, -1.0, None]]
    assert found == Heatmap("a title", "across", "down", -1.0, 2.0, rows)
    assert "NaN" not in json.dumps(asdict(found))
