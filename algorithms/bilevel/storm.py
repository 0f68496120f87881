"""Single-loop methods with recursive momentum in y and x: SUSTAIN (Khanduri, Zeng, Hong, Wai, Wang,
Yang, NeurIPS 2021, Algorithm 1) and MRBO (Yang, Ji, Liang, NeurIPS 2021, Algorithm 1).

Paper -> here: the momentum coefficients eta^g of y and eta^f of x (SUSTAIN), or beta_k of y and
alpha_k of x (MRBO) -> a, the weight of what is new, which is 1 at the first step and then
min(a_lower (k + 1)^(-2 decay), 1) for y, and the same with a_upper for x; the step sizes of y and x
-> inner_lr and outer_lr times (k + 1)^-decay. With the papers' decay of 1/3 a falls as
(k + 1)^(-2/3).

Both estimate g_yy^{-1} f_y by a Neumann series with step size eta: SUSTAIN cuts it after a random
number p < Q of factors, MRBO takes all Q. A direction is

    u_k = g_y(now) + (1 - a)(u_{k-1} - g_y(before)), and likewise for the hypergradient,

where both gradients are of this step's samples, at this step's point and at the last step's. At
the first step these points are the same. Here g_y and the product of g_xy
share a batch; the papers draw one for each.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from bench.core.algorithm import Algorithm, Cost
from bench.core.draw import Draw
from bench.core.oracle import Oracle
from bench.core.settings import Count, NonNegative, Positive


class State(NamedTuple):
    x: Tensor
    y: Tensor
    d: Tensor  # the direction in x
    u: Tensor  # the direction in y
    last: tuple[Tensor, Tensor]  # x and y of the step before


def mrbo(
    outer_lr: Positive,
    inner_lr: Positive,
    eta: Positive,
    Q: Count = 10,
    a_upper: Positive = 0.5,
    a_lower: Positive = 0.5,
    decay: NonNegative = 1 / 3,
    batch: Count | None = None,
) -> Algorithm:
    """MRBO, the momentum-based recursive bilevel optimiser.

    outer_lr, inner_lr, decay: the step sizes of x and y, and how they fall. eta, Q: the step size
    and the factors of the Neumann series. a_upper, a_lower: the weights of what is new in the
    directions of x and y. batch: the samples of a batch; None: all the data.

    Caveat: the series is cut, which biases the hypergradient, the more the worse the lower level
    is conditioned; a larger Q mends this. Its step sizes fall, and it comes closer more and
    more slowly.
    """
    return _recursive(outer_lr, inner_lr, eta, Q, a_upper, a_lower, decay, batch, False)


def sustain(
    outer_lr: Positive,
    inner_lr: Positive,
    eta: Positive,
    Q: Count = 10,
    a_upper: Positive = 0.5,
    a_lower: Positive = 0.5,
    decay: NonNegative = 1 / 3,
    batch: Count | None = None,
) -> Algorithm:
    """SUSTAIN: single-timescale double-momentum stochastic approximation.

    outer_lr, inner_lr, decay: the step sizes of x and y, and how they fall. eta, Q: the step size
    and the factors of the Neumann series. a_upper, a_lower: the weights of what is new in the
    directions of x and y. batch: the samples of a batch; None: all the data.

    Caveat: the series is cut, which biases the hypergradient, the more the worse the lower level
    is conditioned; a larger Q mends this. Its step sizes fall, and it comes closer more and
    more slowly.
    """
    return _recursive(outer_lr, inner_lr, eta, Q, a_upper, a_lower, decay, batch, True)


def _recursive(
    outer_lr: float,
    inner_lr: float,
    eta: float,
    Q: int,
    a_upper: float,
    a_lower: float,
    decay: float,
    batch: int | None,
    truncated: bool,
) -> Algorithm:
    """SUSTAIN or MRBO, which differ in the Neumann series alone.

    truncated: the series is cut at a random term, as in SUSTAIN; otherwise it has Q terms.
    """

    def step(o: Oracle, s: State, draw: Draw) -> tuple[State, dict[str, Tensor]]:
        fall = (draw.step + 1) ** -decay
        keep_y, keep_x = (
            1 - min(a * fall**2, 1.0) if draw.step else 0.0 for a in (a_lower, a_upper)
        )
        xi, zeta = draw.f(batch), draw.g(batch)
        factors = [draw.g(batch) for _ in range(draw.integer(Q) if truncated else Q)]

        def estimates(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            """(g_y, hypergradient) of this step's samples."""
            f_x, r = o.grad_f(x, y, xi)
            g_y, products = o.linearise_g_y(x, y, zeta)
            total = r
            for sample in factors:
                r = r - eta * o.g_yy(x, y, sample)(r)
                total = total + r
            v = Q * eta * r if truncated else eta * total
            return g_y, f_x - products.xy(v)

        (g_now, h_now), (g_before, h_before) = estimates(s.x, s.y), estimates(*s.last)
        u = g_now + keep_y * (s.u - g_before)
        d = h_now + keep_x * (s.d - h_before)
        x = o.project(s.x - outer_lr * fall * d)
        y = o.project_y(s.y - inner_lr * fall * u)
        return State(x, y, d, u, (s.x, s.y)), {"hypergrad_sq": h_now.square().sum()}

    def init(x: Tensor, y: Tensor) -> State:
        return State(x, y, torch.zeros_like(x), torch.zeros_like(y), (x, y))

    cost = Cost(grad_g=2, grad_f=2, jvp_g=2, batch=batch)
    if truncated:
        cost += Cost(hvp_g=2 * (Q - 1), batch=batch, at_most=True)
    else:
        cost += Cost(hvp_g=2 * Q, batch=batch)
    return Algorithm(init, step, cost=cost)
