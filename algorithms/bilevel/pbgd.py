"""V-PBGD and G-PBGD (Shen and Chen, ICML 2023): gradient descent on a penalised single level.

Paper -> here: alpha -> outer_lr / max(gamma, 1), beta -> inner_lr, gamma and T -> gamma and T. The
step size on the penalised loss falls as its weight gamma grows, as in the released code, so that
steps which are stable with one gamma are so with another. The paper has one step size for x and y,
which is ratio = 1.

V-PBGD (Algorithm 1) penalises the value function, gamma (g(x, y) - g(x, w)), where w is T
gradient steps on g(x, .); G-PBGD penalises gamma |g_y(x, y)|^2. x and y move together.
"""

from typing import NamedTuple

from torch import Tensor

from bench.core.algorithm import Algorithm, Cost
from bench.core.draw import Draw
from bench.core.oracle import Oracle
from bench.core.settings import Count, Positive, version


class ValueState(NamedTuple):
    x: Tensor
    y: Tensor
    w: Tensor


class GradientState(NamedTuple):
    x: Tensor
    y: Tensor


@version(2)
def vpbgd(
    outer_lr: Positive,
    inner_lr: Positive,
    gamma: Positive = 10.0,
    T: Count = 10,
    batch: Count | None = None,
    ratio: Positive = 1.0,
) -> Algorithm:
    """V-PBGD: the penalty is the value gap, and w starts from the last step's.

    outer_lr: the step size of y, times max(gamma, 1). ratio: that of x over that of y; the paper's
    is 1. inner_lr, T: the size and the number of the steps on w. gamma: the weight of the penalty.
    batch: the samples of a batch; None: all the data.

    Caveat: the penalty's weight is finite, so that the end is off by about 1 / gamma; and steps
    that stay stable with a large gamma are slow, as they are of about 1 / gamma.
    """
    alpha = outer_lr / max(gamma, 1.0)

    def step(o: Oracle, s: ValueState, draw: Draw) -> tuple[ValueState, dict[str, Tensor]]:
        x, y, w = s
        for _ in range(T):
            w = o.project_y(w - inner_lr * o.g_y(x, w, draw.g(batch)))
        (f_x, f_y), zeta = o.grad_f(x, y, draw.f(batch)), draw.g(batch)
        g_x, g_y = o.grad_g(x, y, zeta)
        hypergrad = f_x + gamma * (g_x - o.g_x(x, w, zeta))
        x = o.project(x - ratio * alpha * hypergrad)
        y = o.project_y(y - alpha * (f_y + gamma * g_y))
        return ValueState(x, y, w), {"gradient_sq": hypergrad.square().sum()}

    cost = Cost(grad_g=T + 2, grad_f=1, batch=batch)
    return Algorithm(lambda x, y: ValueState(x, y, y), step, first_order=True, cost=cost)


@version(2)
def gpbgd(
    outer_lr: Positive,
    gamma: Positive = 10.0,
    batch: Count | None = None,
    ratio: Positive = 1.0,
) -> Algorithm:
    """G-PBGD: the penalty is the squared norm of g_y.

    outer_lr: the step size of y, times max(gamma, 1). ratio: that of x over that of y; the paper's
    is 1. gamma: the weight of the penalty. batch: the samples of a batch; None: all the data.

    Caveat: the penalty's weight is finite, so that the end is off by about 1 / gamma; and steps
    that stay stable with a large gamma are slow, as they are of about 1 / gamma. Where `batch` is
    set, both factors of g_yy g_y are of one batch, so that the variance of g_y is penalised too.
    """
    alpha = outer_lr / max(gamma, 1.0)

    def step(o: Oracle, s: GradientState, draw: Draw) -> tuple[GradientState, dict[str, Tensor]]:
        x, y = s
        f_x, f_y = o.grad_f(x, y, draw.f(batch))
        g_y, products = o.linearise_g_y(x, y, draw.g(batch))
        mixed, curved = products.both(g_y)
        hypergrad = f_x + 2 * gamma * mixed
        x, y = (
            o.project(x - ratio * alpha * hypergrad),
            o.project_y(y - alpha * (f_y + 2 * gamma * curved)),
        )
        return GradientState(x, y), {"gradient_sq": hypergrad.square().sum()}

    cost = Cost(grad_g=1, grad_f=1, hvp_g=1, jvp_g=1, batch=batch)
    return Algorithm(GradientState, step, cost=cost)
