"""Single-loop methods that move y, x and the solution v of the linear system together: SOBA
(Dagreou, Ablin, Vaiter, Moreau, NeurIPS 2022, Algorithm 1), MA-SOBA (Chen, Xiao, Balasubramanian,
JMLR 2024, Algorithm 1), FSLA (Li, Gu, Huang, AAAI 2022, Algorithm 1), AmIGO (Arbel and Mairal,
ICLR 2022, Algorithm 1).

Paper -> here: the step size of y -> inner_lr, of v -> system_lr, of x -> outer_lr. Here v
approximates g_yy^{-1} f_y (SOBA's paper has its negative), and the hypergradient is f_x - g_xy v.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from bench.core.algorithm import Algorithm, Cost
from bench.core.draw import Draw
from bench.core.oracle import Oracle
from bench.core.settings import Count, Fraction, NonNegative, Positive, Share
from bench.numerics.descent import Descent


class State(NamedTuple):
    x: Tensor
    y: Tensor
    v: Tensor
    h: Tensor  # the moving average of the hypergradients; AmIGO leaves it at zero
    outer: Any


def soba(
    outer: Descent,
    outer_lr: Positive,
    inner_lr: Positive,
    system_lr: Positive,
    average: Share = 1.0,
    decay: NonNegative = 0.0,
    batch: Count | None = None,
) -> Algorithm:
    """SOBA, and MA-SOBA: all three directions are of the same point and of the same two batches.

    outer, outer_lr: the rule and the size of the step on x. inner_lr, system_lr: the step sizes of
    y and v. average: theta of h = (1 - theta) h + theta D_x, the direction of x; 1 is SOBA, less
    than 1 is MA-SOBA, whose x moves along the new h here, and along the last one in its paper.
    decay: all step sizes fall as (k + 1)^-decay, with 1/2 in SOBA's experiments; this is not meant
    for Adam. batch: the samples of a batch; None: all the data.
    """

    def step(o: Oracle, s: State, draw: Draw) -> tuple[State, dict[str, Tensor]]:
        x, y, v = s.x, s.y, s.v
        xi, zeta = draw.f(batch), draw.g(batch)
        f_x, f_y = o.grad_f(x, y, xi)
        D_y, products = o.linearise_g_y(x, y, zeta)
        mixed, curved = products.both(v)
        D_v, D_x = curved - f_y, f_x - mixed

        fall = (draw.step + 1) ** -decay
        h = D_x if average == 1 else (1 - average) * s.h + average * D_x
        y, v = o.project_y(y - inner_lr * fall * D_y), v - system_lr * fall * D_v
        x, memory = outer.step(x, fall * h, outer_lr, s.outer)
        return State(o.project(x), y, v, h, memory), {"hypergrad_sq": D_x.square().sum()}

    cost = Cost(grad_g=1, grad_f=1, hvp_g=1, jvp_g=1, batch=batch)
    return Algorithm(lambda x, y: _start(x, y, outer), step, cost=cost)


class FslaState(NamedTuple):
    x: Tensor
    y: Tensor
    v: Tensor
    d: Tensor  # the direction in x
    last: tuple[Tensor, Tensor, Tensor]  # x, y and v of the step before


def fsla(
    outer_lr: Positive,
    inner_lr: Positive,
    system_lr: Positive,
    eta: Fraction = 0.5,
    decay: NonNegative = 0.5,
    batch: Count | None = None,
) -> Algorithm:
    """FSLA: one step in y and one in v, then one in x along d_k = D_k(now) + (1 - eta_k)(d_{k-1} -
    D_k(before)), where both estimates D_k are of the same batches.

    outer_lr, inner_lr, system_lr: the step sizes of x, y and v. eta: eta_0. decay: eta_k and all
    step sizes fall as (k + 1)^-decay. batch: the samples of a batch; None: all the data.

    Caveat: its step sizes fall, and it comes closer more and more slowly.
    """

    def step(o: Oracle, s: FslaState, draw: Draw) -> tuple[FslaState, dict[str, Tensor]]:
        fall = (draw.step + 1) ** -decay
        y = o.project_y(s.y - inner_lr * fall * o.g_y(s.x, s.y, draw.g(batch)))
        system = o.g_yy(s.x, y, draw.g(batch))(s.v) - o.f_y(s.x, y, draw.f(batch))
        v = s.v - system_lr * fall * system

        xi, zeta = draw.f(batch), draw.g(batch)
        now = o.f_x(s.x, y, xi) - o.g_xy(s.x, y, zeta)(v)
        x_0, y_0, v_0 = s.last
        before = o.f_x(x_0, y_0, xi) - o.g_xy(x_0, y_0, zeta)(v_0)
        kept = 1 - eta * fall if draw.step else 0.0  # d_0 is the plain estimate
        d = now + kept * (s.d - before)

        x = o.project(s.x - outer_lr * fall * d)
        return FslaState(x, y, v, d, (s.x, y, v)), {"hypergrad_sq": now.square().sum()}

    def init(x: Tensor, y: Tensor) -> FslaState:
        v = torch.zeros_like(y)
        return FslaState(x, y, v, torch.zeros_like(x), (x, y, v))

    cost = Cost(grad_g=1, grad_f=3, hvp_g=1, jvp_g=2, batch=batch)
    return Algorithm(init, step, cost=cost)


def amigo(
    outer: Descent,
    outer_lr: Positive,
    inner_lr: Positive,
    system_lr: Positive,
    T: Count = 10,
    Q: Count = 10,
    batch: Count | None = None,
) -> Algorithm:
    """AmIGO: T warm-started steps in y, then Q warm-started steps of gradient descent in v.

    outer, outer_lr: the rule and the size of the step on x. inner_lr, system_lr: the step sizes of
    y and v. batch: the samples of a batch; None: all the data.
    """

    def step(o: Oracle, s: State, draw: Draw) -> tuple[State, dict[str, Tensor]]:
        x, y, v = s.x, s.y, s.v
        for _ in range(T):
            y = o.project_y(y - inner_lr * o.g_y(x, y, draw.g(batch)))
        f_x, f_y = o.grad_f(x, y, draw.f(batch))
        for _ in range(Q):
            v = v - system_lr * (o.g_yy(x, y, draw.g(batch))(v) - f_y)
        hypergrad = f_x - o.g_xy(x, y, draw.g(batch))(v)
        x, memory = outer.step(x, hypergrad, outer_lr, s.outer)
        return State(o.project(x), y, v, s.h, memory), {"hypergrad_sq": hypergrad.square().sum()}

    cost = Cost(grad_g=T, grad_f=1, hvp_g=Q, jvp_g=1, batch=batch)
    return Algorithm(lambda x, y: _start(x, y, outer), step, cost=cost)


def _start(x: Tensor, y: Tensor, outer: Descent) -> State:
    return State(x, y, torch.zeros_like(y), torch.zeros_like(x), outer.init(x))
