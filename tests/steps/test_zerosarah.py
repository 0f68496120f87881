"""SFFBA and MSEBA by hand: ZeroSARAH (Li, Hanzely, Richtarik, 2021, Algorithm 2) and PAGE (Li, Bao,
Zhang, Richtarik, 2021, Algorithm 1) on SOBA's directions, as in Chu et al., 2025; and the released
estimator."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from algorithms.bilevel.zerosarah import mseba, sffba
from bench.core.draw import Draw
from bench.core.oracle import Oracle
from tests.steps import bilevel
from tests.steps import problem as at
from tests.steps.test_recursive import COIN
from tests.steps.test_saba import cut

OUTER_LR, INNER_LR, SYSTEM_LR = 0.1, 0.3, 0.2
Point = tuple[Tensor, Tensor, Tensor]
Part = Callable[[Point, Tensor], Tensor]


class Estimate:
    """ZeroSARAH's v^k of one part of a direction, and its y_i^k, of which a block has one.

    Paper: v^k = (1/b) sum_{i in I} (grad_i(x^k) - grad_i(x^{k-1})) + (1 - lambda) v^{k-1} + lambda
    ((1/b) sum_{i in I} (grad_i(x^{k-1}) - y_i) + (1/n) sum_j y_j); then y_i = grad_i(x^k) on I.
    Released: v^k = (1 - lambda) (v^{k-1} - stale) + (1 + lambda) now + lambda (SAGA's estimate).
    """

    def __init__(self, part: Part, blocks: list[Tensor], like: Tensor, released: bool):
        self.part, self.blocks, self.released = part, blocks, released
        self.y = [torch.zeros_like(like) for _ in blocks]
        self.v = torch.zeros_like(like)

    def next(self, points: list[Point], b: int, weight: float) -> Tensor:
        rows = self.blocks[b]
        n = sum(map(len, self.blocks))
        fair = len(self.blocks) * len(rows) / n  # 1 for blocks of equal length
        now, stale = (fair * self.part(p, rows) for p in (points[-1], points[-2]))
        mean = sum((len(r) / n * y for r, y in zip(self.blocks, self.y)), torch.zeros_like(now))
        if self.released:
            saga = now - fair * self.y[b] + mean
            self.v = (1 - weight) * (self.v - stale) + (1 + weight) * now + weight * saga
        else:
            away = stale - fair * self.y[b] + mean
            self.v = now - stale + (1 - weight) * self.v + weight * away
        self.y[b] = self.part(points[-1], rows)
        return self.v


def f_x(p: Point, rows: Tensor) -> Tensor:
    return at.f_x(p[0], p[1], rows)


def f_y(p: Point, rows: Tensor) -> Tensor:
    return at.f_y(p[0], p[1], rows)


def g_y(p: Point, rows: Tensor) -> Tensor:
    return at.g_y(p[0], p[1], rows)


def curved(p: Point, rows: Tensor) -> Tensor:
    return at.g_yy(p[0], p[1], rows) @ p[2]


def mixed(p: Point, rows: Tensor) -> Tensor:
    return at.g_xy(p[0], p[1], rows) @ p[2]


def begin() -> list[Point]:
    """Twice the start: x^{-1} = x^0."""
    return 2 * [(at.X0, at.Y0, torch.zeros(at.Q).double())]


def share(weight: float | None, blocks: int, k: int, released: bool) -> float:
    """lambda_k: 1 at first and then b / (2 n) in the paper; the released one is there at once."""
    if k == 0 and not released:
        return 1.0
    return 0.5 / blocks if weight is None else weight


def bounded(v: Tensor, clip: float | None) -> Tensor:
    if clip is None:
        return v
    return torch.tensor([max(-clip, min(clip, float(c))) for c in v], dtype=torch.float64)


@pytest.mark.parametrize("case", ["free", "held", "fewer above"])
@pytest.mark.parametrize("released", [False, True])
@pytest.mark.parametrize(
    ("blocks", "upper_blocks", "weight", "clip"),
    [
        (1, None, None, None),
        (3, None, 0.3, None),
        (8, None, None, 0.02),
        (8, 3, None, None),
        (3, 8, None, None),
    ],
)
def test_sffba(
    blocks: int,
    upper_blocks: int | None,
    weight: float | None,
    clip: float | None,
    released: bool,
    case: str,
) -> None:
    """All five parts of the three directions by the same estimator; 3 blocks of 64 rows and 3 or 8
    of 23 are not of equal length."""
    task = bilevel.CASES[case]()
    rng, many = torch.Generator(), upper_blocks or blocks
    above = cut(task.data.draw_upper(rng, 0, None), many)
    below = cut(task.data.draw_lower(rng, 0, None), blocks)

    def by_hand(draws: Callable[[int], Draw]) -> Iterator[tuple[Tensor, ...]]:
        points = begin()
        in_f = {part: Estimate(part, above, like, released) for part, like in
                ((f_y, at.Y0), (f_x, at.X0))}  # fmt: skip
        in_g = {part: Estimate(part, below, like, released) for part, like in
                ((g_y, at.Y0), (curved, at.Y0), (mixed, at.X0))}  # fmt: skip
        for k in range(8):
            draw = draws(k)
            i, j = draw.integer(many), draw.integer(blocks)
            d = {p: e.next(points, i, share(weight, many, k, released)) for p, e in in_f.items()}
            d |= {p: e.next(points, j, share(weight, blocks, k, released)) for p, e in in_g.items()}
            x, y, v = points[-1]
            d_x = d[f_x] - d[mixed]
            v = bounded(v - SYSTEM_LR * (d[curved] - d[f_y]), clip)
            x, y = at.in_x(task, x - OUTER_LR * d_x), at.in_y(task, y - INNER_LR * d[g_y])
            points.append((x, y, v))
            yield x, y, v, d_x

    method = sffba(
        OUTER_LR, INNER_LR, SYSTEM_LR, "released" if released else "paper", weight, clip, blocks,
        upper_blocks,
    )  # fmt: skip
    bilevel.assert_same_path(task, method, by_hand, ("x", "y", "v"), steps=8)


@pytest.mark.parametrize(("case", "batch"), bilevel.GOING_ON)
@pytest.mark.parametrize("released", [False, True])
@pytest.mark.parametrize(
    ("blocks", "weight", "chance", "clip"),
    [(1, None, 0.5, None), (3, 0.3, 0.5, 0.02), (8, None, 0.0, None), (8, None, 1.0, None)],
)
def test_mseba(
    blocks: int,
    weight: float | None,
    chance: float,
    clip: float | None,
    released: bool,
    case: str,
    batch: int | None,
) -> None:
    """y by ZeroSARAH; v and x by PAGE, whose first step sees all the data. A step draws the block,
    then the coin."""
    task = bilevel.CASES[case]()
    below = cut(task.data.draw_lower(torch.Generator(), 0, None), blocks)

    def others(p: Point, xi: Tensor, zeta: Tensor) -> Tensor:
        return torch.cat([f_x(p, xi) - mixed(p, zeta), curved(p, zeta) - f_y(p, xi)])

    def by_hand(draws: Callable[[int], Draw]) -> Iterator[tuple[Tensor, ...]]:
        points, of_y = begin(), Estimate(g_y, below, at.Y0, released)
        moves = torch.zeros(at.P + at.Q).double()
        for k in range(8):
            draw = draws(k)
            d_y = of_y.next(points, draw.integer(blocks), share(weight, blocks, k, released))
            if k == 0 or draw.integer(COIN) < chance * COIN:
                moves = others(points[-1], draw.f(), draw.g())
            else:
                xi, zeta = draw.f(batch), draw.g(batch)
                moves = moves + others(points[-1], xi, zeta) - others(points[-2], xi, zeta)
            x, y, v = points[-1]
            d_x, d_v = moves.split([at.P, at.Q])
            v = bounded(v - SYSTEM_LR * d_v, clip)
            x, y = at.in_x(task, x - OUTER_LR * d_x), at.in_y(task, y - INNER_LR * d_y)
            points.append((x, y, v))
            yield x, y, v, d_x

    method = mseba(
        OUTER_LR, INNER_LR, SYSTEM_LR, "released" if released else "paper", weight, chance, clip,
        blocks, batch,
    )  # fmt: skip
    bilevel.assert_same_path(task, method, by_hand, ("x", "y", "v"), steps=8)


@pytest.mark.parametrize(("released", "times"), [(False, 1.0), (True, 3.0)])
def test_where_nothing_moves_the_released_estimate_is_three_times_too_long(
    released: bool, times: float
) -> None:
    """Steps of no length leave the point where it is; after 60 steps 1 - .3 has no memory left."""
    task, still = at.problem(), 1e-300
    method = sffba(still, still, still, "released" if released else "paper", 0.3, blocks=1)
    state = method.init(at.X0, at.Y0)
    for k in range(60):
        state, _ = method.step(Oracle(task), state, Draw(task, 0, k))
    exact = at.g_y(at.X0, at.Y0, torch.arange(64))
    torch.testing.assert_close(state.parts[1][0], times * exact, rtol=1e-8, atol=0)
