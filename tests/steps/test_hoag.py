"""HOAG by hand (Pedregosa, 2016, Algorithm 1), with the step sizes that our docstring states."""

import inspect
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from algorithms.bilevel.hoag import State, hoag
from bench.core.algorithm import Algorithm
from bench.core.draw import Draw, generator
from bench.core.oracle import Oracle
from bench.core.settings import BadSetting
from bench.core.task import Batch, Task
from tests.steps import problem as at
from tests.steps.following import ByHand, Values, assert_follows, partials

STEPS = 5
FALLS = {
    "quadratic": [1.0, 1 / 4, 1 / 9, 1 / 16, 1 / 25],
    "cubic": [1.0, 1 / 8, 1 / 27, 1 / 64, 1 / 125],
    "exponential": [0.9, 0.81, 0.729, 0.6561, 0.59049],
}


def conjugate_gradients(H: Tensor, b: Tensor, v: Tensor, least: float, most: int) -> Tensor:
    """Hestenes and Stiefel from v, until |b - H v| <= least or `most` iterations are made."""
    r = b - H @ v
    p = r
    for _ in range(most):
        if float(r.norm()) <= least:
            break
        a = (r @ r) / (p @ H @ p)
        v, smaller = v + a * p, r - a * (H @ p)
        p, r = smaller + (smaller @ smaller) / (r @ r) * p, smaller
    return v


def by_hand(
    task: Task,
    batch: int | None,
    inner_lr: float,
    outer_lr: float | str = "adaptive",
    schedule: str = "exponential",
    tolerance: float = 0.1,
    T: int = 1000,
    Q: int = 100,
    met: set[str] | None = None,
    outer_rule: str = "gd",
) -> ByHand:
    """Lines 2 to 5; `met` collects what happened to L and to the inner loop.

    epsilon_k is relative to |g_y| and |f_y| at the first step. As in the author's hoag.py, L is
    |p| / sqrt(dim x) at first, or 1 where |p| is at most 1e-3. Then it falls by .95 where f_k <=
    f_{k-1} + eps_k + eps_{k-1} (1 + |dx|) - L |dx|^2 / 2. Otherwise it doubles where f grew, and x
    stays where f is at least a fifth larger than before.
    """
    upper = task.upper
    met = set() if met is None else met

    def steps(draws: Callable[[int], Draw]) -> Iterator[Values]:
        (x, y), v, L, last = task.init(generator()), torch.zeros(at.Q).double(), 0.0, math.inf
        before, adam = tolerance * FALLS[schedule][0], at.Adam(0.3)
        for k in range(STEPS):
            xi, zeta = draws(k).f(batch), draws(k).g(batch)
            now = tolerance * FALLS[schedule][k]
            slope = partials(at.lower, x, y, zeta)[1]
            if k == 0:
                lower_size = float(slope.norm())
            turns = 0
            while turns < T and float(slope.norm()) > now * lower_size:
                y = at.in_y(task, y - inner_lr * slope)
                slope, turns = partials(at.lower, x, y, zeta)[1], turns + 1
            met.add("inner loop cut" if turns == T else "inner loop done")

            f, (f_x, f_y) = float(upper(x, y, xi)), partials(upper, x, y, xi)
            if k == 0:
                size = float(f_y.norm())
            v = conjugate_gradients(at.g_yy(x, y, zeta), f_y, v, now * size, Q)
            p = f_x - at.g_xy(x, y, zeta) @ v
            if outer_lr != "adaptive":
                L = 1 / float(outer_lr)
            elif k == 0:
                L = float(p.norm()) / at.P**0.5 if float(p.norm()) > 1e-3 else 1.0
            new = at.in_x(task, adam(x, p) if outer_rule == "adam" else x - p / L)
            if outer_lr == "adaptive":
                moved = float((new - x).norm())
                if f <= last + now + before * (1 + moved) - L * moved**2 / 2:
                    met.add("longer")
                    L = 0.95 * L
                elif f > last:
                    rejected = f - last >= abs(last) / 5
                    met.add("rejected" if rejected else "shorter")
                    L, new = 2 * L, x if rejected else new
                else:
                    met.add("the same")
            x, last, before = new, f, now
            yield {
                "x": x, "y": y, "v": v, "L": L, "f": f,
                "sizes": torch.tensor([lower_size, size], dtype=torch.float64),
                "info/hypergrad_sq": p @ p,
            }  # fmt: skip

    return steps


def bowl(scale: float, bend: float, away: float) -> Task:
    """The same problem with f = scale (f + bend |x|^2 / 2), from away times the start."""

    def upper(x: Tensor, y: Tensor, i: Batch) -> Tensor:
        return scale * (at.upper(x, y, i) + bend / 2 * x.square().sum())

    return replace(at.problem(), upper=upper, init=lambda rng: (away * at.X0, at.Y0))


def follows(task: Task, batch: int | None, met: set[str] | None = None, **settings: Any) -> None:
    method: Algorithm = hoag(batch=batch, **settings)
    assert_follows(task, method, by_hand(task, batch, met=met, **settings), steps=STEPS)


@pytest.mark.parametrize("batch", [8, None])
@pytest.mark.parametrize("case", at.CASES)
@pytest.mark.parametrize("schedule", FALLS)
def test_hoag(schedule: str, case: str, batch: int | None) -> None:
    """Each schedule, with inner loops that meet the tolerance and such that are cut short."""
    task = at.CASES[case]()
    met: set[str] = set()
    for T, Q, tolerance in ((15, 3, 0.2), (2, 1, 0.01)):
        follows(task, batch, met, inner_lr=0.5, schedule=schedule, T=T, Q=Q, tolerance=tolerance)
    assert "inner loop cut" in met
    if case == "free":
        assert "inner loop done" in met


def test_the_step_size_grows_stays_and_shrinks() -> None:
    """In a bowl whose steps overshoot all three happen."""
    met: set[str] = set()
    for tolerance, bend in ((1e-3, 5.0), (0.05, 5.0), (1e-3, 30.0), (1e-3, 8.0)):
        follows(bowl(1.0, bend, 0.3), 8, met, inner_lr=0.5, T=3, Q=4, tolerance=tolerance)
    assert {"longer", "the same", "shorter", "rejected"} <= met


@pytest.mark.parametrize("case", at.CASES)
def test_what_decrease_is_enough(case: str) -> None:
    """The last f is put 1e-9 to either side of where each decision changes, at the third step."""
    task, tolerance, L = at.CASES[case](), 1e-3, 1.7
    method = hoag(0.5, T=3, Q=4, tolerance=tolerance)

    def after(last: float) -> State:
        one = torch.ones(2, dtype=torch.float64)
        state = State(at.X0, at.Y0, at.Y0, L * one[0], last * one[0], one, ())
        return method.step(Oracle(task), state, Draw(task, 0, 2))[0]

    new = after(10.0)
    f, moved = float(new.f), float((new.x - at.X0).norm())
    now, before = (tolerance * 0.9**k for k in (3, 2))
    border = f - now - before * (1 + moved) + L * moved**2 / 2
    assert border > f  # so that there is a decrease which is not enough
    assert float(after(border + 1e-9).L) == pytest.approx(0.95 * L, rel=1e-15)
    assert float(after(border - 1e-9).L) == L
    assert float(after(f).L) == L
    assert f > 0
    assert float(after(f - 1e-9).L) == 2 * L
    assert torch.equal(new.x, after(f / 1.2 + 1e-9).x)
    assert float(after(f / 1.2 + 1e-9).L) == 2 * L
    rejected = after(f / 1.2 - 1e-9)
    assert float(rejected.L) == 2 * L
    assert torch.equal(rejected.x, at.X0)
    assert torch.equal(rejected.y, new.y)


def test_a_hypergradient_next_to_nothing_gives_a_step_of_1() -> None:
    """Its norm is at most 1e-3."""
    follows(bowl(1e-6, 0.0, 1.0), None, inner_lr=0.5, T=5, Q=2, tolerance=1e-9)


@pytest.mark.parametrize("case", at.CASES)
def test_a_fixed_step(case: str) -> None:
    follows(at.CASES[case](), 8, outer_lr=0.3, inner_lr=0.5, T=5, Q=2)


@pytest.mark.parametrize("case", at.CASES)
def test_adam_in_place_of_its_own_step(case: str) -> None:
    settings = {"outer_lr": 0.3, "inner_lr": 0.5, "T": 5, "Q": 2}
    follows(at.CASES[case](), 8, outer_rule="adam", **settings)


def test_adam_needs_a_step_size() -> None:
    with pytest.raises(BadSetting, match=r"outer_lr=adaptive: .* write outer_lr="):
        hoag(0.5, outer_rule="adam")


def test_hoag_unless_told_otherwise() -> None:
    """.1 * .9^k, an adaptive step, all the data; no run here meets the caps, so they are read."""
    follows(at.problem(), None, inner_lr=0.5)
    caps = inspect.signature(hoag).parameters
    assert (caps["T"].default, caps["Q"].default) == (1000, 100)


def test_a_start_that_solves_the_lower_level_has_tolerances_of_their_own_size() -> None:
    """g_y is 0 there, and what is relative to it would be 0 at every later step."""
    task = replace(at.problem(), lower=lambda x, y, i: 0.5 * (y - x.sum()).square().sum())
    algorithm = hoag(inner_lr=0.5, outer_lr=0.01, T=50)
    x = at.X0
    state = algorithm.init(x, torch.full_like(at.Y0, float(x.sum())))
    for k in range(3):
        o = Oracle(task)
        state, _ = algorithm.step(o, state, Draw(task, 0, k))
        assert o.calls["grad_g"] < 20
    assert float(state.sizes[0]) == 1.0


def test_a_growth_is_measured_by_the_size_of_f() -> None:
    """Where f is negative, as far as a fifth of |f| too: x stays from 1.2 |last| > |f| on."""
    task = replace(at.problem(), upper=lambda x, y, i: at.upper(x, y, i) - 10.0)
    method = hoag(0.5, T=3, Q=4, tolerance=1e-3)

    def after(last: float) -> State:
        one = torch.ones(2, dtype=torch.float64)
        state = State(at.X0, at.Y0, at.Y0, 1.7 * one[0], last * one[0], one, ())
        return method.step(Oracle(task), state, Draw(task, 0, 2))[0]

    f = float(after(10.0).f)
    assert f < 0
    border = f / 0.8  # where f - last = |last| / 5
    assert not torch.equal(after(border + 1e-9).x, at.X0)
    assert torch.equal(after(border - 1e-9).x, at.X0)
