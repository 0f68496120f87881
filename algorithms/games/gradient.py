"""Gradient descent-ascent and optimistic gradient descent (Daskalakis, Ilyas, Syrgkanis, Zeng,
ICLR 2018), the minimax baselines of BOME's figure 1.

A minimax task has g = -f, so that y descends g where the papers' theta ascends f.
Paper -> here: eta -> outer_lr, the step size of both players.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from bench.core.algorithm import Algorithm, Cost
from bench.core.draw import Draw
from bench.core.oracle import Oracle
from bench.core.settings import Count, Positive


class State(NamedTuple):
    x: Tensor
    y: Tensor


class Optimistic(NamedTuple):
    x: Tensor
    y: Tensor
    old_x: Tensor  # the point k-1 of the released code
    old_y: Tensor
    gradient_x: Tensor  # f_x of the step before
    gradient_y: Tensor  # g_y of the step before
    k: Tensor  # steps so far


def gda(outer_lr: Positive, batch: Count | None = None) -> Algorithm:
    """Gradient descent-ascent: x_{k+1} = x_k - outer_lr f_x and y_{k+1} = y_k - outer_lr g_y.

    Both gradients are of the point (x_k, y_k). outer_lr: the step size of both. batch: the samples
    of a batch; None: all the data.
    """

    def step(o: Oracle, s: State, draw: Draw) -> tuple[State, dict[str, Tensor]]:
        f_x, g_y = o.f_x(s.x, s.y, draw.f(batch)), o.g_y(s.x, s.y, draw.g(batch))
        new = State(o.project(s.x - outer_lr * f_x), o.project_y(s.y - outer_lr * g_y))
        return new, {"gradient_sq": f_x.square().sum() + g_y.square().sum()}

    cost = Cost(grad_f=1, grad_g=1, batch=batch)
    return Algorithm(State, step, first_order=True, cost=cost, kind="minimax")


def optimistic_gd(
    outer_lr: Positive,
    variant: Literal["paper", "code"] = "paper",
    stale: Count = 10,
    batch: Count | None = None,
) -> Algorithm:
    """Optimistic descent: x_{k+1} = x_k - 2 outer_lr f_x(k) + outer_lr f_x(k-1), and y likewise.

    outer_lr: the step size of both. variant: "code" is BOME's released toy_adv.py, which updates y
    after x with the new x, and whose k-1 is a point recorded after step 1 and then every `stale`
    steps; before that it is twice the start point. As released, it keeps neither variable in its
    set. batch: the samples of a batch; None: all the data.
    """

    def init(x: Tensor, y: Tensor) -> Optimistic:
        zeros = torch.zeros_like(x), torch.zeros_like(y)
        return Optimistic(x, y, 2 * x, 2 * y, *zeros, x.new_zeros(()))

    def paper(o: Oracle, s: Optimistic, draw: Draw) -> tuple[Optimistic, dict[str, Tensor]]:
        f_x, g_y = o.f_x(s.x, s.y, draw.f(batch)), o.g_y(s.x, s.y, draw.g(batch))
        first = s.k == 0  # there is no earlier gradient, and the step is a plain one
        x = o.project(s.x - 2 * outer_lr * f_x + outer_lr * torch.where(first, f_x, s.gradient_x))
        y = o.project_y(s.y - 2 * outer_lr * g_y + outer_lr * torch.where(first, g_y, s.gradient_y))
        new = Optimistic(x, y, s.x, s.y, f_x, g_y, s.k + 1)
        return new, {"gradient_sq": f_x.square().sum() + g_y.square().sum()}

    def code(o: Oracle, s: Optimistic, draw: Draw) -> tuple[Optimistic, dict[str, Tensor]]:
        xi, zeta = draw.f(batch), draw.g(batch)
        f_x = o.f_x(s.x, s.y, xi)
        x = s.x - 2 * outer_lr * f_x + outer_lr * o.f_x(s.old_x, s.old_y, xi)
        g_y = o.g_y(x, s.y, zeta)
        y = s.y - 2 * outer_lr * g_y + outer_lr * o.g_y(s.old_x, s.old_y, zeta)
        record = (s.k == 0) | ((s.k + 1) % stale == 0)
        old_x, old_y = torch.where(record, x, s.old_x), torch.where(record, y, s.old_y)
        new = Optimistic(x, y, old_x, old_y, f_x, g_y, s.k + 1)
        return new, {"gradient_sq": f_x.square().sum() + g_y.square().sum()}

    step, gradients = (paper, 1) if variant == "paper" else (code, 2)
    cost = Cost(grad_f=gradients, grad_g=gradients, batch=batch)
    return Algorithm(init, step, first_order=True, cost=cost, kind="minimax")
