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
from bench.core.algorithm import Algorithm
from bench.core.draw import Draw, generator
from bench.core.oracle import Oracle
from bench.core.settings import BadSetting
from bench.core.task import Context, Task
from bench.numerics.descent import gd
from tasks.quadratic import quadratic

STILL = 1e-300  # an inner step size that leaves y where it is


def neumann_hypergradient(task: Task, x: Tensor, y: Tensor, eta: float, terms: int) -> Tensor:
    """f_x - g_xy v with v = eta sum_{i=0}^{terms} (I - eta A)^i f_y, at (x, y), noiseless."""
    assert task.report.optimum is not None
    A, B, c, curvature = (task.report.optimum[k] for k in ("A", "B", "c", "curvature"))
    r = total = y - c
    for _ in range(terms):
        r = r - eta * A @ r
        total = total + r
    return curvature * x + eta * B.T @ total


METHODS: dict[str, tuple[Callable[[], Algorithm], int]] = {
    "stocbio": (lambda: stocbio(gd(), 1.0, STILL, 0.5, T=1, Q=3), 3),
    "bsa": (lambda: bsa(gd(), 1.0, STILL, 0.5, T=1, Q=4, batch=None), 3),
    "ttsa": (lambda: ttsa(1.0, STILL, 0.5, Q=4, batch=None), 3),
    "mrbo": (lambda: mrbo(1.0, STILL, 0.5, Q=3), 3),
    "sustain": (lambda: sustain(1.0, STILL, 0.5, Q=4), 3),
}


@pytest.mark.parametrize("name", METHODS)
def test_the_mean_estimate_is_the_neumann_series(
    name: str, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without noise, over the four places where a series may be cut: exact. That each factor has a
    batch of its own, so that noise leaves the mean as it is, tests/steps tells."""
    make, terms = METHODS[name]
    task, algorithm = quadratic(context), make()
    x = torch.randn(3, generator=generator("x"), dtype=torch.float64)
    y = torch.randn(5, generator=generator("y"), dtype=torch.float64)
    found = []
    for cut in range(4):
        monkeypatch.setattr(Draw, "integer", lambda self, below, cut=cut: {4: cut}[below])
        state, _ = algorithm.step(Oracle(task), algorithm.init(x, y), Draw(task, 0, 0))
        found.append(x - state.x)
    expected = neumann_hypergradient(task, x, y, 0.5, terms)
    torch.testing.assert_close(sum(found) / 4, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("Q", [1, 3, 10])
def test_the_neumann_bias_is_within_the_papers_bound(Q: int, context: Context) -> None:
    """stocBiO, Proposition 2: |E v_Q - A^{-1} f_y| <= (1 - eta mu)^{Q+1} M / mu, M = |f_y|."""
    task, eta = quadratic(context, condition=4.0), 0.5
    assert task.report.optimum is not None
    A, c = task.report.optimum["A"], task.report.optimum["c"]
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
    plain, _ = run(task, soba(gd(), 0.05, 0.3, 0.3), 30)
    for algorithm in (saba(0.05, 0.3, blocks=1), srba(0.05, 0.3, period=7)):
        state, _ = run(task, algorithm, 30)
        torch.testing.assert_close(state.x, plain.x, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(state.y, plain.y, rtol=1e-12, atol=1e-12)


def test_saba_fills_its_tables_once_and_counts_blocks(context: Context) -> None:
    task = quadratic(context, noise=0.3)
    _, o = run(task, saba(0.05, 0.3, blocks=8), 5)
    assert o.calls == dict.fromkeys(("grad_f", "grad_g", "hvp_g", "jvp_g"), 8 + 5)
    assert o.samples == dict.fromkeys(("grad_f", "grad_g", "hvp_g", "jvp_g"), 64 + 5 * 8)
    with pytest.raises(
        BadSetting, match=r"algorithm\.blocks=65 \(or .*\): the upper level has 64 rows"
    ):
        run(task, saba(0.05, 0.3, blocks=65), 1)


def test_sabas_direction_is_unbiased_with_unequal_blocks(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From any tables: the mean over the blocks of both levels is the direction of all the data."""
    task = quadratic(context, samples=10, noise=0.5, curving=0.3)
    algorithm = saba(1.0, 1.0, blocks=4)
    state, _ = run(task, algorithm, 3)
    moved = state._replace(x=state.x + 0.1, y=state.y - 0.2, v=state.v + 0.3)
    found = []
    for b in range(4):
        monkeypatch.setattr(Draw, "integer", lambda self, below, b=b: b)
        new, _ = algorithm.step(Oracle(task), moved, Draw(task, 0, 9))
        found.append(torch.cat([moved.x - new.x, moved.y - new.y, moved.v - new.v]))
    o, rows = Oracle(task), Draw(task, 0, 0)
    (f_x, f_y), (g_y, products) = (
        o.grad_f(moved.x, moved.y, rows.f()),
        o.linearise_g_y(moved.x, moved.y, rows.g()),
    )
    exact = torch.cat([f_x - products.xy(moved.v), g_y, products.yy(moved.v) - f_y])
    torch.testing.assert_close(sum(found) / 4, exact, rtol=1e-12, atol=1e-12)


def test_stocbios_batches_follow_proposition_3(context: Context) -> None:
    task = quadratic(context, noise=0.3)
    algorithm = stocbio(gd(), 0.05, 0.3, 0.5, T=1, Q=3, shrink=0.5, batch=4)
    _, o = run(task, algorithm, 1)
    assert o.samples["hvp_g"] == 12 + 9 + 7  # 4 * 3 * .75^j, rounded up
    with pytest.raises(BadSetting, match=r"algorithm\.shrink=3: Proposition 3 needs"):
        stocbio(gd(), 0.05, 0.3, 0.5, shrink=3, batch=4)


def test_the_released_estimator_is_the_sum_that_the_dossier_gives(context: Context) -> None:
    """eta r_Q + r_1 + ... + r_Q in place of eta (r_0 + ... + r_Q)."""
    task = quadratic(context)
    assert task.report.optimum is not None
    A, B, c = (task.report.optimum[k] for k in ("A", "B", "c"))
    x, y = torch.zeros(3).double(), torch.ones(5).double()
    algorithm = stocbio(gd(), 1.0, STILL, 0.5, T=1, Q=2, variant="code")
    state, _ = algorithm.step(Oracle(task), algorithm.init(x, y), Draw(task, 0, 0))
    r = [y - c]
    for _ in range(2):
        r.append(r[-1] - 0.5 * A @ r[-1])
    expected = B.T @ (0.5 * r[2] + r[1] + r[2])
    torch.testing.assert_close(x - state.x, expected, rtol=1e-12, atol=1e-12)
