"""Recursive variance reduction with restarts: VRBO (Yang, Ji, Liang, NeurIPS 2021, Algorithm 2),
SRBA (Dagreou, Moreau, Vaiter, Ablin, AISTATS 2024, Algorithm 1) and SPABA (Chu, Xu, Yao, Zhang,
ICML 2024).

Paper -> here, VRBO: alpha -> outer_lr, beta -> inner_lr, m + 1 -> T, q -> period, S_1 -> all the
data, S_2 -> batch, and for f upper_batch; eta and Q of its Neumann series -> eta and Q. SRBA: rho
-> inner_lr (for y and v), gamma -> outer_lr, its period of q - 1 batches -> period. SPABA: PAGE's
probability p -> chance, its step sizes of y, of the linear system and of x -> inner_lr, system_lr
and outer_lr.

At every `period`-th step the directions are those of all the data. Between these restarts they
change by the difference of a batch's directions at this point and at the one before. SPABA restarts
with a chance at each step instead.

SPABA here is what its abstract says, PAGE (Li, Bao, Zhang, Richtarik, ICML 2021, Algorithm 1) in
SOBA's framework, with the chance of .1 of the solver that its authors offered to benchmark_bilevel
(pull request 47, whose revisions differ in it). That solver begins without a restart and cuts v at
1. The paper's own text, and what it says of a bound on v and of p, could not be read here.
"""

from dataclasses import replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from bench.core.algorithm import Algorithm, Cost, Moment
from bench.core.draw import Draw
from bench.core.oracle import Oracle
from bench.core.settings import Count, Fraction, Positive, Rate, version
from bench.core.task import Batch
from bench.numerics.directions import Point, cut, directions, happens

WHOLE = Cost(grad_g=1, grad_f=1, jvp_g=1, hvp_g=1)  # of the three directions of all the data


class VrboState(NamedTuple):
    x: Tensor
    y: Tensor
    d: Tensor  # the direction in x
    u: Tensor  # the direction in y
    last_x: Tensor  # x of the step before, which only the released form asks for
    velocity: Tensor  # of x


@version(2)
def vrbo(
    outer_lr: Positive,
    inner_lr: Positive,
    eta: Positive,
    T: Count = 3,
    Q: Count = 3,
    period: Count = 3,
    batch: Count | None = None,
    variant: Literal["paper", "code"] = "paper",
    outer_momentum: Rate = 0.0,
    upper_batch: Count | None = None,
) -> Algorithm:
    """VRBO, the variance-reduced bilevel optimiser: a double loop with SPIDER's estimator.

    outer_lr, outer_momentum: the size and the momentum of the step on x. inner_lr, T: the size and
    the number of the steps on y. eta, Q: the step size and the factors of the Neumann series.
    period: steps between restarts. batch: the samples of a batch; None: all the data. upper_batch:
    the samples of a batch of f; None: as batch. One batch of g serves g_y, g_xy and all factors of
    the series.

    variant: "code" is VRBO in BOME's release (hpo/data_cleaning.py), whose --iterations is T - 1.
    It differs in five places: x moves after y, not before; the last y of a step has no estimate, as
    in its authors' release, so that the difference to it is never added; a restart sees batches of
    the same sizes as the other estimates; the difference between this x and the last is added also
    to a restart, which has it already; and the series is eta r_Q + r_1 + ... + r_Q. Unlike there,
    g_xy is of the same batch as g_yy.

    The paper's inner loop is read as ending with an estimate at its last y, of index m + 1, because
    the next step begins with the estimates of that index, and differences that leave out a move of
    y do not add up. The text of its box could not be read here.

    Caveat: the series is cut, which biases the hypergradient, the more the worse the lower level
    is conditioned; a larger Q mends this.
    """

    estimated = T + 1 if variant == "paper" else T  # the points of a step that have estimates

    def draw_batches(draw: Draw) -> tuple[Batch, Batch]:
        """One batch each of f and g."""
        return draw.f(upper_batch or batch), draw.g(batch)

    def estimates(o: Oracle, x: Tensor, y: Tensor, xi: Batch, zeta: Batch) -> tuple[Tensor, Tensor]:
        """(g_y, hypergradient) of one batch each of f and g."""
        f_x, v_0 = o.grad_f(x, y, xi)
        g_y, products = o.linearise_g_y(x, y, zeta)
        r, rest = v_0, []
        for _ in range(Q):
            r = r - eta * products.yy(r)
            rest.append(r)
        v_Q = eta * sum(rest, v_0) if variant == "paper" else sum(rest, eta * r)
        return g_y, f_x - products.xy(v_Q)

    def move(o: Oracle, x: Tensor, d: Tensor, velocity: Tensor) -> tuple[Tensor, Tensor]:
        """The next x and its velocity."""
        velocity = d if outer_momentum == 0 else outer_momentum * velocity + d
        return o.project(x - outer_lr * velocity), velocity

    def step(o: Oracle, s: VrboState, draw: Draw) -> tuple[VrboState, dict[str, Tensor]]:
        x, y, d, u, x_0, velocity = s
        if draw.step % period == 0:  # Algorithm 2, lines 3 and 4
            whole = (draw.f(None), draw.g(None)) if variant == "paper" else draw_batches(draw)
            u, d = estimates(o, x, y, *whole)
        if variant == "paper":  # line 8
            x_0, (x, velocity) = x, move(o, x, d, velocity)

        x_t, y_t = x_0, y  # the point before (x, y)
        for t in range(estimated):  # lines 9 to 16, t = 0, ..., m + 1
            xi, zeta = draw_batches(draw)
            (g_1, h_1), (g_0, h_0) = (
                estimates(o, *point, xi, zeta) for point in ((x, y), (x_t, y_t))
            )
            u, d = u + g_1 - g_0, d + h_1 - h_0
            x_t, y_t = x, y
            if t < T:  # the last estimates are those at the next step's point
                y = o.project_y(y - inner_lr * u)

        if variant == "code":  # line 8 comes last there
            x_0, (x, velocity) = x, move(o, x, d, velocity)
        return VrboState(x, y, d, u, x_0, velocity), {"hypergrad_sq": d.square().sum()}

    def init(x: Tensor, y: Tensor) -> VrboState:
        return VrboState(x, y, torch.zeros_like(x), torch.zeros_like(y), x, torch.zeros_like(x))

    def cost(at: Moment) -> Cost:
        lower = Cost(grad_g=1, jvp_g=1, hvp_g=Q, batch=batch)
        estimate = lower + Cost(grad_f=1, batch=upper_batch or batch)
        restart = estimate if variant == "code" else Cost(grad_g=1, grad_f=1, jvp_g=1, hvp_g=Q)
        steps = estimate * (2 * estimated)
        return steps + restart if at.step % period == 0 else steps

    return Algorithm(init, step, cost=cost)


class State(NamedTuple):
    x: Tensor
    y: Tensor
    v: Tensor
    last: Point  # the point of the step before
    directions: Point


def srba(
    outer_lr: Positive,
    inner_lr: Positive,
    period: Count = 100,
    batch: Count | None = None,
) -> Algorithm:
    """SRBA, the stochastic recursive bilevel algorithm: SARAH on SOBA's three directions.

    outer_lr: the step size of x. inner_lr: that of y and v. period: steps between restarts. batch:
    the samples of a batch; None: all the data. v is not cut, as in benchmark_bilevel's solver.
    """

    def step(o: Oracle, s: State, draw: Draw) -> tuple[State, dict[str, Tensor]]:
        d = _recursive(o, s, draw, draw.step % period == 0, batch)
        x, y = o.project(s.x - outer_lr * d.x), o.project_y(s.y - inner_lr * d.y)
        new = State(x, y, s.v - inner_lr * d.v, Point(s.x, s.y, s.v), d)
        return new, {"hypergrad_sq": d.x.square().sum()}

    def cost(at: Moment) -> Cost:
        return WHOLE if at.step % period == 0 else replace(WHOLE * 2, batch=batch)

    return Algorithm(_start, step, cost=cost)


def spaba(
    outer_lr: Positive,
    inner_lr: Positive,
    system_lr: Positive,
    chance: Fraction = 0.1,
    clip: Positive | None = None,
    batch: Count | None = None,
) -> Algorithm:
    """SPABA: PAGE on SOBA's three directions, which is SRBA with restarts at random.

    outer_lr, inner_lr, system_lr: the step sizes of x, y and v. chance: that of a restart at each
    step; the first step is one. clip: v is cut to [-clip, clip] in every coordinate, with 1 in the
    released solver; None: it is not. batch: the samples of a batch; None: all the data.

    Caveat: where g_yy^{-1} f_y has a coordinate beyond clip, the method goes to a point that is no
    solution.
    """

    def step(o: Oracle, s: State, draw: Draw) -> tuple[State, dict[str, Tensor]]:
        d = _recursive(o, s, draw, happens(draw, chance) or draw.step == 0, batch)
        x, y = o.project(s.x - outer_lr * d.x), o.project_y(s.y - inner_lr * d.y)
        v = cut(s.v - system_lr * d.v, clip)
        return State(x, y, v, Point(s.x, s.y, s.v), d), {"hypergrad_sq": d.x.square().sum()}

    def cost(at: Moment) -> Cost:
        if at.step == 0:
            return WHOLE
        return replace(WHOLE, at_most=True) + replace(WHOLE, batch=batch, at_most=True)

    return Algorithm(_start, step, cost=cost)


def _start(x: Tensor, y: Tensor) -> State:
    v = torch.zeros_like(y)
    return State(x, y, v, Point(x, y, v), Point(torch.zeros_like(x), v, v))


def _recursive(o: Oracle, s: State, draw: Draw, restart: bool, batch: int | None) -> Point:
    """The directions of all the data at a restart; else the last ones, changed by the difference of
    a batch's directions at this point and at the one before."""
    at = Point(s.x, s.y, s.v)
    if restart:
        return directions(o, at, draw.f(None), draw.g(None))
    xi, zeta = draw.f(batch), draw.g(batch)
    now, before = directions(o, at, xi, zeta), directions(o, s.last, xi, zeta)
    return Point(*(d + a - b for d, a, b in zip(s.directions, now, before)))
