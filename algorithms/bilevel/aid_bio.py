"""AID-BiO (Ji, Yang, Liang, ICML 2021, Algorithm 1 with AID).

Paper -> here: alpha -> inner_lr, D -> T, N -> N, beta -> outer_lr, c -> c.

The lower variable starts from that of the last step, as in AID-CG (line 3). The linear system's
solution does so too, unlike in AID-CG (line 7).

Where `batch` is set, one batch of each level serves a whole outer step.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bench.core.algorithm import Algorithm, Cost, Moment
from bench.core.draw import Draw
from bench.core.oracle import Oracle
from bench.core.settings import Count, Positive
from bench.numerics.descent import Descent
from bench.numerics.solve import cg


class State(NamedTuple):
    x: Tensor
    y: Tensor
    v: Tensor
    outer: Any


def aid_bio(
    outer: Descent,
    outer_lr: Positive,
    inner_lr: Positive,
    T: Count = 10,
    N: Count = 10,
    c: Positive | None = None,
    batch: Count | None = None,
) -> Algorithm:
    """AID-BiO.

    outer, outer_lr: the rule and the size of the step on x. inner_lr: the size of the inner steps.
    T, c: there are T inner steps, or with c ceil(c (k + 1)^{1/4}), which is AID-BiO-increasing of
    the paper's experiments, whose analysis is that of Ghadimi and Wang (2018); its loops begin at
    the last y and v too. N: iterations of conjugate gradients. batch: the samples of a batch; None:
    all the data.

    info/curvature is the largest |change of g_y| / |change of y| between successive inner steps: a
    lower bound of the largest |eigenvalue| of g_yy on their way, 0 with a single inner step. Inner
    steps diverge where inner_lr times the curvature stays above 2.
    """

    def inner_steps(k: int) -> int:
        return T if c is None else math.ceil(c * (k + 1) ** 0.25)

    def step(o: Oracle, s: State, draw: Draw) -> tuple[State, dict[str, Tensor]]:
        xi, zeta = draw.f(batch), draw.g(batch)
        x, y = s.x, o.start(s.y, zeta)  # line 3

        # how far g_y and y go in each inner step: their ratio is the curvature that is told
        changes, moves, last = [x.new_zeros(())], [x.new_zeros(())], None
        for _ in range(inner_steps(draw.step)):  # lines 4-6
            gradient = o.g_y(x, y, zeta)
            if last is not None:
                changes.append((gradient - last[1]).norm())
                moves.append((y - last[0]).norm())
            last = y, gradient
            y = o.project_y(y - inner_lr * gradient)

        f_x, f_y = o.grad_f(x, y, xi)
        products = o.products(x, y, zeta)
        v = cg(products.yy, f_y, N, start=o.carry(s.v))  # line 7
        hypergrad = f_x - products.xy(v)  # equation (3)

        x, memory = outer.step(x, hypergrad, outer_lr, s.outer)  # line 8
        change, moved = torch.stack(changes), torch.stack(moves)
        curvature = torch.where(moved > 0, change / moved, 0.0).max()
        told = {"hypergrad_sq": hypergrad.square().sum(), "curvature": curvature}
        return State(o.project(x), y, v, memory), told

    def cost(at: Moment) -> Cost:
        # The warm start costs a product, which gives the residual of the last solution.
        return Cost(grad_g=inner_steps(at.step), grad_f=1, jvp_g=1, hvp_g=N + 1, batch=batch)

    def init(x: Tensor, y: Tensor) -> State:
        return State(x, y, torch.zeros_like(y), outer.init(x))

    return Algorithm(init, step, cost=cost)
