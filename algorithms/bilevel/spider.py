"""Recursive variance reduction with restarts: VRBO (Yang, Ji, Liang, NeurIPS 2021, Algorithm 2)
and SRBA (Dagreou, Moreau, Vaiter, Ablin, AISTATS 2024, Algorithm 1).

Paper -> here, VRBO: alpha -> outer_lr, beta -> inner_lr, m + 1 -> T, q -> period, S_1 -> all the
data, S_2 -> batch; eta and Q of its Neumann series -> eta and Q. SRBA: rho -> inner_lr (for y and
v), gamma -> outer_lr, its period of q - 1 batches -> period.

At every `period`-th step the directions are those of all the data. Between these restarts they
change by the difference of a batch's directions at this point and at the one before.
"""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from bench.core.algorithm import Algorithm, Cost, Moment
from bench.core.draw import Draw
from bench.core.oracle import Oracle
from bench.core.settings import Count, Positive
from bench.core.task import Batch


class VrboState(NamedTuple):
    x: Tensor
    y: Tensor
    d: Tensor  # the direction in x
    u: Tensor  # the direction in y


def vrbo(
    outer_lr: Positive,
    inner_lr: Positive,
    eta: Positive,
    T: Count = 3,
    Q: Count = 3,
    period: Count = 3,
    batch: Count | None = None,
) -> Algorithm:
    """VRBO, the variance-reduced bilevel optimiser: a double loop with SPIDER's estimator.

    outer_lr: the step size of x. inner_lr, T: the size and the number of the steps on y. eta, Q:
    the step size and the factors of the Neumann series. period: steps between restarts. batch: the
    samples of a batch; None: all the data.

    Caveat: the series is cut, which biases the hypergradient, the more the worse the lower level
    is conditioned; a larger Q mends this.
    """

    def estimates(o: Oracle, x: Tensor, y: Tensor, xi: Batch, zeta: Batch) -> tuple[Tensor, Tensor]:
        """(g_y, hypergradient) of one batch each of f and g."""
        f_x, r = o.grad_f(x, y, xi)
        g_y, products = o.linearise_g_y(x, y, zeta)
        total = r
        for _ in range(Q):
            r = r - eta * products.yy(r)
            total = total + r
        return g_y, f_x - products.xy(eta * total)

    def step(o: Oracle, s: VrboState, draw: Draw) -> tuple[VrboState, dict[str, Tensor]]:
        u, d = s.u, s.d
        if draw.step % period == 0:
            u, d = estimates(o, s.x, s.y, draw.f(None), draw.g(None))
        x, y = o.project(s.x - outer_lr * d), s.y
        x_0, y_0 = s.x, s.y
        for _ in range(T):
            xi, zeta = draw.f(batch), draw.g(batch)
            (g_1, h_1), (g_0, h_0) = (
                estimates(o, *point, xi, zeta) for point in ((x, y), (x_0, y_0))
            )
            u, d = u + g_1 - g_0, d + h_1 - h_0
            x_0, y_0 = x, y
            y = o.project_y(y - inner_lr * u)
        return VrboState(x, y, d, u), {"hypergrad_sq": d.square().sum()}

    def init(x: Tensor, y: Tensor) -> VrboState:
        return VrboState(x, y, torch.zeros_like(x), torch.zeros_like(y))

    def cost(at: Moment) -> Cost:
        estimate = Cost(grad_g=1, grad_f=1, jvp_g=1, hvp_g=Q)
        inner = replace(estimate, batch=batch) * (2 * T)
        return inner + estimate if at.step % period == 0 else inner

    return Algorithm(init, step, cost=cost)


class SrbaState(NamedTuple):
    x: Tensor
    y: Tensor
    v: Tensor
    last: tuple[Tensor, Tensor, Tensor]  # x, y, v of the step before
    directions: tuple[Tensor, Tensor, Tensor]  # the directions in x, y and v


def srba(
    outer_lr: Positive,
    inner_lr: Positive,
    period: Count = 100,
    batch: Count | None = None,
) -> Algorithm:
    """SRBA, the stochastic recursive bilevel algorithm: SARAH on SOBA's three directions.

    outer_lr: the step size of x. inner_lr: that of y and v. period: steps between restarts. batch:
    the samples of a batch; None: all the data.
    """

    def directions(
        o: Oracle, point: tuple[Tensor, Tensor, Tensor], xi: Batch, zeta: Batch
    ) -> tuple[Tensor, Tensor, Tensor]:
        x, y, v = point
        f_x, f_y = o.grad_f(x, y, xi)
        g_y, products = o.linearise_g_y(x, y, zeta)
        mixed, curved = products.both(v)
        return f_x - mixed, g_y, curved - f_y

    def step(o: Oracle, s: SrbaState, draw: Draw) -> tuple[SrbaState, dict[str, Tensor]]:
        point = (s.x, s.y, s.v)
        if draw.step % period == 0:
            d_x, d_y, d_v = directions(o, point, draw.f(None), draw.g(None))
        else:
            xi, zeta = draw.f(batch), draw.g(batch)
            now, before = directions(o, point, xi, zeta), directions(o, s.last, xi, zeta)
            d_x, d_y, d_v = (d + a - b for d, a, b in zip(s.directions, now, before))
        x, y = o.project(s.x - outer_lr * d_x), o.project_y(s.y - inner_lr * d_y)
        new = SrbaState(x, y, s.v - inner_lr * d_v, point, (d_x, d_y, d_v))
        return new, {"hypergrad_sq": d_x.square().sum()}

    def init(x: Tensor, y: Tensor) -> SrbaState:
        v = torch.zeros_like(y)
        zeros = (torch.zeros_like(x), v, v)
        return SrbaState(x, y, v, (x, y, v), zeros)

    def cost(at: Moment) -> Cost:
        if at.step % period == 0:
            return Cost(grad_g=1, grad_f=1, jvp_g=1, hvp_g=1)
        return Cost(grad_g=2, grad_f=2, jvp_g=2, hvp_g=2, batch=batch)

    return Algorithm(init, step, cost=cost)
