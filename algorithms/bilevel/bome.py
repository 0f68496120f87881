"""BOME (Ye, Liu, Wright, Stone, Liu, NeurIPS 2022), Algorithm 1.

Paper -> here: v -> x, theta -> y, theta^(T) -> y_T, q-hat -> q, phi -> phi, alpha -> inner_lr,
xi -> outer_lr (on v) and lower_lr (on theta), lambda -> lam.

Where `batch` is set, one batch of each level serves a whole outer step.
"""

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from bench.core.algorithm import Algorithm, Cost
from bench.core.draw import Draw
from bench.core.oracle import Oracle
from bench.core.settings import Count, NonNegative, Positive, Rate
from bench.numerics.descent import Descent, heavy_ball


class State(NamedTuple):
    x: Tensor
    y: Tensor
    outer: Any  # memory of the step on x
    lower: Any  # memory of the step on y
    velocity: Tensor  # the momentum of the inner steps


def bome(
    outer: Descent,
    lower: Descent,
    outer_lr: Positive,
    lower_lr: Positive,
    inner_lr: Positive,
    T: Count = 10,
    eta: Positive = 0.5,
    barrier: Literal["norm", "value", "unsquared"] = "norm",
    inner_momentum: Rate = 0.0,
    keep_velocity: bool = False,
    eps: NonNegative = 0.0,
    batch: Count | None = None,
) -> Algorithm:
    """BOME.

    outer, outer_lr: the rule and the size of the step on x. lower, lower_lr: the same for y.
    inner_lr, T, inner_momentum: the size, the number and the momentum of the inner steps. eta: the
    weight of the barrier. barrier: phi is eta |grad q|^2 ("norm", the paper's default), eta q
    ("value", as the released data_cleaning.py has it) or eta |grad q| ("unsquared", as section A.6
    prints it for continual learning). keep_velocity: whether the inner momentum goes on from the
    last step, as in the released code, which never resets it. eps: what is added to |grad q|^2 in
    lambda, 1e-4 or 1e-8 in the released code; lambda is 0 where |grad q|^2 is 0, as in the paper.
    batch: the samples of a batch; None: all the data.

    Caveat: with steps of a constant size y stays at a distance from y*(x) that grows with them, and
    x ends accordingly.
    """

    def init(x: Tensor, y: Tensor) -> State:
        return State(x, y, outer.init(x), lower.init(y), torch.zeros_like(y))

    def step(o: Oracle, s: State, draw: Draw) -> tuple[State, dict[str, Tensor]]:
        x, y = s.x, s.y
        xi, zeta = draw.f(batch), draw.g(batch)
        g_x, g_y = o.grad_g(x, y, zeta)

        # 1. theta^(T) by T steps of gradient descent on g(v, .) starting from theta
        y_T, gradient = y, g_y
        velocity = s.velocity if keep_velocity else torch.zeros_like(y)
        for t in range(T):
            gradient = g_y if t == 0 else o.g_y(x, y_T, zeta)
            y_T, velocity = heavy_ball(y_T, gradient, velocity, inner_lr, inner_momentum)
            y_T = o.project_y(y_T)

        # 2. q(v, theta) = g(v, theta) - g(v, theta^(T)), theta^(T) held constant
        q_x, q_y = g_x - o.g_x(x, y_T, zeta), g_y
        f_x, f_y = o.grad_f(x, y, xi)
        qq = q_x.square().sum() + q_y.square().sum()
        fq = (f_x * q_x).sum() + (f_y * q_y).sum()

        # 3. lambda = max((phi - <grad f, grad q>) / |grad q|^2, 0), eq. (7)
        if barrier == "norm":
            lam = eta - fq / (qq + eps)
        elif barrier == "unsquared":
            lam = (eta * qq.sqrt() - fq) / (qq + eps)
        else:
            lam = (eta * (o.g(x, y, zeta) - o.g(x, y_T, zeta)) - fq) / (qq + eps)
        lam = torch.where(qq > 0, lam.clamp(min=0), 0.0)

        new_x, memory_x = outer.step(x, f_x + lam * q_x, outer_lr, s.outer)
        new_y, memory_y = lower.step(y, f_y + lam * q_y, lower_lr, s.lower)
        new = State(o.project(new_x), o.project_y(new_y), memory_x, memory_y, velocity)
        return new, {"lam": lam, "grad_q_sq": qq}

    # The gradient of q-hat at theta is the first inner step's too, and is taken once.
    cost = Cost(grad_g=T + 1, grad_f=1, value_g=2 if barrier == "value" else 0, batch=batch)
    return Algorithm(init, step, first_order=True, cost=cost)
