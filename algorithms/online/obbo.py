"""OBBO and SOBBO: online Bregman bilevel optimisation (Bohne, Rosenberg, Kazantsev, Polak, 2024).

Paper -> here: the step size of y -> inner_lr, of x -> outer_lr; w -> window; K -> K.

The descriptions at hand leave some things open. The choices here: OBBO's Bregman divergence is the
squared Euclidean distance, whose step is a projected gradient step, because F2OBO's comparison
names no other and has a box to project on. The hypergradient goes back through the K inner steps,
as F2OBO says that OBBO's does. SOBBO's abstract speaks of a weighted average, and F2OBO of a window
alone: the weights are equal here. Losses before round 1 are zero, so that the first w - 1 averages
are over w rounds too.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from bench.core.algorithm import Algorithm, Cost
from bench.core.draw import Draw
from bench.core.oracle import Oracle
from bench.core.settings import Count, Positive
from bench.core.task import Batch


class State(NamedTuple):
    x: Tensor
    y: Tensor
    past: tuple[Tensor, ...]  # the last hypergradients, newest last; zero before the first round


def obbo(
    inner_lr: Positive, outer_lr: Positive, K: Count = 5, batch: Count | None = None
) -> Algorithm:
    """OBBO: all inner steps of a round see its g_t whole, or the same batch of it.

    inner_lr, K: the size and the number of the inner steps. outer_lr: the step size of x. batch:
    the samples of a batch; None: all the data of a round.

    Caveat: K steps do not end at y* and v*, which biases the hypergradient, the more the worse the
    lower level is conditioned; a larger K mends this.
    """

    def step(o: Oracle, s: State, draw: Draw) -> tuple[State, dict[str, Tensor]]:
        xi, zetas = draw.f(batch), [draw.g(batch)] * K
        hypergrad, y = unroll(o, s.x, s.y, xi, zetas, inner_lr)
        x = o.project(s.x - outer_lr * hypergrad)
        return State(x, y, ()), {"hypergrad_sq": hypergrad.square().sum()}

    return Algorithm(lambda x, y: State(x, y, ()), step, cost=_cost(K, batch))


def sobbo(
    inner_lr: Positive,
    outer_lr: Positive,
    K: Count = 5,
    window: Count = 50,
    batch: Count | None = None,
) -> Algorithm:
    """SOBBO: every inner step has its own samples, and x moves along a mean of hypergradients.

    The Hessian and the Jacobian of an inner step are of that step's samples. The mean is that of
    the last `window` stochastic hypergradients. Each is kept from its own round, so that the
    average takes no samples of its own; F2OBO's table 2 counts batches that grow with the window.
    inner_lr, K: the size and the number of the inner steps. outer_lr: the step size of x. batch:
    the samples of a batch; None: all the data of a round.

    Caveat: K steps do not end at y* and v*, which biases the hypergradient, the more the worse the
    lower level is conditioned; a larger K helps. x follows an average over a window, and comes
    closer slowly.
    """

    def step(o: Oracle, s: State, draw: Draw) -> tuple[State, dict[str, Tensor]]:
        xi, zetas = draw.f(batch), [draw.g(batch) for _ in range(K)]
        hypergrad, y = unroll(o, s.x, s.y, xi, zetas, inner_lr)
        past = (*s.past[1:], hypergrad)
        average = sum(past, torch.zeros_like(s.x)) / window
        x = o.project(s.x - outer_lr * average)
        return State(x, y, past), {"hypergrad_sq": average.square().sum()}

    def init(x: Tensor, y: Tensor) -> State:
        return State(x, y, (torch.zeros_like(x),) * window)

    return Algorithm(init, step, cost=_cost(K, batch))


def _cost(K: int, batch: int | None) -> Cost:
    """The first inner step has no Hessian-vector product, as the last y does not depend on x."""
    return Cost(grad_g=K, grad_f=1, jvp_g=K, hvp_g=K - 1, batch=batch)


def unroll(
    o: Oracle, x: Tensor, y: Tensor, xi: Batch, zetas: list[Batch], lr: float
) -> tuple[Tensor, Tensor]:
    """(the derivative of f(x, y_K(x)) through the inner steps, y_K), for a given y_0."""
    steps = []
    for zeta in zetas:
        gradient, products = o.linearise_g_y(x, y, zeta)
        steps.append(products)
        y = o.project_y(y - lr * gradient)
    hypergrad, a = o.grad_f(x, y, xi)
    for products in reversed(steps[1:]):
        mixed, curved = products.both(a)
        hypergrad, a = hypergrad - lr * mixed, a - lr * curved
    return hypergrad - lr * steps[0].xy(a), y
