"""BOME's step against the problem it is the solution of (eq. 7)."""

import pytest
import torch

from algorithms.bilevel.bome import bome
from bench.descent import gd
from bench.oracle import Oracle
from bench.rng import Draw, generator
from bench.task import Context, Task
from tasks.quadratic import quadratic


@pytest.mark.parametrize("barrier", ["norm", "value"])
def test_the_step_is_the_closest_to_grad_f_that_passes_the_barrier(barrier, task: Task) -> None:  # type: ignore[no-untyped-def]
    """min |d - grad f|^2 s.t. <grad q, d> >= phi: feasible, and d - grad f = lam grad q with
    lam >= 0 that is 0 unless the constraint is tight. These KKT conditions define the solution.
    """
    rng, lr, T, eta = generator("bome"), 0.1, 3, 0.1
    o, zeta, active = Oracle(task), Draw(task, 0, 0).g(), set()
    for _ in range(40):
        x, y = (torch.randn(n, generator=rng, dtype=torch.float64) for n in (3, 5))
        algorithm = bome(gd(lr), gd(lr), lr, T, eta, barrier)
        new, info = algorithm.step(o, algorithm.init(x, y), Draw(task, 0, 0))
        step = torch.cat([x - new.x, y - new.y]) / lr

        y_T = y
        for _ in range(T):
            y_T = y_T - lr * o.g_y(x, y_T, zeta)
        f = torch.cat(o.grad_f(x, y, zeta))
        q = torch.cat(o.grad_g(x, y, zeta))
        q = q - torch.cat([o.g_x(x, y_T, zeta), torch.zeros(5).double()])
        gap = o.g(x, y, zeta) - o.g(x, y_T, zeta)
        phi = eta * (q @ q if barrier == "norm" else gap)
        slack = 1e-12 * (1 + q @ q)
        assert q @ step >= phi - slack  # feasible
        if info["lam"] > 0:
            assert q @ step <= phi + slack  # the barrier is met with equality
        torch.testing.assert_close(step, f + info["lam"] * q, rtol=1e-10, atol=1e-12)
        active.add(bool(info["lam"] > 0))
    assert active == {True, False}  # both cases were seen


def test_lambda_is_zero_where_grad_q_is(context: Context) -> None:
    """y = 0 is the lower optimum of x = 0: the barrier has nothing to say there."""
    task = quadratic(context)
    algorithm = bome(gd(0.1), gd(0.1), 0.1)
    x, y = task.init(generator())
    new, info = algorithm.step(Oracle(task), algorithm.init(x, y), Draw(task, 0, 0))
    assert info["lam"] == 0
    assert new.y.isfinite().all()
