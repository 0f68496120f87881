"""Hypergradients against the closed form, and unrolled ones against autograd through the loop."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from algorithms.bilevel.aid import aid_cg, aid_fp, aid_neumann
from algorithms.bilevel.aid_bio import aid_bio
from algorithms.bilevel.itd import itd, reverse
from bench.core.algorithm import Algorithm
from bench.core.draw import Draw, generator
from bench.core.oracle import Oracle
from bench.core.settings import BadSetting
from bench.core.task import Context, Task
from bench.numerics.descent import gd
from tasks.data.images import Images
from tasks.hyper_cleaning import Pretraining, hyper_cleaning
from tasks.quadratic import quadratic

OUTER = (gd(), 1.0)
LONG = 300  # inner steps at rate 1 - .9 / kappa with kappa = 10: T (1 - .09)^T is 2e-10


def hypergradient(task: Task, algorithm: Algorithm, x: Tensor, y: Tensor) -> Tensor:
    """What a step with step size 1 subtracts from x."""
    state, _ = algorithm.step(Oracle(task), algorithm.init(x, y), Draw(task, 0, 0))
    return x - state.x


METHODS: dict[str, Callable[[int, float], Algorithm]] = {
    "itd": lambda T, m: itd(*OUTER, 0.9, T, m),
    "reverse": lambda T, m: reverse(*OUTER, 0.9, T, T, m),
    "aid_cg": lambda T, m: aid_cg(*OUTER, 0.9, T, 20, m),
    "aid_fp": lambda T, m: aid_fp(*OUTER, 0.9, T, T, m),
    "aid_neumann": lambda T, m: aid_neumann(*OUTER, 0.9, 0.9, T, T, m),
}


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("name", METHODS)
def test_converged_inner_steps_give_the_closed_form(
    name: str, momentum: float, context: Context
) -> None:
    task = quadratic(context, condition=10.0)
    assert task.report.optimum is not None
    A, B, c, curvature = (task.report.optimum[k] for k in ("A", "B", "c", "curvature"))
    x = torch.randn(3, generator=generator("x"), dtype=torch.float64)
    exact = curvature * x + B.T @ torch.linalg.solve(A, torch.linalg.solve(A, B @ x) - c)
    found = hypergradient(task, METHODS[name](LONG, momentum), x, torch.zeros(5).double())
    torch.testing.assert_close(found, exact, rtol=1e-6, atol=0)


@pytest.mark.parametrize("momentum", [0.0, 0.7])
@pytest.mark.parametrize(("T", "K"), [(1, 1), (4, 4), (5, 2)])
def test_unrolled_hypergradient_is_autograd_through_the_loop(
    T: int, K: int, momentum: float, context: Context
) -> None:
    """On a nonlinear lower level, unconverged; K < T cuts the graph before the last K steps."""
    task = hyper_cleaning(context, Images("digits", 60, 30, 20, 20), Pretraining(), c=0.1)
    draw = Draw(task, 0, 0)
    xi, zeta, lower = draw.f(), draw.g(), task.lower
    assert lower is not None
    x, y_0 = task.init(generator())

    leaf = x.clone().requires_grad_()
    y, m = y_0, torch.zeros_like(y_0)
    for t in range(T):
        if t == T - K:
            y, m = y.detach(), m.detach()
        z = y if y.requires_grad else y.detach().requires_grad_()
        (slope,) = torch.autograd.grad(lower(leaf, z, zeta), z, create_graph=True)
        m = momentum * m + slope
        y = z - 0.5 * m
    (expected,) = torch.autograd.grad(task.upper(leaf, y, xi), leaf)

    methods = [reverse(*OUTER, 0.5, T, K, momentum)] + (
        [itd(*OUTER, 0.5, T, momentum)] if K == T else []
    )
    for algorithm in methods:
        found = hypergradient(task, algorithm, x, y_0)
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-14)


def test_aid_bio_converges_over_steps_from_its_warm_start(context: Context) -> None:
    """Few inner steps and few CG iterations each; x does not move, y and v go on from the last."""
    task = quadratic(context, condition=10.0)
    assert task.report.optimum is not None
    A, B, c, curvature = (task.report.optimum[k] for k in ("A", "B", "c", "curvature"))
    x = torch.randn(3, generator=generator("x"), dtype=torch.float64)
    exact = curvature * x + B.T @ torch.linalg.solve(A, torch.linalg.solve(A, B @ x) - c)
    algorithm = aid_bio(gd(), 1e-300, 0.9, T=5, N=2)
    state = algorithm.init(x, torch.zeros(5).double())
    for k in range(200):
        state, info = algorithm.step(Oracle(task), state, Draw(task, 0, k))
    assert float(info["hypergrad_sq"]) == pytest.approx(float(exact.square().sum()), rel=1e-9)


def test_aid_bio_increasing_takes_the_papers_number_of_inner_steps(context: Context) -> None:
    task = quadratic(context)
    algorithm = aid_bio(gd(), 0.01, 0.5, N=1, c=2.0)
    for k, steps in [(0, 2), (1, 3), (15, 4), (16, 5), (80, 6), (81, 7)]:  # ceil(2 (k + 1)^(1/4))
        o = Oracle(task)
        algorithm.step(o, algorithm.init(*task.init(generator())), Draw(task, 0, k))
        assert o.calls["grad_g"] == steps


@pytest.mark.parametrize(("inner_lr", "T"), [(0.5, 60), (3.0, 60), (0.5, 1)])
def test_aid_bio_tells_the_curvature_along_its_inner_steps(
    inner_lr: float, T: int, context: Context
) -> None:
    """On a quadratic it is at most the Hessian's largest eigenvalue. Where steps diverge, they do
    so along that eigenvector, and what is told is that eigenvalue."""
    task = quadratic(context)
    assert task.report.optimum is not None
    largest = float(torch.linalg.eigvalsh(task.report.optimum["A"])[-1])
    algorithm = aid_bio(gd(), 0.01, inner_lr, T=T)
    state = algorithm.init(torch.zeros(3).double(), torch.arange(1.0, 6.0).double())
    _, info = algorithm.step(Oracle(task), state, Draw(task, 0, 0))
    curvature = float(info["curvature"])
    assert curvature <= largest * (1 + 1e-9)
    assert (inner_lr * curvature > 2) == (inner_lr * largest > 2)
    if T == 1:
        assert curvature == 0
    elif inner_lr * largest > 2:
        assert curvature == pytest.approx(largest, rel=1e-6)


def test_reverse_cannot_go_back_further_than_it_came() -> None:
    with pytest.raises(BadSetting, match=r"algorithm\.K=7: write at most algorithm\.T=3"):
        reverse(*OUTER, 0.1, T=3, K=7)


def test_the_curvature_that_aid_bio_tells_is_the_largest_on_its_way(context: Context) -> None:
    """Steps of .9 damp the steep direction at once, so that ratios fall from near 1 to .1."""
    a, lr, T = torch.tensor([1.0, 0.1]).double(), 0.9, 12
    task = replace(
        quadratic(context, p=2, q=2),
        lower=lambda x, y, z: 0.5 * (a * y * y).sum() + 0 * x.sum(),
        lower_derivatives=None,
    )
    algorithm, y0 = aid_bio(gd(), 0.01, lr, T=T), torch.tensor([1.0, 0.5]).double()
    state = algorithm.init(torch.zeros(2).double(), y0)
    _, info = algorithm.step(Oracle(task), state, Draw(task, 0, 0))
    moves = [lr * a * y0 * (1 - lr * a) ** t for t in range(T - 1)]
    ratios = [float((a * d).norm() / d.norm()) for d in moves]
    assert ratios[-1] < 0.5 * ratios[0]
    assert float(info["curvature"]) == pytest.approx(max(ratios), rel=1e-9)
