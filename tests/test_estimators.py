"""Stochastic estimators: unbiased up to their stated bias, and exact where there is no noise."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from algorithms.bilevel.bsa import bsa, ttsa
from algorithms.bilevel.saba import saba
from algorithms.bilevel.soba import soba
from algorithms.bilevel.spider import srba
from algorithms.bilevel.stocbio import stocbio
from algorithms.bilevel.storm import mrbo, sustain
from bench.algorithm import Algorithm
from bench.descent import gd
from bench.oracle import Oracle
from bench.rng import Draw, generator
from bench.settings import BadSetting
from bench.task import Context, Task
from tasks.quadratic import quadratic

STILL = 1e-300  # an inner step size that leaves y where it is


def neumann_hypergradient(task: Task, x: Tensor, y: Tensor, eta: float, terms: int) -> Tensor:
    """f_x - g_xy v with v = eta sum_{i=0}^{terms} (I - eta A)^i f_y, at (x, y), noiseless."""
    assert task.optimum is not None
    A, B, c, curvature = (task.optimum[k] for k in ("A", "B", "c", "curvature"))
    r = total = y - c
    for _ in range(terms):
        r = r - eta * A @ r
        total = total + r
    return curvature * x + eta * B.T @ total


METHODS: dict[str, tuple[Callable[[], Algorithm], int]] = {
    "stocbio": (lambda: stocbio(gd(1.0), STILL, 0.5, T=1, Q=3, batch=2), 3),
    "bsa": (lambda: bsa(gd(1.0), STILL, 0.5, T=1, Q=4, batch=2), 3),
    "ttsa": (lambda: ttsa(1.0, STILL, 0.5, Q=4, batch=2), 3),
    "mrbo": (lambda: mrbo(1.0, STILL, 0.5, Q=3, batch=2), 3),
    "sustain": (lambda: sustain(1.0, STILL, 0.5, Q=4, batch=2), 3),
}


def replicas(n: int, single: Task) -> Task:
    """n independent copies of a noisy quadratic in one: row r of x and y sees its own samples."""
    assert single.optimum is not None
    A, B, c, curvature = (single.optimum[k] for k in ("A", "B", "c", "curvature"))
    rng = generator("replicas")
    shift, bend = (torch.randn(16, 5, generator=rng).double() for _ in range(2))
    shift, bend = 0.5 * (shift - shift.mean(0)), 0.3 * (bend - bend.mean(0))

    def upper(x: Tensor, y: Tensor, i: Tensor) -> Tensor:
        off = y - c - shift[i].mean(0)
        return 0.5 * off.square().sum() + 0.5 * curvature * x.square().sum()

    def lower(x: Tensor, y: Tensor, i: Tensor) -> Tensor:
        curved = 0.5 * ((y @ A) * y).sum() + 0.5 * (bend[i].mean(0) * y.square()).sum()
        return curved - (y * (x @ B.T + shift[i].mean(0))).sum()

    def draw(rng: torch.Generator, step: int, size: int | None) -> Tensor:
        assert size is not None
        return torch.randint(16, (size, n), generator=rng)

    return Task(
        upper=upper,
        lower=lower,
        init=single.init,
        evaluate=single.evaluate,
        metric=single.metric,
        draw_upper=draw,
        draw_lower=draw,
        count=len,
    )


@pytest.mark.parametrize("name", METHODS)
def test_the_mean_estimate_is_the_neumann_series(name: str, context: Context) -> None:
    """20,000 draws: 200 seeds (which choose where a series is cut) of 100 independent copies.

    Every coordinate within four standard errors, from the spread between seeds.
    """
    make, terms = METHODS[name]
    single = quadratic(context)
    algorithm, task = make(), replicas(100, single)
    x = torch.randn(3, generator=generator("x"), dtype=torch.float64)
    y = torch.randn(5, generator=generator("y"), dtype=torch.float64)
    start = algorithm.init(x.expand(100, 3), y.expand(100, 5))
    means = []
    with torch.no_grad():
        for seed in range(200):
            state, _ = algorithm.step(Oracle(task), start, Draw(task, seed, 0))
            means.append((x - state.x).mean(0))
    found = torch.stack(means)
    z = (found.mean(0) - neumann_hypergradient(single, x, y, 0.5, terms)) / (
        found.std(0) / 200**0.5
    )
    assert float(z.abs().max()) < 4


@pytest.mark.parametrize("Q", [1, 3, 10])
def test_the_neumann_bias_is_within_the_papers_bound(Q: int, context: Context) -> None:
    """stocBiO, Proposition 2: |E v_Q - A^{-1} f_y| <= (1 - eta mu)^{Q+1} M / mu, M = |f_y|."""
    task, eta = quadratic(context, condition=4.0), 0.5
    assert task.optimum is not None
    A, c = task.optimum["A"], task.optimum["c"]
    y = torch.randn(5, generator=generator("y"), dtype=torch.float64)
    r = total = y - c
    for _ in range(Q):
        r = r - eta * A @ r
        total = total + r
    bias = (eta * total - torch.linalg.solve(A, y - c)).norm()
    mu = 0.25
    assert float(bias) <= (1 - eta * mu) ** (Q + 1) * float((y - c).norm()) / mu


def run(task: Task, algorithm: Algorithm, steps: int) -> tuple[Any, Oracle]:
    state, o = algorithm.init(*task.init(generator(0, "init"))), Oracle(task)
    with torch.no_grad():
        for k in range(steps):
            state, _ = algorithm.step(o, state, Draw(task, 0, k))
    return state, o


def test_variance_reduced_methods_with_all_the_data_are_soba(context: Context) -> None:
    task = quadratic(context, noise=0.3, curving=0.2)
    plain, _ = run(task, soba(gd(0.05), 0.3, 0.3), 30)
    for algorithm in (saba(0.05, 0.3, blocks=1), srba(0.05, 0.3, period=7)):
        state, _ = run(task, algorithm, 30)
        torch.testing.assert_close(state.x, plain.x, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(state.y, plain.y, rtol=1e-12, atol=1e-12)


def test_saba_fills_its_tables_once_and_counts_blocks(context: Context) -> None:
    task = quadratic(context, noise=0.3)
    _, o = run(task, saba(0.05, 0.3, blocks=8), 5)
    assert o.calls == dict.fromkeys(("grad_f", "grad_g", "hvp_g", "jvp_g"), 8 + 5)
    assert o.samples == dict.fromkeys(("grad_f", "grad_g", "hvp_g", "jvp_g"), 64 + 5 * 8)
    with pytest.raises(BadSetting, match=r"algorithm\.blocks=65: the upper level has 64 rows"):
        run(task, saba(0.05, 0.3, blocks=65), 1)


def test_sabas_direction_is_unbiased_with_unequal_blocks(context: Context) -> None:
    """From any tables: the mean over the blocks of both levels is the direction of all the data."""
    task = quadratic(context, samples=10, noise=0.5, curving=0.3)
    algorithm = saba(1.0, 1.0, blocks=4)
    state, _ = run(task, algorithm, 3)
    moved = state._replace(x=state.x + 0.1, y=state.y - 0.2, v=state.v + 0.3)
    n = 4000
    total, squares = torch.zeros(5).double(), torch.zeros(5).double()
    with torch.no_grad():
        for seed in range(n):
            new, _ = algorithm.step(Oracle(task), moved, Draw(task, seed, 9))
            found = moved.y - new.y
            total, squares = total + found, squares + found.square()
        exact = Oracle(task).g_y(moved.x, moved.y, Draw(task, 0, 0).g(None))
    mean = total / n
    error = ((squares / n - mean.square()) / n).sqrt()
    assert float(((mean - exact) / error).abs().max()) < 4


def test_stocbios_batches_follow_proposition_3(context: Context) -> None:
    task = quadratic(context, noise=0.3)
    algorithm = stocbio(gd(0.05), 0.3, 0.5, T=1, Q=3, shrink=0.5, batch=4)
    _, o = run(task, algorithm, 1)
    assert o.samples["hvp_g"] == 12 + 9 + 7  # 4 * 3 * .75^j, rounded up
    with pytest.raises(BadSetting, match=r"algorithm\.shrink=3: Proposition 3 needs"):
        stocbio(gd(0.05), 0.3, 0.5, shrink=3, batch=4)


def test_the_released_estimator_is_the_sum_that_the_dossier_gives(context: Context) -> None:
    """eta r_Q + r_1 + ... + r_Q in place of eta (r_0 + ... + r_Q)."""
    task = quadratic(context)
    assert task.optimum is not None
    A, B, c = (task.optimum[k] for k in ("A", "B", "c"))
    x, y = torch.zeros(3).double(), torch.ones(5).double()
    algorithm = stocbio(gd(1.0), STILL, 0.5, T=1, Q=2, variant="code")
    state, _ = algorithm.step(Oracle(task), algorithm.init(x, y), Draw(task, 0, 0))
    r = [y - c]
    for _ in range(2):
        r.append(r[-1] - 0.5 * A @ r[-1])
    expected = B.T @ (0.5 * r[2] + r[1] + r[2])
    torch.testing.assert_close(x - state.x, expected, rtol=1e-12, atol=1e-12)
