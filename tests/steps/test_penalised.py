"""F2SA (Kwon et al., 2023), V-PBGD and G-PBGD (Shen and Chen, 2023) by hand: their Algorithms 1."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from algorithms.bilevel.f2sa import f2sa
from algorithms.bilevel.pbgd import gpbgd, vpbgd
from bench.core.draw import Draw
from bench.core.loop import run
from bench.core.task import Batch, Context
from tasks.logistic import logistic
from tests.steps import problem as at
from tests.steps.following import ByHand, Values, assert_follows, partials


def f2sa_by_hand(
    case: str,
    batch: int | None,
    lr: float,
    inner_lr: float,
    ratio: float,
    T: int,
    lam: float,
    delta: float,
    growth: float,
    decay: float,
) -> ByHand:
    """z descends g, y descends f + lambda g, x takes a step on f + lambda (g(., y) - g(., z)).

    At k = 1, 2, ... lambda_k = (lam + (k - 1) delta) k^growth; steps on z are gamma_k = inner_lr
    k^-decay, on y alpha_k = lr k^-decay / max(lambda_k, 1), as our docstring has it, and on x xi
    alpha_k. Each gradient has a batch of its own.
    """
    task = at.CASES[case]()

    def steps(draws: Callable[[int], Draw]) -> Iterator[Values]:
        x, y, z, base = at.X0, at.Y0, at.Y0, lam
        for k in range(3):
            draw = draws(k)
            weight, fall = base * (k + 1) ** growth, 1 / (k + 1) ** decay
            alpha = lr * fall / max(weight, 1.0)
            for _ in range(T):
                z = at.in_y(task, z - inner_lr * fall * partials(at.lower, x, z, draw.g(batch))[1])
                f_y = partials(at.upper, x, y, draw.f(batch))[1]
                g_y = partials(at.lower, x, y, draw.g(batch))[1]
                y = at.in_y(task, y - alpha * (f_y + weight * g_y))
            at_y = partials(at.lower, x, y, draw.g(batch))[0]
            at_z = partials(at.lower, x, z, draw.g(batch))[0]
            d = partials(at.upper, x, y, draw.f(batch))[0] + weight * (at_y - at_z)
            x = at.in_x(task, x - ratio * alpha * d)
            told = {"info/lam": weight, "info/hypergrad_sq": d @ d}
            base = base + delta
            yield {"x": x, "y": y, "z": z, "lam": base, **told}

    return steps


@pytest.mark.parametrize("batch", [8, None])
@pytest.mark.parametrize("case", at.CASES)
@pytest.mark.parametrize(("growth", "decay"), [(0.0, 0.0), (1 / 7, 4 / 7)])
@pytest.mark.parametrize("lam", [0.4, 2.0])
def test_f2sa(lam: float, growth: float, decay: float, case: str, batch: int | None) -> None:
    """lambda grows from .4 past 1, below which y's step is no longer divided by it, and from 2."""
    settings = (0.2, 0.3, 1.5, 2, lam, 0.5, growth, decay)
    assert_follows(at.CASES[case](), f2sa(*settings, batch), f2sa_by_hand(case, batch, *settings))


def test_f2sa_with_batches_ends_near_its_objective_of_all_data() -> None:
    """With the paper's schedules for noise, alpha_k ~ k^-5/7 and gamma_k ~ k^-4/7, batches
    of 4 end within 5% of what all the data reach. A step on x that did not fall with y's ended 45%
    above it."""
    task, ends = logistic(Context(dtype=torch.float64)), []
    for batch in (4, None):
        rows: list[dict[str, Any]] = []
        method = f2sa(0.5, 0.5, 100.0, growth=1 / 7, decay=4 / 7, batch=batch)
        run(task, method, seed=1, steps=1000, every=1000, on_row=rows.append)
        ends.append(rows[-1]["objective"])
    assert ends[1] < 0.8 * rows[0]["objective"]
    assert ends[0] == pytest.approx(ends[1], rel=0.05)


def test_f2sa_unless_told_otherwise() -> None:
    """xi = 1, T = 10, lambda = k^(1/3) and steady steps: the schedule for exact gradients."""
    hand = f2sa_by_hand("free", None, 0.1, 0.3, 1.0, 10, 1.0, 0.0, 0.3333, 0.0)
    assert_follows(at.problem(), f2sa(0.1, 0.3), hand)


def vpbgd_by_hand(
    case: str,
    batch: int | None,
    lr: float,
    inner_lr: float,
    gamma: float,
    T: int,
    ratio: float = 1.0,
) -> ByHand:
    """w descends g(x, .) from the last w; (x, y) take a step on f + gamma (g(x, y) - g(x, w)).

    Its size is lr over gamma, unless gamma is below 1. ratio: of the step size of x to that of y.
    """
    step = lr / gamma if gamma > 1 else lr
    task = at.CASES[case]()

    def steps(draws: Callable[[int], Draw]) -> Iterator[Values]:
        x, y, w = at.X0, at.Y0, at.Y0
        for k in range(3):
            draw = draws(k)
            for _ in range(T):
                w = at.in_y(task, w - inner_lr * partials(at.lower, x, w, draw.g(batch))[1])
            xi, zeta = draw.f(batch), draw.g(batch)

            def penalised(
                x: Tensor, y: Tensor, _: Batch, w: Tensor = w, xi: Batch = xi, zeta: Batch = zeta
            ) -> Tensor:
                gap = at.lower(x, y, zeta) - at.lower(x, w, zeta)
                return at.upper(x, y, xi) + gamma * gap

            d_x, d_y = partials(penalised, x, y, None)
            x, y = at.in_x(task, x - ratio * step * d_x), at.in_y(task, y - step * d_y)
            yield {"x": x, "y": y, "w": w, "info/gradient_sq": d_x @ d_x}

    return steps


@pytest.mark.parametrize("gamma", [0.4, 1.7])
@pytest.mark.parametrize("batch", [8, None])
@pytest.mark.parametrize("case", at.CASES)
def test_vpbgd(case: str, batch: int | None, gamma: float) -> None:
    settings = (0.1, 0.3, gamma, 3)
    assert_follows(at.CASES[case](), vpbgd(*settings, batch), vpbgd_by_hand(case, batch, *settings))


def test_the_steps_of_vpbgd_may_differ() -> None:
    hand = vpbgd_by_hand("free", None, 0.1, 0.3, 1.7, 3, ratio=0.4)
    assert_follows(at.problem(), vpbgd(0.1, 0.3, 1.7, 3, ratio=0.4), hand)


def test_vpbgd_unless_told_otherwise() -> None:
    """gamma = 10, T = 10, all the data."""
    hand = vpbgd_by_hand("free", None, 0.02, 0.3, 10.0, 10)
    assert_follows(at.problem(), vpbgd(0.02, 0.3), hand)


@pytest.mark.parametrize(("gamma", "ratio"), [(1.3, None), (None, None), (1.3, 0.4), (0.4, None)])
@pytest.mark.parametrize("batch", [8, None])
@pytest.mark.parametrize("case", at.CASES)
def test_gpbgd(case: str, batch: int | None, gamma: float | None, ratio: float | None) -> None:
    """(x, y) take a step on f + gamma |g_y|^2, of a size over gamma where that is above 1; gamma is
    10 unless told otherwise, and the ratio of the step size of x to that of y is 1."""
    task, weight = at.CASES[case](), gamma or 10.0
    size = 0.05 / weight if weight > 1 else 0.05

    def by_hand(draws: Callable[[int], Draw]) -> Iterator[Values]:
        x, y = at.X0, at.Y0
        for k in range(3):
            xi, zeta = draws(k).f(batch), draws(k).g(batch)
            (f_x, f_y), g_y = partials(at.upper, x, y, xi), at.g_y(x, y, zeta)
            d_x = f_x + 2 * weight * at.g_xy(x, y, zeta) @ g_y
            d_y = f_y + 2 * weight * at.g_yy(x, y, zeta) @ g_y
            step = size * (ratio or 1.0)
            x, y = at.in_x(task, x - step * d_x), at.in_y(task, y - size * d_y)
            yield {"x": x, "y": y, "info/gradient_sq": d_x @ d_x}

    given = {"gamma": gamma, "ratio": ratio}
    told = {key: value for key, value in given.items() if value is not None}
    method = gpbgd(0.05, batch=batch, **told)  # type: ignore[arg-type]
    assert_follows(task, method, by_hand)
