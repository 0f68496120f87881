"""BSA and TTSA, by hand (Ghadimi and Wang, 2018, Algorithms 1 and 3; Hong et al., 2023,
Algorithm 1)."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from algorithms.bilevel.bsa import bsa, ttsa
from bench.core.draw import Draw
from tests.steps import bilevel
from tests.steps import problem as at

LR, ETA, Q = 0.3, 0.4, 4
SEED = 4  # its steps cut the series after 2, 3, 1 and 0 factors
EYE = torch.eye(at.Q).double()


def estimate(x: Tensor, y: Tensor, draw: Draw, batch: int | None) -> Tensor:
    """f_x - g_xy Q / L prod_{i=1}^{p} (I - g_yy(zeta_i) / L) f_y, p uniform on {0, ..., Q - 1}, and
    eta for 1 / L; the batch of g_xy is drawn before those of the factors."""
    xi, zeta, p = draw.f(batch), draw.g(batch), draw.integer(Q)
    product = Q * ETA * EYE
    for _ in range(p):
        product = (EYE - ETA * at.g_yy(x, y, draw.g(batch))) @ product
    return at.f_x(x, y, xi) - at.g_xy(x, y, zeta) @ product @ at.f_y(x, y, xi)


def test_the_seed_cuts_the_series_at_different_places() -> None:
    assert [Draw(at.problem(), SEED, k).integer(Q) for k in range(4)] == [2, 3, 1, 0]


@pytest.mark.parametrize(("case", "batch"), bilevel.EVERYWHERE)
@pytest.mark.parametrize("rule", bilevel.OUTER)
@pytest.mark.parametrize("decay", [0.0, 0.7])
def test_bsa(decay: float, rule: str, case: str, batch: int | None) -> None:
    """T inner steps of size beta_t = inner_lr / (t + 1)^decay, each of a batch of its own, from
    where the task says for the first one, and one outer step along the estimate."""
    task, (outer, moves) = bilevel.CASES[case](), bilevel.OUTER[rule]

    def by_hand(draws: Callable[[int], Draw]) -> Iterator[tuple[Tensor, ...]]:
        x, y, move = at.X0, at.Y0, moves()
        for k in range(4):
            draw, y = draws(k), task.inner.start(y, draws(k).g(batch))
            for t in range(3):
                y = at.in_y(task, y - LR * (t + 1) ** -decay * at.g_y(x, y, draw.g(batch)))
            found = estimate(x, y, draw, batch)
            x = at.in_x(task, move(x, found))
            yield x, y, found

    method = bsa(*outer, LR, ETA, T=3, Q=Q, decay=decay, batch=batch)
    bilevel.assert_same_path(task, method, by_hand, steps=4, seed=SEED)


@pytest.mark.parametrize(("case", "batch"), bilevel.GOING_ON)
@pytest.mark.parametrize(("outer_decay", "inner_decay"), [(0.6, 0.4), (0.0, 0.9)])
def test_ttsa(outer_decay: float, inner_decay: float, case: str, batch: int | None) -> None:
    """y_{k+1} = P(y_k - beta_k h_g), then x_{k+1} = P(x_k - alpha_k h_f) at (x_k, y_{k+1}), with
    beta_k and alpha_k inner_lr and outer_lr times (k + 1)^-decay."""
    task = bilevel.CASES[case]()

    def by_hand(draws: Callable[[int], Draw]) -> Iterator[tuple[Tensor, ...]]:
        x, y = at.X0, at.Y0
        for k in range(4):
            draw = draws(k)
            beta, alpha = LR * (k + 1) ** -inner_decay, 0.1 * (k + 1) ** -outer_decay
            y = at.in_y(task, y - beta * at.g_y(x, y, draw.g(batch)))
            found = estimate(x, y, draw, batch)
            x = at.in_x(task, x - alpha * found)
            yield x, y, found

    method = ttsa(0.1, LR, ETA, Q=Q, outer_decay=outer_decay, inner_decay=inner_decay, batch=batch)
    bilevel.assert_same_path(task, method, by_hand, steps=4, seed=SEED)


@pytest.mark.parametrize("case", at.CASES)
def test_ttsa_with_adam(case: str) -> None:
    """As in stocBiO's appendix B: the estimate goes through Adam, before the projection."""
    task = bilevel.CASES[case]()

    def by_hand(draws: Callable[[int], Draw]) -> Iterator[tuple[Tensor, ...]]:
        x, y, move = at.X0, at.Y0, at.Adam(0.1)
        for k in range(4):
            draw = draws(k)
            y = at.in_y(task, y - LR * at.g_y(x, y, draw.g(1)))
            found = estimate(x, y, draw, 1)
            x = at.in_x(task, move(x, found))
            yield x, y, found

    method = ttsa(0.1, LR, ETA, Q=Q, outer_decay=0.0, inner_decay=0.0, outer_rule="adam")
    bilevel.assert_same_path(task, method, by_hand, steps=4, seed=SEED)
