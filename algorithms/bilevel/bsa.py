"""BSA (Ghadimi and Wang, 2018, Algorithms 1 and 3) and TTSA (Hong, Wai, Wang, Yang, SIAM J. Optim.
2023, Algorithm 1): stochastic approximation with a randomly truncated Neumann series.

Paper -> here, BSA: alpha_k -> outer_lr, beta_t -> inner_lr / (t + 1)^decay, t_k -> T, b -> Q,
1 / L_g -> eta. TTSA: alpha_k -> outer_lr / (k + 1)^outer_decay, beta_k -> inner_lr /
(k + 1)^inner_decay, t_max -> Q, c_h / L_g -> eta.

Both estimate g_yy^{-1} f_y by Q eta prod_{i=1}^{p} (I - eta g_yy(zeta_i)) f_y, where p is uniform
on {0, ..., Q - 1}: the mean of this estimate is the Neumann series of Q terms. Both papers take
single samples (batch = 1). BSA begins its inner loop at the last y, as benchmark_bilevel's does.
"""

from typing import Any, Literal, NamedTuple

from torch import Tensor

from bench.core.algorithm import Algorithm, Cost
from bench.core.draw import Draw
from bench.core.oracle import Oracle
from bench.core.settings import Count, NonNegative, Positive
from bench.numerics.descent import Descent, descent


class BsaState(NamedTuple):
    x: Tensor
    y: Tensor
    outer: Any


class TtsaState(NamedTuple):
    x: Tensor
    y: Tensor
    outer: Any


def bsa(
    outer: Descent,
    outer_lr: Positive,
    inner_lr: Positive,
    eta: Positive,
    T: Count = 10,
    Q: Count = 10,
    decay: NonNegative = 0.0,
    batch: Count | None = 1,
) -> Algorithm:
    """BSA, bilevel stochastic approximation: an inner loop of T steps, then one outer step.

    outer, outer_lr: the rule and the size of the step on x. inner_lr, decay: the inner steps' size,
    and how it falls within a loop. eta, Q: the step size and the terms of the Neumann series.
    batch: the samples of a batch; None: all the data.

    Caveat: the series is cut, which biases the hypergradient, and at a random term, whose noise
    steps of a constant size do not average out; a larger Q with a smaller outer_lr mends both.
    """

    def step(o: Oracle, s: BsaState, draw: Draw) -> tuple[BsaState, dict[str, Tensor]]:
        zetas = [draw.g(batch) for _ in range(T)]
        x, y = s.x, o.start(s.y, zetas[0])
        for t, zeta in enumerate(zetas):
            y = o.project_y(y - inner_lr / (t + 1) ** decay * o.g_y(x, y, zeta))
        hypergrad = estimate(o, x, y, draw, eta, Q, batch)
        x, memory = outer.step(x, hypergrad, outer_lr, s.outer)
        return BsaState(o.project(x), y, memory), {"hypergrad_sq": hypergrad.square().sum()}

    cost = Cost(grad_g=T, grad_f=1, jvp_g=1, batch=batch)
    cost += Cost(hvp_g=Q - 1, batch=batch, at_most=True)
    return Algorithm(lambda x, y: BsaState(x, y, outer.init(x)), step, cost=cost)


def ttsa(
    outer_lr: Positive,
    inner_lr: Positive,
    eta: Positive,
    Q: Count = 10,
    outer_decay: NonNegative = 0.6,
    inner_decay: NonNegative = 0.4,
    batch: Count | None = 1,
    outer_rule: Literal["gd", "adam"] = "gd",
) -> Algorithm:
    """TTSA, two-timescale stochastic approximation: one step in y, then one in x.

    outer_lr, outer_decay: the step size of x, and how it falls. inner_lr, inner_decay: the same for
    y, whose step size falls more slowly. eta, Q: the step size and the terms of the Neumann series.
    batch: the samples of a batch; None: all the data. outer_rule: the rule of the step on x, "gd"
    in the paper; stocBiO's appendix B has "adam".

    Caveat: its step sizes fall, and it comes closer more and more slowly.
    """

    outer = descent(outer_rule)

    def step(o: Oracle, s: TtsaState, draw: Draw) -> tuple[TtsaState, dict[str, Tensor]]:
        k = draw.step + 1
        y = o.project_y(s.y - inner_lr / k**inner_decay * o.g_y(s.x, s.y, draw.g(batch)))
        hypergrad = estimate(o, s.x, y, draw, eta, Q, batch)
        x, memory = outer.step(s.x, hypergrad, outer_lr / k**outer_decay, s.outer)
        return TtsaState(o.project(x), y, memory), {"hypergrad_sq": hypergrad.square().sum()}

    cost = Cost(grad_g=1, grad_f=1, jvp_g=1, batch=batch)
    cost += Cost(hvp_g=Q - 1, batch=batch, at_most=True)
    return Algorithm(lambda x, y: TtsaState(x, y, outer.init(x)), step, cost=cost)


def estimate(
    o: Oracle, x: Tensor, y: Tensor, draw: Draw, eta: float, Q: int, batch: int | None
) -> Tensor:
    """The hypergradient, shaped as x, with the Neumann series cut at a random term."""
    f_x, v = o.grad_f(x, y, draw.f(batch))
    zeta = draw.g(batch)
    for _ in range(draw.integer(Q)):
        v = v - eta * o.g_yy(x, y, draw.g(batch))(v)
    return f_x - o.g_xy(x, y, zeta)(Q * eta * v)
