"""SOBA and its kin, by hand (Dagreou et al., 2022, Algorithm 1; eq. 5 to 7)."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from algorithms.bilevel.soba import soba
from bench.descent import gd
from bench.rng import Draw
from tests.steps import problem as at


@pytest.mark.parametrize("batch", [8, None])
@pytest.mark.parametrize("case", at.CASES)
@pytest.mark.parametrize(("average", "decay"), [(1.0, 0.0), (0.3, 0.5)])
def test_soba(case: str, average: float, decay: float, batch: int | None) -> None:
    """D_z = g_y, D_v = g_yy v - f_y, D_x = f_x - g_xy v, all at (x, y, v); MA-SOBA averages D_x."""
    task = at.CASES[case]()

    def by_hand(draws: Callable[[int], Draw]) -> Iterator[tuple[Tensor, ...]]:
        x, y, v, h = at.X0, at.Y0, torch.zeros(at.Q).double(), torch.zeros(at.P).double()
        for k in range(3):
            xi, zeta = draws(k).f(batch), draws(k).g(batch)
            d_y = at.g_y(x, y, zeta)
            d_v = at.g_yy(x, y, zeta) @ v - at.f_y(x, y, xi)
            d_x = at.f_x(x, y, xi) - at.g_xy(x, y, zeta) @ v
            h = (1 - average) * h + average * d_x
            scale = 1 / (k + 1) ** decay
            y = at.in_y(task, y - 0.3 * scale * d_y)
            v = v - 0.4 * scale * d_v
            x = at.in_x(task, x - 0.1 * scale * h)
            yield x, y, v

    method = soba(gd(0.1), 0.3, 0.4, average=average, decay=decay, batch=batch)
    at.assert_same_path(task, method, by_hand, names=("x", "y", "v"))
