"""BSG-1 (Giovannelli, Kent, Vicente, 2021): the rank-one, first-order estimate of the implicit
gradient, as BOME's appendix and its released code state it.

Paper -> here: x, y -> x, y; alpha_k -> outer_lr, beta_k -> inner_lr.

Where `batch` is set, one batch of each level serves a whole outer step.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from bench.core.algorithm import Algorithm, Cost
from bench.core.draw import Draw
from bench.core.oracle import Oracle
from bench.core.settings import Count, NonNegative, Positive, Rate
from bench.numerics.descent import Descent, heavy_ball


class State(NamedTuple):
    x: Tensor
    y: Tensor
    outer: Any
    velocity: Tensor


def bsg1(
    outer: Descent,
    outer_lr: Positive,
    inner_lr: Positive,
    T: Count = 10,
    inner_momentum: Rate = 0.0,
    keep_velocity: bool = False,
    eps: NonNegative = 0.0,
    batch: Count | None = None,
) -> Algorithm:
    """BSG-1.

    outer, outer_lr: the rule and the size of the step on x. inner_lr, T, inner_momentum: the size,
    the number and the momentum of the inner steps. keep_velocity: whether the inner momentum goes
    on from the last step, as in BOME's released code. eps: what is added to |g_y|^2, 1e-50, 1e-8 or
    1e-4 in that code. batch: the samples of a batch; None: all the data.

    Caveat: a matrix of rank one stands for the inverse of the lower Hessian, so that the direction
    of x is another one where the lower gradient vanishes.
    """

    def init(x: Tensor, y: Tensor) -> State:
        return State(x, y, outer.init(x), torch.zeros_like(y))

    def step(o: Oracle, s: State, draw: Draw) -> tuple[State, dict[str, Tensor]]:
        xi, zeta = draw.f(batch), draw.g(batch)
        x, y = s.x, o.start(s.y, zeta)
        velocity = s.velocity if keep_velocity else torch.zeros_like(y)
        for _ in range(T):
            y, velocity = heavy_ball(y, o.g_y(x, y, zeta), velocity, inner_lr, inner_momentum)
            y = o.project_y(y)

        f_x, f_y = o.grad_f(x, y, xi)
        g_x, g_y = o.grad_g(x, y, zeta)
        # This is g_xy g_yy^{-1} f_y with both second derivatives replaced by outer products of the
        # gradient of g.
        yy = g_y.square().sum() + eps
        hypergrad = f_x - torch.where(yy > 0, (f_y * g_y).sum() / yy, 0.0) * g_x

        x, memory = outer.step(x, hypergrad, outer_lr, s.outer)
        new = State(o.project(x), y, memory, velocity)
        return new, {"hypergrad_sq": hypergrad.square().sum()}

    cost = Cost(grad_g=T + 1, grad_f=1, batch=batch)
    return Algorithm(init, step, first_order=True, cost=cost)
