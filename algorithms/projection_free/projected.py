"""What projection-free methods are held against: projected gradient descent, and projected SVRG in
minibatches (Reddi, Hefny, Sra, Poczos, Smola, ICML 2016; Reddi et al., NeurIPS 2016, ProxSVRG).

Paper -> here: eta -> outer_lr, m -> epoch, b -> batch.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from bench.core.algorithm import Algorithm, Cost, Moment
from bench.core.draw import Draw
from bench.core.oracle import Oracle
from bench.core.settings import Count, Positive


class State(NamedTuple):
    x: Tensor
    y: Tensor


def projected_gradient(outer_lr: Positive, batch: Count | None = None) -> Algorithm:
    """Projected gradient descent: x = P(x - outer_lr grad f(x)).

    outer_lr: the step size. batch: the samples of a batch; None: all the data.
    """

    def step(o: Oracle, s: State, draw: Draw) -> tuple[State, dict[str, Tensor]]:
        gradient = o.f_x(s.x, s.y, draw.f(batch))
        return State(o.project(s.x - outer_lr * gradient), s.y), {
            "gradient_sq": gradient.square().sum()
        }

    return Algorithm(State, step, cost=Cost(grad_f=1, project=1, batch=batch), kind="single-level")


class SvrgState(NamedTuple):
    x: Tensor
    y: Tensor
    snapshot: Tensor  # x at the start of the epoch
    full: Tensor  # the gradient there, of all the data


def svrg(outer_lr: Positive, epoch: Count = 10, batch: Count | None = None) -> Algorithm:
    """Projected SVRG.

    outer_lr: the step size. epoch: steps between gradients of all the data. batch: the samples of a
    batch; None: all the data. Its theory has epoch = n^(1/3) and batch = n^(2/3) for n samples.
    """

    def step(o: Oracle, s: SvrgState, draw: Draw) -> tuple[SvrgState, dict[str, Tensor]]:
        snapshot, full = s.snapshot, s.full
        if draw.step % epoch == 0:
            snapshot, full = s.x, o.f_x(s.x, s.y, draw.f(None))
        sample = draw.f(batch)
        v = o.f_x(s.x, s.y, sample) - o.f_x(snapshot, s.y, sample) + full
        new = o.project(s.x - outer_lr * v)
        return SvrgState(new, s.y, snapshot, full), {"gradient_sq": v.square().sum()}

    def cost(at: Moment) -> Cost:
        later = Cost(grad_f=2, project=1, batch=batch)
        return later + Cost(grad_f=1) if at.step % epoch == 0 else later

    return Algorithm(
        lambda x, y: SvrgState(x, y, x, torch.zeros_like(x)), step, cost=cost, kind="single-level"
    )
