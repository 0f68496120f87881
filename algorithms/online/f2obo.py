"""F2OBO, AF2OBO and SF2OBO: fully first-order online bilevel optimisation (Jia and Chen, 2026,
Algorithms 1, 2 and 3).

Paper -> here: x, y, z -> x, y, z; alpha -> inner_lr, gamma -> outer_lr, lambda_1 -> lam; tau and K
-> tau and K. z follows argmin g_t and y follows argmin L_t = f_t + lambda_t g_t, so that equation
(6) needs no second derivative.

The step size of y is beta_t, which is a sequence among the inputs of all three boxes, though line 8
of Algorithm 2 prints a plain beta. With beta_rule "over_lambda" beta_t = beta / lambda_t, as the
theorems ask for beta_t <= 1 / (2 lambda_t L). With "plain" beta_t = beta, as section 6.1 tunes it;
steps on y diverge once beta lambda_t passes 2 / L. The experiments state no beta; it is alpha
unless it is given.

The paper's factors Lambda(t, lambda_t) = (1 + 1/t)^tau lambda_t multiply to lambda_t = lambda_1
t^tau. Line 10, argmin <h, u> + |u - x|^2 / (2 gamma) over X, is the projection of x - gamma h.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from bench.core.algorithm import Algorithm, Cost, Moment
from bench.core.draw import Draw
from bench.core.oracle import Asked, Oracle
from bench.core.settings import BadSetting, Count, Natural, NonNegative, Positive
from bench.core.task import Batch
from bench.numerics.inner import Loop, descend_until, is_small

BetaRule = Literal["over_lambda", "plain"]


class State(NamedTuple):
    x: Tensor
    y: Tensor  # follows argmin f_t + lambda_t g_t
    z: Tensor  # follows argmin g_t


def f2obo(
    inner_lr: Positive,
    outer_lr: Positive,
    beta: Positive | None = None,
    lam: Positive = 5.0,
    tau: NonNegative = 1.0,
    K: Count = 5,
    outer_decay: NonNegative = 0.0,
    beta_rule: BetaRule = "over_lambda",
    batch: Count | None = None,
) -> Algorithm:
    """F2OBO, Algorithm 1; K = 1 is F2OBO-SL.

    inner_lr: the step size of z. outer_lr, outer_decay: gamma_t = outer_lr t^-outer_decay. Theorem
    3.2, for K = 1, asks for outer_decay = tau below 1/2, and its equation (8) has 1/3; the
    experiments have outer_decay = 0. beta, beta_rule: the step size of y is beta / lambda_t
    ("over_lambda") or beta ("plain"); beta None: inner_lr. lam, tau: lambda_t = lam t^tau. K: the
    steps on each of y and z. batch: the samples of a batch; None: all the data of a round.
    """

    def step(o: Oracle, s: State, draw: Draw) -> tuple[State, dict[str, Tensor]]:
        x, y, z = s
        t = draw.step + 1
        lam_t, gamma_t = lam * t**tau, outer_lr * t**-outer_decay
        beta_t = step_of_y(beta or inner_lr, lam_t, beta_rule)
        xi, zeta = draw.f(batch), draw.g(batch)  # line 2

        for _ in range(K):  # lines 4-7
            y, z = o.descend_both(x, y, z, xi, zeta, beta_t, inner_lr, lam_t)
            y, z = o.project_y(y), o.project_y(z)

        hypergrad = hypergradient(o, x, y, z, xi, zeta, lam_t)  # line 9
        x = o.project(x - gamma_t * hypergrad)  # line 10
        return State(x, y, z), {
            "hypergrad_sq": hypergrad.square().sum(),
            "lam": scalar_like(x, lam_t),
        }

    cost = Cost(grad_g=2 * K + 2, grad_f=K + 1, batch=batch)
    return Algorithm(lambda x, y: State(x, y, y), step, first_order=True, cost=cost)


class AdaptiveState(NamedTuple):
    x: Tensor
    y: Tensor
    z: Tensor
    capped: Tensor  # loops so far that ended at the cap, not at their tolerance


def af2obo(
    inner_lr: Positive,
    outer_lr: Positive,
    beta: Positive | None = None,
    lam: Positive = 5.0,
    tau: NonNegative = 0.5,
    delta_y: Positive = 0.01,
    delta_z: Positive = 0.0001,
    cap: Natural = 1000,
    beta_rule: BetaRule = "over_lambda",
    batch: Count | None = None,
) -> Algorithm:
    """AF2OBO, Algorithm 2: inner steps are taken until |grad L_t| <= delta_y and |g_y| <= delta_z.

    cap: the most inner steps of each of the two loops, which the paper does not have; info/capped
    counts the loops that it has cut short. inner_lr, outer_lr, beta, beta_rule, lam, tau,
    batch: as for `f2obo`.

    Caveat: its inner loops end at the tolerances delta_y and delta_z, and lambda_t stays finite.
    """

    def step(o: Oracle, s: AdaptiveState, draw: Draw) -> tuple[AdaptiveState, dict[str, Tensor]]:
        x = s.x
        lam_t = lam * (draw.step + 1) ** tau
        beta_t = step_of_y(beta or inner_lr, lam_t, beta_rule)
        xi, zeta = draw.f(batch), draw.g(batch)  # line 2

        def lower_gradient(z: Tensor) -> Sequence[Asked]:
            return [Asked("g_y", x, z, zeta)]

        def penalised_gradient(y: Tensor) -> Sequence[Asked]:
            return [Asked("f_y", x, y, xi), Asked("g_y", x, y, zeta)]

        def weigh(f_y: Tensor, g_y: Tensor) -> Tensor:
            return torch.add(f_y, g_y, alpha=lam_t)

        loops = [  # lines 4-9
            Loop(s.z, lower_gradient, inner_lr, partial(is_small, to=delta_z)),
            Loop(s.y, penalised_gradient, beta_t, partial(is_small, to=delta_y), weigh),
        ]
        (z, _, k_z, met_z), (y, _, k_y, met_y) = descend_until(o, loops, cap)

        hypergrad = hypergradient(o, x, y, z, xi, zeta, lam_t)  # line 10
        x = o.project(x - outer_lr * hypergrad)  # line 11
        state = AdaptiveState(x, y, z, s.capped + (2 - met_z - met_y))
        seen = {"inner_z": k_z, "inner_y": k_y, "lam": lam_t}
        return state, {
            "hypergrad_sq": hypergrad.square().sum(),
            "capped": state.capped,
            **{name: scalar_like(x, value) for name, value in seen.items()},
        }

    def init(x: Tensor, y: Tensor) -> AdaptiveState:
        return AdaptiveState(x, y, y, x.new_zeros(()))

    # Besides its steps each loop takes the gradient at its end, which meets the tolerance.
    cost = Cost(grad_g=4, grad_f=2, batch=batch)
    cost += Cost(grad_g=2 * cap, grad_f=cap, batch=batch, at_most=True)
    return Algorithm(init, step, first_order=True, cost=cost)


def sf2obo(
    inner_lr: Positive,
    outer_lr: Positive,
    beta: Positive | None = None,
    lam: Positive = 5.0,
    tau: NonNegative = 1.0,
    K: Count = 5,
    batch: Count | None = None,
    growing: bool = False,
    a: NonNegative = 0.0,
    b: NonNegative | None = None,
    B1: NonNegative = 0.0,
    B2: NonNegative = 0.0,
    beta_rule: BetaRule = "over_lambda",
    samples: Literal["fresh", "shared"] = "fresh",
) -> Algorithm:
    """SF2OBO, Algorithm 3. The defaults are the constant schedule of the experiments.

    The other settings make the schedule of theorem 5.1. a: alpha_t = inner_lr t^-a. b: beta_t =
    beta / (lam t^b); None: tau. B1, B2: the batches have ceil(batch t^B2) samples in the inner loop
    and ceil(batch t^B1) for line 10. growing: K_t = ceil(K max(t^(b - tau), t^a) log t), at least
    1, where K stands for 4 kappa. Corollary 5.2 has tau = b = 1/6, a = 0, B1 = B2 = 2/3. outer_lr,
    lam, tau, beta_rule: as for `f2obo`.

    samples: "fresh" draws new samples for each inner step and for line 10, as Algorithm 3 does.
    With "shared" all of a round use its first ones, as the experiments may be read, where "each
    algorithm receives a dataset with batch size 256 at every time step". Raises BadSetting for
    shared samples where B1 is not B2, and for a plain beta where b is given.
    """
    if samples == "shared" and B1 != B2:
        raise BadSetting("algorithm.samples=shared: a round has one batch: write B1 equal to B2")
    if beta_rule == "plain" and b is not None:
        raise BadSetting(f"algorithm.b={b}: beta_rule=plain has no power of t: leave b out")
    fall = tau if b is None else b

    def size(t: int, power: float) -> int | None:
        return None if batch is None else math.ceil(batch * t**power)

    def inner_steps(t: int) -> int:
        if not growing:
            return K
        return max(1, math.ceil(K * max(t ** (fall - tau), t**a) * math.log(t)))

    def step(o: Oracle, s: State, draw: Draw) -> tuple[State, dict[str, Tensor]]:
        x, y, z = s
        t = draw.step + 1
        lam_t, alpha_t = lam * t**tau, inner_lr * t**-a
        beta_t = step_of_y(beta or inner_lr, lam * t**fall, beta_rule)

        xi, zeta = draw.f(size(t, B2)), draw.g(size(t, B2))
        for k in range(inner_steps(t)):  # lines 4-8
            if k > 0 and samples == "fresh":
                xi, zeta = draw.f(size(t, B2)), draw.g(size(t, B2))
            y, z = o.descend_both(x, y, z, xi, zeta, beta_t, alpha_t, lam_t)
            y, z = o.project_y(y), o.project_y(z)

        if samples == "fresh":  # line 9
            xi, zeta = draw.f(size(t, B1)), draw.g(size(t, B1))
        hypergrad = hypergradient(o, x, y, z, xi, zeta, lam_t)  # line 10
        x = o.project(x - outer_lr * hypergrad)  # line 11
        return State(x, y, z), {
            "hypergrad_sq": hypergrad.square().sum(),
            "lam": scalar_like(x, lam_t),
        }

    def cost(at: Moment) -> Cost:
        t = at.step + 1
        inner = Cost(grad_g=2, grad_f=1, batch=size(t, B2)) * inner_steps(t)
        return inner + Cost(grad_g=2, grad_f=1, batch=size(t, B1))

    return Algorithm(lambda x, y: State(x, y, y), step, first_order=True, cost=cost)


def step_of_y(beta: float, lam: float, rule: BetaRule) -> float:
    """beta_t for the weight lambda_t."""
    return beta / lam if rule == "over_lambda" else beta


def hypergradient(
    o: Oracle, x: Tensor, y: Tensor, z: Tensor, xi: Batch, zeta: Batch, lam: float
) -> Tensor:
    """Equation (6) at the approximate y and z: f_x(x, y) + lambda (g_x(x, y) - g_x(x, z))."""
    f_x, g_x, g_x_z = o.together(
        Asked("f_x", x, y, xi), Asked("g_x", x, y, zeta), Asked("g_x", x, z, zeta)
    )
    return f_x + lam * (g_x - g_x_z)


def scalar_like(x: Tensor, value: float | Tensor) -> Tensor:
    """A number, which is a tensor in steps of several lanes, with x's dtype and on x's device.

    Adding to a zero of the device, unlike torch.tensor(value), does not wait for a GPU.
    """
    return x.new_zeros(()) + value
