"""Approximate implicit differentiation: AID-CG and AID-FP (Grazzi, Franceschi, Pontil, Salzo,
ICML 2020), AID-Neumann (Lorraine, Vicol, Duvenaud, AISTATS 2020).

Paper -> here: t inner steps -> T inner steps of size inner_lr, k -> K, beta -> outer_lr.

The hypergradient is f_x - g_xy v where v approximates g_yy^{-1} f_y at the last inner iterate.

Where `batch` is set, one batch of each level serves a whole outer step.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bench.core.algorithm import Algorithm, Cost
from bench.core.draw import Draw
from bench.core.oracle import Oracle
from bench.core.settings import Count, Natural, Positive, Rate
from bench.numerics.descent import Descent, heavy_ball
from bench.numerics.solve import cg, neumann


class State(NamedTuple):
    x: Tensor
    y: Tensor
    outer: Any


def aid_cg(
    outer: Descent,
    outer_lr: Positive,
    inner_lr: Positive,
    T: Count = 10,
    K: Count = 10,
    inner_momentum: Rate = 0.0,
    batch: Count | None = None,
) -> Algorithm:
    """AID-CG: v by K iterations of conjugate gradients from zero.

    outer, outer_lr: the rule and the size of the step on x. inner_lr, T, inner_momentum: the size,
    the number and the momentum of the inner steps. batch: the samples of a batch; None: all the
    data.
    """
    return _aid(lambda H, b: cg(H, b, K), K, outer, outer_lr, inner_lr, T, inner_momentum, batch)


def aid_neumann(
    outer: Descent,
    outer_lr: Positive,
    inner_lr: Positive,
    eta: Positive,
    T: Count = 10,
    K: Natural = 10,
    inner_momentum: Rate = 0.0,
    batch: Count | None = None,
) -> Algorithm:
    """AID-Neumann: v = eta sum_{i=0}^{K} (I - eta g_yy)^i f_y, with a step size eta of its own.

    outer, outer_lr: the rule and the size of the step on x. inner_lr, T, inner_momentum: the size,
    the number and the momentum of the inner steps. batch: the samples of a batch; None: all the
    data.

    Caveat: the series is cut, which biases the hypergradient, the more the worse the lower level
    is conditioned; a larger K mends this.
    """
    return _aid(
        lambda H, b: neumann(H, b, eta, K), K, outer, outer_lr, inner_lr, T, inner_momentum, batch
    )


def aid_fp(
    outer: Descent,
    outer_lr: Positive,
    inner_lr: Positive,
    T: Count = 10,
    K: Count = 10,
    inner_momentum: Rate = 0.0,
    batch: Count | None = None,
) -> Algorithm:
    """AID-FP: v by K iterations of the fixed point of the inner step's own map, from zero.

    With momentum the map is that of y and the momentum together, as in BOME's released code.

    outer, outer_lr: the rule and the size of the step on x. inner_lr, T, inner_momentum: the size,
    the number and the momentum of the inner steps. batch: the samples of a batch; None: all the
    data.

    Caveat: K iterations do not end at v, which biases the hypergradient, the more the worse the
    lower level is conditioned; a larger K mends this.
    """

    def solve(H: Callable[[Tensor], Tensor], f_y: Tensor) -> Tensor:
        a, b = f_y, torch.zeros_like(f_y)
        for _ in range(K - 1):
            c = b - inner_lr * a
            a, b = f_y + a + H(c), inner_momentum * c
        return inner_lr * a - b

    # The first iteration's product is with zero, and is not taken.
    return _aid(solve, K - 1, outer, outer_lr, inner_lr, T, inner_momentum, batch)


def _aid(
    solve: Callable[[Callable[[Tensor], Tensor], Tensor], Tensor],
    products: int,
    outer: Descent,
    outer_lr: float,
    inner_lr: float,
    T: int,
    inner_momentum: float,
    batch: int | None,
) -> Algorithm:
    """A method by its `solve`, which maps v -> g_yy v and f_y to v by so many `products`."""

    def step(o: Oracle, s: State, draw: Draw) -> tuple[State, dict[str, Tensor]]:
        xi, zeta = draw.f(batch), draw.g(batch)
        x, y = s.x, o.start(s.y, zeta)

        velocity = torch.zeros_like(y)
        for _ in range(T):
            y, velocity = heavy_ball(y, o.g_y(x, y, zeta), velocity, inner_lr, inner_momentum)
            y = o.project_y(y)

        f_x, f_y = o.grad_f(x, y, xi)
        at_end = o.products(x, y, zeta)
        v = solve(at_end.yy, f_y)
        hypergrad = f_x - at_end.xy(v)

        x, memory = outer.step(x, hypergrad, outer_lr, s.outer)
        return State(o.project(x), y, memory), {"hypergrad_sq": hypergrad.square().sum()}

    cost = Cost(grad_g=T, grad_f=1, jvp_g=1, hvp_g=products, batch=batch)
    return Algorithm(lambda x, y: State(x, y, outer.init(x)), step, cost=cost)
