"""Recursive estimators, by hand: SUSTAIN (Khanduri et al., 2021, Algorithm 1), MRBO and VRBO (Yang,
Ji, Liang, 2021, Algorithms 1 and 2), SRBA (Dagreou et al., 2024, Algorithm 1) and SPABA (Chu et
al., 2024)."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from algorithms.bilevel.spider import spaba, srba, vrbo
from algorithms.bilevel.storm import mrbo, sustain
from bench.core.draw import Draw
from bench.core.loop import advance, first
from bench.core.task import Batch
from tests.steps import bilevel
from tests.steps import problem as at

OUTER_LR, INNER_LR, ETA, Q = 0.1, 0.3, 0.4, 3
SEED = 0  # SUSTAIN cuts the series of its first five steps after 1, 2, 0, 1 and 2 factors
EYE, NONE = torch.eye(at.Q).double(), torch.zeros(at.Q, at.Q).double()


def factor(x: Tensor, y: Tensor, rows: Batch) -> Tensor:
    """I - eta g_yy of one batch."""
    return EYE - ETA * at.g_yy(x, y, rows)


def whole_series(x: Tensor, y: Tensor, batches: list[Batch]) -> Tensor:
    """eta sum_{q=0}^{Q} prod_{j <= q} (I - eta g_yy(B_j)), the first batch nearest to f_y."""
    total, product = NONE, EYE
    for rows in batches:
        total, product = total + product, factor(x, y, rows) @ product
    return ETA * (total + product)


def released_series(x: Tensor, y: Tensor, batches: list[Batch]) -> Tensor:
    """eta P_Q + P_1 + ... + P_Q, where P_q is the product of the first q factors."""
    products = [EYE]
    for rows in batches:
        products.append(factor(x, y, rows) @ products[-1])
    return ETA * products[-1] + torch.stack(products[1:]).sum(0)


def cut_series(x: Tensor, y: Tensor, batches: list[Batch]) -> Tensor:
    """Q eta prod_{j <= p} (I - eta g_yy(B_j)), where p batches are given."""
    product = EYE
    for rows in batches:
        product = factor(x, y, rows) @ product
    return Q * ETA * product


def hypergradient(x: Tensor, y: Tensor, xi: Batch, zeta: Batch, inverse: Tensor) -> Tensor:
    """f_x - g_xy times what stands for g_yy^{-1}, times f_y."""
    return at.f_x(x, y, xi) - at.g_xy(x, y, zeta) @ inverse @ at.f_y(x, y, xi)


def test_the_seed_cuts_the_series_at_different_places() -> None:
    assert [Draw(at.problem(), SEED, k).integer(Q) for k in range(5)] == [1, 2, 0, 1, 2]


@pytest.mark.parametrize(("case", "batch"), bilevel.GOING_ON)
@pytest.mark.parametrize(
    ("a_upper", "a_lower", "decay"),
    [(0.3, 0.7, 1 / 3), (1.8, 0.4, 1 / 3), (0.4, 1.8, 1 / 3), (0.6, 0.3, 0.0)],
)
@pytest.mark.parametrize("name", ["sustain", "mrbo"])
def test_double_momentum(
    name: str, a_upper: float, a_lower: float, decay: float, case: str, batch: int | None
) -> None:
    """u_k = g_y(now) + (1 - a_k)(u_{k-1} - g_y(before)), likewise d_k of the hypergradient, all of
    step k's batches, and both variables move at once. a_0 = 1; then a_k is a (k + 1)^{-2 decay}
    and at most 1, while the step sizes fall as (k + 1)^-decay."""
    task = bilevel.CASES[case]()
    method, series = {"sustain": (sustain, cut_series), "mrbo": (mrbo, whole_series)}[name]

    def by_hand(draws: Callable[[int], Draw]) -> Iterator[tuple[Tensor, ...]]:
        points, u, d = [(at.X0, at.Y0)], at.Y0, at.X0
        for k in range(5):
            draw = draws(k)
            xi, zeta = draw.f(batch), draw.g(batch)
            many = draw.integer(Q) if name == "sustain" else Q
            H = [draw.g(batch) for _ in range(many)]
            x, y = points[-1]
            g_now, found = at.g_y(x, y, zeta), hypergradient(x, y, xi, zeta, series(x, y, H))
            if k == 0:
                u, d = g_now, found
            else:
                x_0, y_0 = points[-2]
                stale = hypergradient(x_0, y_0, xi, zeta, series(x_0, y_0, H))
                left_y, left_x = (
                    max(0.0, 1 - a / (k + 1) ** (2 * decay)) for a in (a_lower, a_upper)
                )
                u = g_now + left_y * (u - at.g_y(x_0, y_0, zeta))
                d = found + left_x * (d - stale)
            rate = 1 / (k + 1) ** decay
            x, y = at.in_x(task, x - OUTER_LR * rate * d), at.in_y(task, y - INNER_LR * rate * u)
            points.append((x, y))
            yield x, y, d, u, found

    ours = method(OUTER_LR, INNER_LR, ETA, Q, a_upper, a_lower, decay, batch)
    names = ("x", "y", "d", "u")
    bilevel.assert_same_path(task, ours, by_hand, names, steps=5, seed=SEED)


Series = Callable[[Tensor, Tensor, list[Batch]], Tensor]


def estimates(
    x: Tensor, y: Tensor, xi: Batch, zeta: Batch, series: Series
) -> tuple[Tensor, Tensor]:
    """g_y and the hypergradient of one batch each; all factors of the series are of that of g."""
    return at.g_y(x, y, zeta), hypergradient(x, y, xi, zeta, series(x, y, [zeta] * Q))


@pytest.mark.parametrize(("case", "batch"), bilevel.GOING_ON)
@pytest.mark.parametrize("period", [1, 2, 3])
@pytest.mark.parametrize("T", [1, 3])
@pytest.mark.parametrize(("momentum", "above"), [(0.0, None), (0.6, 3)])
def test_vrbo(
    momentum: float, above: int | None, T: int, period: int, case: str, batch: int | None
) -> None:
    """At k = 0, q, 2 q, ... the directions are those of all the data (lines 3 and 4). x moves along
    v_k (line 8); then for t = 0, ..., m + 1 both directions change by the difference of one batch's
    estimates at (x_{k+1}, y_t) and at the point before, which is (x_k, y_k) for t = 0, and y moves
    (lines 9 to 16); y_{m+1} is the next y, at which the last directions are estimated."""
    task = bilevel.CASES[case]()

    def by_hand(draws: Callable[[int], Draw]) -> Iterator[tuple[Tensor, ...]]:
        x, y, u, v = at.X0, at.Y0, at.Y0, at.X0
        move = bilevel.HeavyBall(OUTER_LR, momentum)
        for k in range(5):
            draw = draws(k)
            if k in range(0, 5, period):
                u, v = estimates(x, y, draw.f(), draw.g(), whole_series)
            points = [(x, y), (at.in_x(task, move(x, v)), y)]
            for _ in range(T + 1):
                xi, zeta = draw.f(above or batch), draw.g(batch)
                (u_1, v_1), (u_0, v_0) = (
                    estimates(*p, xi, zeta, whole_series) for p in (points[-1], points[-2])
                )
                u, v = u + (u_1 - u_0), v + (v_1 - v_0)
                x, y = points[-1]
                points.append((x, at.in_y(task, y - INNER_LR * u)))
            x, y = points[-2]
            yield x, y, v, u, v

    method = vrbo(
        OUTER_LR, INNER_LR, ETA, T, Q, period, batch, outer_momentum=momentum, upper_batch=above
    )
    bilevel.assert_same_path(task, method, by_hand, ("x", "y", "d", "u"), steps=5)


@pytest.mark.parametrize("T", [1, 3])
def test_vrbos_directions_of_all_the_data_are_those_at_its_point(T: int) -> None:
    """Differences between all points add up, so that without noise restarts change nothing."""
    task = bilevel.CASES["free"]()
    ends = []
    for period in (1, 2, 100):
        method = vrbo(OUTER_LR, INNER_LR, ETA, T, Q, period)
        with torch.no_grad():
            s = first(task, method, SEED)
            for _ in range(8):
                s = advance(task, method, SEED, s)
        ends.append(s.state)
    x, y = ends[0][:2]
    whole = Draw(task, SEED, 0)
    expected = estimates(x, y, whole.f(), whole.g(), whole_series)
    for end in ends:
        close = {"rtol": 1e-10, "atol": 1e-12}
        torch.testing.assert_close((end.x, end.y), (x, y), **close)
        torch.testing.assert_close((end.u, end.d), tuple(expected), **close)


@pytest.mark.parametrize(("case", "batch"), bilevel.GOING_ON)
@pytest.mark.parametrize("period", [1, 2, 3])
def test_vrbo_as_released_with_bome(period: int, case: str, batch: int | None) -> None:
    """hpo/data_cleaning.py, lines 806 to 870: a restart is of batches; then the directions change
    by the difference to the x before, also after a restart, y moves, and T - 1 times the directions
    change by the difference to the y before and y moves; x moves last."""
    task, T, above = bilevel.CASES[case](), 3, 4

    def by_hand(draws: Callable[[int], Draw]) -> Iterator[tuple[Tensor, ...]]:
        x, x_old, y, u, v = at.X0, at.X0, at.Y0, at.Y0, at.X0
        move = bilevel.HeavyBall(OUTER_LR, 0.6)
        for k in range(5):
            draw = draws(k)
            if k in range(0, 5, period):
                u, v = estimates(x, y, draw.f(above), draw.g(batch), released_series)
            points = [(x_old, y), (x, y)]
            for _ in range(T):
                xi, zeta = draw.f(above), draw.g(batch)
                (u_1, v_1), (u_0, v_0) = (
                    estimates(*p, xi, zeta, released_series) for p in (points[-1], points[-2])
                )
                u, v = u + u_1 - u_0, v + v_1 - v_0
                y = at.in_y(task, y - INNER_LR * u)
                points.append((x, y))
            x_old, x = x, at.in_x(task, move(x, v))
            yield x, y, v, u, v

    method = vrbo(OUTER_LR, INNER_LR, ETA, T, Q, period, batch, "code", 0.6, above)
    bilevel.assert_same_path(task, method, by_hand, ("x", "y", "d", "u"), steps=5)


Point = tuple[Tensor, Tensor, Tensor]


def directions(point: Point, xi: Batch, zeta: Batch) -> Tensor:
    """SOBA's three directions, in x, y and v, one after the other."""
    x, y, v = point
    d_x = at.f_x(x, y, xi) - at.g_xy(x, y, zeta) @ v
    d_v = at.g_yy(x, y, zeta) @ v - at.f_y(x, y, xi)
    return torch.cat([d_x, at.g_y(x, y, zeta), d_v])


@pytest.mark.parametrize(("case", "batch"), bilevel.GOING_ON)
@pytest.mark.parametrize("period", [1, 2, 3, 7])
def test_srba(period: int, case: str, batch: int | None) -> None:
    """SOBA's three directions of all the data at every q-th step, and between them the last ones
    plus the difference of one batch's at this point and at the one before; y and v share a rate."""
    task = bilevel.CASES[case]()

    def by_hand(draws: Callable[[int], Draw]) -> Iterator[tuple[Tensor, ...]]:
        points: list[Point] = [(at.X0, at.Y0, torch.zeros(at.Q).double())]
        moves = torch.zeros(at.P + 2 * at.Q).double()
        for k in range(5):
            if k in range(0, 5, period):
                moves = directions(points[-1], draws(k).f(), draws(k).g())
            else:
                xi, zeta = draws(k).f(batch), draws(k).g(batch)
                now, before = (directions(p, xi, zeta) for p in (points[-1], points[-2]))
                moves = moves + (now - before)
            d_x, d_y, d_v = moves.split([at.P, at.Q, at.Q])
            x, y, v = points[-1]
            x, y = at.in_x(task, x - OUTER_LR * d_x), at.in_y(task, y - INNER_LR * d_y)
            points.append((x, y, v - INNER_LR * d_v))
            yield *points[-1], d_x

    method = srba(OUTER_LR, INNER_LR, period, batch)
    bilevel.assert_same_path(task, method, by_hand, ("x", "y", "v"), steps=5)


COIN = 2**24  # a draw below this times the chance is a restart


def test_the_seed_restarts_at_some_of_the_steps() -> None:
    """At a chance of .5, of the steps 1 to 5."""
    task = at.problem()
    coins = [Draw(task, SEED, k).integer(COIN) < COIN / 2 for k in range(6)]
    assert set(coins[1:]) == {True, False}


@pytest.mark.parametrize(("case", "batch"), bilevel.GOING_ON)
@pytest.mark.parametrize("clip", [None, 0.02])
@pytest.mark.parametrize("chance", [0.0, 0.5, 1.0])
def test_spaba(chance: float, clip: float | None, case: str, batch: int | None) -> None:
    """PAGE (Li et al., 2021, Algorithm 1): the gradient of all the data at the first step and then
    with probability p; else the last estimate plus the difference of one batch's gradients at this
    point and at the one before. v has a rate of its own, and its coordinates a bound."""
    task = bilevel.CASES[case]()

    def by_hand(draws: Callable[[int], Draw]) -> Iterator[tuple[Tensor, ...]]:
        points: list[Point] = [(at.X0, at.Y0, torch.zeros(at.Q).double())]
        moves = torch.zeros(at.P + 2 * at.Q).double()
        for k in range(6):
            draw = draws(k)
            if k == 0 or draw.integer(COIN) < chance * COIN:
                moves = directions(points[-1], draw.f(), draw.g())
            else:
                xi, zeta = draw.f(batch), draw.g(batch)
                now, before = (directions(p, xi, zeta) for p in (points[-1], points[-2]))
                moves = moves + (now - before)
            d_x, d_y, d_v = moves.split([at.P, at.Q, at.Q])
            x, y, v = points[-1]
            x, y, v = (
                at.in_x(task, x - OUTER_LR * d_x),
                at.in_y(task, y - INNER_LR * d_y),
                v - ETA * d_v,
            )
            if clip is not None:
                assert k == 0 or float(v.abs().max()) > clip
                v = torch.tensor([max(-clip, min(clip, float(c))) for c in v], dtype=torch.float64)
            points.append((x, y, v))
            yield *points[-1], d_x

    method = spaba(OUTER_LR, INNER_LR, ETA, chance, clip, batch)
    bilevel.assert_same_path(task, method, by_hand, ("x", "y", "v"), steps=6, seed=SEED)
