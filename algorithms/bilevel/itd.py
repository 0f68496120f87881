"""ITD-BiO (Ji, Yang, Liang, ICML 2021, Algorithm 1), truncated reverse mode (Franceschi et al.,
ICML 2017; Shaban et al., AISTATS 2019), and the first-order FO-ITD-BiO of ITD-BiO's released code.

Paper -> here: alpha -> inner_lr, D -> T, beta -> outer_lr.

The hypergradient is that of f(x, y_T(x)) through the inner steps, Proposition 2:
    f_x - alpha sum_t g_xy(x, y_t) prod_{s>t} (I - alpha g_yy(x, y_s)) f_y,
evaluated from the last step to the first. With momentum mu the inner step is
m_{t+1} = mu m_t + g_y(x, y_t), y_{t+1} = y_t - alpha m_{t+1}, and (a, b) below are the
derivatives of f with respect to (y_{t+1}, m_{t+1}).

Where y is constrained the inner steps are projected, and the projection's derivative is taken as
the identity: exact as long as the constraints are not active.

Where `batch` is set, one batch of each level serves a whole outer step.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from bench.core.algorithm import Algorithm, Cost
from bench.core.draw import Draw
from bench.core.oracle import Oracle
from bench.core.settings import BadSetting, Count, Positive, Rate
from bench.numerics.descent import Descent, heavy_ball


class State(NamedTuple):
    x: Tensor
    y: Tensor
    outer: Any


def itd(
    outer: Descent,
    outer_lr: Positive,
    inner_lr: Positive,
    T: Count = 10,
    inner_momentum: Rate = 0.0,
    batch: Count | None = None,
) -> Algorithm:
    """ITD-BiO: it keeps the linearisation of every inner step, which takes memory O(T).

    outer, outer_lr: the rule and the size of the step on x. inner_lr, T, inner_momentum: the size,
    the number and the momentum of the inner steps. batch: the samples of a batch; None: all the
    data.

    Caveat: the hypergradient is that of f(x, y_T), not of f(x, y*(x)), and is the further off, the
    worse the lower level is conditioned; a larger T mends this.
    """

    def step(o: Oracle, s: State, draw: Draw) -> tuple[State, dict[str, Tensor]]:
        xi, zeta = draw.f(batch), draw.g(batch)
        x, y = s.x, o.start(s.y, zeta)

        steps, velocity = [], torch.zeros_like(y)
        for _ in range(T):  # Algorithm 1, lines 4-6
            gradient, products = o.linearise_g_y(x, y, zeta)
            steps.append(products)
            y, velocity = heavy_ball(y, gradient, velocity, inner_lr, inner_momentum)
            y = o.project_y(y)

        hypergrad, a = o.grad_f(x, y, xi)  # line 7, Proposition 2
        b = torch.zeros_like(y)
        for products in reversed(steps[1:]):
            b = b - inner_lr * a
            mixed, curved = products.both(b)
            hypergrad, a, b = hypergrad + mixed, a + curved, inner_momentum * b
        hypergrad = hypergrad + steps[0].xy(b - inner_lr * a)

        x, memory = outer.step(x, hypergrad, outer_lr, s.outer)  # line 8
        return State(o.project(x), y, memory), {"hypergrad_sq": hypergrad.square().sum()}

    # y_0 does not depend on x, so that the first inner step has no Hessian-vector product.
    cost = Cost(grad_g=T, grad_f=1, jvp_g=T, hvp_g=T - 1, batch=batch)
    return Algorithm(lambda x, y: State(x, y, outer.init(x)), step, cost=cost)


def reverse(
    outer: Descent,
    outer_lr: Positive,
    inner_lr: Positive,
    T: Count = 10,
    K: Count = 10,
    inner_momentum: Rate = 0.0,
    batch: Count | None = None,
) -> Algorithm:
    """Reverse mode through the last K inner steps only, which are linearised anew on the way back.

    outer, outer_lr: the rule and the size of the step on x. inner_lr, T, inner_momentum: the size,
    the number and the momentum of the inner steps. batch: the samples of a batch; None: all the
    data. Raises BadSetting for K > T.

    Caveat: the hypergradient is that of f(x, y_T), not of f(x, y*(x)), and is the further off, the
    worse the lower level is conditioned; larger T and K mend this.
    """
    if K > T:
        raise BadSetting(f"algorithm.K={K}: write at most algorithm.T={T}, the steps there are")

    def step(o: Oracle, s: State, draw: Draw) -> tuple[State, dict[str, Tensor]]:
        xi, zeta = draw.f(batch), draw.g(batch)
        x, y = s.x, o.start(s.y, zeta)

        path, velocity = [], torch.zeros_like(y)
        for _ in range(T):
            path.append(y)
            y, velocity = heavy_ball(y, o.g_y(x, y, zeta), velocity, inner_lr, inner_momentum)
            y = o.project_y(y)

        hypergrad, a = o.grad_f(x, y, xi)
        b = torch.zeros_like(y)
        for y_t in reversed(path[T - K + 1 :]):
            b = b - inner_lr * a
            mixed, curved = o.products(x, y_t, zeta).both(b)
            hypergrad, a, b = hypergrad + mixed, a + curved, inner_momentum * b
        hypergrad = hypergrad + o.g_xy(x, path[T - K], zeta)(b - inner_lr * a)

        x, memory = outer.step(x, hypergrad, outer_lr, s.outer)
        return State(o.project(x), y, memory), {"hypergrad_sq": hypergrad.square().sum()}

    # y_{T-K} counts as given, so that the step from it has no Hessian-vector product.
    cost = Cost(grad_g=T, grad_f=1, jvp_g=K, hvp_g=K - 1, batch=batch)
    return Algorithm(lambda x, y: State(x, y, outer.init(x)), step, cost=cost)


def fo_itd(
    outer: Descent,
    outer_lr: Positive,
    inner_lr: Positive,
    T: Count = 10,
    inner_momentum: Rate = 0.0,
    batch: Count | None = None,
) -> Algorithm:
    """FO-ITD-BiO takes y_T as given: the hypergradient f_x(x, y_T) misses how y* depends on x.

    outer, outer_lr: the rule and the size of the step on x. inner_lr, T, inner_momentum: the size,
    the number and the momentum of the inner steps. batch: the samples of a batch; None: all the
    data.

    Caveat: where f sees x through y alone, x does not move.
    """

    def step(o: Oracle, s: State, draw: Draw) -> tuple[State, dict[str, Tensor]]:
        xi, zeta = draw.f(batch), draw.g(batch)
        x, y = s.x, o.start(s.y, zeta)

        velocity = torch.zeros_like(y)
        for _ in range(T):
            y, velocity = heavy_ball(y, o.g_y(x, y, zeta), velocity, inner_lr, inner_momentum)
            y = o.project_y(y)

        hypergrad = o.f_x(x, y, xi)
        x, memory = outer.step(x, hypergrad, outer_lr, s.outer)
        return State(o.project(x), y, memory), {"hypergrad_sq": hypergrad.square().sum()}

    cost = Cost(grad_g=T, grad_f=1, batch=batch)
    return Algorithm(lambda x, y: State(x, y, outer.init(x)), step, first_order=True, cost=cost)
