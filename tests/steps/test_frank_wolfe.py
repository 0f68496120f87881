"""Frank-Wolfe and its stochastic forms, by hand.

FW: Lacoste-Julien (2016), Algorithm 1 and its step sizes. SFW, SVFW and SAGAFW: Reddi, Sra, Poczos
and Smola (2016), Algorithms 2 to 4.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from algorithms.projection_free.frank_wolfe import fw, sagafw, sfw, svfw
from bench.core.draw import Draw, generator
from bench.core.oracle import Oracle
from bench.core.task import Task
from bench.numerics.sets import box
from tests.steps import one_level as at
from tests.steps.problem import ROWS, X0

ACCURACY, DIAMETER = 0.01, 1.5


def toward(task: Task, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """(s - x, the gap <v, x - s>); the oracle may be off by ACCURACY |v| DIAMETER."""
    assert task.feasible.lmo is not None
    s = task.feasible.lmo(v, ACCURACY * float(v.norm()) * DIAMETER)
    return s - x, v @ (x - s)


def armijo(x: Tensor, d: Tensor, gap: Tensor, rows: Any) -> float:
    """The largest of 1, 1/2, 1/4, ... with f(x + gamma d) <= f(x) - gamma gap / 2."""
    gamma = 1.0
    while at.f(x + gamma * d, rows) > at.f(x, rows) - gamma * gap / 2:
        gamma /= 2
    return gamma


@pytest.mark.parametrize("batch", [8, None])
@pytest.mark.parametrize("case", at.SETS)
@pytest.mark.parametrize(
    ("rule", "L"), [("gap", 0.3), ("gap", 20.0), ("line", 1.0), ("decreasing", 1.0)]
)
def test_fw(rule: Any, L: float, case: str, batch: int | None) -> None:
    """x + gamma (s - x): gamma = min(gap / C, 1), C = L diameter^2, or Armijo's, or 2 / (k + 2)."""
    task = at.problem(at.SETS[case])

    def by_hand(draws: at.Draws) -> Iterator[dict[str, Any]]:
        x = X0
        for k in range(5):
            xi = draws(k).f(batch)
            d, gap = toward(task, x, at.slope(x, xi))
            calls = {"grad_f": 1, "lmo": 1}
            if rule == "gap":
                gamma = max(0.0, min(float(gap) / (L * DIAMETER**2), 1.0))
            elif rule == "decreasing":
                gamma = 2 / (k + 2)
            else:
                gamma = armijo(x, d, gap, xi)
                calls["value_f"] = 2 + int(-torch.log2(torch.tensor(gamma)))
            x = x + gamma * d
            yield {"x": x, "fw_gap": gap, "gamma": gamma, "calls": calls}

    at.assert_same(task, fw(L, DIAMETER, rule, ACCURACY, batch), by_hand)


def quadratic(low: float, high: float) -> Task:
    """x^2 from 1 in [low, high]."""
    start = torch.ones(1, dtype=torch.float64), torch.zeros(0)
    return Task(
        upper=lambda x, y, i: x.square().sum(),
        init=lambda rng: start,
        evaluate=lambda x, y, step: {},
        metric="",
        feasible=box(low, high),
    )


@pytest.mark.parametrize(("low", "gamma"), [(0.0, 1.0), (-0.5, 0.5), (-5.0, 0.125)])
def test_the_line_search_takes_what_is_just_enough(low: float, gamma: float) -> None:
    """From 1 toward s = low: (1 - gamma (1 - low))^2 <= 1 - gamma (1 - low) if gamma <= 1 /
    (1 - low), so at low = 0 the whole step is just enough."""
    task = quadratic(low, 1.0)
    algorithm = fw(1.0, 1.0, rule="line")
    state, told = algorithm.step(
        Oracle(task), algorithm.init(*task.init(generator())), Draw(task, 0, 0)
    )
    assert float(told["gamma"]) == gamma
    assert float(state.x) == 1 - gamma * (1 - low)


def test_the_line_search_ends_where_nothing_descends() -> None:
    """At the minimum 0 of x^2 no step is enough: gamma is the first power of 1/2 below 1e-12."""
    task = quadratic(-1.0, 1.0)
    algorithm = fw(1.0, 1.0, rule="line")
    state = algorithm.init(torch.zeros(1).double(), torch.zeros(0))
    _, told = algorithm.step(Oracle(task), state, Draw(task, 0, 0))
    assert float(told["gamma"]) == 2.0**-40


def test_the_gap_rule_never_steps_back() -> None:
    """The start 1 lies outside of [2, 3], below all of it: the gap is 2 (1 - 2), gamma is 0."""
    task = quadratic(2.0, 3.0)
    algorithm = fw(1.0, 1.0)
    state, told = algorithm.step(
        Oracle(task), algorithm.init(*task.init(generator())), Draw(task, 0, 0)
    )
    assert (float(state.x), float(told["fw_gap"]), float(told["gamma"])) == (1.0, -2.0, 0.0)


@pytest.mark.parametrize("batch", [8, None])
@pytest.mark.parametrize("case", at.SETS)
@pytest.mark.parametrize("gamma", [0.3, 1.0])
def test_sfw(gamma: float, case: str, batch: int | None) -> None:
    """Algorithm 2; a gamma of 1 goes all the way."""
    task = at.problem(at.SETS[case])

    def by_hand(draws: at.Draws) -> Iterator[dict[str, Any]]:
        x = X0
        for k in range(5):
            d, gap = toward(task, x, at.slope(x, draws(k).f(batch)))
            x = x + gamma * d
            yield {"x": x, "fw_gap": gap, "calls": {"grad_f": 1, "lmo": 1}}

    at.assert_same(task, sfw(DIAMETER, gamma, ACCURACY, batch), by_hand)


@pytest.mark.parametrize("batch", [8, None])
@pytest.mark.parametrize("case", at.SETS)
@pytest.mark.parametrize(("gamma", "epoch"), [(0.3, 2), (0.3, 3), (1.0, 2)])
def test_svfw(gamma: float, epoch: int, case: str, batch: int | None) -> None:
    """Algorithm 3: v = grad f_I(x) - grad f_I(snapshot) + grad F(snapshot)."""
    task = at.problem(at.SETS[case])

    def by_hand(draws: at.Draws) -> Iterator[dict[str, Any]]:
        x, everything = X0, torch.arange(ROWS)
        for s in range(4):
            snapshot, whole = x, at.slope(x, everything)
            for t in range(epoch):
                draw = draws(s * epoch + t)
                if t == 0:
                    draw.f(None)
                rows = draw.f(batch)
                v = at.slope(x, rows) - at.slope(snapshot, rows) + whole
                d, gap = toward(task, x, v)
                x = x + gamma * d
                calls = {"grad_f": 3 if t == 0 else 2, "lmo": 1}
                yield {"x": x, "snapshot": snapshot, "full": whole, "fw_gap": gap, "calls": calls}

    at.assert_same(task, svfw(DIAMETER, gamma, epoch, ACCURACY, batch), by_hand, steps=4 * epoch)


@pytest.mark.parametrize("case", at.SETS)
@pytest.mark.parametrize(("gamma", "blocks"), [(0.3, 5), (1.0, 3), (0.3, 1)])
def test_sagafw(gamma: float, blocks: int, case: str) -> None:
    """Algorithm 4 with n f_i the sum over a block i: v = n (f_i'(x) - f_i'(alpha_i)) + the mean of
    f_j'(alpha_j), where the blocks of 64 rows are not equal; then alpha_i = x, of the block that
    was drawn (the paper draws another).
    """
    task = at.problem(at.SETS[case])
    ends = [ROWS * b // blocks for b in range(blocks + 1)]
    rows = [torch.arange(a, b) for a, b in pairwise(ends)]

    def by_hand(draws: at.Draws) -> Iterator[dict[str, Any]]:
        x = X0
        alphas = [X0] * blocks
        for k in range(8):
            b = draws(k).integer(blocks)
            parts = [len(rows[j]) / ROWS * at.slope(alphas[j], rows[j]) for j in range(blocks)]
            now = len(rows[b]) / ROWS * at.slope(x, rows[b])
            v = blocks * (now - parts[b]) + sum(parts)
            alphas[b] = x
            d, gap = toward(task, x, v)
            x = x + gamma * d
            table = torch.stack([at.slope(alphas[j], rows[j]) for j in range(blocks)])
            calls = {"grad_f": 1 + (blocks if k == 0 else 0), "lmo": 1}
            yield {"x": x, "table": table, "fw_gap": gap, "calls": calls}

    at.assert_same(task, sagafw(DIAMETER, gamma, blocks, ACCURACY), by_hand, steps=8)


def test_the_line_search_does_not_end_where_f_is_no_number() -> None:
    """f = -x is a number up to .6, which the whole step from 0 to 1 passes."""
    start = torch.zeros(1).double()

    def upper(x: Tensor, y: Tensor, i: Any) -> Tensor:
        return torch.where(x[0] < 0.6, -x[0], torch.nan)

    task = replace(at.problem(box(0.0, 1.0)), upper=upper, upper_derivatives=None)
    method = fw(1.0, 1.0, rule="line")
    state, info = method.step(Oracle(task), method.init(start, start[:0]), Draw(task, 0, 0))
    assert float(info["gamma"]) == float(state.x) == 0.5
