"""F2SA (Kwon, Kwon, Wright, Nowak, ICML 2023, Algorithm 1): a stochastic method of first order.

Paper -> here: alpha_k -> outer_lr, gamma_k -> inner_lr, xi -> ratio, delta_k -> delta,
lambda_0 -> lam, T -> T.

The paper's schedules are alpha_k ~ k^-a, gamma_k ~ k^-c and lambda_k = gamma_k / (2 alpha_k), which
grows as k^(a - c): (a, c) = (1/3, 0) for exact gradients, (3/5, 2/5) where those of f are noisy and
(5/7, 4/7) where all are. Here c -> decay and a - c -> growth.

y follows argmin f + lambda g, z follows argmin g; the gradient of the penalty function
lambda (g(x, y) - g(x, z)) + f(x, y) in x takes no second derivative.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from bench.core.algorithm import Algorithm, Cost
from bench.core.draw import Draw
from bench.core.oracle import Oracle
from bench.core.settings import Count, NonNegative, Positive, version


class State(NamedTuple):
    x: Tensor
    y: Tensor
    z: Tensor
    lam: Tensor  # without its growth as a power of the step


@version(2)
def f2sa(
    outer_lr: Positive,
    inner_lr: Positive,
    ratio: Positive = 1.0,
    T: Count = 10,
    lam: Positive = 1.0,
    delta: NonNegative = 0.0,
    growth: NonNegative = 0.3333,
    decay: NonNegative = 0.0,
    batch: Count | None = None,
) -> Algorithm:
    """F2SA.

    At step k = 1, 2, ... lambda_k = (lam + (k - 1) delta) k^growth, the step size of z is gamma_k =
    inner_lr k^-decay, that of y is alpha_k = outer_lr k^-decay / max(lambda_k, 1), so that its
    steps stay stable as lambda grows (the paper asks for alpha_k lambda_k <= 1 / L), and that of x
    is ratio * alpha_k. T: the steps on each of y and z. batch: the samples of a batch; None: all
    the data.

    Caveat: lambda stays finite and grows slowly, and the solution of the penalised problem is off
    by about 1 / lambda.
    """

    def init(x: Tensor, y: Tensor) -> State:
        return State(x, y, y, x.new_full((), lam))

    def step(o: Oracle, s: State, draw: Draw) -> tuple[State, dict[str, Tensor]]:
        x, y, z, base = s
        k = draw.step + 1
        lam, fall = base * k**growth, k**-decay
        gamma, alpha = inner_lr * fall, outer_lr * fall / torch.clamp(lam, min=1.0)
        for _ in range(T):
            z = o.project_y(z - gamma * o.g_y(x, z, draw.g(batch)))
            penalised = o.f_y(x, y, draw.f(batch)) + lam * o.g_y(x, y, draw.g(batch))
            y = o.project_y(y - alpha * penalised)
        apart = o.g_x(x, y, draw.g(batch)) - o.g_x(x, z, draw.g(batch))
        hypergrad = o.f_x(x, y, draw.f(batch)) + lam * apart
        x = o.project(x - ratio * alpha * hypergrad)
        told = {"hypergrad_sq": hypergrad.square().sum(), "lam": lam}
        return State(x, y, z, base + delta), told

    cost = Cost(grad_g=2 * T + 2, grad_f=T + 1, batch=batch)
    return Algorithm(init, step, first_order=True, cost=cost)
