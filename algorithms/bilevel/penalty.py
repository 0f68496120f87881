"""Penalty (Mehra and Hamm, ACML 2021): Algorithm 1 with its augmented Lagrangian and regularisation
(section 3.3).

Paper -> here: u -> x, v -> y, sigma -> outer_lr, rho -> inner_lr, c_gamma -> grow, c_epsilon and
c_lambda -> shrink; the first gamma_k, epsilon_k, lambda_k, nu_k -> gamma, eps, lam, nu.

The method minimises f + <nu, g_y> + (gamma / 2) |g_y|^2 over x and y, with lambda g added for y.
As in BOME's released code, nu moves by the new gamma.

Whenever the tolerance is met, BOME's released code multiplies both learning rates by .9 and makes
new optimisers. Here the directions are multiplied instead, before the rule of descent takes them,
and the memories begin anew, which gives a falling step its first size again. For plain descent and
for momentum the two are the same; Adam cancels the factor in x, and a clamp undoes it in the
coordinates that it cuts. The new optimisers of hpo/l2reg.py have no momentum in y and .9 in x,
whatever the first ones had (lines 469 and 470); here, as in hpo/data_cleaning.py, the momenta stay
as they are set.

Where `batch` is set, one batch of each level serves a whole outer step.
"""

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

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
    nu: Tensor
    gamma: Tensor
    eps: Tensor
    lam: Tensor
    scale: Tensor  # what both step sizes are multiplied by


def penalty(
    outer: Descent,
    outer_lr: Positive,
    inner_lr: Positive,
    T: Count = 10,
    gamma: Positive = 0.01,
    eps: Positive = 0.01,
    lam: NonNegative = 0.01,
    nu: NonNegative = 1e-4,
    grow: Positive = 1.1,
    shrink: Positive = 0.9,
    multiplier: Literal["sum", "mean"] = "sum",
    inner_momentum: Rate = 0.0,
    batch: Count | None = None,
) -> Algorithm:
    """Penalty.

    outer, outer_lr: the rule and the size of the step on x. inner_lr, T, inner_momentum: the size,
    the number and the momentum of the steps on y. gamma, eps, lam, nu: the first values of the
    penalty's weight, of the tolerance, of g's weight and of every multiplier. grow, shrink: what
    gamma, and eps and lam, are multiplied by whenever the tolerance is met. multiplier: <nu, g_y>
    is a sum in the paper and in hpo/l2reg.py of BOME's released code, and a mean in its
    hpo/data_cleaning.py and its toys. batch: the samples of a batch; None: all the data.

    Caveat: the penalty's weight stays finite and grows slowly, and y is off by about 1 / gamma.
    Where `batch` is set, both factors of g_yy g_y are of one batch, so that the variance of g_y is
    penalised too.
    """

    def init(x: Tensor, y: Tensor) -> State:
        settings = (x.new_full((), value) for value in (gamma, eps, lam, 1.0))
        return State(x, y, outer.init(x), torch.zeros_like(y), torch.full_like(y, nu), *settings)

    def step(o: Oracle, s: State, draw: Draw) -> tuple[State, dict[str, Tensor]]:
        x, y, velocity = s.x, s.y, s.velocity
        xi, zeta = draw.f(batch), draw.g(batch)
        multiplied = s.nu if multiplier == "sum" else s.nu / y.numel()

        for _ in range(T):
            g_y, products = o.linearise_g_y(x, y, zeta)
            gradient = o.f_y(x, y, xi) + s.lam * g_y + products.yy(multiplied + s.gamma * g_y)
            y, velocity = heavy_ball(y, s.scale * gradient, velocity, inner_lr, inner_momentum)
            y = o.project_y(y)

        g_y, products = o.linearise_g_y(x, y, zeta)
        direction = o.f_x(x, y, xi) + products.xy(multiplied + s.gamma * g_y)
        x, memory = outer.step(x, s.scale * direction, outer_lr, s.outer)

        # Close enough to a stationary point, the method tightens the penalty, moves the multipliers
        # and shortens its steps.
        done = gradient.square().sum() + direction.square().sum() < s.eps**2
        new_gamma = torch.where(done, grow * s.gamma, s.gamma)

        def begin_anew(first: Tensor, last: Tensor) -> Tensor:
            return torch.where(done, first, last)

        new = State(
            o.project(x),
            y,
            tree_map(begin_anew, outer.init(x), memory),
            torch.where(done, 0.0, velocity),
            torch.where(done, s.nu + new_gamma * g_y, s.nu),
            new_gamma,
            torch.where(done, shrink * s.eps, s.eps),
            torch.where(done, shrink * s.lam, s.lam),
            torch.where(done, 0.9 * s.scale, s.scale),
        )
        return new, {"gamma": new_gamma, "gradient_sq": gradient.square().sum()}

    cost = Cost(grad_g=T + 1, grad_f=T + 1, hvp_g=T, jvp_g=1, batch=batch)
    return Algorithm(init, step, cost=cost)
