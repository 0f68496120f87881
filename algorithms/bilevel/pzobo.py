"""PZOBO (Sow, Ji, Liang, NeurIPS 2022, Algorithm 1): the response Jacobian by zeroth order.

Paper -> here: alpha -> inner_lr, N -> T, Q -> directions, mu -> smoothing, beta -> outer_lr.

The product of the transposed response Jacobian with f_y is estimated by the mean over Gaussian
directions u_j of <(y_T(x + mu u_j) - y_T(x)) / mu, f_y> u_j, which takes no second derivatives.
"""

from typing import Any, NamedTuple

from torch import Tensor

from bench.core.algorithm import Algorithm, Cost
from bench.core.draw import Draw
from bench.core.oracle import Oracle
from bench.core.settings import Count, Positive
from bench.core.task import Batch
from bench.numerics.descent import Descent


class State(NamedTuple):
    x: Tensor
    y: Tensor
    outer: Any


def pzobo(
    outer: Descent,
    outer_lr: Positive,
    inner_lr: Positive,
    T: Count = 10,
    directions: Count = 10,
    smoothing: Positive = 0.01,
    batch: Count | None = None,
) -> Algorithm:
    """PZOBO. The perturbed inner loops see the batches of the unperturbed one, as in PZOBO-S.

    outer, outer_lr: the rule and the size of the step on x. inner_lr, T: the size and the number of
    the inner steps. directions: how many perturbations of x a step tries. smoothing: the deviation
    of each of their coordinates. batch: the samples of a batch; None: all the data.

    Caveat: the hypergradient is that of f(x, y_T), not of f(x, y*(x)), and is the further off, the
    worse the lower level is conditioned; a larger T mends this.
    """

    def step(o: Oracle, s: State, draw: Draw) -> tuple[State, dict[str, Tensor]]:
        zetas, xi = [draw.g(batch) for _ in range(T)], draw.f(batch)

        def response(x: Tensor) -> Tensor:
            return _descend(o, x, o.start(s.y, zetas[0]), zetas, inner_lr)

        y = response(s.x)
        f_x, f_y = o.grad_f(s.x, y, xi)
        hypergrad = f_x
        for _ in range(directions):
            u = draw.normal(s.x)
            moved = (response(s.x + smoothing * u) - y) / smoothing
            hypergrad = hypergrad + (moved * f_y).sum() * u / directions
        x, memory = outer.step(s.x, hypergrad, outer_lr, s.outer)
        return State(o.project(x), y, memory), {"hypergrad_sq": hypergrad.square().sum()}

    cost = Cost(grad_g=(directions + 1) * T, grad_f=1, batch=batch)
    return Algorithm(lambda x, y: State(x, y, outer.init(x)), step, first_order=True, cost=cost)


def _descend(o: Oracle, x: Tensor, y: Tensor, zetas: list[Batch], lr: float) -> Tensor:
    """y after one gradient step on each of these batches of g."""
    for zeta in zetas:
        y = o.project_y(y - lr * o.g_y(x, y, zeta))
    return y
