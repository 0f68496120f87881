"""Penalty by hand (Mehra and Hamm, 2021, Algorithm 1, section 3.3; BOME's released code)."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from algorithms.bilevel.penalty import penalty
from bench.core.draw import Draw
from bench.core.loop import advance, first
from bench.core.task import Batch, Context
from bench.numerics.descent import Descent, decaying, descent, gd
from tasks.toy import toy_minimax
from tests.steps import problem as at
from tests.steps.following import ByHand, HeavyBall, Values, assert_follows, partials

RHO, SIGMA, STEPS = 0.1, 0.2, 6
# tightened at some of the first steps and not at others
SETTINGS: dict[str, dict[str, Any]] = {
    "sum": {"T": 3, "gamma": 0.8, "eps": 1.0, "lam": 0.3, "nu": 0.2},
    "mean": {"T": 3, "gamma": 0.8, "eps": 0.8, "lam": 0.3, "nu": 0.2, "multiplier": "mean"},
    "schedules": {
        "T": 2, "gamma": 0.3, "eps": 1.0, "lam": 0.5, "nu": 0.1, "grow": 1.7, "shrink": 0.8,
        "inner_momentum": 0.6,
    },
}  # fmt: skip


def by_hand(
    case: str,
    batch: int | None,
    T: int,
    gamma: float,
    eps: float,
    lam: float,
    nu: float,
    grow: float = 1.1,
    shrink: float = 0.9,
    multiplier: str = "sum",
    inner_momentum: float = 0.0,
    tightened: list[bool] | None = None,
    shorter_rates: bool = False,
) -> ByHand:
    """The augmented Lagrangian, differentiated as it is printed, and its schedules.

    y descends f + <nu, g_y> + (gamma / 2) |g_y|^2 + lambda g, x the same without lambda g. Where
    |slope|^2 + |direction|^2 < eps^2: gamma grows, eps and lambda shrink, nu grows by the new
    gamma times g_y, both steps shrink by .9 and forget their momenta. The released code has the
    mean of nu * g_y for <nu, g_y>, and shorter_rates: its step sizes shrink, not its directions.
    """
    task = at.CASES[case]()

    def steps(draws: Callable[[int], Draw]) -> Iterator[Values]:
        x, y, g_, e, l_, scale = at.X0, at.Y0, gamma, eps, lam, 1.0
        outer, m = HeavyBall(SIGMA, 0.8), torch.zeros(at.Q).double()
        many = nu * torch.ones(at.Q).double()
        for k in range(STEPS):
            xi, zeta = draws(k).f(batch), draws(k).g(batch)

            def lagrangian(
                x: Tensor, y: Tensor, weight: float, g_: float = g_, many: Tensor = many,
                xi: Batch = xi, zeta: Batch = zeta,
            ) -> Tensor:  # fmt: skip
                (slope,) = torch.autograd.grad(at.lower(x, y, zeta), y, create_graph=True)
                paired = (many * slope).sum() if multiplier == "sum" else (many * slope).mean()
                penalised = at.upper(x, y, xi) + paired + g_ / 2 * slope.square().sum()
                return penalised + weight * at.lower(x, y, zeta)

            for _ in range(T):
                slope = partials(lagrangian, x, y, l_)[1]
                m = inner_momentum * m + (1.0 if shorter_rates else scale) * slope
                y = at.in_y(task, y - (scale * RHO if shorter_rates else RHO) * m)
            direction = partials(lagrangian, x, y, 0.0)[0]
            g_y = partials(at.lower, x, y, zeta)[1]
            x = at.in_x(task, outer(x, direction if shorter_rates else scale * direction))
            done = bool(slope @ slope + direction @ direction < e**2)
            if tightened is not None:
                tightened.append(done)
            if done:
                g_, e, l_, scale = grow * g_, shrink * e, shrink * l_, 0.9 * scale
                many, m = many + g_ * g_y, 0 * m
                outer = HeavyBall(scale * SIGMA if shorter_rates else SIGMA, 0.8)
            kept = {} if shorter_rates else {"velocity": m}
            yield kept | {
                "x": x, "y": y, "nu": many, "gamma": g_, "eps": e, "lam": l_,
                "scale": scale, "info/gamma": g_, "info/gradient_sq": slope @ slope,
            }  # fmt: skip

    return steps


@pytest.mark.parametrize("batch", [8, None])
@pytest.mark.parametrize("case", at.CASES)
@pytest.mark.parametrize("name", SETTINGS)
def test_penalty(name: str, case: str, batch: int | None) -> None:
    """Six steps, some of which tighten the penalty; all that is carried is compared."""
    tightened: list[bool] = []
    method = penalty(descent("momentum", 0.8), SIGMA, RHO, batch=batch, **SETTINGS[name])
    hand = by_hand(case, batch, **SETTINGS[name], tightened=tightened)
    assert_follows(at.CASES[case](), method, hand, steps=STEPS)
    assert set(tightened) == {True, False}
    assert any(tightened[:-1])  # and what it changes is used afterwards


@pytest.mark.parametrize("case", at.CASES)
@pytest.mark.parametrize("name", SETTINGS)
def test_shorter_directions_are_shorter_steps_of_momentum(name: str, case: str) -> None:
    """Of the released code's new optimisers, whose learning rates are multiplied by .9."""
    method = penalty(descent("momentum", 0.8), SIGMA, RHO, batch=8, **SETTINGS[name])
    hand = by_hand(case, 8, **SETTINGS[name], shorter_rates=True)
    assert_follows(at.CASES[case](), method, hand, steps=STEPS)


@pytest.mark.parametrize("tightened", [True, False])
def test_a_falling_step_begins_anew_where_the_penalty_is_tightened(tightened: bool) -> None:
    """At each step it is that of k = 0, or else 1 / sqrt(1 + k) of it."""
    settings = {"T": 2, "gamma": 0.3, "eps": 100.0 if tightened else 1e-9, "shrink": 1.0}
    task = at.problem()

    def points(outer: Descent) -> list[Tensor]:
        method = penalty(outer, SIGMA, RHO, **settings)  # type: ignore[arg-type]
        standing, found = first(task, method, 0), []
        for _ in range(2):
            standing = advance(task, method, 0, standing)
            found.append(standing.state.x)
        return found

    with torch.no_grad():
        (start, *_), falling, constant = (points(r) for r in (gd(), decaying("gd", 0.5), gd()))
    assert torch.equal(falling[0], constant[0])
    moved, whole = falling[1] - start, constant[1] - start
    torch.testing.assert_close(moved, whole if tightened else whole / 2**0.5)


def test_penalty_unless_told_otherwise() -> None:
    """The released toys' T, gamma, eps, nu, grow and shrink; lambda is .01, as their function's."""
    known = {"T": 10, "gamma": 0.01, "eps": 0.01, "lam": 0.01, "nu": 1e-4}
    assert_follows(
        at.problem(), penalty(descent("momentum", 0.8), SIGMA, RHO), by_hand("free", None, **known)
    )  # type: ignore[arg-type]
    wide = {"eps": 10.0}  # so that the schedules' factors show
    hand = by_hand("free", None, **(known | wide))  # type: ignore[arg-type]
    assert_follows(at.problem(), penalty(descent("momentum", 0.8), SIGMA, RHO, **wide), hand)  # type: ignore[arg-type]


def test_a_norm_of_exactly_eps_does_not_tighten() -> None:
    """f = v theta from v = 0, theta = 1 with nu = 0: the slope is 0, the direction 1, eps 1."""
    task = toy_minimax(Context(dtype=torch.float64), start=(0.0, 1.0))
    method = penalty(gd(), 0.1, 0.1, T=1, eps=1.0, nu=0.0, gamma=0.5)

    def same(draws: Callable[[int], Draw]) -> Iterator[Values]:
        x = torch.tensor([-0.1], dtype=torch.float64)
        yield {"x": x, "y": torch.ones(1).double(), "gamma": 0.5, "scale": 1.0}

    assert_follows(task, method, same, steps=1)
