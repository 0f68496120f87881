"""SABA, by hand (Dagreou et al., 2022, Algorithm 1 with section 3.2: SAGA on three directions)."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from algorithms.bilevel.saba import saba
from bench.core.draw import Draw
from tests.steps import bilevel
from tests.steps import problem as at


def cut(rows: Tensor, many: int) -> list[Tensor]:
    """Blocks as equal as can be."""
    n = len(rows)
    return [rows[n * b // many : n * (b + 1) // many] for b in range(many)]


class Table:
    """What each block of rows gave when it was last seen, and SAGA's estimate of its mean."""

    def __init__(self, blocks: list[Tensor], entries: list[Tensor]):
        self.entries = entries
        self.weights = [len(rows) / sum(map(len, blocks)) for rows in blocks]

    def estimate(self, b: int, new: Tensor) -> Tensor:
        """The mean over the rows as it stands, plus block b's change over the chance 1 / n_b to
        meet it; block b is renewed after."""
        mean = sum((w * e for w, e in zip(self.weights, self.entries)), torch.zeros_like(new))
        change = self.weights[b] * (new - self.entries[b])
        self.entries[b] = new
        return mean + len(self.entries) * change


@pytest.mark.parametrize("case", ["free", "held", "fewer above"])
@pytest.mark.parametrize(
    ("blocks", "upper_blocks"), [(1, None), (3, None), (8, None), (8, 3), (3, 8)]
)
def test_saba(blocks: int, upper_blocks: int | None, case: str) -> None:
    """D_z = g_y, D_v = g_yy v - f_y, D_x = f_x - g_xy v, where each of the five is SAGA's.

    The tables are filled at the first step, and one random block of each level is renewed at every
    step. 3 blocks of 64 rows and 3 or 8 of 23 are not of equal length. After ten steps of three
    blocks each has been met again.
    """
    task = bilevel.CASES[case]()
    rng, many = torch.Generator(), upper_blocks or blocks
    above = cut(task.data.draw_upper(rng, 0, None), many)
    below = cut(task.data.draw_lower(rng, 0, None), blocks)

    def by_hand(draws: Callable[[int], Draw]) -> Iterator[tuple[Tensor, ...]]:
        x, y, v = at.X0, at.Y0, torch.zeros(at.Q).double()
        f_x, f_y = (Table(above, [f(x, y, rows) for rows in above]) for f in (at.f_x, at.f_y))
        g_y = Table(below, [at.g_y(x, y, rows) for rows in below])
        g_yy = Table(below, [at.g_yy(x, y, rows) @ v for rows in below])
        g_xy = Table(below, [at.g_xy(x, y, rows) @ v for rows in below])
        for k in range(10):
            draw = draws(k)
            i, j = draw.integer(many), draw.integer(blocks)
            d_y = g_y.estimate(j, at.g_y(x, y, below[j]))
            d_v = g_yy.estimate(j, at.g_yy(x, y, below[j]) @ v)
            d_v = d_v - f_y.estimate(i, at.f_y(x, y, above[i]))
            d_x = f_x.estimate(i, at.f_x(x, y, above[i]))
            d_x = d_x - g_xy.estimate(j, at.g_xy(x, y, below[j]) @ v)
            x, y = at.in_x(task, x - 0.1 * d_x), at.in_y(task, y - 0.3 * d_y)
            v = v - 0.3 * d_v
            yield x, y, v, d_x

    method = saba(0.1, 0.3, blocks, upper_blocks)
    bilevel.assert_same_path(task, method, by_hand, ("x", "y", "v"), steps=10)
