"""Frank-Wolfe for nonconvex losses: FW (Lacoste-Julien 2016, Algorithm 1), and the stochastic SFW,
SVFW and SAGAFW (Reddi, Sra, Poczos, Smola, Allerton 2016, Algorithms 2 to 4).

Paper -> here: theta -> x, d_t -> d, C -> L diameter^2, gamma_t -> gamma (FW: by `rule`); for SVFW
m -> epoch, b -> batch. The set's diameter enters as `diameter` (Frobenius for matrices).

Each step takes one linear minimisation s of the gradient (or its estimate) and moves to
x + gamma (s - x), which is always feasible.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from bench.core.algorithm import Algorithm, Cost, Moment
from bench.core.draw import Draw
from bench.core.oracle import Oracle
from bench.core.settings import Count, Positive, Share

TRIALS = 40  # The line search tries gamma = 1, 1/2, ... while that is above 1e-12: so many values.


class State(NamedTuple):
    x: Tensor
    y: Tensor


def fw(
    L: Positive,
    diameter: Positive,
    rule: Literal["gap", "line", "decreasing"] = "gap",
    accuracy: Positive = 1e-6,
    batch: Count | None = None,
) -> Algorithm:
    """FW.

    L: the smoothness of f. diameter: of the set. rule: gamma is min(gap / (L diameter^2), 1)
    ("gap"), or the largest of 1, 1/2, ... with half the decrease of the linear model (Armijo,
    "line"), or 2 / (k + 2) ("decreasing"). accuracy: of the linear minimisation, as a part of
    |gradient| diameter, the scale of the gap. batch: the samples of a batch; None: all the data.
    """

    def step(o: Oracle, s: State, draw: Draw) -> tuple[State, dict[str, Tensor]]:
        xi = draw.f(batch)
        gradient = o.f_x(s.x, s.y, xi)
        d = vertex(o, gradient, accuracy, diameter) - s.x
        gap = -(gradient * d).sum()
        if rule == "gap":
            gamma = (gap / (L * diameter**2)).clamp(0, 1)
        elif rule == "decreasing":
            gamma = gap.new_tensor(2 / (draw.step + 2))
        else:
            gamma, f = gap.new_ones(()), o.f(s.x, s.y, xi)
            # a value that is not a number is no decrease
            while gamma > 1e-12 and not o.f(s.x + gamma * d, s.y, xi) <= f - gamma * gap / 2:
                gamma = gamma / 2
        return State(s.x + gamma * d, s.y), {"fw_gap": gap, "gamma": gamma}

    cost = Cost(grad_f=1, lmo=1, batch=batch)
    if rule == "line":
        cost += Cost(value_f=2, batch=batch) + Cost(value_f=TRIALS - 1, batch=batch, at_most=True)
    return Algorithm(State, step, cost=cost, kind="single-level")


def sfw(
    diameter: Positive,
    gamma: Share = 0.05,
    accuracy: Positive = 1e-6,
    batch: Count | None = None,
) -> Algorithm:
    """SFW: each step takes a new batch.

    diameter: of the set. gamma: the step size, at most 1. accuracy: of the
    linear minimisation, as for `fw`. batch: the samples of a batch; None: all the data.
    """

    def step(o: Oracle, s: State, draw: Draw) -> tuple[State, dict[str, Tensor]]:
        gradient = o.f_x(s.x, s.y, draw.f(batch))
        d = vertex(o, gradient, accuracy, diameter) - s.x
        return State(s.x + gamma * d, s.y), {"fw_gap": -(gradient * d).sum()}

    return Algorithm(State, step, cost=Cost(grad_f=1, lmo=1, batch=batch), kind="single-level")


class SvState(NamedTuple):
    x: Tensor
    y: Tensor
    snapshot: Tensor  # x at the start of the epoch
    full: Tensor  # the gradient there, of all the data


def svfw(
    diameter: Positive,
    gamma: Share = 0.05,
    epoch: Count = 10,
    accuracy: Positive = 1e-6,
    batch: Count | None = None,
) -> Algorithm:
    """SVFW: the variance is reduced by a gradient of all the data every `epoch` steps.

    diameter, gamma, accuracy, batch: as for `sfw`.
    """

    def step(o: Oracle, s: SvState, draw: Draw) -> tuple[SvState, dict[str, Tensor]]:
        snapshot, full = s.snapshot, s.full
        if draw.step % epoch == 0:
            snapshot, full = s.x, o.f_x(s.x, s.y, draw.f(None))
        sample = draw.f(batch)
        v = o.f_x(s.x, s.y, sample) - o.f_x(snapshot, s.y, sample) + full
        d = vertex(o, v, accuracy, diameter) - s.x
        new = s.x + gamma * d
        return SvState(new, s.y, snapshot, full), {"fw_gap": -(v * d).sum()}

    def cost(at: Moment) -> Cost:
        later = Cost(grad_f=2, lmo=1, batch=batch)
        return later + Cost(grad_f=1) if at.step % epoch == 0 else later

    return Algorithm(
        lambda x, y: SvState(x, y, x, torch.zeros_like(x)), step, cost=cost, kind="single-level"
    )


class SagaState(NamedTuple):
    x: Tensor
    y: Tensor
    table: Tensor  # the last gradient of each block, [blocks, *x]


def sagafw(
    diameter: Positive,
    gamma: Share = 0.05,
    blocks: Count = 16,
    accuracy: Positive = 1e-6,
) -> Algorithm:
    """SAGAFW: the variance is reduced by a table of gradients, each of a block of samples.

    The paper's table has a gradient of each sample, and a step draws two batches: one for its
    direction, one whose gradients go into the table. Here a step draws one block, which serves as
    both and takes half of the gradients. Blocks are of consecutive samples.

    blocks: into how many blocks the samples are cut. diameter, gamma, accuracy: as for `sfw`.
    """

    def step(o: Oracle, s: SagaState, draw: Draw) -> tuple[SagaState, dict[str, Tensor]]:
        data = draw.blocks("upper", blocks)
        table = s.table
        if draw.step == 0:
            table = torch.stack([o.f_x(s.x, s.y, data[b]) for b in range(blocks)])
        share = table.new_tensor([data.share(b) for b in range(blocks)])
        b = draw.integer(blocks)
        new = o.f_x(s.x, s.y, data[b])
        v = share[b] * blocks * (new - table[b]) + torch.tensordot(share, table, 1)
        table = table.index_copy(0, torch.tensor([b]).to(table.device), new[None])
        d = vertex(o, v, accuracy, diameter) - s.x
        return SagaState(s.x + gamma * d, s.y, table), {"fw_gap": -(v * d).sum()}

    def cost(at: Moment) -> Cost:
        filling = 0 if at.step else blocks  # The first step fills the table.
        return Cost(grad_f=1 + filling, blocks=blocks) + Cost(lmo=1)

    return Algorithm(
        lambda x, y: SagaState(x, y, x.new_zeros(blocks, *x.shape)),
        step,
        cost=cost,
        kind="single-level",
    )


def vertex(o: Oracle, gradient: Tensor, accuracy: float, diameter: float) -> Tensor:
    """A feasible point with <gradient, .> within accuracy |gradient| diameter of its minimum."""
    return o.lmo(gradient, accuracy * diameter * float(gradient.norm()))
