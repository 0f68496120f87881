"""Online methods by implicit differentiation: OAGD (Tarzanagh, Nazari, Hou, Shen, Balzano, AISTATS
2024), SOBOW (Lin, Sow, Ji, Liang, Shroff, NeurIPS 2023), FSOBO and AOBO (Jia, Wang, Chen, 2026),
SOGD (Nazari, Hou, Tarzanagh, Shen, Michailidis, 2025, Algorithm 1).

Paper -> here: the step size of y (alpha; SOGD: beta_t) -> inner_lr, of x (beta, gamma; SOGD:
alpha_t) -> outer_lr, of the linear system -> system_lr. Here v approximates g_yy^{-1} f_y (SOGD's
paper has its negative), and the hypergradient is f_x - g_xy v.

The descriptions at hand leave some things open. The choices here: all methods go on from the last y
and v, because one round alone can only follow what drifts. SOBOW, FSOBO and AOBO take v and the
hypergradient at the new y, as F2OBO's Algorithm 1 does, which is by the authors of the latter two;
SOGD's box takes all three directions at the old point.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from bench.core.algorithm import Algorithm, Cost, Moment
from bench.core.draw import Draw
from bench.core.oracle import Asked, Oracle
from bench.core.settings import Count, Fraction, Natural, NonNegative, Positive
from bench.numerics.inner import Loop, descend_until, is_small
from bench.numerics.solve import cg, neumann


class Plain(NamedTuple):
    x: Tensor
    y: Tensor


def oagd(
    inner_lr: Positive,
    outer_lr: Positive,
    K: Count = 5,
    Q: Natural = 5,
    eta: Positive = 0.5,
    window: Count = 5,
    decay: Fraction = 0.9,
    batch: Count | None = None,
) -> Algorithm:
    """OAGD: K inner steps on g_t, then a step along a weighted average of hypergradients.

    The average is over the losses of the last `window` rounds, all at the present point. The loss
    of i rounds ago has the weight decay^i / W, where W = sum_i decay^i over the whole window;
    losses before round 1 are zero.

    inner_lr, outer_lr: the step sizes of y and x. eta, Q: the step size and the products of a
    Neumann series, where the paper solves the linear system exactly. Series, window and decay are
    those of its released code. (That code divides by the weights of the rounds so far, and goes
    once through all batches of the window in place of K steps on the last, with momentum and weight
    decay.) batch: the samples of a batch; None: all the data of a round.

    Caveat: Q steps do not end at v*, which biases the hypergradient; with eta above 2 / curvature
    they diverge.
    """

    def seen_rounds(k: int) -> int:
        return min(window, k + 1)

    def step(o: Oracle, s: Plain, draw: Draw) -> tuple[Plain, dict[str, Tensor]]:
        x, y = s
        rounds = [draw.ago(i) for i in range(seen_rounds(draw.step))]
        data = [(past.f(batch), past.g(batch)) for past in rounds]  # newest first
        for _ in range(K):
            y = o.project_y(y - inner_lr * o.g_y(x, y, data[0][1]))

        average = torch.zeros_like(x)
        for i, (xi, zeta) in enumerate(data):
            f_x, f_y = o.grad_f(x, y, xi)
            products = o.products(x, y, zeta)
            average = average + decay**i * (f_x - products.xy(neumann(products.yy, f_y, eta, Q)))
        average = average / sum(decay**i for i in range(window))

        x = o.project(x - outer_lr * average)
        return Plain(x, y), {"hypergrad_sq": average.square().sum()}

    def cost(at: Moment) -> Cost:
        one_round = Cost(grad_f=1, hvp_g=Q, jvp_g=1, batch=batch)
        return Cost(grad_g=K, batch=batch) + one_round * seen_rounds(at.step)

    return Algorithm(Plain, step, cost=cost)


class WindowState(NamedTuple):
    x: Tensor
    y: Tensor
    v: Tensor
    past: tuple[Tensor, ...]  # the last hypergradients, newest last; zero before the first round
    indefinite: Tensor  # rounds so far in which g_yy had a direction of negative curvature


def sobow(
    inner_lr: Positive,
    outer_lr: Positive,
    Q: Count = 5,
    growth: Fraction = 0.0,
    window: Count = 1,
    decay: Fraction = 0.9,
    truncated: bool = False,
    batch: Count | None = None,
) -> Algorithm:
    """SOBOW: one inner step, conjugate gradients on the linear system, and a step along the average
    (1/W) sum_i decay^i h_{t-i} of the last `window` hypergradients.

    Each hypergradient is kept from its own round and point; W is as for OAGD, and a window of 1
    takes no average, as in F2OBO's Table 1. inner_lr, outer_lr: the step sizes of y and x. Q,
    growth: round t has ceil(Q t^growth) iterations; the analysis lets them grow with t (growth 1 is
    the O(T^2) products of that table), and the experiments take 5. batch: the samples of a batch;
    None: all the data of a round.

    The analysis is for a strongly convex g. Where g_yy is not positive definite, as with a neural
    network below, conjugate gradients may give any v: info/indefinite counts the rounds in which a
    product p^T g_yy p came out negative, for a direction or the start p. truncated: the iterations
    end at such a direction.
    """

    def iterations(k: int) -> int:
        return math.ceil(Q * (k + 1) ** growth)

    weights = [decay**i for i in reversed(range(window))]

    def step(o: Oracle, s: WindowState, draw: Draw) -> tuple[WindowState, dict[str, Tensor]]:
        x, xi, zeta = s.x, draw.f(batch), draw.g(batch)
        y = o.project_y(s.y - inner_lr * o.g_y(x, s.y, zeta))

        f_x, f_y = o.grad_f(x, y, xi)
        products = o.products(x, y, zeta)
        curvatures: list[Tensor] = []

        def multiply(p: Tensor) -> Tensor:
            product = products.yy(p)
            curvatures.append((p * product).sum())
            return product

        v = cg(multiply, f_y, iterations(draw.step), start=s.v, truncated=truncated)
        negative = torch.stack(curvatures).min() < 0
        hypergrad = f_x - products.xy(v)

        past = (*s.past[1:], hypergrad)
        average = sum((w * h for w, h in zip(weights, past)), torch.zeros_like(x)) / sum(weights)
        x = o.project(x - outer_lr * average)
        state = WindowState(x, y, v, past, s.indefinite + negative)
        told = {"hypergrad_sq": hypergrad.square().sum(), "indefinite": state.indefinite}
        return state, told

    def init(x: Tensor, y: Tensor) -> WindowState:
        past = (torch.zeros_like(x),) * window
        return WindowState(x, y, torch.zeros_like(y), past, x.new_zeros(()))

    def cost(at: Moment) -> Cost:
        # The warm start costs a product, which gives the residual of the last solution.
        return Cost(grad_g=1, grad_f=1, jvp_g=1, hvp_g=iterations(at.step) + 1, batch=batch)

    return Algorithm(init, step, cost=cost)


class State(NamedTuple):
    x: Tensor
    y: Tensor
    v: Tensor


def fsobo(
    inner_lr: Positive,
    outer_lr: Positive,
    system_lr: Positive,
    batch: Count | None = None,
) -> Algorithm:
    """FSOBO: one step in y, one in v and one in x.

    inner_lr, system_lr, outer_lr: the step sizes of y, v and x. batch: the samples of a batch;
    None: all the data of a round.
    """

    def step(o: Oracle, s: State, draw: Draw) -> tuple[State, dict[str, Tensor]]:
        x, xi, zeta = s.x, draw.f(batch), draw.g(batch)
        y = o.project_y(s.y - inner_lr * o.g_y(x, s.y, zeta))
        f_x, f_y = o.grad_f(x, y, xi)
        products = o.products(x, y, zeta)
        v = s.v - system_lr * (products.yy(s.v) - f_y)
        hypergrad = f_x - products.xy(v)
        x = o.project(x - outer_lr * hypergrad)
        return State(x, y, v), {"hypergrad_sq": hypergrad.square().sum()}

    cost = Cost(grad_g=1, grad_f=1, hvp_g=1, jvp_g=1, batch=batch)
    return Algorithm(lambda x, y: State(x, y, torch.zeros_like(y)), step, cost=cost)


class AdaptiveState(NamedTuple):
    x: Tensor
    y: Tensor
    v: Tensor
    capped: Tensor  # loops so far that ended at the cap, not at the tolerance


def aobo(
    inner_lr: Positive,
    outer_lr: Positive,
    system_lr: Positive,
    delta: Positive = 0.1,
    Q: Count = 5,
    cap: Natural = 1000,
    batch: Count | None = None,
) -> Algorithm:
    """AOBO: inner steps until |g_y| <= delta, then Q steps of descent on the linear system.

    cap: the most inner steps, which the paper does not have; info/capped counts the loops that it
    has cut short. inner_lr, system_lr, outer_lr: the step sizes of y, v and x. batch: the samples
    of a batch; None: all the data of a round.

    Caveat: its inner loop ends once |g_y| is at most delta, at a point that may be away from y*.
    """

    def step(o: Oracle, s: AdaptiveState, draw: Draw) -> tuple[AdaptiveState, dict[str, Tensor]]:
        x, y, v = s.x, s.y, s.v
        xi, zeta = draw.f(batch), draw.g(batch)

        def lower_gradient(y: Tensor) -> Sequence[Asked]:
            return [Asked("g_y", x, y, zeta)]

        def is_met(gradient: Tensor) -> Tensor:
            return is_small(gradient, delta)

        loop = Loop(y, lower_gradient, inner_lr, is_met)
        ((y, _, k, met),) = descend_until(o, [loop], cap)

        f_x, f_y = o.grad_f(x, y, xi)
        products = o.products(x, y, zeta)
        for _ in range(Q):
            v = v - system_lr * (products.yy(v) - f_y)
        hypergrad = f_x - products.xy(v)
        x = o.project(x - outer_lr * hypergrad)
        state = AdaptiveState(x, y, v, s.capped + (not met))
        return state, {
            "hypergrad_sq": hypergrad.square().sum(),
            "capped": state.capped,
            "inner_y": x.new_full((), k),
        }

    def init(x: Tensor, y: Tensor) -> AdaptiveState:
        return AdaptiveState(x, y, torch.zeros_like(y), x.new_zeros(()))

    # Besides its steps the loop takes the gradient at its end, which meets the tolerance.
    cost = Cost(grad_g=1, grad_f=1, hvp_g=Q, jvp_g=1, batch=batch)
    cost += Cost(grad_g=cap, batch=batch, at_most=True)
    return Algorithm(init, step, cost=cost)


class MomentumState(NamedTuple):
    x: Tensor
    y: Tensor
    v: Tensor
    directions: tuple[Tensor, Tensor, Tensor]  # the directions in y, v and x
    last: tuple[Tensor, Tensor, Tensor]  # x, y, v of the round before


def sogd(
    inner_lr: Positive,
    outer_lr: Positive,
    system_lr: Positive,
    eta: Fraction = 0.9,
    decay: NonNegative = 0.0,
    radius: Positive | None = None,
    batch: Count | None = None,
) -> Algorithm:
    """SOGD: y, v and x move at once along d_t = D_t(now) + (1 - eta)(d_{t-1} - D_t(before)).

    Both estimates D_t are of round t's samples, and d_1 is the plain estimate. The paper's box
    writes v_t in D_t(before) too; here it is v_{t-1}, so that d_{t-1} and D_t(before) are of one
    point, as in the STORM estimator that the box adapts.

    inner_lr, system_lr, outer_lr: the step sizes of y, v and x. eta: one for all three (gamma_t,
    lambda_t and eta_t in the paper); F2OBO's experiments give a "momentum coefficient eta = .9",
    which is read as this eta. decay: all step sizes fall as t^-decay and eta as t^(-2 decay), with
    1/3 in theorem 2.6. radius: v is projected on the ball of this radius, which the experiments do
    not give; None: v is not projected. batch: the samples of a batch; None: all the data of a
    round.
    """

    def step(o: Oracle, s: MomentumState, draw: Draw) -> tuple[MomentumState, dict[str, Tensor]]:
        xi, zeta = draw.f(batch), draw.g(batch)  # S1

        def directions(x: Tensor, y: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            f_x, f_y = o.grad_f(x, y, xi)
            g_y, products = o.linearise_g_y(x, y, zeta)
            mixed, curved = products.both(v)
            return g_y, curved - f_y, f_x - mixed

        now, before = directions(s.x, s.y, s.v), directions(*s.last)
        fall = (draw.step + 1) ** -decay
        kept = 1 - eta * fall**2 if draw.step else 0.0
        d_y, d_v, d_x = (n + kept * (d - b) for n, d, b in zip(now, s.directions, before))

        y, v = o.project_y(s.y - inner_lr * fall * d_y), s.v - system_lr * fall * d_v  # S2
        if radius is not None:
            v = v * (radius / v.norm().clamp(min=radius))
        x = o.project(s.x - outer_lr * fall * d_x)
        state = MomentumState(x, y, v, (d_y, d_v, d_x), (s.x, s.y, s.v))
        return state, {"hypergrad_sq": d_x.square().sum()}

    def init(x: Tensor, y: Tensor) -> MomentumState:
        v = torch.zeros_like(y)
        return MomentumState(x, y, v, (torch.zeros_like(y), v, torch.zeros_like(x)), (x, y, v))

    cost = Cost(grad_g=2, grad_f=2, hvp_g=2, jvp_g=2, batch=batch)
    return Algorithm(init, step, cost=cost)
